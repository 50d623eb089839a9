"""Settle what a rank of the job trains with: as options, the script and a config say."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, cast

from msgspec import Struct

from zerowiz.app.options import Options
from zerowiz.app.reporter import Reporter
from zerowiz.core.command_words import flags
from zerowiz.core.decision.job import native_precision
from zerowiz.core.dsconfig.own_config import UserConfig
from zerowiz.core.machine.types import Machine
from zerowiz.core.script.arguments import LOCAL_RANK_FLAG, unknown_word
from zerowiz.core.script.facts import ScriptValue, State
from zerowiz.core.script.settings import AddedWords, ScriptRun, ScriptSettings
from zerowiz.core.settings import HYPERPARAMETERS, LEARNING, Origin, SettingValue, as_typed
from zerowiz.core.structs import replace
from zerowiz.core.units import divide_batch, keep_batch, largest_part, solve_accumulation
from zerowiz.core.workload import (
    SETTINGS,
    Accounting,
    Loss,
    Method,
    Reference,
    Trainer,
    Workload,
    parse_modules,
)
from zerowiz.errors import PreflightError, UsageError
from zerowiz.probe.files import read_transformers_release, read_trl_release
from zerowiz.translation import N_

# Refuse a run that would not be the one that was planned.

# Words that fingers put last, and that hardly a training script takes. Where every option of the
# script is known, no option of zerowiz is taken for one of its words.
_OWN_WORDS = ("dry_run", "yes", "as_json", "stage", "accelerator", "machine")


def check_accounting(options: Options) -> None:
    """Check that a run is planned with what DeepSpeed allocates.

    Raises:
        UsageError: It was to be planned by the rule of thumb.
    """
    if options.accounting is Accounting.TEXTBOOK:
        raise UsageError(
            (
                "`$accounting textbook` works with `zerowiz plan` only: a real run needs "
                "more memory than the rule of thumb"
            ),
            "remove `$accounting textbook`",
        )


def check_words(script: ScriptRun) -> None:
    """Check that the script takes the words after it, and that no option of zerowiz is among them.

    Args:
        script: The script as it is run.

    Raises:
        UsageError: One is, and the script has no such option of its own; or its parser, which is
            seen whole, ends it at a word.
    """
    facts, words = script.facts, script.words
    sees_all = facts.parser.complete and bool(facts.parser.options)
    flags_of_ours = set(flags().values()) if sees_all else {flags()[name] for name in _OWN_WORDS}
    flags_of_ours -= {facts.parser.config_flag}
    own = words[: words.index("--")] if "--" in words else words
    typed = dict.fromkeys(word.partition("=")[0] for word in own)
    misplaced = [flag for flag in typed if flag in flags_of_ours and not facts.parser.find(flag)]
    if misplaced:
        named = ", ".join(f"`{flag}`" for flag in misplaced)
        raise UsageError(
            f"{named} after {facts.path} would go to the script",
            f"put {named} before {facts.path}",
            f"or put `--` before `{misplaced[0]}` if the script reads it",
        )
    unknown = unknown_word(facts.parser, words)
    if unknown is not None:
        spelled = [flag for option in facts.parser.options for flag in option.flags]
        near = get_close_matches(unknown, spelled, n=1)
        raise UsageError(
            f"{facts.path} has no option `{unknown}`: its parser ends the job there",
            f"did you mean `{near[0]}`?" if near else f"remove it, or add it to {facts.path}",
        )


def check_local_rank(script: ScriptRun) -> None:
    """Check that a script gets its local rank by the word that DeepSpeed's launcher passes.

    Raises:
        PreflightError: It spells the word differently, so that the launcher's would end it, and
            without it every rank would take the default.
    """
    if not script.facts.parser.refuses_local_rank(script.words):
        return
    for option in script.facts.parser.of("local_rank"):
        if LOCAL_RANK_FLAG in option.flags:
            continue  # a settings file leaves no room for words
        raise PreflightError(
            (
                f"DeepSpeed's launcher passes `{LOCAL_RANK_FLAG}`, and "
                f"{script.facts.where(option.line)} takes `{option.flag}`"
            ),
            (f'accept both there: `add_argument("{option.flag}", "{LOCAL_RANK_FLAG}", ...)`'),
        )


def check_own_config(
    options: Options,
    machine: Machine,
    script: ScriptRun | None,
    reporter: Reporter,
) -> None:
    """See that a person's own config will do what it says; what else is found is noted.

    Raises:
        ConfigMistakeError: It holds an error, and nobody forces it.
    """
    if options.config is not None:
        from zerowiz.app.resolve.own_config import lint_own_config  # noqa: PLC0415 - takes long to load

        lint_own_config(options.config, options, machine, script, reporter)


class ResolvedWorkload(Struct, frozen=True, kw_only=True):
    """The workload, and which of its settings somebody decided."""

    workload: Workload
    decided: frozenset[str]
    """By the name of the field; the others have a default of ours."""
    settled: tuple[AddedWords, ...]
    """What the script leaves open, and is to take from words that are added after it."""


# Where an option may stand although the script says something else.
_AGREES: Mapping[str, Callable[[object, object], bool]] = {
    # A person may know that a script that could evaluate does not.
    "eval_batch": lambda option, _: option == 0,
    # A Trainer's own loss can be computed in chunks, which none of its arguments say.
    "loss": lambda option, script: option is Loss.CHUNKED and script is Loss.PLAIN,
    # The same names in another order are the same layers.
    "lora_target_modules": lambda option, script: (
        set(parse_modules(str(option))) == set(parse_modules(str(script)))
    ),
}


# How the optimizer's states are kept is no part of the step: each accounting has a default.
_OF_STEP = tuple(name for name in SETTINGS if name != "optimizer_state_dtype")


def by_script(name: str, setting: ScriptValue[Any]) -> SettingValue:
    """A setting as the script has it."""
    return SettingValue(
        name=name,
        value=setting.value,
        origin=Origin.SCRIPT,
        source=setting.source,
        change_to=setting.change_to,
    )


def list_values(
    options: Options,
    settings: ScriptSettings,
    config: UserConfig,
    ranks: int,
    answered: Collection[str] = (),
) -> Iterator[SettingValue]:
    """All that a script, a config, options and answers say of a job's settings.

    A config says how a plain loop learns, and a Trainer, whose arguments must say the same.

    Args:
        options: What was said.
        settings: What the script says.
        config: What the person's own config says.
        ranks: Of the job, which share a batch of the config.
        answered: The settings that a person said as answers of the wizard.

    Raises:
        UsageError: The batch of the config does not multiply out.
    """
    for name in (*_OF_STEP, "model", *LEARNING):
        setting: ScriptValue[object] | None = getattr(settings, name, None)
        if setting is not None:
            yield by_script(name, setting)
    micro_batch, steps = _batch_of_config(options, settings, config, ranks)
    of_config = {
        "micro_batch": micro_batch,
        "accumulation_steps": steps,
        "sequence_parallel": config.sequence_parallel,
        "precision": config.precision,
        "torch_autocast": config.torch_autocast,
        "optimizer_state_dtype": config.state_dtype,
        "stage": None if config.stage is None else str(config.stage),
        "offload": config.offload,
        **{n: v for n, v in config.learning if settings.config_wins or n in settings.by_config},
    }
    for name, value in of_config.items():
        if value is not None:
            source = f"{options.config}"
            yield SettingValue(name=name, value=value, origin=Origin.CONFIG, source=source)
    for name in (*_OF_STEP, "optimizer_state_dtype", "stage", "offload", *HYPERPARAMETERS):
        value = getattr(options, name)
        if value is not None and (name, value) != ("sequence_parallel", 0):
            source = as_typed(name, value)
            origin = Origin.ANSWER if name in answered else Origin.OPTION
            yield SettingValue(name=name, value=value, origin=origin, source=source)
    kept = keep_steps(options, settings, config)
    if kept is not None:
        source = N_("kept global batch")
        yield SettingValue(
            name="accumulation_steps", value=kept, origin=Origin.CHOSEN, source=source
        )


def keep_steps(options: Options, settings: ScriptSettings, config: UserConfig) -> int | None:
    """The micro-steps that keep the global batch where an option splits it otherwise.

    None where no option does, where the split is not open, and for a micro-batch that is typed
    where the script shows no batch.

    Raises:
        UsageError: The micro-batch of the option does not divide it.
    """
    micro_batch, own, steps = options.micro_batch, settings.micro_batch, settings.accumulation_steps
    silent = replace(options, micro_batch=None)
    more = (options.sequence_parallel or 1) // shared_by_script(settings)
    is_split = more > 1 or (micro_batch is not None and own is not None)
    if not is_split or options.global_batch is not None:
        return None
    if not splits(silent, settings, config):
        return None
    alone = (micro_batch or 1) if own is None else own.value
    part = alone * (1 if steps is None else steps.value) * more
    return keep_batch(part, micro_batch or alone)


def find_replicas(
    options: Options,
    settings: ScriptSettings,
    config: UserConfig,
    others: Sequence[SettingValue],
    ranks: int,
) -> int:
    """The groups of ranks that share each sequence, by what counts most.

    Args:
        options: What was said.
        settings: What the script says.
        config: What the person's own config says.
        others: What the environment says, then what a search chose.
        ranks: All of them.
    """
    said = (int(str(v.value)) for v in reversed(others) if v.name == "sequence_parallel")
    by_others = options.sequence_parallel or next(said, None)
    shared = by_others or config.sequence_parallel or shared_by_script(settings)
    return ranks // (shared * (config.tensor_parallel or 1)) or 1


def shared_by_script(settings: ScriptSettings) -> int:
    """The ranks that share each sequence as the script is."""
    shared: ScriptValue[int] | None = settings.sequence_parallel
    return 1 if shared is None else shared.value


def _batch_of_config(
    options: Options, settings: ScriptSettings, config: UserConfig, ranks: int
) -> tuple[int | None, int | None]:
    """Micro-batch and micro-steps that a config decides.

    A loop trains what it draws, whatever its config says, and a base gives way to what a script has
    that it does not leave open. A micro-batch that is typed splits the sequences of the step that
    the job would have on that base.

    Raises:
        UsageError: It does not divide them.
    """
    micro_batch, steps = config.batch(ranks)
    own, typed, is_base = settings.micro_batch, options.micro_batch, config.base is not None
    by_loop = settings.draws_batch and (is_base or typed is None)
    if own is not None and (by_loop or (is_base and not settings.is_open("micro_batch", 1))):
        micro_batch = None
    if not is_base:
        return micro_batch, steps
    if (options.accumulation_steps, options.global_batch) != (None, None):
        steps = None
    by_script = settings.accumulation_steps
    if by_script is not None and not settings.is_open("accumulation_steps", 1):
        steps = None
    whole = own.value if micro_batch is None and own is not None else micro_batch
    if typed is not None and whole is not None and steps is not None:
        steps = keep_batch(whole * steps, typed)
    return micro_batch if typed is None else None, steps


def gives_way(settings: ScriptSettings, script: SettingValue, other: SettingValue) -> bool:
    """Whether a script can be given another value than its own, or has as good a one."""
    # What both may mean is compared with more than their texts, where it is read.
    if script.name == "model":
        return True
    if script.name in LEARNING:
        # What a loop calls so reaches the optimizer by the config alone.
        is_said = settings.values[script.name].state is State.SAID
        of_config = other.origin is Origin.CONFIG
        by_config = script.name in settings.by_config or (settings.config_wins and of_config)
        return by_config and not (is_said and not of_config)
    is_said = other.origin in {Origin.OPTION, Origin.ANSWER}
    same = is_said and _agrees(script.name, other.value, script.value)
    return same or settings.is_open(script.name, other.value)


def resolve_workload(
    said: Mapping[str, SettingValue],
    options: Options,
    settings: ScriptSettings,
    config: UserConfig,
    machine: Machine,
    replicas: int,
) -> ResolvedWorkload:
    """The workload; a default of ours where nobody says.

    Args:
        said: The value that counts of each setting that anything is said of.
        options: What was said.
        settings: What the script says.
        config: What the user's own config says.
        machine: It takes bf16 or not.
        replicas: The ranks, or groups of ranks, that share a global batch.

    Raises:
        UsageError: A global batch is no multiple of what is said, or no step has all of it.
    """
    values = {name: said[name].value if name in said else None for name in _OF_STEP}
    values["precision"] = values["precision"] or config.fallback_precision
    is_chosen = "micro_batch" in said and said["micro_batch"].origin is Origin.CHOSEN
    if options.global_batch is not None and not is_chosen:
        steps = None if config.base is not None else config.batch(replicas)[1]
        values |= _split(options.global_batch, options, values, settings, steps, replicas)
    known = {name: value for name, value in values.items() if value is not None}
    if settings.adapts and "method" not in known:
        # The larger of the two: weights of 16 bits.
        known["method"] = Method.LORA
    trainer = known.get("trainer")
    if isinstance(trainer, Trainer) and trainer.row.generates and options.eval_batch is None:
        known.pop("eval_batch", None)
    known |= _of_trainer(known, settings, machine.world_size)
    if "lora_target_modules" in known:
        known["lora_target_modules"] = parse_modules(str(known["lora_target_modules"]))
    if "precision" not in known:
        known["precision"] = native_precision(machine, options.torch_autocast)
    every: ScriptValue[int] | None = settings.every_n_layers
    # The names are those of the class, the values of its types: options and scripts have the same.
    try:
        workload = Workload(
            **known,  # type: ignore[arg-type]
            every_n_layers=1 if every is None else every.value,
            tensor_parallel=config.tensor_parallel or 1,
            expert_parallel=config.expert_parallel or 1,
            transformers_version=read_transformers_release(),
            trl_version=read_trl_release(),
        )
    except UsageError as error:
        elsewhere = (
            value
            for name, value in said.items()
            if f"`${name}" in error.message and value.origin in {Origin.SCRIPT, Origin.CONFIG}
        )
        hints = (
            "`${name}` is set by {elsewhere}".format(
                name=value.name,
                elsewhere=f"`{value.source}`" if value.origin is Origin.CONFIG else value.source,
            )
            for value in elsewhere
        )
        raise UsageError(error.message, *error.hints, *hints) from None
    _refuse_idle(options, workload)
    # A script that has an option for it may use its value for more than the optimizer.
    learned = {n: getattr(options, n) for n in HYPERPARAMETERS if n in settings.by_config}
    if settings.config_wins:
        learned = {name: value for name, value in config.learning if name != "schedule"}
    return ResolvedWorkload(
        workload=workload,
        decided=frozenset(n for n, v in values.items() if v is not None),
        settled=tuple(_settled({**values, **learned}, settings)),
    )


def _refuse_idle(options: Options, workload: Workload) -> None:
    """Refuse an option that this training step has no use for."""
    trains_all, generates = workload.method is Method.FULL, workload.trainer.row.generates
    for name, row in SETTINGS.items():
        value = getattr(options, name)
        if not value:
            continue
        if row.of_adapters and trains_all:
            raise UsageError(
                f"`${name} {value}` has no effect: all parameters are trained, without adapters",
                f"add `$method lora`, or remove `${name}`",
            )
        if row.of_generation and not generates:
            raise UsageError(
                (
                    f"`${name} {value}` has no effect: `$trainer {workload.trainer}` "
                    "generates nothing"
                ),
                f"remove `${name}`",
            )


# What trl cut prompts to, while it did (trl 0.14 to 0.27, trainer/grpo_config.py).
_PROMPT_TOKENS = 512
# trl 1.16, trainer/grpo_config.py, rloo_config.py, `vllm_gpu_memory_utilization`.
_VLLM_FRACTION = 0.3


def _of_trainer(
    known: Mapping[str, object], settings: ScriptSettings, ranks: int
) -> dict[str, object]:
    """What follows from what is known of a trainer, where nobody says it."""
    values: dict[str, object] = {}
    trainer = known.get("trainer", Workload().trainer)
    reference = known.get("reference")
    by_default = settings.reference is not None and settings.reference.state is State.OPEN
    adapts = known.get("method", Method.FULL) is not Method.FULL
    if "reference" in settings.unseen and reference is None and not adapts:
        values["reference"] = Reference.MODEL
    elif by_default and reference is Reference.MODEL and adapts:
        values["reference"] = Reference.NONE
    if not (isinstance(trainer, Trainer) and trainer.row.generates):
        return values
    if "sequence_tokens" not in known:
        completion = known.get("completion_tokens", Workload().completion_tokens)
        values["sequence_tokens"] = cast("int", completion) + _PROMPT_TOKENS
    if "vllm_memory_fraction" in settings.unseen and "vllm_memory_fraction" not in known:
        values["vllm_memory_fraction"] = _VLLM_FRACTION
    batch = _generation_batch(known, settings, ranks)
    if "generation_batch" not in known and batch is not None:
        values["generation_batch"] = batch
    return values


def _generation_batch(
    known: Mapping[str, object], settings: ScriptSettings, ranks: int
) -> int | None:
    """The completions that a GPU generates at a time, where the script says so."""
    whole: ScriptValue[int] | None = settings.whole_generation
    steps: ScriptValue[int] | None = settings.steps_per_generation
    if whole is not None:
        return max(1, whole.value // ranks)
    micro_batch = cast("int", known.get("micro_batch", Workload().micro_batch))
    return None if steps is None else micro_batch * steps.value


def _settled(values: Mapping[str, object], settings: ScriptSettings) -> Iterator[AddedWords]:
    """The settings for which the script would take another value by itself."""
    for name, value in values.items():
        setting: ScriptValue[object] | None = getattr(settings, name, None)
        if value is None or (setting is not None and _agrees(name, value, setting.value)):
            continue
        yield from settings.settled(name, cast("int | float | str | bool", value))


def _agrees(name: str, value: object, script: object) -> bool:
    """Whether the script's value of a setting is as good as this one."""
    return value == script or (name in _AGREES and _AGREES[name](value, script))


def splits(options: Options, settings: ScriptSettings, config: UserConfig) -> bool:
    """Whether nobody decided how the sequences of an optimizer step are split.

    A config of the person's own that leaves it open (`"auto"`) stays as it is: words of the script
    have to decide it then.
    """
    silent = options.micro_batch is None and options.accumulation_steps is None
    averages = options.trainer is None or options.trainer.row.averages
    by_words = settings.is_open("micro_batch", 1) and settings.is_open("accumulation_steps", 1)
    reaches = config.leaves_batch_open and (options.own_config is None or by_words)
    return silent and averages and reaches and settings.splits


def solves_micro_batch(options: Options, settings: ScriptSettings) -> bool:
    """Whether the micro-batch follows from what else is known of a global batch.

    That includes a loop which counts micro-steps: who says a global batch says that there are some.
    """
    if options.global_batch is None or options.micro_batch is not None or options.own_config:
        return False
    if splits(options, settings, UserConfig()):
        return True
    trainer = Trainer.SFT if settings.trainer is None else settings.trainer.value
    averages = (options.trainer or trainer).row.averages and not settings.not_counted
    by_config = settings.micro_batch is None and "micro_batch" not in settings.unseen
    return averages and (by_config or settings.is_open("micro_batch", 1))


def _split(
    whole: int,
    options: Options,
    values: Mapping[str, object],
    settings: ScriptSettings,
    of_config: int | None,
    ranks: int,
) -> dict[str, object]:
    """Micro-batch and micro-steps of a global batch: it is solved for what is open of them."""
    steps = cast("int | None", values["accumulation_steps"])
    nobody = options.accumulation_steps is None and of_config is None
    if nobody and settings.is_open("accumulation_steps", 1):
        steps = None
    micro_batch = cast("int", values["micro_batch"] or Workload().micro_batch)
    if solves_micro_batch(options, settings):
        if steps is None:
            part = divide_batch(whole, ranks, f"{ranks} ranks")
            micro_batch = largest_part(part, micro_batch)
            return {"micro_batch": micro_batch, "accumulation_steps": part // micro_batch}
        unit = steps * ranks
        part = divide_batch(
            whole,
            unit,
            f"{_micro_steps(steps)} x {ranks} ranks = {unit}",
        )
        return {"micro_batch": part, "accumulation_steps": steps}
    if steps is None:
        is_own = options.micro_batch is not None
        steps = solve_accumulation(whole, micro_batch, ranks, is_own=is_own)
    elif whole != steps * micro_batch * ranks:
        raise _not_this_split(whole, micro_batch, steps, ranks, options, settings, of_config)
    return {"accumulation_steps": steps}


def _micro_steps(steps: int) -> str:
    return "1 micro-step" if steps == 1 else f"{steps} micro-steps"


def _not_this_split(
    whole: int,
    micro_batch: int,
    steps: int,
    ranks: int,
    options: Options,
    settings: ScriptSettings,
    of_config: int | None,
) -> UsageError:
    """The global batch has another size than the micro-batch and micro-steps that are decided."""
    setting = settings.accumulation_steps
    solved, rest = divmod(whole, micro_batch * ranks)
    by, change = f"`{options.config}`", f"set it to {solved} there"
    if options.accumulation_steps is not None:
        by = f"`$accumulation_steps {steps}`"
        change = f"remove {by}"
    elif setting is not None and of_config is None:
        by, change = setting.source, setting.change_to(solved)
    drop = f"remove `$global_batch {whole}`"
    if solved and not rest:
        return UsageError(
            (
                f"`$global_batch {whole}` needs {_micro_steps(solved)} of {micro_batch} x "
                f"{ranks} ranks, but {by} says {steps}"
            ),
            change,
            f"or {drop}",
        )
    product = micro_batch * steps * ranks
    part, left = divmod(whole, steps * ranks)
    fits = options.micro_batch is not None and part and not left
    return UsageError(
        (
            f"`$global_batch {whole}` is not {micro_batch} x {ranks} ranks x "
            f"{_micro_steps(steps)} = {product}, and {by} says {steps}"
        ),
        *((f"use `$micro_batch {part}`",) if fits else ()),
        f"or {drop}" if fits else drop,
    )
