"""Read the file of a program that starts its own ranks."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from zerowiz.core import shell
from zerowiz.core.script.programs.file import ProgramFile
from zerowiz.core.script.programs.table import read_program
from zerowiz.core.script.settings_file import YAML_SUFFIXES
from zerowiz.errors import PreflightError, UsageError
from zerowiz.probe.config.config_yaml import load_yaml
from zerowiz.probe.named_file import require_text
from zerowiz.words import _


def names_yaml(path: str) -> bool:
    """Whether a path is that of a YAML file, which is no script."""
    return path.endswith(YAML_SUFFIXES)


def read_program_file(path: str) -> ProgramFile:
    """What the file says of a job.

    Raises:
        PreflightError: It cannot be read.
        UsageError: It is no YAML, or of no program that zerowiz knows.
    """
    try:
        text = require_text(Path(path))
    except FileNotFoundError:
        raise PreflightError(_("there is no file `{path}`", path=path)) from None
    values = load_yaml(path, text)
    file = read_program(path, values) if isinstance(values, Mapping) else None
    if file is None:
        raise UsageError(
            _(
                "`{path}` is neither a training script nor a file of axolotl (`base_model`),"
                " LLaMA-Factory (`model_name_or_path` and `stage`) or ms-swift (`model` and"
                " `tuner_type`)",
                path=path,
            ),
            _("pass the script that trains: `zerowiz init train.py`"),
            *_of_trl(path, values),
            _("for a DeepSpeed config: `zerowiz check {path}`", path=shell.quote(path)),
        )
    return file


def _of_trl(path: str, values: object) -> Iterator[str]:
    """What to do with a file of TRL, whose scripts zerowiz launches."""
    if isinstance(values, Mapping) and "model_name_or_path" in values:
        yield _(
            "for a file of TRL: `zerowiz launch -m trl.scripts.sft --config {path}`",
            path=shell.quote(path),
        )
