"""Find number formats that contradict each other."""

from collections.abc import Iterator, Mapping

from zerowiz.core.dsconfig.lint.codes import (
    ANOTHER_PARAM_DTYPE,
    BF16_EMULATED,
    FP16_ON_NEW_GPU,
    FP16_REFUSED,
    STATES_WITHOUT_MASTER,
    TWO_PRECISIONS,
    ZERO_WITHOUT_16_BIT,
)
from zerowiz.core.dsconfig.lint.config import Config
from zerowiz.core.dsconfig.lint.finding import ConfigFinding
from zerowiz.core.dsconfig.lint.rules.offload import offloads
from zerowiz.core.workload import Integration

_MASTER = "bf16.bf16_master_weights_and_grads"
_FP16_MASTER = "fp16.fp16_master_weights_and_grads"
_STATES = "bf16.bf16_optimizer_states"
# runtime/config.py, DtypeEnum.
_DTYPES: Mapping[str, str] = {
    **dict.fromkeys(("torch.float16", "fp16", "float16", "half"), "fp16"),
    **dict.fromkeys(("torch.bfloat16", "bf16", "bfloat16"), "bf16"),
    **dict.fromkeys(("torch.float32", "fp32", "float32", "float"), "fp32"),
}

# torch/cuda/__init__.py, is_bf16_supported: below that it is emulated, and still said to be there.
_BF16_CAPABILITY = (8, 0)
# accelerator/cuda_accelerator.py, is_fp16_supported; DS_ALLOW_DEPRECATED_FP16=1 lets 6.x through.
_FP16_CAPABILITY = (7, 0)
_DEPRECATED_FP16_CAPABILITY = (6, 0)
# runtime/precision_config.py, DeepSpeedFP16Config: its defaults, written out.
_FP16 = (
    '"fp16": {"enabled": true, "loss_scale": 0, "loss_scale_window": 1000, '
    '"initial_scale_power": 16, "hysteresis": 2, "min_loss_scale": 1}'
)


def check_precision(config: Config) -> Iterator[ConfigFinding]:
    """Precisions, their 16-bit states, and the dtype of the parameters."""
    yield from _two(config)
    yield from _states(config)
    yield from _masters(config)
    yield from _none(config)
    yield from _param_dtype(config)
    yield from _on_gpu(config)


def _two(config: Config) -> Iterator[ConfigFinding]:
    # runtime/config.py, _initialize_params.
    if config.truth("fp16.enabled") and config.truth("bf16.enabled"):
        places = [config.last[f"{name}.enabled"] for name in ("fp16", "bf16")]
        yield max(places, key=lambda entry: entry.member.key.place.start).found(
            TWO_PRECISIONS, "fp16 and bf16 are both enabled", mend="disable one of them"
        )


def _states(config: Config) -> Iterator[ConfigFinding]:
    # runtime/config.py, _do_error_check.
    if config.truth(_STATES) and config.truth(_MASTER) is False:
        yield config.last[_STATES].found(
            STATES_WITHOUT_MASTER,
            "`bf16_optimizer_states` needs `bf16_master_weights_and_grads`",
            mend='write `"bf16_master_weights_and_grads": true` beside it',
        )


def _masters(config: Config) -> Iterator[ConfigFinding]:
    for path in (_MASTER, _FP16_MASTER, _STATES):
        if config.truth(path) and config.stage == 0:
            # runtime/config.py, _do_error_check.
            yield config.last[path].found(
                STATES_WITHOUT_MASTER,
                f"`{config.last[path].name}` needs stage 1, 2 or 3",
                mend="raise the stage, or drop it",
            )
    # runtime/base_optimizer.py, _configure_master_weights.
    on_gpu = config.truth(_STATES) is not False
    for path, is_free in ((_MASTER, on_gpu), (_FP16_MASTER, False)):
        if config.truth(path) and config.stage and not is_free and offloads(config) is False:
            yield config.last[path].found(
                STATES_WITHOUT_MASTER,
                f"`{config.last[path].name}` needs the optimizer on the CPU",
                mend='write `"offload_optimizer": {"device": "cpu"}`'
                + (", or `bf16_optimizer_states` too" if path == _MASTER else ""),
            )


def _none(config: Config) -> Iterator[ConfigFinding]:
    """Said of DeepSpeed by itself: the others add a precision of their own."""
    switches = ("bf16.enabled", "fp16.enabled", "torch_autocast.enabled")
    off = all(config.truth(path) is False for path in switches)
    meant = any(config.get(path) is False for path in switches)
    if config.by_deepspeed and config.stage and off and not meant:
        yield config.last["zero_optimization"].found(
            ZERO_WITHOUT_16_BIT,
            "neither bf16 nor fp16 is enabled",
            mend='write `"bf16": {"enabled": true}` where the GPU has bf16',
        )


def _param_dtype(config: Config) -> Iterator[ConfigFinding]:
    # runtime/engine.py, _assert_valid_mixed_precision_config.
    wanted = _DTYPES.get(config.word("data_types.param_dtype") or "")
    enabled = [name for name in ("bf16", "fp16") if config.truth(f"{name}.enabled")]
    known = enabled or (["fp32"] if config.by_deepspeed else [])
    entry = config.last.get("data_types.param_dtype")
    if entry and entry.key and wanted and known and wanted not in known:
        yield entry.found(
            ANOTHER_PARAM_DTYPE,
            f"`param_dtype` is {wanted}, and the model trains in {known[0]}",
            mend="drop it",
        )


def _on_gpu(config: Config) -> Iterator[ConfigFinding]:
    """What the GPU makes of the one precision that is enabled."""
    capability = config.context.compute_capability
    bf16, fp16 = config.truth("bf16.enabled"), config.truth("fp16.enabled")
    if capability is None or bf16 is fp16:
        return
    shown = ".".join(map(str, capability))
    if bf16 and capability < _BF16_CAPABILITY:
        yield config.last["bf16.enabled"].found(
            BF16_EMULATED,
            f"the GPU has compute capability {shown}, which has no bf16",
            mend=_without_bf16(config, capability),
        )
    if fp16 and capability < _FP16_CAPABILITY:
        by_hand = capability >= _DEPRECATED_FP16_CAPABILITY
        yield config.last["fp16.enabled"].found(
            FP16_REFUSED,
            f"the GPU has compute capability {shown}, and DeepSpeed wants 7.0 for fp16",
            mend="train in fp32"
            + (", or set DS_ALLOW_DEPRECATED_FP16=1 in the environment" if by_hand else ""),
        )
    if fp16 and capability >= _BF16_CAPABILITY:
        yield config.last["fp16.enabled"].found(
            FP16_ON_NEW_GPU,
            f"the GPU has compute capability {shown}, which has bf16",
            mend='write `"bf16": {"enabled": true}` in its place',
        )


def _without_bf16(config: Config, capability: tuple[int, int]) -> str:
    """What trains there: fp16, and the Trainer has to be told of it too."""
    if capability < _FP16_CAPABILITY:
        return "train in fp32"
    script = config.context.integration is Integration.HF
    return f"write `{_FP16}` in its place" + (", and `fp16` in TrainingArguments" if script else "")
