"""Write the answers of `zerowiz init` into an answers file, and keep what a person wrote there."""

import os
from collections.abc import Sequence
from enum import Enum
from pathlib import Path

from zerowiz.app.answers_file.read import (
    MAY_BE_PATHS,
    MODULE,
    SCRIPT,
    SCRIPT_ARGS,
    AnswersFile,
    read_answers_file,
)
from zerowiz.app.options import Options, lasting
from zerowiz.core.answers_file import rewrite
from zerowiz.core.launch.plan import PlannedFile
from zerowiz.core.launch.provenance import without_secrets
from zerowiz.emit.files import replace_file, rewrite_file
from zerowiz.probe.answers_file import FILE_NAME

_HEADER = """\
# Answers for zerowiz. The keys are its long options; an option on the command line counts more.
# `zerowiz plan --origins` shows what comes from here, `--isolated` ignores this file.
"""


def plan_answers(script: str, script_args: Sequence[str], options: Options) -> PlannedFile:
    """The answers file of a job: what a person said of it, and nothing that was detected.

    It lies in the folder of the configs, unless the file of the working folder names that folder.
    Comments stay, and so does what is already right.

    Args:
        script: Its path, or the name of the module.
        script_args: The words after it; secrets among them are left out.
        options: What was said.

    Raises:
        ZerowizError: The file that is there cannot be read.
        NotTextError: TOML cannot hold a value.
    """
    here = _read(Path(FILE_NAME))
    names_folder = here is not None and here.values.get("output_dir") == options.output_dir
    folder = Path() if names_folder else options.output_dir or Path()
    path = folder / FILE_NAME
    file = here if folder == Path() else _read(path)
    values = _values(script, script_args, options)
    if folder != Path():
        values.pop("output-dir", None)
    wanted = {key: _as_there(key, value, folder, file) for key, value in values.items()}
    text = rewrite(() if file is None else file.statements, wanted)
    return PlannedFile(path=str(path), text=text if file is not None else _HEADER + text)


def write_answers(file: PlannedFile) -> None:
    """Write it whole.

    Raises:
        ZerowizError: Its folder cannot be written.
    """
    path = Path(file.path)
    if path.exists():
        rewrite_file(path, file.text)
    else:
        replace_file(path, file.text)


def _read(path: Path) -> AnswersFile | None:
    return read_answers_file(path.absolute()) if path.is_file() else None


def _values(script: str, script_args: Sequence[str], options: Options) -> dict[str, object]:
    """What the file says, by its keys, as it is seen from here."""
    words = list(without_secrets(script_args))
    job: dict[str, object] = {SCRIPT: script if options.module else Path(script)}
    job |= {MODULE: True} if options.module else {}
    job |= {SCRIPT_ARGS: words} if words else {}
    defaults = Options()
    chosen = {key: getattr(options, name) for key, name in lasting().items()}
    return job | {
        key: value for key, value in chosen.items() if value != getattr(defaults, lasting()[key])
    }


def _as_there(key: str, value: object, folder: Path, file: AnswersFile | None) -> object:
    """A value as TOML has it; as it is written already, where it means the same."""
    name = lasting().get(key)
    if file is not None and name is not None and file.values.get(name) == value:
        return next(each.value for each in file.statements if each.key == key)
    if isinstance(value, Enum):
        return value.value
    may_be_path = name in MAY_BE_PATHS and os.path.exists(str(value))  # noqa: PTH110 - no text makes it raise
    if not (may_be_path or isinstance(value, Path)):
        return value
    return str(value) if Path(str(value)).is_absolute() else os.path.relpath(str(value), folder)
