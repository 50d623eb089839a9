"""Find pairs of settings that DeepSpeed or Accelerate refuses."""

from collections.abc import Iterator

from zerowiz.core.dsconfig.lint.config import AUTO, STAGE_3, ZERO, Config
from zerowiz.core.dsconfig.lint.finding import ConfigFinding
from zerowiz.core.dsconfig.lint.rules.offload import offloads
from zerowiz.core.dsconfig.lint.rules.values import OUT_OF_RANGE
from zerowiz.core.rule import Rule, Severity
from zerowiz.words import _, joined

# runtime/config.py, GRADIENT_CLIPPING_DEFAULT, since 0.19.3.
_DEFAULT_CLIPPING = 1.0


def check_refused(config: Config) -> Iterator[ConfigFinding]:
    """Each refused pair."""
    for refused in (_no_zero, _sum, _prescale, _legacy, _no_norm, _odd_bucket, *_TOGETHER):
        yield from refused(config)


NO_ZERO_SECTION = Rule(
    code="ZW516",
    name="no-zero-section",
    severity=Severity.ERROR,
    why=_("Accelerate rejects a config without zero_optimization"),
)


def _no_zero(config: Config) -> Iterator[ConfigFinding]:
    # accelerate/utils/dataclasses.py, DeepSpeedPlugin.__post_init__.
    is_known = config.context.integration is not None
    if is_known and config.by_accelerate and ZERO not in config.last:
        yield config.found(
            NO_ZERO_SECTION,
            _("there is no `zero_optimization`"),
            fix=_('write `"zero_optimization": {"stage": 0}` to train without ZeRO'),
        )


SUM_REFUSED = Rule(
    code="ZW511",
    name="sum-refused",
    severity=Severity.ERROR,
    why=_("DeepSpeed cannot sum gradients with this setting"),
)


def _sum(config: Config) -> Iterator[ConfigFinding]:
    # runtime/config.py, _do_error_check.
    entry = config.last.get("gradient_allreduce_op")
    if entry is None or str(entry.value).lower() != "sum":
        return
    others = (
        (_("stage 3"), config.stage == STAGE_3),
        ("ZenFlow", isinstance(config.get(f"{ZERO}.zenflow"), dict)),
        ("DeepCompile", config.truth("compile.deepcompile")),
    )
    for name, is_there in others:
        if is_there:
            yield entry.found(
                SUM_REFUSED,
                _("`sum` cannot be combined with {name}", name=name),
                fix=_("write `mean`"),
            )


PRESCALE_REFUSED = Rule(
    code="ZW514",
    name="prescale-refused",
    severity=Severity.ERROR,
    why=_("DeepSpeed cannot scale gradients before it scatters them"),
)


def _prescale(config: Config) -> Iterator[ConfigFinding]:
    # runtime/zero/stage3.py and stage_1_and_2.py, __init__ of the optimizers.
    scatters = config.stage in {2, 3} and config.truth(f"{ZERO}.reduce_scatter", default=True)
    if not scatters or config.get("gradient_allreduce_op") is not None:
        return
    refused = []
    if config.truth("prescale_gradients"):
        refused.append(config.last["prescale_gradients"])
    factor = config.last.get("gradient_predivide_factor")
    if factor is not None and isinstance(factor.value, (int, float)) and factor.value != 1:
        refused.append(factor)
    for entry in refused:
        yield entry.found(
            PRESCALE_REFUSED,
            _(
                "`{name}` cannot be combined with `reduce_scatter` at stage {stage}",
                name=entry.name,
                stage=config.stage,
            ),
            fix=_("remove it"),
        )


LEGACY_STAGE_1 = Rule(
    code="ZW515",
    name="legacy-stage-1",
    severity=Severity.ERROR,
    why=_("DeepSpeed removed the old stage 1"),
)


def _legacy(config: Config) -> Iterator[ConfigFinding]:
    # runtime/engine.py, _configure_zero_optimizer.
    if config.stage and config.truth(f"{ZERO}.legacy_stage1"):
        yield config.last[f"{ZERO}.legacy_stage1"].found(
            LEGACY_STAGE_1, _("DeepSpeed has no `legacy_stage1` any more"), fix=_("remove it")
        )


NO_GRAD_NORM = Rule(
    code="ZW517",
    name="no-grad-norm",
    severity=Severity.ERROR,
    why=_(
        "DeepSpeed can skip the gradient norm only at stages 1 and 2, without clipping and offload"
    ),
)


def _no_norm(config: Config) -> Iterator[ConfigFinding]:
    # runtime/zero/config.py, compute_grad_norm_valid; runtime/zero/stage_1_and_2.py, __init__.
    entry = config.last.get(f"{ZERO}.compute_grad_norm")
    if entry is None or config.truth(f"{ZERO}.compute_grad_norm") is not False:
        return
    clipping = config.last.get("gradient_clipping")
    clips = _DEFAULT_CLIPPING if clipping is None else clipping.value
    refused = (
        (_("`compute_grad_norm: false` needs stage 1 or 2"), config.stage in {0, 3}),
        (
            _("`compute_grad_norm: false` needs a `gradient_clipping` of 0"),
            clips not in (AUTO, 0),
        ),
        (
            _("`compute_grad_norm: false` cannot be combined with `offload_optimizer`"),
            offloads(config),
        ),
    )
    for message, is_so in refused:
        if is_so:
            yield entry.found(NO_GRAD_NORM, message, fix=_("remove it"))


def _odd_bucket(config: Config) -> Iterator[ConfigFinding]:
    # runtime/zero/stage_1_and_2.py, nccl_start_alignment_factor.
    path = f"{ZERO}.allgather_bucket_size"
    elements = config.number(path)
    if elements is not None and elements % 2 and config.stage in {1, 2}:
        yield config.last[path].found(
            OUT_OF_RANGE,
            _("`allgather_bucket_size` must be even, not {elements}", elements=elements),
            fix=_("write {elements}", elements=elements + 1),
        )


REFUSED_TOGETHER = Rule(
    code="ZW521",
    name="refused-together",
    severity=Severity.ERROR,
    why=_("DeepSpeed rejects these settings together"),
)


def _muon(config: Config) -> Iterator[ConfigFinding]:
    # runtime/zero/stage3.py, __init__.
    kind = config.last.get("optimizer.type")
    scatters = config.truth(f"{ZERO}.reduce_scatter", default=True)
    if kind and str(kind.value).lower() == "muon" and config.stage == STAGE_3 and scatters:
        found = kind.found(
            REFUSED_TOGETHER,
            _("Muon at stage 3 cannot be combined with `reduce_scatter`, which is on by default"),
            fix=_('write `"reduce_scatter": false` in `zero_optimization`'),
        )
        yield config.if_built(found)


def _zenflow(config: Config) -> Iterator[ConfigFinding]:
    path = f"{ZERO}.zenflow"
    if not isinstance(config.get(path), dict) or config.stage not in {1, 2, STAGE_3}:
        return
    # runtime/zenflow/engine.py, configure_zenflow; `epoch` counts in epochs, of unknown length.
    select, update = (config.number(f"{path}.{name}_interval") for name in ("select", "update"))
    by_step = config.get(f"{path}.select_strategy") == "step"
    if by_step and select is not None and update is not None and 0 != select < update:
        yield config.last[f"{path}.select_interval"].found(
            REFUSED_TOGETHER,
            _(
                "a `select_interval` of {select} is below the `update_interval` of {update}",
                select=select,
                update=update,
            ),
            fix=_("write {update} or more", update=update),
        )
    # runtime/zenflow/zenflow_stage_1_and_2.py, __init__ and create.
    overlaps = config.truth(f"{ZERO}.overlap_comm")
    if config.truth(f"{path}.offload") and config.stage != STAGE_3 and overlaps is False:
        yield config.last[f"{path}.offload"].found(
            REFUSED_TOGETHER,
            _("`offload` of ZenFlow needs `overlap_comm`"),
            fix=_('write `"overlap_comm": true` in `zero_optimization`'),
        )
    if config.stage != STAGE_3 and offloads(config) is False:
        yield config.last[path].found(
            REFUSED_TOGETHER,
            _("ZenFlow at stage {stage} needs the optimizer on the CPU", stage=config.stage),
            fix=_('write `"offload_optimizer": {"device": "cpu"}` beside it'),
        )


def _passes(config: Config) -> Iterator[ConfigFinding]:
    # runtime/engine.py, get_deepspeed_compile_backend.
    if not config.truth("compile.deepcompile"):
        return
    passes = config.get("compile.passes")
    if (
        isinstance(passes, list)
        and "autotp" in passes
        and {"autosp", "z1", "z3"} & {each for each in passes if isinstance(each, str)}
    ):
        yield config.last["compile.passes"].found(
            REFUSED_TOGETHER,
            _("the pass `autotp` cannot be combined with `autosp`, `z1` or `z3`"),
            fix=_('write `["autotp"]`, or remove it'),
        )
    # compile/init_z3.py, init_z3.
    offloaded = [
        name
        for name in ("offload_activation", "offload_opt_states", "offload_parameters")
        if config.truth(f"compile.{name}")
    ]
    if len(offloaded) > 1 and config.stage == STAGE_3:
        yield config.last[f"compile.{offloaded[0]}"].found(
            REFUSED_TOGETHER,
            _(
                "{offloaded} exclude each other",
                offloaded=joined(_(" and "), (f"`{name}`" for name in offloaded)),
            ),
            fix=_("keep one of them"),
        )


def _hpz(config: Config) -> Iterator[ConfigFinding]:
    path, ranks = f"{ZERO}.zero_hpz_partition_size", config.context.world_size
    size = config.number(path)
    if size is None or size < 2 or config.stage != STAGE_3:  # noqa: PLR2004 - 1 is no group
        return
    # utils/groups.py, _create_zero_param_parallel_group.
    if ranks is not None and size < ranks and ranks % size:
        yield config.last[path].found(
            REFUSED_TOGETHER,
            _(
                "a `zero_hpz_partition_size` of {size} does not divide {ranks} ranks",
                size=size,
                ranks=ranks,
            ),
            fix=_("write the number of GPUs of a node"),
        )
    # runtime/engine.py, _validate_zero3_moe_compatibility.
    if config.truth("expert_parallel.enabled"):
        yield config.last[path].found(
            REFUSED_TOGETHER,
            _("`expert_parallel` at stage 3 cannot be combined with `zero_hpz_partition_size`"),
            fix=_("remove it"),
        )


_TOGETHER = (_muon, _zenflow, _passes, _hpz)
