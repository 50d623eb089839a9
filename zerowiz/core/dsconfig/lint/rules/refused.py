"""Find pairs of settings that DeepSpeed or Accelerate refuses."""

from collections.abc import Iterator

from zerowiz.core.dsconfig.lint.config import AUTO, STAGE_3, ZERO, Config
from zerowiz.core.dsconfig.lint.finding import ConfigFinding
from zerowiz.core.dsconfig.lint.rules.offload import offloads
from zerowiz.core.dsconfig.lint.rules.values import OUT_OF_RANGE
from zerowiz.core.rule import Rule, Severity

# runtime/config.py, GRADIENT_CLIPPING_DEFAULT, since 0.19.3.
_DEFAULT_CLIPPING = 1.0


def check(config: Config) -> Iterator[ConfigFinding]:
    """Each refused pair."""
    for refused in (_no_zero, _sum, _prescale, _legacy, _no_norm, _odd_bucket):
        yield from refused(config)


NO_ZERO_SECTION = Rule(
    code="ZW516",
    name="no-zero-section",
    severity=Severity.ERROR,
    why="Accelerate rejects a config without zero_optimization",
)


def _no_zero(config: Config) -> Iterator[ConfigFinding]:
    # accelerate/utils/dataclasses.py, DeepSpeedPlugin.__post_init__.
    is_known = config.context.integration is not None
    if is_known and config.by_accelerate and ZERO not in config.last:
        yield config.found(
            NO_ZERO_SECTION,
            "there is no `zero_optimization`",
            fix='write `"zero_optimization": {"stage": 0}` to train without ZeRO',
        )


SUM_REFUSED = Rule(
    code="ZW511",
    name="sum-refused",
    severity=Severity.ERROR,
    why="DeepSpeed cannot sum gradients with this setting",
)


def _sum(config: Config) -> Iterator[ConfigFinding]:
    # runtime/config.py, _do_error_check.
    entry = config.last.get("gradient_allreduce_op")
    if entry is None or str(entry.value).lower() != "sum":
        return
    others = {
        "stage 3": config.stage == STAGE_3,
        "ZenFlow": isinstance(config.get(f"{ZERO}.zenflow"), dict),
        "DeepCompile": config.truth("compile.deepcompile"),
    }
    for name in (name for name, is_there in others.items() if is_there):
        yield entry.found(SUM_REFUSED, f"`sum` cannot be combined with {name}", fix="write `mean`")


PRESCALE_REFUSED = Rule(
    code="ZW514",
    name="prescale-refused",
    severity=Severity.ERROR,
    why="DeepSpeed cannot scale gradients before it scatters them",
)


def _prescale(config: Config) -> Iterator[ConfigFinding]:
    # runtime/zero/stage3.py and stage_1_and_2.py, __init__ of the optimizers.
    scatters = config.stage in {2, 3} and config.truth(f"{ZERO}.reduce_scatter", default=True)
    if not scatters or config.get("gradient_allreduce_op") is not None:
        return
    factor = config.last.get("gradient_predivide_factor")
    if config.truth("prescale_gradients"):
        yield config.last["prescale_gradients"].found(
            PRESCALE_REFUSED,
            "`prescale_gradients` cannot be combined with `reduce_scatter` at stage"
            f" {config.stage}",
            fix="remove it",
        )
    if factor is not None and isinstance(factor.value, (int, float)) and factor.value != 1:
        yield factor.found(
            PRESCALE_REFUSED,
            f"`{factor.name}` cannot be combined with `reduce_scatter` at stage {config.stage}",
            fix="remove it",
        )


LEGACY_STAGE_1 = Rule(
    code="ZW515",
    name="legacy-stage-1",
    severity=Severity.ERROR,
    why="DeepSpeed removed the old stage 1",
)


def _legacy(config: Config) -> Iterator[ConfigFinding]:
    # runtime/engine.py, _configure_zero_optimizer.
    if config.stage and config.truth(f"{ZERO}.legacy_stage1"):
        yield config.last[f"{ZERO}.legacy_stage1"].found(
            LEGACY_STAGE_1, "DeepSpeed has no `legacy_stage1` any more", fix="remove it"
        )


NO_GRAD_NORM = Rule(
    code="ZW517",
    name="no-grad-norm",
    severity=Severity.ERROR,
    why="DeepSpeed can skip the gradient norm only at stages 1 and 2, without clipping and offload",
)


def _no_norm(config: Config) -> Iterator[ConfigFinding]:
    # runtime/zero/config.py, compute_grad_norm_valid; runtime/zero/stage_1_and_2.py, __init__.
    entry = config.last.get(f"{ZERO}.compute_grad_norm")
    if entry is None or config.truth(f"{ZERO}.compute_grad_norm") is not False:
        return
    clipping = config.last.get("gradient_clipping")
    clips = _DEFAULT_CLIPPING if clipping is None else clipping.value
    refused = {
        "needs stage 1 or 2": config.stage in {0, 3},
        "needs a `gradient_clipping` of 0": clips not in (AUTO, 0),
        "cannot be combined with `offload_optimizer`": offloads(config),
    }
    for message in (message for message, is_so in refused.items() if is_so):
        yield entry.found(NO_GRAD_NORM, f"`compute_grad_norm: false` {message}", fix="remove it")


def _odd_bucket(config: Config) -> Iterator[ConfigFinding]:
    # runtime/zero/stage_1_and_2.py, nccl_start_alignment_factor.
    path = f"{ZERO}.allgather_bucket_size"
    elements = config.number(path)
    if elements is not None and elements % 2 and config.stage in {1, 2}:
        yield config.last[path].found(
            OUT_OF_RANGE,
            f"`allgather_bucket_size` must be even, not {elements}",
            fix=f"write {elements + 1}",
        )
