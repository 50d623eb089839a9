"""Plan a job again with other micro-batches and lengths, as `plan` does where they are typed."""

from zerowiz.app.decide.decision import Plan
from zerowiz.app.decide.follow import follow_options
from zerowiz.app.reporter import Reporter
from zerowiz.app.resolve.read_model import ReadModel
from zerowiz.core.search.grid import (
    Grid,
    GridCell,
    list_lengths,
    list_micro_batches,
    without_empty,
)
from zerowiz.core.values import replace
from zerowiz.errors import ZerowizError
from zerowiz.words import _


def find_grid(plan: Plan, reporter: Reporter) -> Grid:
    """The plan, and what the same options lead to with each other micro-batch and length.

    Args:
        plan: The one in the middle.
        reporter: Hears how far it is.
    """
    job = plan.decision.job
    step = job.workload
    own = GridCell(
        micro_batch=step.micro_batch,
        sequence_tokens=step.sequence_tokens,
        decision=plan.decision,
        search=plan.search,
    )
    batches = list_micro_batches(own.micro_batch)
    lengths = list_lengths(own.sequence_tokens, job.model)
    why_fewer = ""
    if job.own_trace is not None:
        batches, lengths = (own.micro_batch,), (own.sequence_tokens,)
        why_fewer = _("the model was traced for this step alone")
    read = ReadModel(model=job.model, traced=job.traced)
    cells = []
    with reporter.wait(_("planning for other settings"), len(batches) * len(lengths)) as wait:
        for micro_batch in batches:
            for tokens in lengths:
                cell = replace(own, micro_batch=micro_batch, sequence_tokens=tokens)
                cells.append(own if cell == own else _decided(cell, plan, read))
                wait.done(f"{micro_batch} x {tokens}")
    grid = Grid(
        micro_batch_stops=batches,
        sequence_tokens=lengths,
        cells=tuple(cells),
        own=own,
        why_fewer=why_fewer,
    )
    return without_empty(grid)


def _decided(cell: GridCell, plan: Plan, read: ReadModel) -> GridCell:
    micro_batch, tokens = cell.micro_batch, cell.sequence_tokens
    try:
        said = replace(plan.options, micro_batch=micro_batch, sequence_tokens=tokens)
        machine = plan.decision.job.machine
        found = follow_options(said, machine, plan.facts, plan.script_args, read, compares=True)
    except ZerowizError as error:
        return replace(cell, decision=None, search=None, refusal=error.message)
    return replace(cell, decision=found.decision, search=found.search)
