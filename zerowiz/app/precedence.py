"""Join what is said of a job: on the command line, in the environment, in the answers file."""

from zerowiz.app.options import (
    FileUse,
    Layers,
    Options,
    Typed,
    as_words,
)
from zerowiz.core import shell
from zerowiz.core.settings import Origin
from zerowiz.core.structs import replace
from zerowiz.probe.files import find_answers_file

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
    path = None if options.isolated else find_answers_file(typed.script, options.output_dir)
    if path is None:
        return plain
    from zerowiz.app.answers_file import (  # noqa: PLC0415 - most folders have none
        read_answers_file,
        with_file,
    )

    return with_file(plain, read_answers_file(path), use)


def _variable_notes(typed: Typed) -> tuple[str, ...]:
    """Which variables say something, in one line."""
    by_variable = [v for v in typed.values.values() if v.origin is Origin.ENVIRONMENT]
    values = {value.name: getattr(typed.options, value.name) for value in by_variable}
    words = shell.join(as_words(replace(Options(), **values)))
    names = ", ".join(value.source for value in by_variable)
    return (f"from {names}: `{words}`",) if words else ()
