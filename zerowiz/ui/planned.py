"""Show the files that a run would write."""

from collections.abc import Sequence
from typing import TextIO

from zerowiz.core.launch.plan import PlannedFile
from zerowiz.core.launch.provenance import is_plan_path
from zerowiz.words import _


def files(planned: Sequence[PlannedFile], stream: TextIO) -> None:
    """Every path, and the config's text; that of the plan was shown before, in words."""
    for file in planned:
        stream.write(_("# writes {path}\n", path=file.path))
        if not (file.own_folder or is_plan_path(file.path)):
            stream.write(file.text if file.shown is None else file.shown)
