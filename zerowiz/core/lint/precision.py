"""Find number formats that contradict each other."""

from collections.abc import Iterator, Mapping

from zerowiz.core.lint.config import Config
from zerowiz.core.lint.finding import Finding
from zerowiz.core.lint.offload import offloads
from zerowiz.core.lint.rules import (
    ANOTHER_PARAM_DTYPE,
    STATES_WITHOUT_MASTER,
    TWO_PRECISIONS,
    ZERO_WITHOUT_16_BIT,
)

_MASTER = "bf16.bf16_master_weights_and_grads"
_FP16_MASTER = "fp16.fp16_master_weights_and_grads"
_STATES = "bf16.bf16_optimizer_states"
# runtime/config.py, DtypeEnum.
_DTYPES: Mapping[str, str] = {
    **dict.fromkeys(("torch.float16", "fp16", "float16", "half"), "fp16"),
    **dict.fromkeys(("torch.bfloat16", "bf16", "bfloat16"), "bf16"),
    **dict.fromkeys(("torch.float32", "fp32", "float32", "float"), "fp32"),
}


def check_precision(config: Config) -> Iterator[Finding]:
    """Precisions, their 16-bit states, and the dtype of the parameters."""
    yield from _two(config)
    yield from _states(config)
    yield from _masters(config)
    yield from _none(config)
    yield from _param_dtype(config)


def _two(config: Config) -> Iterator[Finding]:
    # runtime/config.py, _initialize_params.
    if config.truth("fp16.enabled") and config.truth("bf16.enabled"):
        places = [config.last[f"{name}.enabled"] for name in ("fp16", "bf16")]
        yield max(places, key=lambda entry: entry.member.key.place.start).found(
            TWO_PRECISIONS, "fp16 and bf16 are both enabled", mend="disable one of them"
        )


def _states(config: Config) -> Iterator[Finding]:
    # runtime/config.py, _do_error_check.
    if config.truth(_STATES) and config.truth(_MASTER) is False:
        yield config.last[_STATES].found(
            STATES_WITHOUT_MASTER,
            "`bf16_optimizer_states` needs `bf16_master_weights_and_grads`",
            mend='write `"bf16_master_weights_and_grads": true` beside it',
        )


def _masters(config: Config) -> Iterator[Finding]:
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


def _none(config: Config) -> Iterator[Finding]:
    """Said of DeepSpeed by itself: the others add a precision of their own."""
    switches = ("bf16.enabled", "fp16.enabled", "torch_autocast.enabled")
    off = all(config.truth(path) is False for path in switches)
    if config.by_deepspeed and config.stage and off:
        yield config.last["zero_optimization"].found(
            ZERO_WITHOUT_16_BIT,
            "neither bf16 nor fp16 is enabled",
            mend='write `"bf16": {"enabled": true}` where the GPU has bf16',
        )


def _param_dtype(config: Config) -> Iterator[Finding]:
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
