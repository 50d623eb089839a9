"""Read a file of axolotl."""

from collections.abc import Mapping
from pathlib import Path

from zerowiz.core import shell
from zerowiz.core.script import YAML_SUFFIXES
from zerowiz.core.script.axolotl import AxolotlFile, is_axolotl, read_axolotl
from zerowiz.errors import PreflightError, UsageError
from zerowiz.probe.config.config_yaml import load_yaml
from zerowiz.probe.named_file import require_text
from zerowiz.words import _


def names_yaml(path: str) -> bool:
    """Whether a path is that of a YAML file, which is no script."""
    return path.endswith(YAML_SUFFIXES)


def read_axolotl_file(path: str) -> AxolotlFile:
    """What the file says of a job.

    Raises:
        PreflightError: It cannot be read.
        UsageError: It is no YAML, or not axolotl's.
    """
    try:
        text = require_text(Path(path))
    except FileNotFoundError:
        raise PreflightError(_("there is no file `{path}`", path=path)) from None
    values = load_yaml(path, text)
    if not isinstance(values, Mapping) or not is_axolotl(values):
        raise UsageError(
            _(
                "`{path}` is neither a training script nor a file of axolotl, which has "
                "`base_model`",
                path=path,
            ),
            _("pass the script that trains: `zerowiz init train.py`"),
            _("for a DeepSpeed config: `zerowiz check {path}`", path=shell.quote(path)),
        )
    return read_axolotl(path, values)
