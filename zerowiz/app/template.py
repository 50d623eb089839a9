"""Copy a template into a folder, where it trains as it lies."""

from pathlib import Path

from zerowiz.core.decision.questions import Template
from zerowiz.core.launch.provenance import PlannedFile
from zerowiz.emit.files import add_files
from zerowiz.errors import ZerowizError
from zerowiz.probe.package_data import read_template


def copy_template(template: Template, folder: Path) -> tuple[PlannedFile, ...]:
    """Copy a script and all that it needs; no file of the person's is overwritten.

    Returns:
        The files that were not there before.

    Raises:
        ZerowizError: A file of another content has the name of one of them, or it cannot be
            written. Nothing is copied then.
    """
    if folder.exists() and not folder.is_dir():
        raise ZerowizError(f"`{folder}` is not a folder", "name a folder, new or empty")
    return add_files(read_template(template.script, folder))
