"""Understand what stands where the script is named: a script, a module, or another launcher."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from msgspec import Struct
from msgspec.structs import fields

from zerowiz.app.options import Options, as_words, rows, with_plain
from zerowiz.app.reporter import Reporter
from zerowiz.core import shell
from zerowiz.core.launch.launcher_options import MODULES
from zerowiz.core.launch.other_launchers import OtherCommand, is_launcher, read_command
from zerowiz.core.launch.plan import Launcher
from zerowiz.core.script.settings_file import YAML_SUFFIXES
from zerowiz.core.values import replace
from zerowiz.errors import UsageError
from zerowiz.words import _, listing

_SHELLS = frozenset({"bash", "sh"})
# Programs that start the one that their words name; in front of zerowiz they start it.
_PREFIXES = frozenset({"env", "exec", "nice", "nohup", "numactl", "poetry", "srun", "time", "uv"})
# Programs that start ranks of their own, and what zerowiz takes in their place.
_TRAINERS = {
    "axolotl": _("pass its YAML file: `zerowiz init {path}`"),
    "llamafactory-cli": _("pass its YAML file: `zerowiz init {path}`"),
    "swift": _("pass its arguments in a YAML file: `zerowiz init {path}`"),
    "trl": _("launch its module: `zerowiz launch -m trl.scripts.{module}`"),
}
_VARIABLE = re.compile(r"[A-Za-z_]\w*=")


class Command(Struct, frozen=True, kw_only=True):
    """What is to be launched, once another launcher's words are understood."""

    script: str | None
    """The script, or with `options.module` the module; None where none was named."""
    script_args: tuple[str, ...]
    options: Options
    no_local_rank: bool = False
    """Whether the words of DeepSpeed's own launcher said that the script takes no such word."""
    launcher: Launcher | None = None
    """What they said reaches the nodes of a hostfile."""


def understand_command(
    script: str | None, script_args: tuple[str, ...], options: Options, reporter: Reporter
) -> Command:
    """The script, its words and the options, where `torchrun ...` may stand before them.

    Args:
        script: The first word, if there is one.
        script_args: The words after it.
        options: What the person said before it.
        reporter: Hears what stands for the other launcher's words.

    Raises:
        UsageError: A word of the other launcher is not known, or contradicts an option; a module
            is meant, and none is named; or it starts with words that belong before `zerowiz`.
    """
    if script is not None and not Path(script).is_file():
        _refuse_program(script, script_args)
    if script in _SHELLS and script_args and not Path(script).is_file():
        # What reads the script says what to do about it.
        script, *rest = script_args
        script_args = tuple(rest)
    plain = Command(script=script, script_args=script_args, options=options)
    if script is None and options.module:
        raise UsageError(
            _("`$module` needs a module"), _("pass its name: `zerowiz launch -m pkg.train`")
        )
    if script is None:
        return plain
    if options.module:
        other = read_command(("python", "-m", script, *script_args)) if script in MODULES else None
    elif Path(script).is_file() and "/" not in script:
        # A file of that name is meant, as any other script is.
        other = None
    else:
        other = read_command((script, *script_args))
    if other is None:
        return plain
    # The module was the launcher; whether its target is one, its own words say.
    settled = _with_settings(replace(options, module=False), other)
    reporter.note(_describe(other, settled))
    return Command(
        script=other.target,
        script_args=other.args,
        options=settled,
        no_local_rank=other.no_local_rank,
        launcher=other.launcher,
    )


def _refuse_program(script: str, script_args: Sequence[str]) -> None:
    """Say what to do with a program: `CUDA=0` and `srun` start any other, `trl` its own ranks."""
    if script in _TRAINERS:
        named = (word for word in script_args if word.endswith(YAML_SUFFIXES))
        path, module = shell.quote(next(named, "my.yaml")), shell.join(script_args) or "sft"
        hint = _TRAINERS[script].format(path=path, module=module)
        raise UsageError(_("`{script}` starts ranks of its own", script=script), hint)
    if script not in _PREFIXES and _VARIABLE.match(script) is None:
        return
    words = (script, *script_args)
    ends = (at for at, word in enumerate(words) if word.endswith(".py") or is_launcher(word))
    before = shell.join(words[: next(ends, 1)])
    raise UsageError(
        _("`{script}` is not a script", script=script),
        _("put `{before}` before `zerowiz`", before=before),
    )


def _with_settings(options: Options, other: OtherCommand) -> Options:
    """The options, and what the other launcher's words say.

    Raises:
        UsageError: Both say something, and it is not the same.
    """
    said = with_plain(Options(module=other.is_module), other.settings)
    if options.gpus is not None and said.gpus_per_node == len(options.gpus.split(",")):
        said = replace(said, gpus_per_node=None)
    for field in fields(Options):
        ours, theirs = getattr(options, field.name), getattr(said, field.name)
        is_silent = ours == field.default or theirs in {field.default, ours}
        if field.name in other.settings and not is_silent:
            words = other.said_by[field.name]
            raise UsageError(
                _(
                    "`${field} {ours}` conflicts with `{words}`",
                    field=field.name,
                    ours=ours,
                    words=words,
                ),
                _(
                    "remove `{on} {ours}`, or `{words}`",
                    on=rows()[field.name].on,
                    ours=ours,
                    words=words,
                ),
            )
    if options.gpus is not None and said.gpus_per_node is not None:
        raise UsageError(
            _(
                "`$gpus {gpus}` conflicts with `{gpus_per_node}`",
                gpus=options.gpus,
                gpus_per_node=other.said_by["gpus_per_node"],
            ),
            _("remove `{gpus_per_node}`", gpus_per_node=other.said_by["gpus_per_node"]),
        )
    new = {
        field.name: getattr(said, field.name)
        for field in fields(Options)
        if getattr(said, field.name) != field.default
    }
    return replace(options, **new)


def _describe(other: OtherCommand, settled: Options) -> str:
    """One line: what was replaced, and by what."""
    words = " ".join(_means(other, settled))
    by = _(" by `{words}`", words=words) if words else ""
    lost = (
        _("; {lost} has no effect", lost=listing(f"`{each}`" for each in other.lost))
        if other.lost
        else ""
    )
    return _(
        "`{words}` is replaced{by}: zerowiz starts the ranks with deepspeed{lost}",
        words=" ".join(other.words),
        by=by,
        lost=lost,
    )


def _means(other: OtherCommand, settled: Options) -> Iterator[str]:
    """Zerowiz's own words for what the other launcher's say."""
    names = {*other.settings, *(["module"] if other.is_module else [])}
    kept = {name: getattr(settled, name) for name in names}
    yield from as_words(replace(Options(), **kept))
