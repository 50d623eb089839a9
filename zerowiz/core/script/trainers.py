"""The trainers that scripts build: what each trains for, and what of it is counted."""

from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct

from zerowiz.core.script.arguments import SERVER
from zerowiz.core.script.facts import (
    Resolver,
    ScriptValue,
    SettledValue,
    State,
    TrainerUse,
    as_count,
    as_number,
    as_text,
    as_truth,
    cast,
)
from zerowiz.core.workload import Method, Reference, Trainer, Uncounted, Workload


class TrainerClass(Struct, frozen=True, kw_only=True):
    """What is known of a library's class of a trainer."""

    trainer: Trainer = Trainer.SFT
    """What it is counted as."""
    refers: bool = True
    """Whether it has a reference where a trainer of that name has one."""
    uncounted: str = ""
    """What it holds beyond that; empty where everything is counted."""


_OWN_LOSS = "logits of its own loss"
_TWO_MODELS = "a teacher model and what it generates"

# By the names of the classes: transformers 5.23, sentence-transformers 5, trl 0.12 to 1.16.
TRAINERS: Mapping[str, TrainerClass] = {
    "Trainer": TrainerClass(),
    "Seq2SeqTrainer": TrainerClass(),
    "SFTTrainer": TrainerClass(),
    "IterativeSFTTrainer": TrainerClass(),
    "CrossEncoderTrainer": TrainerClass(),
    "SentenceTransformerTrainer": TrainerClass(uncounted="a forward pass for each text of a row"),
    "SparseEncoderTrainer": TrainerClass(uncounted="a forward pass for each text of a row"),
    "DPOTrainer": TrainerClass(trainer=Trainer.DPO),
    # Their loss joins chosen and rejected too; it has no reference.
    "CPOTrainer": TrainerClass(trainer=Trainer.DPO, refers=False, uncounted=_OWN_LOSS),
    "ORPOTrainer": TrainerClass(trainer=Trainer.DPO, refers=False, uncounted=_OWN_LOSS),
    "TPOTrainer": TrainerClass(
        trainer=Trainer.DPO, refers=False, uncounted="a third sequence of each pair"
    ),
    "RewardTrainer": TrainerClass(trainer=Trainer.REWARD),
    "PRMTrainer": TrainerClass(uncounted="a head that judges each step"),
    "KTOTrainer": TrainerClass(trainer=Trainer.KTO),
    "BCOTrainer": TrainerClass(trainer=Trainer.KTO, uncounted=_OWN_LOSS),
    "GRPOTrainer": TrainerClass(trainer=Trainer.GRPO),
    "RLOOTrainer": TrainerClass(trainer=Trainer.RLOO),
    "PPOTrainer": TrainerClass(trainer=Trainer.PPO),
    "PPOv2Trainer": TrainerClass(trainer=Trainer.PPO),
    "OnlineDPOTrainer": TrainerClass(
        trainer=Trainer.DPO, uncounted="a reward model and what it generates"
    ),
    "NashMDTrainer": TrainerClass(
        trainer=Trainer.DPO, uncounted="a reward model and what it generates"
    ),
    "XPOTrainer": TrainerClass(
        trainer=Trainer.DPO, uncounted="a reward model and what it generates"
    ),
    "GKDTrainer": TrainerClass(uncounted=_TWO_MODELS),
    "GOLDTrainer": TrainerClass(uncounted=_TWO_MODELS),
    "MiniLLMTrainer": TrainerClass(uncounted=_TWO_MODELS),
    "DistillationTrainer": TrainerClass(uncounted=_TWO_MODELS),
}


class NotCounted(Struct, frozen=True, kw_only=True):
    """Something that a script holds, and that no formula counts."""

    what: Uncounted
    text: str
    """For a person, with the line."""
    settled_by_name: bool = False
    """Whether it is settled by a person who says what is trained: `--trainer`."""


class TrainerSettings(Struct, frozen=True, kw_only=True):
    """What a run shows of its trainer."""

    values: Mapping[str, SettledValue] = {}
    """What the script decides, by the name of the setting; also the `group` of completions of one
    prompt, `steps_per_generation`, and `whole_generation`: the completions of all ranks that are
    generated at a time. An `eval_batch` is there where the run evaluates as well."""
    unseen: frozenset[str] = frozenset()
    """The settings that this script decides, and whose values are not known."""
    not_counted: tuple[NotCounted, ...] = ()
    """What the script holds, and what no formula counts."""
    evaluated_by: str | None = None
    """What makes the run evaluate: an argument, or a call."""
    vllm_server: str | None = None
    """What says that vLLM generates on GPUs of its own."""


def known(values: Mapping[str, SettledValue | None]) -> dict[str, SettledValue]:
    """Those that somebody decides, and that are known."""
    return {name: value for name, value in values.items() if value is not None}


def settle_trainer(run: Resolver, method: ScriptValue[Method] | None) -> TrainerSettings:
    """What a run shows of its trainer.

    Args:
        run: The script, and the words that it is started with.
        method: Which parameters it trains.
    """
    facts = run.facts
    # One that this run does not build is none of its trainers.
    uses = [use for use in facts.trainer.uses if run.holds(use.conditions) is not False]
    trainer, rows = _trainer(run, uses)
    kind = trainer.value if trainer is not None else Trainer.SFT
    not_counted = (*_uses_not_counted(run, uses), *_models_beside(run, kind))
    values: dict[str, SettledValue | None] = {"trainer": trainer}
    wanted: set[str] = set()
    if kind.row.compares and all(row.refers for row in rows):
        values["reference"] = _reference(run, kind, method)
        wanted.add("reference")
    elif kind.row.compares and trainer is not None:
        values["reference"] = cast(trainer, Reference.NONE)
    if not kind.row.generates:
        evaluated_by = _evaluated_by(run)
        values["eval_batch"] = as_count(run.setting(facts.eval_batch)) if evaluated_by else None
        unseen = wanted - known(values).keys()
        return TrainerSettings(
            values=known(values),
            unseen=frozenset(unseen),
            not_counted=not_counted,
            evaluated_by=evaluated_by,
        )
    completion = as_count(run.setting(facts.completion_tokens))
    fraction, server, engine = _vllm(run)
    used = as_truth(run.setting(facts.use_vllm))
    wanted |= {"completion_tokens"} | ({"vllm_memory_fraction"} if used and used.value else set())
    values |= {
        "sequence_tokens": _whole(as_count(run.setting(facts.prompt_tokens)), completion),
        "completion_tokens": completion,
        "group": as_count(run.setting(facts.group)),
        "steps_per_generation": as_count(run.setting(facts.steps_per_generation)),
        "whole_generation": as_count(run.setting(facts.whole_generation)),
        "vllm_memory_fraction": fraction,
        "vllm_sleeps": None if fraction is None else as_truth(run.setting(facts.vllm_sleeps)),
    }
    return TrainerSettings(
        values=known(values),
        unseen=frozenset(wanted - known(values).keys()),
        vllm_server=server,
        not_counted=(*not_counted, *engine),
    )


def _trainer(
    run: Resolver, uses: Sequence[TrainerUse]
) -> tuple[ScriptValue[Trainer] | None, list[TrainerClass]]:
    """What is trained for, where every trainer of the script is known and they are of one kind."""
    rows = [TRAINERS[use.name] for use in uses if use.name in TRAINERS]
    kinds = {row.trainer for row in rows}
    hidden = len(rows) < len(uses) or len(kinds) != 1
    is_changed = any(use.changed for use in uses) and kinds == {Trainer.SFT}
    if hidden or is_changed:
        return None, rows
    where = f"{run.facts.where(uses[0].line)}"
    setting = ScriptValue(
        value=rows[0].trainer,
        source=f"`{uses[0].code}` in {where}",
        change=f"edit {where}",
        state=State.FIXED,
    )
    return setting, rows


def _evaluated_by(run: Resolver) -> str | None:
    """What makes the run evaluate; None where nothing does.

    transformers 5.23, trainer.py: `eval_strategy` evaluates between steps; `do_eval` alone does
    not, but scripts that know it evaluate when they have trained.
    """
    facts = run.facts
    strategy, asked = run.setting(facts.eval_strategy), as_truth(run.setting(facts.do_eval))
    if strategy is not None and strategy.value not in {_NEVER, False}:
        return strategy.source
    if asked is not None and asked.value:
        return asked.source
    calls = (each for each in facts.trainer.evaluations if run.holds(each.conditions) is not False)
    call = next(calls, None)
    return None if call is None else f"`{call.code}` in {facts.where(call.line)}"


# transformers 5.23, trainer_utils.py, IntervalStrategy.
_NEVER = "no"


def _uses_not_counted(run: Resolver, uses: Sequence[TrainerUse]) -> Iterator[NotCounted]:
    """The trainers that no formula counts, or of which one counts a part."""
    facts = run.facts
    for use in uses:
        row = TRAINERS.get(use.name)
        where = f"{facts.where(use.line)}: `{use.code}`"
        if row is None:
            yield NotCounted(
                what=Uncounted.TRAINER,
                text=(
                    f"{where} is a trainer that zerowiz does not know; it is counted as sft "
                    "(`$trainer` sets another)"
                ),
                settled_by_name=True,
            )
        elif row.uncounted:
            yield NotCounted(
                what=Uncounted.TRAINER,
                text=f"{where} is counted as {row.trainer}; {row.uncounted}: not counted",
            )
        if use.changed is not None:
            kind = Trainer.SFT if row is None else row.trainer
            yield NotCounted(
                what=Uncounted.OWN_LOSS,
                text=(
                    f"{facts.where(use.changed_line)}: `{use.changed}` computes its own loss, "
                    f"which is counted as that of {kind} (`$trainer` sets another)"
                ),
                settled_by_name=True,
            )
    kinds = {row.trainer for use in uses if (row := TRAINERS.get(use.name)) is not None}
    if len(kinds) > 1:
        built = ", ".join(f"`{use.code}` in {facts.place(use.line)}" for use in uses)
        yield NotCounted(
            what=Uncounted.TRAINER,
            text=(
                f"{facts.text_path} builds several trainers: {built}; it is counted as sft ("
                "`$trainer` sets the one that trains)"
            ),
            settled_by_name=True,
        )


def _models_beside(run: Resolver, kind: Trainer) -> Iterator[NotCounted]:
    """The models that judge completions; the one that scores is counted."""
    judged = () if kind.row.has_value_model else run.facts.trainer.models_beside
    for model in judged:
        if run.may_hold(model):
            yield NotCounted(
                what=Uncounted.JUDGE,
                text=(
                    f"{run.facts.where(model.line)}: `{model.code}` puts another "
                    "model on every GPU, which is not counted"
                ),
            )


def _reference(
    run: Resolver, kind: Trainer, method: ScriptValue[Method] | None
) -> ScriptValue[Reference] | None:
    """Where the reference comes from; None where that is not known.

    trl 1.16, dpo_trainer.py, kto_trainer.py, grpo_trainer.py, rloo_trainer.py: where adapters train
    they are switched off for it. A model that is handed over is held, whatever was computed before.
    """
    given = as_truth(run.setting(run.facts.reference))
    computed = as_truth(run.setting(run.facts.precomputed))
    if given is not None and given.value:
        return cast(given, Reference.MODEL)
    if computed is not None and computed.value and not kind.row.generates:
        return cast(computed, Reference.PRECOMPUTED)
    if method is not None and method.value is not Method.FULL:
        return cast(method, Reference.NONE)
    if method is None and run.facts.trains_adapters:
        return None
    if not kind.row.in_groups:
        decided = computed or given
        return None if decided is None else cast(decided, Reference.MODEL)
    beta = as_number(run.setting(run.facts.beta))
    return None if beta is None else cast(beta, Reference.MODEL if beta.value else Reference.NONE)


def _whole(
    prompt: ScriptValue[int] | None, completion: ScriptValue[int] | None
) -> ScriptValue[int] | None:
    """The longest sequence, where prompts are cut."""
    if prompt is None or completion is None:
        return None
    decided = prompt if completion.state is State.OPEN else completion
    return ScriptValue(
        value=prompt.value + completion.value,
        source=f"{prompt.source}, with {completion.source},",
        change=decided.change,
        state=decided.state,
    )


def _vllm(
    run: Resolver,
) -> tuple[ScriptValue[float] | None, str | None, tuple[NotCounted, ...]]:
    """Its fraction of each GPU, what says that it is a server, and what of it is not known."""
    seen = run.facts.use_vllm
    used = as_truth(run.setting(seen))
    mode = as_text(run.setting(run.facts.vllm_mode))
    if used is None and seen.code is not None:
        text = f"{run.facts.where(seen.line)}: `{seen.code}` may use vLLM"
        return (
            None,
            None,
            (NotCounted(what=Uncounted.ENGINE, text=f"{text}: not counted"),),
        )
    if used is None or not used.value:
        return None, None, ()
    if mode is not None and mode.value == SERVER:
        return cast(mode, 0.0), mode.source, ()
    return as_number(run.setting(run.facts.vllm_memory_fraction)), None, ()


def cut_group(group: ScriptValue[int] | None, workload: Workload, ranks: int) -> str | None:
    """Why trl would end the run: not all completions of a prompt are generated at once.

    trl 1.16, grpo_config.py, rloo_config.py, __post_init__.

    Args:
        group: How many completions a prompt has.
        workload: What a rank trains with.
        ranks: All of them.
    """
    at_once = workload.resolved_generation_batch * ranks
    if group is None or not workload.trainer.row.in_groups or at_once % group.value == 0:
        return None
    return (
        f"{at_once} completions are generated at once by all GPUs, but {group.source} needs "
        f"groups of {group.value}: TRL will refuse to start; change `$micro_batch` or "
        "`$accumulation_steps`"
    )
