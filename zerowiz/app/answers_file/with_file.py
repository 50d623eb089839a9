"""Take from an answers file what nothing that is typed says."""

import posixpath
from collections.abc import Collection

from zerowiz.app.answers_file.layers import (
    FileUse,
    Layers,
    PlannedMachine,
    TakesScript,
    Typed,
)
from zerowiz.app.answers_file.read import AnswersFile
from zerowiz.app.ask.answers import said_by_config
from zerowiz.app.ask.command import Command, understand_command
from zerowiz.app.ask.script import read_as_said, said_after
from zerowiz.app.machines.machine import means_cpu
from zerowiz.app.options import Options, added, as_words
from zerowiz.app.reporter import SILENT
from zerowiz.core import shell
from zerowiz.core.launch.provenance import hide_secrets
from zerowiz.core.script.settings import settle
from zerowiz.core.values import replace
from zerowiz.errors import ZerowizError
from zerowiz.words import _


def with_file(layers: Layers, file: AnswersFile, use: FileUse) -> Layers:
    """The layers with what the file says, unless it is for another script.

    Args:
        layers: What is typed.
        file: The answers file.
        use: What the command does with it.
    """
    typed = layers.typed
    command = _understand(typed)
    named = None if command is None else command.script
    if typed.script is None:
        layers = _with_script(layers, file, use)
    elif file.script is not None and not _is_same(file, named, command):
        note = _(
            "`{file}` is for `{script}`, and sets nothing for `{named}`",
            file=file.name,
            script=file.script,
            named=named,
        )
        return replace(layers, notes=(*layers.notes, note))
    skipped = {*typed.origins, *_said_otherwise(layers, command)}
    machine = file.values.get("machine")
    is_elsewhere = isinstance(machine, str) and not means_cpu(machine)
    if use.starts_here and is_elsewhere and "machine" not in skipped:
        skipped.add("machine")
        planned_for = PlannedMachine(name=str(machine), place=file.place("machine"))
        layers = replace(layers, planned_for=planned_for)
    taken = {name: value for name, value in file.values.items() if name not in skipped}
    options = replace(layers.options, **taken)  # type: ignore[arg-type]
    origins = {**layers.origins, **{name: file.place(name) for name in taken}}
    words = as_words(added(layers.typed.options, options))
    if layers.script is not None and typed.script is None:
        words += [layers.script, *hide_secrets(layers.script_args)]
    what = (
        _("from `{file}`: `{words}`", file=file.name, words=shell.join(words))
        if words
        else _("`{file}` sets nothing", file=file.name)
    )
    return replace(layers, options=options, origins=origins, notes=(*layers.notes, what))


def _with_script(layers: Layers, file: AnswersFile, use: FileUse) -> Layers:
    """With the script of the file, where the command takes it."""
    typed = layers.typed
    with_model = use.takes_script is TakesScript.WITHOUT_MODEL and "model" in typed.origins
    is_never = use.takes_script is TakesScript.NEVER or typed.options.module
    if file.script is None or is_never or with_model:
        return layers
    return replace(
        layers,
        script=file.script,
        script_args=file.script_args,
        options=replace(typed.options, module=file.is_module),
        origins={**layers.origins, "script": file.place("script")},
    )


def _understand(typed: Typed) -> Command | None:
    """The script that is typed, behind another launcher too; what is wrong is said later."""
    try:
        return understand_command(typed.script, typed.script_args, typed.options, SILENT)
    except ZerowizError:
        return None


def _is_same(file: AnswersFile, named: str | None, command: Command | None) -> bool:
    """Whether the file is for the script that is typed."""
    if command is None or named is None or file.script is None:
        return False
    is_same_kind = file.is_module is command.options.module
    return is_same_kind and posixpath.normpath(file.script) == posixpath.normpath(named)


def _said_otherwise(layers: Layers, command: Command | None) -> Collection[str]:
    """The settings that another launcher, a word after the script, or a config says."""
    said = set(said_by_config(layers.options))
    script, words = layers.script, layers.script_args
    if layers.typed.script is not None:
        if command is None:
            return said
        changed = added(layers.options, command.options)
        said |= {name for name in Options.__struct_fields__ if _differs(changed, name)}
        script, words = command.script, command.script_args
    if script is None or not words:
        return said
    try:
        facts = read_as_said(script, words, layers.options if command is None else command.options)
    except ZerowizError:
        return said  # said where the script is read
    return said | said_after(settle(facts, words))


_NOTHING = Options()


def _differs(options: Options, name: str) -> bool:
    return bool(getattr(options, name) != getattr(_NOTHING, name))
