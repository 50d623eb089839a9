"""Build the model of a case from its config, with random weights, and random batches for it."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers.integrations import HfDeepSpeedConfig

from zerowiz.worker.marks import write_mark
from zerowiz.worker.optimizers import MissingLibraryError

Case = Mapping[str, Any]

_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
_ATTENTION = {"sdpa": "sdpa", "flash": "flash_attention_2", "eager": "eager"}
_SHARDED_PARAMETERS = 3


def _read_config(case: Case, folder: Path) -> Any:  # noqa: ANN401 - untyped libraries
    """The config as transformers reads it: from a folder, or by the hub id that was named."""
    if not case["config"]:
        return transformers.AutoConfig.from_pretrained(case["model"])
    own = folder / "model"
    own.mkdir(exist_ok=True)
    write_mark(own / "config.json", dict(case["config"]))
    return transformers.AutoConfig.from_pretrained(own)


def _model_class(config: Any) -> Any:  # noqa: ANN401
    """The class that `architectures` names, where it has a loss, else the Auto class that has."""
    for name in config.architectures or ():
        named = getattr(transformers, name, None)
        if named is not None and not name.endswith("Model"):
            return named
    if config.is_encoder_decoder:
        return transformers.AutoModelForSeq2SeqLM
    causal = type(config) in transformers.AutoModelForCausalLM._model_mapping  # noqa: SLF001
    return transformers.AutoModelForCausalLM if causal else transformers.AutoModelForMaskedLM


def _from_config(case: Case, config: Any) -> Any:  # noqa: ANN401
    named = _model_class(config)
    make = getattr(named, "_from_config", None) or named.from_config
    attention = _ATTENTION[case["attention"]]
    return make(config, dtype=_DTYPES[case["precision"]], attn_implementation=attention)


@contextmanager
def _placed(case: Case, device: torch.device) -> Iterator[None]:
    """Where weights appear: whole on this rank's device, or under `zero.Init` in shards.

    transformers builds under `zero.Init` as long as a living HfDeepSpeedConfig says stage 3.
    """
    sharded = case["ds_config"].get("zero_optimization", {}).get("stage") == _SHARDED_PARAMETERS
    alive = HfDeepSpeedConfig(dict(case["ds_config"])) if sharded and case["zero_init"] else None
    with device if alive is None else nullcontext():
        yield


def _with_adapters(model: Any, rank: int) -> Any:  # noqa: ANN401
    try:
        import peft  # noqa: PLC0415 - only LoRA needs it
    except ImportError as error:
        raise MissingLibraryError(f"peft cannot be loaded: {error}") from error
    return peft.get_peft_model(model, peft.LoraConfig(r=rank, target_modules="all-linear"))


def build_model(case: Case, folder: Path, device: torch.device) -> Any:  # noqa: ANN401
    """The model in training mode."""
    config = _read_config(case, folder)
    config.use_cache = False
    if config.is_encoder_decoder and config.decoder_start_token_id is None:
        config.decoder_start_token_id = config.pad_token_id or 0
    with _placed(case, device):
        model = _from_config(case, config)
    if case["lora_rank"] is not None:
        model = _with_adapters(model, case["lora_rank"])
    if case["gradient_checkpointing"]:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    return model.train()


def count_params(model: Any, *, trainable: bool) -> int:  # noqa: ANN401
    """Elements of all parameters, or of those that train; a shard counts for its whole tensor."""
    return sum(
        getattr(parameter, "ds_numel", parameter.numel())
        for parameter in model.parameters()
        if parameter.requires_grad or not trainable
    )


def make_batch(model: Any, case: Case, device: torch.device) -> dict[str, torch.Tensor]:  # noqa: ANN401
    """Random tokens, which are their own labels."""
    vocab_size = model.config.get_text_config().vocab_size
    shape = (case["micro_batch"], case["sequence_tokens"])
    tokens = torch.randint(vocab_size, shape, device=device)
    return {"input_ids": tokens, "labels": tokens}
