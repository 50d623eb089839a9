"""Write the page of a plan into a file."""

from pathlib import Path

from zerowiz import __version__
from zerowiz.app.decide import Plan, decide_job
from zerowiz.app.reporter import Reporter
from zerowiz.app.resolve.resolved_job import find_basis
from zerowiz.core.decision.open_settings import (
    Grid,
    GridCell,
    list_lengths,
    list_micro_batches,
)
from zerowiz.core.launch.provenance import PlannedFile
from zerowiz.core.structs import replace
from zerowiz.emit.files import refuse_loss, write_files
from zerowiz.errors import ZerowizError
from zerowiz.probe.files import read_page_files
from zerowiz.translation import _
from zerowiz.ui import page

# Plan a job again with other micro-batches and lengths, as `plan` does where they are typed.


def find_grid(plan: Plan, reporter: Reporter) -> Grid:
    """The plan, and what the same options lead to with each other micro-batch and length.

    Args:
        plan: The one in the middle.
        reporter: Hears how far it is.
    """
    job = plan.decision.job
    step = job.workload
    planned = GridCell(
        micro_batch=step.micro_batch,
        sequence_tokens=step.sequence_tokens,
        decision=plan.decision,
    )
    batches = list_micro_batches(planned.micro_batch)
    lengths = list_lengths(planned.sequence_tokens, job.model)
    why_fewer = ""
    if job.own_trace is not None:
        batches, lengths = (planned.micro_batch,), (planned.sequence_tokens,)
        why_fewer = _("the model was traced for this step alone")
    cells = []
    with reporter.wait(_("planning for other settings"), len(batches) * len(lengths)) as wait:
        for micro_batch in batches:
            for tokens in lengths:
                cell = replace(planned, micro_batch=micro_batch, sequence_tokens=tokens)
                cells.append(planned if cell == planned else _decided(cell, plan))
                wait.done(f"{micro_batch} x {tokens}")
    return Grid(
        micro_batch_stops=batches,
        sequence_tokens=lengths,
        cells=tuple(cells),
        own=planned,
        why_fewer=why_fewer,
    )


def _decided(cell: GridCell, plan: Plan) -> GridCell:
    micro_batch, tokens = cell.micro_batch, cell.sequence_tokens
    try:
        options = replace(plan.options, micro_batch=micro_batch, sequence_tokens=tokens)
        resolved, machine = plan.resolved, plan.decision.job.machine
        changed = resolved.with_change(options, machine, resolved.read)
        decided = decide_job(changed)
    except ZerowizError as error:
        return replace(cell, decision=None, refusal=error.message)
    return replace(cell, decision=decided.decision)


def write_page(plan: Plan, path: Path, reporter: Reporter) -> None:
    """Write what was decided as a page, with sliders over the plans beside it.

    Args:
        plan: What was decided.
        path: Where the page goes.
        reporter: Hears how far it is, and what was written.

    Raises:
        HandEditedError: A file there is a person's, and nobody said `--force`.
        ZerowizError: It cannot be written.
    """
    elsewhere = _("choose another file with `--html FILE`")
    file = PlannedFile(path=str(path), text="", elsewhere=elsewhere)
    # A page takes a second: what is in its way is said at once.
    refuse_loss(file, force=plan.options.force)
    style, script = read_page_files()
    text = page.write(
        plan.decision,
        find_grid(plan, reporter),
        plan.remedies,
        find_basis(plan.resolved),
        style=style,
        script=script,
        version=__version__,
    )
    write_files([replace(file, text=text)], force=plan.options.force)
    reporter.note(_("wrote `{path}`", path=file.path))
