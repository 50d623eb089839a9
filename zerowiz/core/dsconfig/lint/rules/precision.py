"""Find number formats that contradict each other."""

import json
from collections.abc import Iterator, Mapping

from zerowiz.core.dsconfig.lint.config import AUTO, Config, shown
from zerowiz.core.dsconfig.lint.finding import ConfigFinding
from zerowiz.core.dsconfig.lint.rules.offload import offloads
from zerowiz.core.dsconfig.lint.rules.values import NOT_A_CHOICE
from zerowiz.core.rule import Rule, Severity
from zerowiz.core.workload.choices import Integration
from zerowiz.words import _, listing

_MASTER = "bf16.bf16_master_weights_and_grads"
_FP16_MASTER = "fp16.fp16_master_weights_and_grads"
_STATES = "bf16.bf16_optimizer_states"
# runtime/config.py, DtypeEnum.
_DTYPES: Mapping[str, str] = {
    **dict.fromkeys(("torch.float16", "fp16", "float16", "half"), "fp16"),
    **dict.fromkeys(("torch.bfloat16", "bf16", "bfloat16"), "bf16"),
    **dict.fromkeys(("torch.float32", "fp32", "float32", "float"), "fp32"),
}

# torch/cuda/__init__.py, is_bf16_supported: below that torch emulates it, and reports it as there.
_BF16_CAPABILITY = (8, 0)
# accelerator/cuda_accelerator.py, is_fp16_supported; DS_ALLOW_DEPRECATED_FP16=1 lets 6.x through.
_FP16_CAPABILITY = (7, 0)
_DEPRECATED_FP16_CAPABILITY = (6, 0)
_SECTIONS: Mapping[str, str] = {
    "bf16": '"bf16": {"enabled": true}',
    # runtime/precision_config.py, DeepSpeedFP16Config: its defaults, written out.
    "fp16": '"fp16": {"enabled": true, "loss_scale": 0, "loss_scale_window": 1000, '
    '"initial_scale_power": 16, "hysteresis": 2, "min_loss_scale": 1}',
}


def check_precision(config: Config) -> Iterator[ConfigFinding]:
    """Precisions, their 16-bit states, and the dtype of the parameters."""
    yield from _two(config)
    yield from _states(config)
    yield from _masters(config)
    yield from _none(config)
    yield from _param_dtype(config)
    yield from _dtypes(config)
    yield from _on_gpu(config)


TWO_PRECISIONS = Rule(
    code="ZW501",
    name="two-precisions",
    severity=Severity.ERROR,
    why=_("DeepSpeed rejects fp16 together with bf16"),
)


def _two(config: Config) -> Iterator[ConfigFinding]:
    # runtime/config.py, _initialize_params.
    if config.truth("fp16.enabled") and config.truth("bf16.enabled"):
        places = [config.last[f"{name}.enabled"] for name in ("fp16", "bf16")]
        yield max(places, key=lambda entry: entry.member.key.place.start).found(
            TWO_PRECISIONS, _("fp16 and bf16 are both enabled"), fix=_("disable one of them")
        )


STATES_WITHOUT_MASTER = Rule(
    code="ZW505",
    name="states-without-master",
    severity=Severity.ERROR,
    why=_("DeepSpeed rejects 16-bit states unless these conditions are met"),
)


def _states(config: Config) -> Iterator[ConfigFinding]:
    # runtime/config.py, _do_error_check.
    if config.truth(_STATES) and config.truth(_MASTER) is False:
        yield config.last[_STATES].found(
            STATES_WITHOUT_MASTER,
            _("`bf16_optimizer_states` needs `bf16_master_weights_and_grads`"),
            fix=_('write `"bf16_master_weights_and_grads": true` beside it'),
        )


def _masters(config: Config) -> Iterator[ConfigFinding]:
    for path in (_MASTER, _FP16_MASTER, _STATES):
        if config.truth(path) and config.stage == 0:
            # runtime/config.py, _do_error_check.
            yield config.last[path].found(
                STATES_WITHOUT_MASTER,
                _("`{last}` needs stage 1, 2 or 3", last=config.last[path].name),
                fix=_("write stage 1, 2 or 3, or remove it"),
            )
    # runtime/base_optimizer.py, _configure_master_weights.
    on_gpu = config.truth(_STATES) is not False
    for path, is_free in ((_MASTER, on_gpu), (_FP16_MASTER, False)):
        if config.truth(path) and config.stage and not is_free and offloads(config) is False:
            yield config.last[path].found(
                STATES_WITHOUT_MASTER,
                _("`{last}` needs the optimizer on the CPU", last=config.last[path].name),
                fix=_('write `"offload_optimizer": {"device": "cpu"}`')
                + (_(", or `bf16_optimizer_states` too") if path == _MASTER else ""),
            )


ZERO_WITHOUT_16_BIT = Rule(
    code="ZW506",
    name="zero-without-16-bit",
    severity=Severity.INFO,
    why=_("the model trains in fp32, which takes twice the memory"),
)


def _none(config: Config) -> Iterator[ConfigFinding]:
    """For DeepSpeed by itself alone: the others add a precision of their own."""
    switches = ("bf16.enabled", "fp16.enabled", "torch_autocast.enabled")
    off = all(config.truth(path) is False for path in switches)
    meant = any(config.get(path) is False for path in switches)
    if config.by_deepspeed and config.stage and off and not meant:
        yield config.last["zero_optimization"].found(
            ZERO_WITHOUT_16_BIT,
            _("neither bf16 nor fp16 is enabled"),
            fix=_('write `"bf16": {"enabled": true}` if the GPU supports bf16'),
        )


ANOTHER_PARAM_DTYPE = Rule(
    code="ZW519",
    name="another-param-dtype",
    severity=Severity.ERROR,
    why=_("DeepSpeed rejects a param_dtype other than the precision in use"),
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
            _(
                "`param_dtype` is {wanted}, but the model trains in {known}",
                wanted=wanted,
                known=known[0],
            ),
            fix=_("remove it"),
        )


def _dtypes(config: Config) -> Iterator[ConfigFinding]:
    # runtime/config.py, DtypeEnum, which `torch_autocast` takes too: the engine asks it for these.
    known = config.schema.keys.get("torch_autocast.dtype")
    names = [str(json.loads(choice)) for choice in known.choices] if known else []
    for name in ("grad_accum_dtype", "param_dtype", "buffer_dtype"):
        entry = config.last.get(f"data_types.{name}")
        if names and entry and entry.key and isinstance(entry.value, str):
            if entry.value in (AUTO, *names):
                continue
            yield entry.found(
                NOT_A_CHOICE,
                _(
                    "`{label}` must be one of {names}, not `{entry}`",
                    label=entry.label,
                    names=listing(names),
                    entry=shown(entry.value),
                ),
                fix=_("write `fp32`, `bf16` or `fp16`"),
            )


BF16_EMULATED = Rule(
    code="ZW802",
    name="bf16-emulated",
    severity=Severity.WARNING,
    why=_(
        "GPUs below compute capability 8.0 do not support bf16: torch emulates it slowly, without"
        " a warning"
    ),
)
FP16_ON_NEW_GPU = Rule(
    code="ZW803",
    name="fp16-on-new-gpu",
    severity=Severity.INFO,
    why=_("bf16 has the range of fp32, so it needs no loss scale"),
)
FP16_REFUSED = Rule(
    code="ZW804",
    name="fp16-refused",
    severity=Severity.ERROR,
    why=_("DeepSpeed rejects fp16 on GPUs below compute capability 7.0"),
)


def _on_gpu(config: Config) -> Iterator[ConfigFinding]:
    """What the GPU makes of the one precision that is enabled."""
    capability = config.context.compute_capability
    bf16, fp16 = config.truth("bf16.enabled"), config.truth("fp16.enabled")
    if capability is None or bf16 is fp16:
        return
    has = ".".join(map(str, capability))
    if bf16 and capability < _BF16_CAPABILITY:
        yield config.last["bf16.enabled"].found(
            BF16_EMULATED,
            _("the GPU has compute capability {shown}, which does not support bf16", shown=has),
            fix=_without_bf16(config, capability),
        )
    if fp16 and capability < _FP16_CAPABILITY:
        by_hand = capability >= _DEPRECATED_FP16_CAPABILITY
        yield config.last["fp16.enabled"].found(
            FP16_REFUSED,
            _(
                "the GPU has compute capability {shown}, and DeepSpeed needs 7.0 for fp16",
                shown=has,
            ),
            fix=_("train in fp32")
            + (_(", or set DS_ALLOW_DEPRECATED_FP16=1 in the environment") if by_hand else ""),
        )
    if fp16 and capability >= _BF16_CAPABILITY:
        yield config.last["fp16.enabled"].found(
            FP16_ON_NEW_GPU,
            _("the GPU has compute capability {shown}, which supports bf16", shown=has),
            fix=_("write `{precision}` instead", precision=_written(config, "bf16")),
        )


def _without_bf16(config: Config, capability: tuple[int, int]) -> str:
    """What trains there: fp16, which TrainingArguments have to name too."""
    if capability < _FP16_CAPABILITY:
        return _("train in fp32")
    script = config.context.integration is Integration.HF
    return _("write `{precision}` instead", precision=_written(config, "fp16")) + (
        _(", and `fp16` in TrainingArguments") if script else ""
    )


def _written(config: Config, precision: str) -> str:
    """What stands in the file where it says this precision."""
    return f"mixed_precision: {precision}" if config.context.file_keys else _SECTIONS[precision]
