"""Write the pictures of a plan into files."""

from pathlib import Path
from typing import TextIO

from zerowiz import __version__
from zerowiz.app.decide.decision import Plan
from zerowiz.app.grid import find_grid
from zerowiz.app.reporter import Reporter
from zerowiz.app.resolve.basis import find_basis
from zerowiz.core.launch.plan import PlannedFile
from zerowiz.core.values import replace
from zerowiz.emit.files import refuse_loss, write_files
from zerowiz.errors import UsageError
from zerowiz.probe.page_files import read_page_files
from zerowiz.ui import show
from zerowiz.ui.page import document
from zerowiz.ui.text.svg import as_svg
from zerowiz.ui.text.units import gpus
from zerowiz.words import _

# As wide as a terminal of most people.
_COLUMNS = 80


def write_pictures(plan: Plan, html: Path | None, svg: Path | None, reporter: Reporter) -> None:
    """Write what was decided as a page, as a drawing, or as both.

    Args:
        plan: What was decided.
        html: Where the page goes; None writes none.
        svg: Where the drawing goes.
        reporter: Hears how far it is, and what was written.

    Raises:
        UsageError: Both are one file.
        HandEditedError: A file there is a person's, and nobody said `--force`.
        ZerowizError: It cannot be written.
    """
    if html is not None and html == svg:
        raise UsageError(
            _("`$html` and `$svg` both name `{html}`", html=html), _("give each a file of its own")
        )
    pictures = (
        (html, _page, _("choose another file with `--html FILE`")),
        (svg, _drawing, _("choose another file with `--svg FILE`")),
    )
    wanted = [
        (PlannedFile(path=str(path), text="", elsewhere=elsewhere), make)
        for path, make, elsewhere in pictures
        if path is not None
    ]
    force = plan.options.force
    # A page takes a second: what is in its way is said at once.
    refuse_loss(*(file for file, _make in wanted), force=force)
    files = [replace(file, text=make(plan, reporter)) for file, make in wanted]
    write_files(files, force=force)
    for file in files:
        reporter.note(_("wrote `{path}`", path=file.path))


def _page(plan: Plan, reporter: Reporter) -> str:
    """The page of a plan, with sliders over the plans beside it."""
    files = read_page_files()
    return document.write(
        plan.decision,
        find_grid(plan, reporter),
        plan.remedies,
        find_basis(plan.request, plan.options.model, plan.options.config),
        style=files.style,
        script=files.script,
        version=__version__,
    )


def _drawing(plan: Plan, _reporter: Reporter) -> str:
    """What a terminal shows of it."""
    job = plan.decision.job

    def draw(stream: TextIO) -> None:
        show.plan(plan.decision, plan.remedies, stream)

    return as_svg(
        _("{model} on {machine}", model=job.model.name, machine=gpus(job.machine)), draw, _COLUMNS
    )
