"""Decide how a config is passed to its script, by the script's own convention."""

import posixpath
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NoReturn

from msgspec import Struct, field

from zerowiz.core import shell
from zerowiz.core.script.bindings import Words
from zerowiz.core.script.facts import Convention, ScriptFacts
from zerowiz.core.script.obstacles import refuse
from zerowiz.core.script.options import Given, Takes, left_over, read_words
from zerowiz.core.script.said import read_said
from zerowiz.core.script.settings import Settled
from zerowiz.core.script.settings_file import (
    SettingsCopy,
    SettingsFile,
    copy_path,
    copy_values,
)
from zerowiz.core.strategies import STRATEGIES
from zerowiz.core.strategy import Offload
from zerowiz.core.values import replace
from zerowiz.errors import UsageError, ZerowizError
from zerowiz.words import _


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


def add_settled(script_args: Sequence[str], settled: Iterable[Settled]) -> Words:
    """The words after a script, with those of what was settled."""
    return add_words(script_args, [word for each in settled for word in each.words])


# deepspeed 0.19.8, __init__.py, _add_core_arguments.
_CONFIG_FLAG = "--deepspeed_config"


def deliver(
    facts: ScriptFacts,
    script_args: tuple[str, ...],
    config_path: str,
    folder: str = "",
    *,
    is_own: bool = False,
) -> Delivery:
    """How a config is passed to a script.

    Args:
        facts: What the script shows.
        script_args: The words after the script.
        config_path: The config.
        folder: Where zerowiz writes.
        is_own: Whether the config is the person's own.

    Raises:
        PreflightError: The script takes no config; the hints say what to change in it.
        UsageError: The words after the script name another config.
        ZerowizError: The script's own literal names another config.
    """
    run = _Run(
        facts=facts,
        script_args=script_args,
        config_path=config_path,
        folder=folder,
        is_own=is_own,
    )
    delivery, file = _ROUTES[facts.convention](run), facts.settings_file
    return delivery if file is None or not file.is_whole else _into_copy(run, delivery, file)


def _into_copy(run: _Run, delivery: Delivery, file: SettingsFile) -> Delivery:
    """The same by a copy of the file: a script that takes all arguments from it reads no words."""
    parser, words = run.facts.parser, delivery.script_args[1:]
    values = copy_values(parser, file, read_words(parser, words))
    # Words that are not understood are left to the script, which may know what they are for.
    left = left_over(parser, words)
    if values == file.values:
        return replace(delivery, script_args=(file.path, *left))
    path = copy_path(run.folder, file.path, run.config_path)
    copy = SettingsCopy(path=path, of=file.path, values=values)
    return replace(delivery, script_args=(path, *left), copy=copy)


def _by_hf_flag(run: _Run) -> Delivery:
    if run.facts.settings_file is None and run.facts.parser.takes_file(run.script_args):
        return _by_environment(run)
    return _by_flag(run, "--deepspeed")


def _by_own_flag(run: _Run) -> Delivery:
    flag = run.facts.own_flag or _CONFIG_FLAG
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


def _by_flag(run: _Run, flag: str) -> Delivery:
    if _is_named(run, flag):
        return Delivery(script_args=run.script_args)
    words = (flag, run.config_path)
    joined = run.facts.parser.is_foreign
    return Delivery(script_args=run.append(*(("=".join(words),) if joined else words)))


def _is_named(run: _Run, flag: str) -> bool:
    """Whether a word, or a file that the script reads, names the config already.

    Raises:
        UsageError: It names another.
    """
    options = run.facts.parser.find(flag)
    said = read_said(run.facts, run.script_args)
    given = said.get(options[0].dest) if options else None
    if given is None or given.is_null:
        return False
    if isinstance(given.value, str) and run.names(given.value):
        return True
    raise _two_configs(run, given)


def _two_configs(run: _Run, given: Given) -> UsageError:
    path, hints = run.facts.path, []
    if isinstance(given.value, str):
        hints.append(
            _(
                "`$config {given}` before {path} uses your own file unchanged",
                given=shell.quote(given.value),
                path=path,
            )
        )
    hints.append(
        _(
            "remove `{words}`{place} to use `{config_path}`",
            words=given.words,
            place=" " + given.where if given.in_file else "",
            config_path=run.config_path,
        )
    )
    return UsageError(
        _(
            "{path} would get two configs: `{words}` {where}, and `{config_path}`",
            path=path,
            words=given.words,
            where=given.where,
            config_path=run.config_path,
        ),
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


def _by_literal(run: _Run) -> Delivery:
    literal = run.facts.literal_config or ""
    if run.names(literal):
        return Delivery(script_args=run.script_args)
    line = run.facts.config_line
    if line is None:
        raise UsageError(
            _(
                "`$config_via file:{literal}` and `$config {config_path}` name two configs",
                literal=literal,
                config_path=run.config_path,
            ),
            _(
                "use `$config_via file:{config_path}` if {path} reads that file",
                config_path=shell.quote(run.config_path),
                path=run.facts.path,
            ),
            _("or remove `$config {config_path}`", config_path=shell.quote(run.config_path)),
        )
    where = _("{path} line {line}", path=run.facts.text_path, line=line)
    if run.is_own:
        raise UsageError(
            _(
                "{where} names `{literal}`, but `$config` is `{config_path}`",
                where=where,
                literal=literal,
                config_path=run.config_path,
            ),
            _("write `{config_path}` in {where}", config_path=run.config_path, where=where),
            _("or use `$config {literal}`", literal=shell.quote(literal)),
        )
    raise ZerowizError(
        _(
            "{where} names `{literal}`, but zerowiz writes `{config_path}`",
            where=where,
            literal=literal,
            config_path=run.config_path,
        ),
        _("write `{config_path}` in {where}", config_path=run.config_path, where=where),
        _(
            "or write the plan to that file: `$config_via file:{literal}`",
            literal=shell.quote(literal),
        ),
        *_stage_hints(literal),
        _(
            "or use the script's own file unchanged: `$config {literal}`",
            literal=shell.quote(literal),
        ),
    )


def _stage_hints(literal: str) -> tuple[str, ...]:
    """The options that make zerowiz write a file of that name."""
    for strategy in STRATEGIES:
        if strategy.config_name == posixpath.normpath(literal):
            offload = f" $offload {strategy.offload}" if strategy.offload != Offload.NONE else ""
            return (
                _(
                    "or choose the strategy of that file: `$stage {stage}{offload}`",
                    stage=strategy.stage,
                    offload=offload,
                ),
            )
    return ()


def _refuse(run: _Run) -> NoReturn:
    refuse(run.facts, run.config_path)


def _by_nothing(run: _Run) -> Delivery:
    return Delivery(script_args=run.script_args)


_ROUTES: Mapping[Convention, Callable[[_Run], Delivery]] = {
    Convention.HF_PARSER: _by_hf_flag,
    Convention.HF_IN_CODE: _by_environment,
    Convention.HF_LITERAL: _by_literal,
    Convention.ADD_CONFIG_ARGUMENTS: _by_config_arguments,
    Convention.OWN_FLAG: _by_own_flag,
    Convention.CONFIG_LITERAL: _by_literal,
    Convention.CONFIG_DICT: _refuse,
    Convention.ACCELERATOR: _by_environment,
    Convention.NONE: _by_nothing,
    Convention.UNKNOWN: _refuse,
}
