"""Determine the settings of a run: the script's own values, overridden by the words after it."""

import json
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from enum import Enum
from functools import cached_property, partial

from msgspec import Struct

from zerowiz.core.dsconfig.accelerate import PARALLEL_KEYS, SHARED_SIZE, SHARING
from zerowiz.core.machine.types import Accelerator
from zerowiz.core.script.arguments import (
    BY_ARCHITECTURE,
    COLOCATED,
    LIGHTNING_PRECISIONS,
    MIXED_PRECISIONS,
    Scalar,
)
from zerowiz.core.script.facts import (
    SHARED_SEQUENCES,
    UNSEEN,
    Convention,
    OwnModel,
    ParallelUse,
    Resolver,
    ScriptCall,
    ScriptFacts,
    ScriptValue,
    SettledValue,
    State,
    ValueSource,
    Words,
    as_count,
    as_named,
    as_number,
    as_text,
    as_truth,
    cast,
    either,
    settle_own_model,
    spell,
)
from zerowiz.core.script.trainers import NotCounted, TrainerSettings, known, settle_trainer
from zerowiz.core.settings import (
    HYPERPARAMETERS,
    LEARNING,
    OF_ADAM,
    Origin,
    SettingValue,
    not_planned,
)
from zerowiz.core.structs import replace
from zerowiz.core.workload import (
    SETTINGS,
    Integration,
    Method,
    Precision,
    Reference,
    Trainer,
    Uncounted,
    setting_kinds,
)
from zerowiz.errors import PreflightError, UsageError

# Find the words after a script that give one of its settings another value.

Route = Callable[[Resolver, object], Words | None]


def words_for(run: Resolver, name: str, value: object) -> Words | None:
    """The words after the script that give a setting this value.

    Args:
        run: The script, and the words that are there already.
        name: Of the setting.
        value: Ours, such as `Precision.BF16`.

    Returns:
        An empty tuple where the config gives it the value. None where no words can, or where
        somebody said it or the code fixes it.
    """
    return _ROUTES.get(name, partial(_by_option, name))(run, value)


def _by_option(name: str, run: Resolver, value: object) -> Words | None:
    """By the option that decides a setting; its values may have other names there."""
    theirs = spell(SETTINGS[name].names) if name in SETTINGS else {}
    if theirs and value not in theirs:
        return None
    return run.words_for(run.facts.sources.get(name, UNSEEN), theirs.get(value, value))


def _precision(run: Resolver, value: object) -> Words | None:
    """By two switches, or by Accelerate's `mixed_precision`."""
    facts = run.facts
    if facts.mixed_precision.flag is not None:
        return run.words_for(facts.mixed_precision, spell(_names(facts))[Precision(str(value))])
    if facts.bf16.flag is None and facts.fp16.flag is None:
        return () if facts.float_batches.seen else None
    switches = ((facts.bf16, Precision.BF16), (facts.fp16, Precision.FP16))
    wanted = {binding: value is precision for binding, precision in switches}
    # One that is not seen, and is not to be on, is off.
    return _words_of_all(run, {b: on for b, on in wanted.items() if on or b.seen})


def _words_of_all(run: Resolver, wanted: Mapping[ValueSource, object]) -> Words | None:
    """The words that give several settings their values, where the run has others."""
    words: Words = ()
    for binding, value in wanted.items():
        now = run.setting(binding)
        is_known = now is not None and now.value == value
        more = () if is_known else run.words_for(binding, value)
        if more is None:
            return None
        words += () if more == words else more
    return words


def _names(facts: ScriptFacts) -> Mapping[Scalar, Precision]:
    """What the library of a loop calls the precisions."""
    by_lightning = facts.integration is Integration.LIGHTNING
    return LIGHTNING_PRECISIONS if by_lightning else MIXED_PRECISIONS


def _accumulation(run: Resolver, value: object) -> Words | None:
    """By its option; an Accelerator of the script that says nothing takes the steps of the config.

    Source: accelerate 1.15, accelerator.py, _prepare_deepspeed ("Using DeepSpeed's value").
    """
    binding = run.facts.accumulation_steps
    by_accelerate = run.facts.integration is Integration.ACCELERATE
    if by_accelerate and binding.default_of is not None:
        return ()
    return run.words_for(binding, value)


def _method(run: Resolver, value: object) -> Words | None:
    """By the conditions under which the script adds adapters, and loads their base in 4 bits."""
    adapts = value is not Method.FULL
    words = run.words_where(run.facts.adapters, holds=adapts)
    if words is None or not adapts:
        return words
    more = run.words_where(run.facts.quantized, holds=value is Method.QLORA)
    return None if more is None else words + more


def _reference(run: Resolver, value: object) -> Words | None:
    """By `precompute_ref_log_probs`; no word hands a model over, or changes what is trained."""
    wanted = value is Reference.PRECOMPUTED
    handed = as_truth(run.setting(run.facts.reference))
    if value is Reference.NONE or handed is None or handed.value:
        return None
    return run.words_for(run.facts.precomputed, wanted)


def _vllm_fraction(run: Resolver, value: object) -> Words | None:
    """By the options of trl that start vLLM in the same GPUs, and give it this part of each."""
    facts = run.facts
    wanted = {facts.use_vllm: True, facts.vllm_mode: COLOCATED, facts.vllm_memory_fraction: value}
    return _words_of_all(run, wanted)


def _eval_batch(run: Resolver, value: object) -> Words | None:
    """By the option of the Trainer; no evaluation is no batch of none."""
    return _by_option("eval_batch", run, value) if value else None


def _sequence_parallel(run: Resolver, value: object) -> Words | None:
    """By variables that Accelerate reads, where the script says no size itself."""
    facts = run.facts
    if facts.sequence_parallel.seen:
        return run.words_for(facts.sequence_parallel, value)
    return () if facts.integration in {Integration.HF, Integration.ACCELERATE} else None


# The settings that more than their own option decides.
_ROUTES: Mapping[str, Route] = {
    "accumulation_steps": _accumulation,
    "precision": _precision,
    "reference": _reference,
    "vllm_memory_fraction": _vllm_fraction,
    "eval_batch": _eval_batch,
    "method": _method,
    "sequence_parallel": _sequence_parallel,
}


BY_SCRIPT = frozenset(
    {
        *_ROUTES,
        *(name for name, row in SETTINGS.items() if row.trainer_fields or row.script_names),
        *("trainer", "lora_rank", "lora_target_modules"),
    }
)
"""The settings of a step that a script can decide."""


class ScriptSettings(TrainerSettings, frozen=True, kw_only=True):
    """The settings of a run.

    As an attribute of its name each is there, None where the script does not decide it, or where it
    is unknown: `settings.micro_batch`. Besides those of a plan: `model`, the `positions` of a model
    that it builds, `use_cpu` and the `loader_workers` of each rank.
    """

    own_model: OwnModel | None = None
    """The sizes of a model of its own classes."""
    metrics: str | None = None
    """What computes metrics of all logits of an evaluation."""
    adapts: bool = False
    """Whether adapters train, and only the bits of the frozen weights are not known."""
    targets_by_architecture: bool = False
    """Whether peft chooses the layers by the model's type."""
    uncounted: tuple[ValueSource, ...] = ()
    """What the script does with adapters that the ledger does not count."""
    freezes: tuple[ScriptCall, ...] = ()
    """Where it may freeze parameters of a model that it trains as a whole."""
    splits: bool = True
    """Whether nobody decides how the sequences of an optimizer step are split into micro-steps, and
    another split learns the same."""
    draws_batch: bool = False
    """Whether its own loop trains the micro-batch that it draws, whatever a config says."""
    config_wins: bool = False
    """Whether what a config says of how the model learns counts, and the script is given it."""
    by_config: frozenset[str] = frozenset()
    """Of the names in LEARNING those that it takes from the config, whatever it says itself."""
    words_for: Callable[[str, object], Words | None] = lambda _name, _value: None
    """The words after the script that give a setting, by its name, this value.

    None where none can, and where somebody said it or the code fixes it: that is never changed.
    """

    def __getattr__(self, name: str) -> SettledValue | None:
        """The setting of this name."""
        if name not in _NAMES:
            raise AttributeError(name)
        return self.values.get(name)

    @property
    def model_name(self) -> str | None:
        """As `--model` takes it: the model that it loads, or else one of its own classes."""
        if self.model is not None:
            return str(self.model.value)
        return None if self.own_model is None else self.own_model.name

    @property
    def widens_adapters(self) -> bool:
        """Whether some of `uncounted` adds parameters: a base of 8 bits is counted with 16."""
        return any("load_in_8bit" not in (part.code or "") for part in self.uncounted)

    def is_open(self, name: str, value: object) -> bool:
        """Whether nobody decides a setting, and the script can be given this value."""
        setting = self.values.get(name)
        is_decided = setting is not None and setting.state is not State.OPEN
        return not is_decided and self.words_for(name, value) is not None

    def settled(self, name: str, value: "int | float | str | bool") -> "tuple[AddedWords, ...]":
        """The setting with the words that give it this value; empty where none are to be added."""
        words = self.words_for(name, value)
        return (AddedWords(name=name, value=value, words=words),) if words else ()


class AddedWords(Struct, frozen=True, kw_only=True):
    """A setting that the script leaves open, and the words that give it the plan's value."""

    name: str
    """Of the setting."""
    value: int | float | str | bool
    words: Words


# What a script decides beside the settings of a step, and the type of its values.
_BESIDES: Mapping[str, type] = {
    "model": str,
    "positions": int,
    "use_cpu": bool,
    "loader_workers": int,
    "every_n_layers": int,
    **dict.fromkeys((*HYPERPARAMETERS, *OF_ADAM, "max_steps"), float),
    "schedule": str,
}
_OF_TRAINER = (
    *("trainer", "reference", "eval_batch", "group", "steps_per_generation", "whole_generation"),
    *(name for name, row in SETTINGS.items() if row.of_generation),
)
_NAMES = {*SETTINGS, *_BESIDES, *_OF_TRAINER}
_READERS: Mapping[type, Callable[[ScriptValue[Scalar] | None], SettledValue | None]] = {
    int: as_count,
    float: as_number,
    bool: as_truth,
    str: as_text,
    tuple: as_text,
}


# What the config that zerowiz writes decides where the script says nothing of it.
_BY_CONFIG = frozenset(
    {"micro_batch", "accumulation_steps", "precision", "torch_autocast", "optimizer"}
)


def can_be_given(script: "ScriptRun", name: str, value: object) -> bool:
    """Whether the ranks can be given this value of a setting without a change of their script.

    Args:
        script: The script as it is run.
        name: Of the setting.
        value: By words after the script, or by the config that zerowiz writes.
    """
    settings = script.settings
    silent = name not in settings.values and name not in settings.unseen
    by_config = name in _BY_CONFIG and script.facts.convention is not Convention.NONE
    return settings.is_open(name, value) or (silent and by_config)


class ScriptRun(Resolver):
    """A script with the words after it: read once, its settings worked out once.

    Args:
        facts: What the script shows.
        words: Those after the script, which override its defaults.

    Example:
        >>> ScriptRun(ScriptFacts(path="train.py"), ["--bf16"]).settings.micro_batch is None
        True
    """

    @cached_property
    def settings(self) -> ScriptSettings:
        """The settings of the run."""
        facts = self.facts
        adapters, method = self.condition(facts.adapters), _settled_method(self)
        targets = as_text(self.setting(facts.lora_target_modules))
        by_architecture = targets is not None and targets.value == BY_ARCHITECTURE
        of_trainer = settle_trainer(self, method)
        values = {
            **{name: self._value_of(name) for name in (*SETTINGS, *_BESIDES)},
            "precision": _settled_precision(self),
            "gradient_checkpointing": _checkpointing(self),
            "every_n_layers": _every_n_layers(self),
            "packing": either(self.setting(facts.packing), self.setting(facts.padding_free)),
            "method": method,
            "lora_target_modules": None if by_architecture else targets,
            **dict.fromkeys(_OF_TRAINER),
            **of_trainer.values,
        }
        settings = ScriptSettings(
            values=known(values),
            not_counted=(*of_trainer.not_counted, *_plain_layers(self), *_copies(self)),
            evaluated_by=of_trainer.evaluated_by,
            vllm_server=of_trainer.vllm_server,
            own_model=settle_own_model(self),
            metrics=_metrics(facts) if "eval_batch" in of_trainer.values else None,
            adapts=method is None and adapters is not None and adapters.value,
            targets_by_architecture=by_architecture,
            draws_batch=facts.integration not in {None, Integration.HF},
            config_wins=facts.integration is Integration.HF or facts.optimizer.from_config,
            by_config=learned_by_config(
                None if facts.convention is Convention.NONE else facts.integration, facts.passed
            ),
            words_for=partial(words_for, self),
        )
        frozen = settings.method is None or settings.method.value is not Method.FULL
        return replace(
            settings,
            unseen=frozenset(_unseen(facts, settings)) | of_trainer.unseen,
            uncounted=tuple(filter(self.may_hold, facts.uncounted)) if frozen else (),
            freezes=()
            if frozen and settings.method is not None
            else tuple(c for c in facts.freezes if self.holds(c.conditions) is not False),
            splits=_splits(facts, settings),
        )

    def _value_of(self, name: str) -> SettledValue | None:
        """A setting that its own source alone decides."""
        setting = self.setting(self.facts.sources.get(name, UNSEEN))
        if setting is None:
            return None
        kind = _BESIDES.get(name) or setting_kinds()[name]
        names = SETTINGS[name].names if name in SETTINGS else {}
        if issubclass(kind, Enum):
            names = names or {member.value: member for member in kind}
        return as_named(setting, names) if names else _READERS[kind](setting)

    def with_words(self, words: Sequence[str]) -> "ScriptRun":
        """The same script with these words after it."""
        return self if tuple(words) == self.words else ScriptRun(self.facts, words)


def facts_of(script: ScriptRun | None) -> ScriptFacts | None:
    """What a script shows; None of a job without one."""
    return None if script is None else script.facts


def settings_of(script: ScriptRun | None) -> ScriptSettings:
    """The settings of a run; none of a job without a script."""
    return ScriptSettings() if script is None else script.settings


def learned_by_config(reader: Integration | None, passed: Collection[str]) -> frozenset[str]:
    """Of the names in LEARNING those that DeepSpeed takes from its config.

    Args:
        reader: The library that passes it on; None where none does.
        passed: The `optimizer` and the `lr_scheduler`, if the script passes them to DeepSpeed.

    Example:
        >>> learned_by_config(Integration.DEEPSPEED, {"optimizer"})
        frozenset({'max_grad_norm'})
    """
    if reader is Integration.DEEPSPEED and "optimizer" not in passed:
        return frozenset(LEARNING) - ({"warmup_steps", "schedule"} if passed else set())
    clips = reader in {Integration.DEEPSPEED, Integration.ACCELERATE}
    return frozenset({"max_grad_norm"} if clips else ())


def _splits(facts: ScriptFacts, settings: ScriptSettings) -> bool:
    """Whether a micro-batch and its micro-steps can be given other values, and mean the same.

    A loop that counts its micro-steps as optimizer steps would follow another schedule of learning
    rates; one that takes its whole batch from the config has none that another split could change.
    """
    trainer = Trainer.SFT if settings.trainer is None else settings.trainer.value
    micro_batch, steps = facts.micro_batch, facts.accumulation_steps
    by_dict = any(s.from_config and s.value is not None for s in (micro_batch, steps))
    if settings.not_counted or by_dict or not trainer.row.averages:
        return False
    by_config = steps.from_config and (micro_batch.from_config or facts.counts_micro_steps)
    by_option = steps.flag is not None and settings.is_open("accumulation_steps", 1)
    is_open = micro_batch.from_config or settings.is_open("micro_batch", 1)
    return is_open and (by_config or by_option)


def _metrics(facts: ScriptFacts) -> str | None:
    """Where the trainer is handed what computes metrics."""
    metrics = facts.trainer.metrics
    return None if metrics is None else f"{facts.where(metrics.line)}: `{metrics.code}`"


def _checkpointing(run: Resolver) -> ScriptValue[bool] | None:
    """Gradient checkpointing, which TrainingArguments or a call of the script turns on."""
    switch = as_truth(run.setting(run.facts.gradient_checkpointing))
    if run.facts.checkpoints_too is None or (switch is not None and switch.value):
        return switch
    too = run.condition(run.facts.checkpoints_too)
    return switch if too is not None and not too.value else too


def _every_n_layers(run: Resolver) -> ScriptValue[int] | None:
    """Which layers alone are checkpointed: each n-th.

    transformers 5.23, modeling_utils.py, activation_checkpointing_enable.
    """
    setting = run.setting(run.facts.every_n_layers)
    if setting is not None and isinstance(setting.value, str):
        setting = cast(setting, _in_json(setting.value, "every_n_layers"))
    return as_count(setting)


def _plain_layers(run: Resolver) -> Iterator[NotCounted]:
    """What is not counted where nobody sees how many layers are checkpointed."""
    checkpointing, binding = _checkpointing(run), run.facts.every_n_layers
    is_off = checkpointing is not None and not checkpointing.value
    if not is_off and binding.code is not None and run.setting(binding) is None:
        yield NotCounted(
            what=Uncounted.PLAIN_LAYERS,
            text=(
                f"zerowiz does not see the value of `{binding.code}`, so the layers that it leaves"
                " out are not counted"
            ),
        )


def _copies(run: Resolver) -> Iterator[NotCounted]:
    """The models that a loop has beside the one that it trains."""
    for call in run.facts.copies:
        if run.holds(call.conditions) is not False:
            where = run.facts.where(call.line)
            text = f"`{call.code}` in {where} is another model, which is not counted"
            yield NotCounted(what=Uncounted.COPY, text=text)


def _in_json(text: str, key: str) -> Scalar:
    try:
        values = json.loads(text)
    except ValueError:
        return None
    value = values.get(key) if isinstance(values, dict) else None
    return value if isinstance(value, int) else None


def _settled_method(run: Resolver) -> ScriptValue[Method] | None:
    """Full training, LoRA or QLoRA; None where that is not known."""
    adapters, several = run.condition(run.facts.adapters), run.facts.adapters_if
    if adapters is None and several and run.holds(several):
        adapters = run.condition(several[0])
    if adapters is None:
        return None
    if not adapters.value:
        return cast(adapters, Method.FULL)
    quantized = run.condition(run.facts.quantized)
    if quantized is None:
        return None
    method = Method.QLORA if quantized.value else Method.LORA
    return cast(quantized if quantized.value else adapters, method)


def _unseen(facts: ScriptFacts, settings: ScriptSettings) -> Iterator[str]:
    """The settings that this script decides, and whose values are not known.

    A script that calls DeepSpeed or Accelerate itself leaves the precision to the config, and one
    that passes no optimizer leaves that to the config too.
    """
    trainer = facts.integration is Integration.HF
    adapters = settings.method is None or settings.method.value is not Method.FULL
    decided = {
        "micro_batch": not facts.micro_batch.from_config,
        "accumulation_steps": not facts.accumulation_steps.from_config,
        "precision": trainer or facts.mixed_precision.code is not None,
        "gradient_checkpointing": True,
        "sequence_tokens": True,
        "optimizer": trainer
        or facts.passes_optimizer
        or (
            facts.integration is Integration.ACCELERATE
            and facts.optimizer.code is not None
            and not facts.optimizer.from_config
        ),
        # Of a script without an engine the training is not read.
        "method": facts.trains_adapters or facts.integration is None,
        "lora_rank": facts.trains_adapters and adapters,
        "lora_target_modules": facts.trains_adapters and adapters,
        "max_grad_norm": facts.max_grad_norm.code is not None,
    }
    return (name for name, is_own in decided.items() if is_own and name not in settings.values)


def check_accelerator(script: ScriptRun, on: Accelerator) -> None:
    """Refuse a script that would not train on this accelerator.

    Raises:
        PreflightError: A Trainer on the CPU accelerator without `use_cpu`: with bf16 it refuses to
            start, and with fp32 each rank trains alone (transformers 5.23, TrainingArguments).
    """
    # Most jobs are for GPUs, and settings of other words are worked out anew.
    use_cpu = script.settings.use_cpu if on is Accelerator.CPU else None
    if use_cpu is not None and not use_cpu.value:
        raise PreflightError(
            f"{script.facts.path} cannot train on CPU ranks: it does not set `use_cpu`",
            use_cpu.change_to(value=True),
        )


def _of_environment(environ: Mapping[str, str]) -> dict[str, int]:
    """The sizes that `ParallelismConfig()` of accelerate 1.15 reads where nothing else says one.

    Raises:
        UsageError: It cannot read one, or has no such backend.
    """
    sizes = {}
    for key, backend in SHARING.items():
        name = key.upper()
        said = environ.get(name, backend or "1")
        if backend is None and said.isdecimal():
            sizes[key] = int(said)
        if said != backend and sizes.get(key, 0) < 1:
            wanted = "a whole number above 0" if backend is None else f"`{backend}`"
            raise UsageError(f"the environment has `{name}={said}`", f"set {wanted}, or unset it")
    return sizes


def shared_by_environment(environ: Mapping[str, str]) -> Iterator[SettingValue]:
    """The ranks that share each sequence, where the environment says so."""
    value = _of_environment(environ)[SHARED_SIZE]
    if value > 1:
        source = SHARED_SIZE.upper()
        yield SettingValue(
            name="sequence_parallel", value=value, origin=Origin.ENVIRONMENT, source=source
        )


def check_parallelism(run: ScriptRun | None, environ: Mapping[str, str], ranks: int) -> None:
    """Refuse a job whose ranks share more than data and sequences.

    Args:
        run: The script as it is run; None without one.
        environ: Of the job.
        ranks: All of them.

    Raises:
        UsageError: They do, or may, or the sizes of the environment are not those of all ranks.
    """
    sizes = _of_environment(environ)
    for key, kind in PARALLEL_KEYS.items():
        if sizes[key] > 1:
            raise not_planned(f"the environment has `{key.upper()}={sizes[key]}`", kind)
    # accelerate 1.15, accelerator.py, __init__: another word than `true` is false.
    switch, shared, total = (
        "ACCELERATE_USE_PARALLELISM_CONFIG",
        sizes[SHARED_SIZE],
        math.prod(sizes.values()),
    )
    is_on = environ.get(switch, "false").lower() == "true"
    if not is_on and switch in environ and total > 1:
        raise UsageError(
            f"the environment has `{switch}={environ[switch]}`: Accelerate ignores the sizes",
            "set `true`, or unset it",
        )
    if (is_on or shared > 1) and total not in {1, shared, ranks}:
        said = ", ".join(f"`{key.upper()}={size}`" for key, size in sizes.items() if size > 1)
        raise UsageError(
            f"the environment has {said}: that makes {total} ranks, and the job has {ranks}",
            "unset them but the size for sequences: zerowiz sets the groups that share data",
        )
    if run is None:
        return
    for use, size, is_doubtful in _shared_work(run):
        if is_doubtful:
            continue
        said = f"`{use.code}` in {run.facts.where(use.line)}" if size is None else size.source
        if size is None and use.kind == SHARED_SEQUENCES:
            raise UsageError(
                f"{said}: zerowiz does not see how many GPUs share each sequence",
                "write the number there, or an option of the script",
            )
        raise not_planned(said, use.kind)


def _shared_work(run: ScriptRun) -> Iterator[tuple[ParallelUse, ScriptValue[Scalar] | None, bool]]:
    """What is not off, by how many ranks as far as that is seen, and whether it may be off."""
    for use in run.facts.parallel:
        size, holds = run.setting(use.size), run.holds(use.conditions)
        is_one = size is not None and size.value is not True and size.value in {0, 1}
        if not is_one and holds is not False:
            yield use, size, size is None and (use.is_open or holds is None)


def doubtful_parallelism(run: ScriptRun | None) -> Iterator[str]:
    """What a plan does not count, as nothing says that this run does it; a sentence each."""
    if run is None:
        return
    for use, _size, is_doubtful in _shared_work(run):
        if is_doubtful:
            yield (
                f"assumed without {use.kind}, which `{use.code}` in "
                f"{run.facts.where(use.line)} may turn on: it is not planned"
            )


def check_method(facts: ScriptFacts, method: Method) -> None:
    """Refuse a plan with adapters for a script without any.

    Raises:
        UsageError: Adapters were planned, and the script does not import peft.
    """
    is_whole = facts.integration is not None and not facts.builds_elsewhere
    if method is not Method.FULL and is_whole and not facts.trains_adapters:
        raise UsageError(
            f"`$method {method}` conflicts with {facts.path}, which does not import peft",
            f"remove `$method {method}`: the script trains every parameter",
            f"to train adapters, wrap the model with peft in `{facts.text_path}`",
        )


def _settled_precision(run: Resolver) -> ScriptValue[Precision] | None:
    """The precision, by `bf16` and `fp16`, or by Accelerate's `mixed_precision`."""
    bf16, fp16 = (as_truth(run.setting(b)) for b in (run.facts.bf16, run.facts.fp16))
    change, spellings = _precision_change(run.facts)
    for switch, precision in ((bf16, Precision.BF16), (fp16, Precision.FP16)):
        if switch is not None and switch.value:
            return ScriptValue(
                value=precision,
                source=switch.source,
                change=change,
                state=switch.state,
                spellings=spellings,
            )
    switches = [switch for switch in (bf16, fp16) if switch is not None]
    of_trainer = run.facts.integration is Integration.HF
    if not switches or (of_trainer and len(switches) == 1):
        by_name = as_named(run.setting(run.facts.mixed_precision), _names(run.facts))
        return by_name or _float_precision(run)
    if run.facts.mixed_precision.from_config:
        return None
    chosen = next((switch for switch in switches if switch.state is not State.OPEN), switches[-1])
    return ScriptValue(
        value=Precision.FP32,
        source=chosen.source,
        change=change,
        state=chosen.state,
        spellings=spellings,
    )


def _float_precision(run: Resolver) -> ScriptValue[Precision] | None:
    """That of a loop which hands its engine floats; 16-bit weights refuse them.

    deepspeed 0.19.8, runtime/engine.py, forward: it casts inputs for `fp16.auto_cast` alone.
    """
    floats = run.facts.float_batches
    if not floats.seen:
        return None
    where = f"in {run.facts.where(floats.line)}"
    what = "makes floats" if floats.value else "gets inputs that may be floats"
    return ScriptValue(
        value=Precision.FP32,
        source=f"`{floats.code}` {where} {what}, which nothing casts to 16 bits",
        change="`$torch_autocast {value}`, or `$precision {value}` with inputs that you cast",
        state=State.OPEN,
    )


def _precision_change(facts: ScriptFacts) -> tuple[str, dict[Precision, Scalar]]:
    """How to give the script another precision, and what each one is there."""
    flags = {
        precision: f"`{binding.flag}`"
        for precision, binding in ((Precision.BF16, facts.bf16), (Precision.FP16, facts.fp16))
        if binding.flag is not None
    }
    is_condition = any(binding.when or binding.unless for binding in (facts.bf16, facts.fp16))
    by_accelerate = facts.integration is Integration.ACCELERATE
    by_dict = facts.bf16.from_config or facts.fp16.from_config
    if is_condition or by_dict or (by_accelerate and len(flags) == 1):
        line = facts.bf16.line or facts.fp16.line
        return f"edit {facts.where(line)}", {}
    if flags:
        change = f"put {{value}} after {facts.path}"
        words = flags
    else:
        change = f"set {{value}} in {facts.where(facts.bf16.line or facts.fp16.line)}"
        words = {Precision.BF16: "`bf16=True`", Precision.FP16: "`fp16=True`"}
    neither = f"neither {' nor '.join(words.values())}"
    return change, {**words, Precision.FP32: neither}
