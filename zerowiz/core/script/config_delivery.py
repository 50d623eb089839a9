"""Decide how a config is passed to its script, by the script's own convention."""

import posixpath
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NoReturn

from msgspec import Struct, field

from zerowiz.core import shell
from zerowiz.core.script.arguments import (
    Option,
    SettingsCopy,
    Takes,
    copy_path,
    copy_values,
    left_over,
    read_words,
)
from zerowiz.core.script.facts import (
    WAYS,
    Convention,
    Obstacle,
    ScriptFacts,
    ValueSource,
    Words,
    read_said,
    split_config_via,
)
from zerowiz.core.script.settings import AddedWords
from zerowiz.core.structs import replace
from zerowiz.core.workload import Integration, Workload
from zerowiz.errors import BY_DOCTOR, UnreachableScriptError, UsageError, ZerowizError

# Read what a person says of how a config reaches a script: `--config-via`.


def with_config_via(
    facts: ScriptFacts, text: str | None, integration: Integration | None = None
) -> ScriptFacts:
    """What a script shows, with what a person says of how its config reaches it.

    Args:
        facts: What it shows.
        text: As the option has it; None where nobody says.
        integration: The library that reads the config, as a person says; None where nobody does.

    Raises:
        UsageError: The script is seen to have no such option, or to read another file.
    """
    if text is None:
        return facts
    way, name = split_config_via(text)
    _, convention, reader = WAYS[way]
    reader = facts.integration or integration or reader
    if way == "env" and reader is Integration.LIGHTNING:
        convention = Convention.LIGHTNING
    if facts.convention is Convention.CONFIG_DICT and convention is not Convention.NONE:
        # Another config takes the place of the dict.
        names = (name for name, source in facts.sources.items() if source.from_config)
        facts = facts.with_sources(**dict.fromkeys(names, ValueSource(from_config=True)))
    stated = replace(
        facts,
        convention=convention,
        obstacle=None,
        integration=reader,
        literal_config=None,
    )
    if way == "file":
        return _with_file(stated, name, facts.literal_config)
    if way == "key":
        # Hydra 1.3, _internal/utils.py, run_hydra: its parser knows no option of the script.
        return replace(stated, own_flag=f"{name}=", parser=replace(facts.parser, strict=True))
    return _with_flag(stated, name, facts.obstacle) if way == "flag" else stated


def _with_file(facts: ScriptFacts, name: str, seen: str | None) -> ScriptFacts:
    """With the file that a script reads; one that changes its folder names it differently."""
    if seen is None:
        return replace(facts, literal_config=name, config_line=None)
    if posixpath.basename(seen) != posixpath.basename(name):
        raise UsageError(
            f"`$config_via file:{name}`: {facts.where(facts.config_line)} names `{seen}`",
            f"use `$config_via file:{seen}`",
        )
    return replace(facts, literal_config=name)


def _with_flag(facts: ScriptFacts, name: str, obstacle: Obstacle | None) -> ScriptFacts:
    flag, parser = f"--{name.lstrip('-')}", facts.parser
    if parser.find(flag):
        return replace(facts, own_flag=flag)
    if parser.complete and parser.options:
        words = ("config", "deepspeed")
        takes = [choice for choice in parser.options if any(word in choice.dest for word in words)]
        names = ", ".join(f"`{take.flag}`" for take in takes)
        raise UsageError(
            f"`$config_via flag:{name}`: {facts.path} has no option `{flag}`",
            *([f"its options: {names}"] if names else []),
            *(
                []
                if obstacle
                else ["remove `$config_via`: zerowiz can see how the script gets its config"]
            ),
        )
    option = Option(flags=(flag,), dest=flag.lstrip("-"))
    return replace(facts, own_flag=flag, parser=replace(parser, options=(*parser.options, option)))


# Say why zerowiz cannot pass a config to a script, and what to change in the script.

_KEEP = "to keep your config, write it to a file: `$config FILE $stage auto` builds on it"

# For each obstacle the reason, then the hints; {path}, {line} and {config} are filled in.
_OBSTACLES: Mapping[Obstacle, tuple[str, ...]] = {
    Obstacle.NO_ENGINE: (
        "it has no `deepspeed.initialize`, TrainingArguments or `Accelerator()`",
        (
            "raw DeepSpeed: call `deepspeed.add_config_arguments(parser)`, then pass "
            "`args=args` to `deepspeed.initialize`"
        ),
        'HF Trainer: `TrainingArguments(..., deepspeed="{config}")`',
    ),
    Obstacle.ENGINE_UNSEEN: (
        (
            "`deepspeed.add_config_arguments` in line {line} adds options, but zerowiz "
            "cannot see a `deepspeed.initialize(args=...)` that gets them, in the script or "
            "in a module next to it"
        ),
        "use `$config_via flag:deepspeed_config` if an engine does get them",
        "use `$config_via none` if the script builds its config itself",
    ),
    Obstacle.NO_CONFIG: (
        "`deepspeed.initialize` in line {line} gets no config that zerowiz can see",
        "call `deepspeed.add_config_arguments(parser)`, and pass `args=args` in line {line}",
    ),
    # deepspeed 0.19.8, __init__.py, initialize: an assertion refuses both.
    Obstacle.TWO_CONFIGS: (
        (
            "`deepspeed.initialize` in line {line} gets the config twice, as `args=` and as "
            "`config=`"
        ),
        "remove `config=` in {path} line {line}: `args=` already has it",
    ),
    Obstacle.BUILT: (
        "`deepspeed.initialize` in line {line} takes a config that the script builds itself",
        (
            "pass `args=args` and no `config=` in {path} line {line}, from a parser with "
            "`deepspeed.add_config_arguments(parser)`, and do not set `args.deepspeed_config`"
        ),
        _KEEP,
    ),
    Obstacle.HYDRA: (
        "the config in line {line} is built by the script, or of what Hydra reads",
        (
            "use `$config_via key:NAME` if it is a key of Hydra, as in `config=cfg.NAME`: zerowiz"
            " then adds `NAME={config}`"
        ),
        "use `$config_via key:+NAME` if your files do not have that key yet",
        "use `$config_via env` if a Trainer or an Accelerator gets no `deepspeed` of them",
        "use `$config_via none` if the script keeps its own config",
    ),
    Obstacle.BUILT_HF: (
        "`deepspeed=` in line {line} is a value that the script computes",
        "remove `deepspeed=` in {path} line {line}: zerowiz then passes its file",
        'or write `deepspeed="{config}"` there',
        _KEEP,
    ),
    Obstacle.BUILT_ACCELERATE: (
        "the DeepSpeed plugin in line {line} is built by the script",
        "remove `deepspeed_plugin=` in {path} line {line}: zerowiz then passes its file",
        _KEEP,
    ),
    Obstacle.BUILT_LIGHTNING: (
        "the DeepSpeedStrategy in line {line} takes a config that the script builds itself",
        "remove `config=` in {path} line {line}: zerowiz then passes its file",
    ),
    Obstacle.NO_STRATEGY: (
        "the Lightning Trainer in line {line} has no `strategy` of DeepSpeed that zerowiz sees",
        'write `strategy="deepspeed"` in {path} line {line}: zerowiz then passes its file',
    ),
    Obstacle.HIDDEN_HF: (
        "zerowiz cannot see where its TrainingArguments come from (line {line})",
        ('write `deepspeed="{config}"` where TrainingArguments is called, in {path} itself'),
        "or use `$config_via env` if it is called without `deepspeed=`",
    ),
    Obstacle.HIDDEN_LIGHTNING: (
        "zerowiz cannot see the Trainer of Lightning that `fit` in line {line} is called of",
        (
            "set its `strategy` to `deepspeed`, as by the word `++trainer.strategy=deepspeed` for"
            " Hydra, and use `$config_via env`"
        ),
    ),
    Obstacle.PROGRAM_FILE: (
        "LLaMA-Factory takes the config from its YAML file, by the key `deepspeed`",
        "pass that file instead: `zerowiz init my.yaml`",
    ),
}

_STRATEGY = {"keyword": "strategy", "code": '"deepspeed"'}
# The keyword of the call in that line, and what to write for it; nothing if it is to be removed.
_EDITS: Mapping[Obstacle, tuple[Mapping[str, str], ...]] = {
    Obstacle.TWO_CONFIGS: ({"keyword": "config"},),
    Obstacle.BUILT_HF: ({"keyword": "deepspeed"},),
    Obstacle.BUILT_ACCELERATE: ({"keyword": "deepspeed_plugin"},),
    Obstacle.BUILT_LIGHTNING: ({"keyword": "config"},),
    # One that Hydra makes has no such name.
    Obstacle.NO_STRATEGY: (_STRATEGY, {"call": "Trainer", **_STRATEGY}),
}

_SAY_HOW = (
    "or set how the script gets its config: `$config_via flag:NAME`, `$config_via env` or "
    "`$config_via file:PATH`; with `$config_via none` it keeps its own"
)

_SAY_WHO = "and add `$integration hf` if a Trainer reads it that zerowiz cannot see"


def refuse(facts: ScriptFacts, config_path: str) -> NoReturn:
    """Refuse a script that takes no config.

    Args:
        facts: What the script shows.
        config_path: The config that it was to take.

    Raises:
        UnreachableScriptError: Always; the hints say what to change.
    """
    reason, *hints = _OBSTACLES[facts.obstacle or Obstacle.NO_ENGINE]
    general = (_SAY_HOW, *((_SAY_WHO,) if facts.integration is None else ()))
    words = {
        "path": facts.text_path,
        "line": facts.place(facts.config_line).removeprefix("line "),
        "config": config_path,
    }
    edits = _EDITS.get(facts.obstacle or Obstacle.NO_ENGINE, ())
    error = UnreachableScriptError(
        f"zerowiz cannot pass a config to {facts.text_path}: {reason.format(**words)}",
        *(hint.format(**words) for hint in hints),
        *([BY_DOCTOR] if edits else []),
        *(() if facts.obstacle in {Obstacle.PROGRAM_FILE, Obstacle.HYDRA} else general),
    )
    error.edits = tuple(facts.edit(facts.config_line, **edit) for edit in edits)
    raise error


class Delivery(Struct, frozen=True, kw_only=True):
    """How the config is passed: the words after the script, and environment variables."""

    script_args: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    copy: SettingsCopy | None = None
    """The settings file that is written, and named by these words, instead of the person's own."""


class _Run(Struct, frozen=True, kw_only=True):
    """A script, the words after it, and the config that it is to take."""

    facts: ScriptFacts
    script_args: tuple[str, ...]
    config_path: str
    folder: str
    is_own: bool
    """Whether the config is the person's own."""
    reads_base: bool
    """Whether the file that the script names is the person's own base."""

    def names(self, path: str) -> bool:
        """Whether this path is the config's."""
        return posixpath.normpath(path) == posixpath.normpath(self.config_path)

    def append(self, *words: str) -> Words:
        """The words with others added."""
        return add_words(self.script_args, words)


def add_words(script_args: Sequence[str], words: Sequence[str]) -> Words:
    """The words after a script with others added, before a `--`: argparse reads no options there.

    Example:
        >>> add_words(("--lr", "1e-4", "--", "x"), ("--bf16", "True"))
        ('--lr', '1e-4', '--bf16', 'True', '--', 'x')
    """
    end = list(script_args).index("--") if "--" in script_args else len(script_args)
    return (*script_args[:end], *words, *script_args[end:])


def add_settled(script_args: Sequence[str], settled: Iterable[AddedWords]) -> Words:
    """The words after a script, with those of what was settled."""
    return add_words(script_args, [word for addition in settled for word in addition.words])


# deepspeed 0.19.8, __init__.py, _add_core_arguments.
_CONFIG_FLAG = "--deepspeed_config"


def deliver(
    facts: ScriptFacts,
    script_args: tuple[str, ...],
    config_path: str,
    folder: str = "",
    *,
    is_own: bool = False,
    reads_base: bool = False,
) -> Delivery:
    """How a config is passed to a script.

    Args:
        facts: What the script shows.
        script_args: The words after the script.
        config_path: The config.
        folder: Where zerowiz writes.
        is_own: Whether the config is the person's own.
        reads_base: Whether the file that the script names is the base of the config.

    Raises:
        UnreachableScriptError: The script takes no config; the hints say what to change in it.
        UsageError: The words after the script name another config.
        ZerowizError: The script's own literal names another config.
    """
    run = _Run(
        facts=facts,
        script_args=script_args,
        config_path=config_path,
        folder=folder,
        is_own=is_own,
        reads_base=reads_base,
    )
    delivery, file = _ROUTES[facts.convention](run), facts.settings_file
    if file is None or not file.is_whole:
        return delivery
    # A script that takes all arguments from a file reads no words: a copy of the file has them.
    parser, words = facts.parser, delivery.script_args[1:]
    values = copy_values(parser, file, read_words(parser, words))
    # Words that are not understood are left to the script, which may know what they are for.
    left = left_over(parser, words)
    if values == file.values:
        return replace(delivery, script_args=(file.path, *left))
    path = copy_path(folder, file.path, config_path)
    copy = SettingsCopy(path=path, of=file.path, values=values)
    return replace(delivery, script_args=(path, *left), copy=copy)


def _by_hf_flag(run: _Run) -> Delivery:
    if run.facts.settings_file is None and run.facts.parser.takes_file(run.script_args):
        return _by_environment(run)
    return _by_flag(run, "--deepspeed")


def _by_own_flag(run: _Run) -> Delivery:
    flag = run.facts.own_flag or _CONFIG_FLAG
    if flag.endswith("="):
        return _by_key(run, flag)
    # A script that declares both of DeepSpeed's options itself may ask for the switch, too.
    switches = (o.takes is Takes.STORE_TRUE for o in run.facts.parser.of("deepspeed"))
    return (
        _by_config_arguments(run) if flag == _CONFIG_FLAG and any(switches) else _by_flag(run, flag)
    )


def _by_config_arguments(run: _Run) -> Delivery:
    # deepspeed 0.19.8, __init__.py, _add_core_arguments: `--deepspeed` is a switch here.
    if "deepspeed" not in read_words(run.facts.parser, run.script_args):
        run = replace(run, script_args=run.append("--deepspeed"))
    return _by_flag(run, _CONFIG_FLAG)


def _by_key(run: _Run, key: str) -> Delivery:
    """`deepspeed=FILE`, as Hydra takes it; a `+` before it adds a key."""
    is_said = (word for word in run.script_args if word.lstrip("+").startswith(key.lstrip("+")))
    named = next(is_said, None)
    if named is None:
        return Delivery(script_args=run.append(f"{key}{run.config_path}"))
    if run.names(named.partition("=")[2]):
        return Delivery(script_args=run.script_args)
    raise UsageError(
        f"{run.facts.path} would get two configs: `{named}`, and `{run.config_path}`",
        f"remove `{named}` to use `{run.config_path}`",
    )


def _by_flag(run: _Run, flag: str) -> Delivery:
    # A word, or a file that the script reads, may name a config already.
    options = run.facts.parser.find(flag)
    values = read_said(run.facts, run.script_args)
    given = values.get(options[0].dest) if options else None
    if given is None or given.is_null:
        words = (flag, run.config_path)
        joined = run.facts.parser.is_foreign
        return Delivery(script_args=run.append(*(("=".join(words),) if joined else words)))
    if isinstance(given.value, str) and run.names(given.value):
        return Delivery(script_args=run.script_args)
    path, hints = run.facts.path, []
    if isinstance(given.value, str):
        hints.append(
            f"`$config {shell.quote(given.value)}` before {path} uses your own file unchanged"
        )
    hints.append(
        f"remove `{given.words}`{' ' + given.where if given.in_file else ''} to use "
        f"`{run.config_path}`"
    )
    raise UsageError(
        f"{path} would get two configs: `{given.words}` {given.where}, and `{run.config_path}`",
        *hints,
    )


# accelerate 1.x, accelerator.py and utils/dataclasses.py: these two variables make an Accelerator
# without arguments, also that of the HF Trainer, build its DeepSpeedPlugin from this file.
def _by_environment(run: _Run) -> Delivery:
    env = {
        "ACCELERATE_USE_DEEPSPEED": "true",
        "ACCELERATE_DEEPSPEED_CONFIG_FILE": run.config_path,
    }
    return Delivery(script_args=run.script_args, env=env)


def share_sequences(step: Workload, ranks: int) -> dict[str, str]:
    """The variables by which the ranks of a Trainer or an Accelerator share sequences.

    accelerate 1.15, accelerator.py, __init__, and parallelism_config.py: without the first, nobody
    reads the others. _prepare_deepspeed takes the ranks that share data for one, unless it is told.
    """
    sizes = {
        "SP_SIZE": step.sequence_parallel,
        "SP_BACKEND": "deepspeed",
        "SP_SEQ_LENGTH_IS_VARIABLE": "true",
        "SP_ATTN_IMPLEMENTATION": step.attention.row.names[0],
        "DP_REPLICATE_SIZE": 1,
        "DP_SHARD_SIZE": step.replicas(ranks),
    }
    variables = {f"PARALLELISM_CONFIG_{name}": str(value) for name, value in sizes.items()}
    return {"ACCELERATE_USE_PARALLELISM_CONFIG": "true", **variables}


# lightning 2.6, pytorch/strategies/deepspeed.py, _load_config: a strategy without a config of its
# own reads this one, and none of its defaults.
def _by_lightning(run: _Run) -> Delivery:
    return Delivery(script_args=run.script_args, env={"PL_DEEPSPEED_CONFIG_PATH": run.config_path})


# worker/prepared_script.py: where the script opens the first file, it gets the second. A base is
# never overwritten.
BASE_VARIABLE, CONFIG_VARIABLE = "ZEROWIZ_BASE_FILE", "ZEROWIZ_CONFIG_FILE"


def _by_literal(run: _Run) -> Delivery:
    literal = run.facts.literal_config or ""
    if run.names(literal):
        return Delivery(script_args=run.script_args)
    if run.reads_base:
        env = {BASE_VARIABLE: literal, CONFIG_VARIABLE: run.config_path}
        return Delivery(script_args=run.script_args, env=env)
    line = run.facts.config_line
    if line is None:
        raise UsageError(
            f"`$config_via file:{literal}` and `$config {run.config_path}` name two configs",
            (
                f"use `$config_via file:{shell.quote(run.config_path)}` if {run.facts.path} "
                "reads that file"
            ),
            f"or remove `$config {shell.quote(run.config_path)}`",
        )
    where = f"{run.facts.where(line)}"
    if run.is_own:
        raise UsageError(
            f"{where} names `{literal}`, but `$config` is `{run.config_path}`",
            f"write `{run.config_path}` in {where}",
            f"or use `$config {shell.quote(literal)}`",
        )
    raise ZerowizError(
        f"{where} names `{literal}`, but zerowiz writes `{run.config_path}`",
        f"write `{run.config_path}` in {where}",
        f"or build on the script's own file: `$config {shell.quote(literal)} $stage auto`",
        f"or use that file unchanged: `$config {shell.quote(literal)}`",
        (
            f"or write the plan to that file: `$config_via file:{shell.quote(literal)}`, with "
            "`--force` where it exists"
        ),
    )


def _refuse(run: _Run) -> NoReturn:
    refuse(run.facts, run.config_path)


_ROUTES: Mapping[Convention, Callable[[_Run], Delivery]] = {
    Convention.HF_PARSER: _by_hf_flag,
    Convention.HF_IN_CODE: _by_environment,
    Convention.HF_LITERAL: _by_literal,
    Convention.ADD_CONFIG_ARGUMENTS: _by_config_arguments,
    Convention.OWN_FLAG: _by_own_flag,
    Convention.CONFIG_LITERAL: _by_literal,
    Convention.CONFIG_DICT: _refuse,
    Convention.ACCELERATOR: _by_environment,
    Convention.LIGHTNING: _by_lightning,
    Convention.NONE: lambda run: Delivery(script_args=run.script_args),
    Convention.UNKNOWN: _refuse,
}
