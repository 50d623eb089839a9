"""Build the model of a case from its config, with random weights, and random batches for it."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers.integrations import HfDeepSpeedConfig, is_deepspeed_zero3_enabled

from zerowiz.worker.batch_files import Case, write_json
from zerowiz.worker.errors import MissingLibraryError
from zerowiz.worker.losses import replace_loss
from zerowiz.worker.quantized import quantize

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
# transformers takes sdpa by default where a model supports it, and refuses it by name where not.
ATTENTION = {"sdpa": None, "flash": "flash_attention_2", "eager": "eager"}
# The usual crop of ImageNet, for a config that leaves the size to the preprocessor.
IMAGE_SIZE = 224
# In this order: an encoder has a causal head as well, and an encoder-decoder has all three.
HEADS = (
    "AutoModelForSeq2SeqLM",
    "AutoModelForMaskedLM",
    "AutoModelForCausalLM",
    "AutoModelForImageClassification",
)
_SHARDED_PARAMETERS = 3


def _read_config(case: Case, folder: Path) -> Any:  # noqa: ANN401 - untyped libraries
    """The config as transformers reads it: from a folder, or by the hub id of the case."""
    if not case["config"]:
        return transformers.AutoConfig.from_pretrained(case["model"])
    own = folder / "model"
    own.mkdir(exist_ok=True)
    write_json(own / "config.json", case["config"])
    return transformers.AutoConfig.from_pretrained(own)


def _model_class(config: Any) -> Any:  # noqa: ANN401
    """The class that `architectures` names, where it has a loss, else an Auto class with one."""
    for name in config.architectures or ():
        named = getattr(transformers, name, None)
        if named is not None and not name.endswith("Model"):
            return named
    heads = (getattr(transformers, name) for name in HEADS)
    fitting = (head for head in heads if type(config) in head._model_mapping)  # noqa: SLF001
    return next(fitting, transformers.AutoModelForCausalLM)


def _from_config(case: Case, config: Any) -> Any:  # noqa: ANN401
    named = _model_class(config)
    make = getattr(named, "_from_config", None) or named.from_config
    attention = ATTENTION[case["attention"]]
    return make(config, dtype=DTYPES[case["precision"]], attn_implementation=attention)


def in_shards(case: Case) -> bool:
    """Whether stage 3 builds the model in shards; what is quantized has to be whole first."""
    return case["zero_init"] and not case["quantized"]


@contextmanager
def _weights_on(case: Case, device: torch.device) -> Iterator[None]:
    """Create weights whole on this rank's device, or in shards under `zero.Init`.

    transformers builds under `zero.Init` as long as an HfDeepSpeedConfig of stage 3 exists, so the
    variable `keep_alive` must live until the model is built. TrainingArguments hold one themselves.
    """
    stage = case["ds_config"].get("zero_optimization", {}).get("stage")
    sharded = stage == _SHARDED_PARAMETERS and in_shards(case)
    held = is_deepspeed_zero3_enabled()
    keep_alive = HfDeepSpeedConfig(dict(case["ds_config"])) if sharded and not held else None
    # A layer that is quantized goes to its device in 4 bits.
    whole = torch.device("cpu") if case["quantized"] else device
    with nullcontext() if held or keep_alive is not None else whole:
        yield


def _with_adapters(model: Any, case: Case) -> Any:  # noqa: ANN401
    try:
        import peft  # noqa: PLC0415 - only LoRA needs it
    except ImportError as error:
        raise MissingLibraryError(f"peft cannot be loaded: {error}") from error
    targets = list(case["lora_target_modules"]) or "all-linear"
    config = peft.LoraConfig(r=case["lora_rank"], target_modules=targets)
    return peft.get_peft_model(model, config)


def build_model(case: Case, folder: Path, device: torch.device) -> Any:  # noqa: ANN401
    """The model of the case, in training mode.

    Raises:
        MissingLibraryError: peft, bitsandbytes or liger-kernel is needed and cannot be loaded.
    """
    config = _read_config(case, folder)
    config.use_cache = False
    if config.is_encoder_decoder and config.decoder_start_token_id is None:
        config.decoder_start_token_id = config.pad_token_id or 0
    with _weights_on(case, device):
        model = _from_config(case, config)
    replace_loss(model, case["loss"])
    if case["quantized"]:
        quantize(model, DTYPES[case["precision"]], device)
        model.to(device)
    if case["lora_rank"] is not None:
        model = _with_adapters(model, case)
    # The Trainer turns it on by itself.
    if case["gradient_checkpointing"] and case["kind"] != "trainer":
        model.gradient_checkpointing_enable({"use_reentrant": False})
    return model.train()


def count_params(model: Any, *, trainable: bool) -> int:  # noqa: ANN401
    """Elements of all parameters, or of the trainable ones; a shard counts as its whole tensor."""
    return sum(
        _numel(parameter)
        for parameter in model.parameters()
        if parameter.requires_grad or not trainable
    )


def _numel(parameter: Any) -> int:  # noqa: ANN401
    """Elements of the whole weight, also where it is sharded by ZeRO-3 or packed in 4 bits."""
    packed = getattr(parameter, "quant_state", None)
    if packed is not None:
        return int(packed.shape.numel())
    return int(getattr(parameter, "ds_numel", parameter.numel()))


def make_batch(model: Any, case: Case, device: torch.device) -> dict[str, torch.Tensor]:  # noqa: ANN401
    """Random tokens, which are their own labels; random images for a model that reads images."""
    if model.main_input_name == "pixel_values":
        return _make_images(model.config, case, device)
    vocab_size = model.config.get_text_config().vocab_size
    shape = (case["micro_batch"], case["sequence_tokens"])
    tokens = torch.randint(vocab_size, shape, device=device)
    if not case["packing"]:
        return {"input_ids": tokens, "labels": tokens}
    # One row of all sequences; a new sequence starts where the positions start again.
    packed = tokens.view(1, -1)
    positions = torch.arange(case["sequence_tokens"], device=device).repeat(case["micro_batch"])
    return {"input_ids": packed, "labels": packed, "position_ids": positions[None]}


def _make_images(config: Any, case: Case, device: torch.device) -> dict[str, torch.Tensor]:  # noqa: ANN401
    """Random images, each with a class."""
    size = getattr(config, "image_size", None) or IMAGE_SIZE
    height, width = (size, size) if isinstance(size, int) else size
    shape = (case["micro_batch"], config.num_channels, height, width)
    images = torch.rand(shape, dtype=DTYPES[case["precision"]], device=device)
    labels = torch.randint(config.num_labels, shape[:1], device=device)
    return {"pixel_values": images, "labels": labels}
