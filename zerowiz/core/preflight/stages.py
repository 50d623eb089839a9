"""Check what a script does that is right at some ZeRO stages only, against the stage of the plan.

What such a call is, at which stages it is wrong, what happens then and what to do instead is a row
of STAGE_ROWS. What the Trainer refuses of its arguments is one of REFUSED_ARGUMENTS.
"""

from collections.abc import Iterator, Mapping

from msgspec import Struct

from zerowiz.core.findings import Finding, Rule, Severity, found
from zerowiz.core.preflight.facts import PlannedJob
from zerowiz.core.script.facts import Resolver, StageKind
from zerowiz.core.strategies import STRATEGIES
from zerowiz.core.workload import Integration
from zerowiz.errors import LineEdit

SHARDS_SAVED = Rule(
    code="PF117",
    name="shards-saved",
    severity=Severity.ERROR,
    why="at stage 3 each rank has a shard of the weights, so the file has empty tensors",
    when=(
        "the script saves the model by itself (`model.save_pretrained(...)`, "
        "`torch.save(model.state_dict(), ...)`) at stage 3; a warning if only `--escalate` "
        "can go there, or if some runs may not come there"
    ),
)
ONE_RANK = Rule(
    code="PF122",
    name="one-rank-call",
    severity=Severity.ERROR,
    why="it waits for the other ranks, which never call it, and the job hangs",
    when=(
        "the script calls what all ranks have to call on one of them alone: "
        "`accelerator.save_state(...)`, `engine.save_checkpoint(...)`, `trainer.evaluate()` "
        "under `if accelerator.is_main_process:`; at stage 3 also `trainer.save_model(...)`, "
        "`accelerator.get_state_dict(...)`, `model.generate(...)`. A warning if some runs may not "
        "come there"
    ),
)
SHARDS_READ = Rule(
    code="PF123",
    name="shards-read",
    severity=Severity.WARNING,
    why="each rank has a shard of the weights there, and no whole tensor",
    when=(
        "the script uses weights by itself at stage 3: `get_input_embeddings().weight.data`, a "
        "loop that averages parameters, `model.merge_and_unload()`"
    ),
)
STAGE_REFUSED = Rule(
    code="PF124",
    name="stage-refused",
    severity=Severity.ERROR,
    why="the library ends the job with an error, after it has taken the GPUs",
    when=(
        "`engine.no_sync()` at stages 2 and 3; `trainer.evaluate()` before `trainer.train()` below "
        "stage 3; `auto_find_batch_size` at stage 3; `save_only_model` with "
        "`load_best_model_at_end`; `accelerator.clip_grad_value_(...)`, two models in one "
        "`accelerator.prepare(...)`, or an optimizer without its model; two Trainers with one "
        "`TrainingArguments`. A warning if some runs may not come there"
    ),
)


class StageRow(Struct, frozen=True, kw_only=True):
    """A kind of call that is wrong at some stages."""

    rule: Rule
    stages: frozenset[int]
    """At which it is wrong."""
    effect: str
    """What it does there."""
    fixes: tuple[str, ...]
    edit: Mapping[str, str] = {}
    """What is exactly right there, as fields of LineEdit."""


_EVERY = frozenset({0, 1, 2, 3})
_SHARDED = frozenset({3})
_ON_ALL = "move it out of `if`, so that all ranks call it"
# deepspeed 0.19.8, runtime/engine.py: save_checkpoint, no_sync, save_16bit_model;
# transformers 5.23, trainer.py: evaluation_loop, and integrations/deepspeed.py: deepspeed_init;
# accelerate 1.15, accelerator.py: __init__, prepare, clip_grad_value_, get_state_dict; trl 1.16,
# experimental/utils.py: create_reference_model. tests/core/preflight/stage_ranks.py runs them.
STAGE_ROWS: Mapping[StageKind, StageRow] = {
    StageKind.ALONE: StageRow(
        rule=ONE_RANK, stages=_EVERY, effect="is called on one rank only", fixes=(_ON_ALL,)
    ),
    StageKind.ALONE_SHARDED: StageRow(
        rule=ONE_RANK,
        stages=_SHARDED,
        effect="gathers weights on one rank only",
        fixes=(_ON_ALL,),
    ),
    StageKind.READS: StageRow(
        rule=SHARDS_READ,
        stages=_SHARDED,
        effect="uses empty weights",
        fixes=(
            (
                "enter `with deepspeed.zero.GatheredParameters(parameters, modifier_rank=0):` on "
                "all ranks, and use them inside it"
            ),
        ),
    ),
    StageKind.NO_SYNC: StageRow(
        rule=STAGE_REFUSED,
        stages=frozenset({2, 3}),
        effect="fails",
        fixes=(
            "remove it: set `gradient_accumulation_steps`, and the engine steps when it is due",
        ),
    ),
    StageKind.EVALUATES_FIRST: StageRow(
        rule=STAGE_REFUSED,
        stages=frozenset({0, 1, 2}),
        effect="comes before `trainer.train()`, which the Trainer refuses",
        fixes=("use `eval_on_start=True`, or evaluate after `trainer.train()`",),
    ),
    StageKind.CLIPS_VALUES: StageRow(
        rule=STAGE_REFUSED,
        stages=_EVERY,
        effect="is refused by Accelerate",
        fixes=("use `accelerator.clip_grad_norm_(...)`",),
        edit={"call": "clip_grad_value_", "func": "accelerator.clip_grad_norm_"},
    ),
    StageKind.TWO_MODELS: StageRow(
        rule=STAGE_REFUSED,
        stages=_EVERY,
        effect="prepares several models, which Accelerate refuses",
        fixes=(
            "put them into one `torch.nn.Module`, or prepare each with its own `DeepSpeedPlugin`",
        ),
    ),
    StageKind.NO_MODEL: StageRow(
        rule=STAGE_REFUSED,
        stages=_EVERY,
        effect="prepares the optimizer without its model, which DeepSpeed refuses",
        fixes=(
            "use one call: `model, optimizer, ... = accelerator.prepare(model, optimizer, ...)`",
        ),
    ),
    StageKind.SECOND_TRAINER: StageRow(
        rule=STAGE_REFUSED,
        stages=_EVERY,
        effect="has the arguments of another Trainer, which Accelerate refuses under DeepSpeed",
        fixes=("build `TrainingArguments` for each Trainer",),
    ),
    StageKind.COPIES_MODEL: StageRow(
        rule=STAGE_REFUSED,
        stages=_SHARDED,
        effect="is refused by TRL",
        fixes=("load the reference model by `AutoModelForCausalLM.from_pretrained(...)`",),
    ),
}
# transformers 5.23, trainer.py, create_accelerator_and_postprocess: each a ValueError.
REFUSED_ARGUMENTS: Mapping[tuple[str, ...], frozenset[int]] = {
    ("save_only_model", "load_best_model_at_end"): _EVERY,
    ("auto_find_batch_size",): _SHARDED,
}


class _Fault(Struct, frozen=True, kw_only=True):
    """Something of the script that is wrong at some stages."""

    rule: Rule
    stages: frozenset[int]
    message: str
    fixes: tuple[str, ...]
    is_sure: bool
    """Whether every run comes there."""
    edits: tuple[LineEdit, ...] = ()


def _faults(run: Resolver, integration: Integration | None, ranks: int) -> Iterator[_Fault]:
    facts = run.facts
    for call in facts.stage_calls:
        row, holds = STAGE_ROWS[call.kind], run.holds(call.conditions)
        if holds is not False and (row.rule is not ONE_RANK or ranks > 1):
            where = f"`{call.code}` in {facts.where(call.line)}"
            yield _Fault(
                rule=row.rule,
                stages=row.stages,
                message=f"{where} {row.effect}",
                fixes=row.fixes,
                is_sure=holds is True and row.rule.severity is Severity.ERROR,
                edits=(facts.edit(call.line, **row.edit),) if row.edit else (),
            )
    for names, stages in REFUSED_ARGUMENTS.items() if integration is Integration.HF else ():
        settings = [run.setting(facts.sources[name]) for name in names if name in facts.sources]
        given = [setting.source for setting in settings if setting is not None and setting.value]
        if len(given) == len(names):
            yield _Fault(
                rule=STAGE_REFUSED,
                stages=stages,
                message=f"the Trainer refuses {' together with '.join(given)} under DeepSpeed",
                fixes=tuple(f"remove {source}" for source in given[:1]),
                is_sure=True,
                edits=facts.removal(facts.sources[names[0]]),
            )


def wrong_stages(run: Resolver, integration: Integration | None, ranks: int) -> frozenset[int]:
    """The stages at which a script surely does not do what it is to do.

    Args:
        run: The script with the words after it.
        integration: Who hands the config over.
        ranks: Of all nodes.
    """
    if integration is None:
        return frozenset()
    faults = _faults(run, integration, ranks)
    stages = {stage for fault in faults if fault.is_sure for stage in fault.stages}
    saves = any(run.holds(save.conditions) for save in run.facts.weight_saves)
    may_be_adapters = run.facts.trains_adapters or run.facts.builds_elsewhere
    return frozenset(stages | (_SHARDED if saves and not may_be_adapters else set()))


def check_stages(planned: PlannedJob, run: Resolver) -> Iterator[Finding]:
    """What the script does that is wrong at the stage of the plan, or at one of its escalation."""
    stage, ranks = planned.strategy.stage, planned.job.machine.world_size
    later = {strategy.stage for strategy in STRATEGIES if strategy.stage > stage}
    yield from _saves(planned, run)
    for fault in _faults(run, planned.integration, ranks):
        is_now, reached = stage in fault.stages, sorted(later & fault.stages)
        if not is_now and not (planned.escalates and reached):
            continue
        right = _EVERY - fault.stages
        others = [max((s for s in right if s < stage), default=min(right))] if right else []
        at = f" at stage {stage}" if right else ""
        yield found(
            fault.rule,
            fault.message
            + (at if is_now else f" at stage {reached[0]}, to which `--escalate` can go"),
            *fault.fixes,
            *(f"use a stage at which it is right: `$stage {other}`" for other in others if is_now),
            severity=None if is_now and fault.is_sure else Severity.WARNING,
            edits=fault.edits,
        )


def _saves(planned: PlannedJob, run: Resolver) -> Iterator[Finding]:
    is_sharded = planned.strategy.stage in _SHARDED
    if planned.integration is None or not (is_sharded or planned.escalates):
        return
    script, size = run.facts, planned.evaluated.estimate.rank
    # deepspeed 0.19.8, runtime/zero/parameter_offload.py, mark_persistent_parameters: each rank
    # has all of a smaller tensor.
    adapters_stay = is_sharded and size.largest <= size.buffers.stage3_param_persistence_threshold
    may_be_adapters = script.trains_adapters and not (planned.uses_peft or script.adapters.seen)
    surely = is_sharded and not (may_be_adapters or script.builds_elsewhere)
    saves = {
        save: run.holds(save.conditions)
        for save in script.weight_saves
        if not (save.adapters_only and planned.uses_peft and adapters_stay)
    }
    made = {save: holds for save, holds in saves.items() if holds is not False}
    calls = ", ".join(f"`{save.code}` ({script.place(save.line)})" for save in made)
    if calls:
        yield found(
            SHARDS_SAVED,
            f"{script.text_path} saves empty weights at stage 3: {calls}"
            if is_sharded
            else (
                f"{script.text_path} would save empty weights at stage 3, to which "
                f"`--escalate` can go: {calls}"
            ),
            planned.integration.row.gathers,
            (
                "enter `with deepspeed.zero.GatheredParameters(model.parameters()):` on all "
                "ranks, and save inside it"
            ),
            "use a stage that keeps the weights whole: `$stage 2`",
            severity=None if surely and any(made.values()) else Severity.WARNING,
            edits=tuple(save.instead for save in made if save.instead),
        )
