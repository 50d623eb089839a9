"""Join what is said of a job: on the command line, in the environment, in the answers file."""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from zerowiz.app.options import (
    FileUse,
    Layers,
    Options,
    Typed,
    as_words,
    of_one_run,
    rows,
    variable_of,
)
from zerowiz.core import shell
from zerowiz.core.settings import Origin
from zerowiz.core.structs import replace
from zerowiz.probe.files import find_answers_file

# Join what is said of a job: on the command line, in the environment, in the answers file.
#
# What is said first counts: an option, a variable `ZEROWIZ_...`, the file; then what the script
# or the machine shows, then a default.


def join_layers(typed: Typed, use: FileUse) -> Layers:
    """The options of a job with what the answers file says, where nothing else does.

    Args:
        typed: What is said now.
        use: What the command does with a file.

    Raises:
        ZerowizError: There is a file, and it cannot be used.
    """
    options = typed.options
    plain = Layers(
        typed=typed,
        options=options,
        script=typed.script,
        script_args=typed.script_args,
        values=typed.values,
        notes=_variable_notes(typed),
    )
    if options.isolated:
        return plain
    path = find_answers_file(typed.script, options.output_dir)
    if path is None:
        return plain if typed.script is not None else _with_old_record(plain)

    from zerowiz.app.answers_file import (  # noqa: PLC0415 - most folders have none
        read_answers_file,
        with_file,
    )

    return with_file(plain, read_answers_file(path), use)


def _variable_notes(typed: Typed) -> tuple[str, ...]:
    """Which variables say something, in one line."""
    by_variable = [v for v in typed.values.values() if v.origin is Origin.ENVIRONMENT]
    values = {value.name: getattr(typed.options, value.name) for value in by_variable}
    words = as_words(replace(Options(), **values))
    names = ", ".join(value.source for value in by_variable)
    notes = (f"from {names}: `{shell.join(words)}`",) if words else ()
    return (*notes, *_misspelt(os.environ))


_PREFIX = "ZEROWIZ_"
# So like a variable that it is meant; names of zerowiz's own (ZEROWIZ_NO_INPUT) are less like one.
_ALIKE = 0.85


def _misspelt(environ: Mapping[str, str]) -> Iterator[str]:
    """Variables that are almost one that is read, or of an option that has none."""
    known = [variable.removeprefix(_PREFIX) for variable in map(variable_of, rows()) if variable]
    others = [name for name in environ if name.startswith(_PREFIX)]
    for name in (other.removeprefix(_PREFIX) for other in others):
        if name in known:
            continue
        option = name.lower().replace("_", "-")
        if option in of_one_run():
            yield f"{_PREFIX}{name} is not read: `--{option}` is for one run"
            continue
        from difflib import get_close_matches  # noqa: PLC0415 - few variables are wrong

        for near in get_close_matches(name, known, n=1, cutoff=_ALIKE):
            yield f"{_PREFIX}{name} is not read: did you mean {_PREFIX}{near}?"


_OLD_RECORD = Path(".zerowiz") / "init.json"


def _with_old_record(layers: Layers) -> Layers:
    """Say that an older zerowiz kept answers here in another file."""
    folders = {layers.options.output_dir or Path(), Path()}
    records = [folder / _OLD_RECORD for folder in folders if (folder / _OLD_RECORD).is_file()]
    again = "of an older zerowiz is not read: run `zerowiz init` again"
    notes = [f"`{path}` {again}" for path in records]
    return replace(layers, notes=(*layers.notes, *notes))
