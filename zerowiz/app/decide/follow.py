"""Decide what options lead to: choose what is open, and follow the flowchart."""

from collections.abc import Sequence

from msgspec import Struct

from zerowiz.app.options import Options
from zerowiz.app.reporter import SILENT, Reporter
from zerowiz.app.resolve.read_model import ReadModel
from zerowiz.app.resolve.request import Request, make_request
from zerowiz.core.decision.flowchart import Decision, decide
from zerowiz.core.decision.unsupported import refuse_unsupported
from zerowiz.core.machine.types import Machine
from zerowiz.core.script.facts import ScriptFacts
from zerowiz.core.script.settings import check_method
from zerowiz.core.search.cover import split_batch
from zerowiz.core.search.search import Search, search
from zerowiz.core.strategy import Strategy
from zerowiz.core.values import replace
from zerowiz.core.workload.workload import Workload
from zerowiz.errors import UsageError


class Followed(Struct, frozen=True, kw_only=True):
    """A decision, and what it was made of."""

    first: Request
    """With the step as it would be by itself."""
    request: Request
    """With the step that was chosen."""
    search: Search
    decision: Decision


def follow_options(
    options: Options,
    machine: Machine,
    facts: ScriptFacts | None,
    script_args: Sequence[str],
    read: ReadModel | None = None,
    reporter: Reporter = SILENT,
    *,
    compares: bool = False,
) -> Followed:
    """The decision with these options on this machine, without remedies.

    Args:
        options: What was said.
        machine: What the job runs on.
        facts: What the script shows; None without one.
        script_args: The words after the script.
        read: The model where it was read already.
        reporter: Hears what reading it waits for.
        compares: Whether what else there is is looked at; the decision is the same.

    Raises:
        UsageError: The options contradict each other, the script or the machine, or DeepSpeed does
            not do what they ask for.
    """
    request = make_request(options, machine, facts, script_args, read, reporter)
    if facts is not None:
        check_method(facts, request.job.workload.method)
    found = choose_open(options, request, compares=compares)
    chosen = _with_step(options, request, found, facts, script_args)
    decision = found.decision
    if found.choice is None:
        decision = decide(chosen.job, chosen.constraints)
    _refuse_unsupported(options, chosen, decision)
    return Followed(first=request, request=chosen, search=found, decision=decision)


def choose_open(options: Options, request: Request, *, compares: bool = True) -> Search:
    """What is taken of what is open."""

    def supports(strategy: Strategy) -> bool:
        try:
            refuse_strategy(options, request, strategy)
        except UsageError:
            return False
        return True

    job, open_step = request.job, request.freedom
    objective = options.objective
    return search(job, request.constraints, open_step, objective, supports, compares=compares)


def _with_step(
    options: Options,
    request: Request,
    found: Search,
    facts: ScriptFacts | None,
    script_args: Sequence[str],
) -> Request:
    """The request with the step that was chosen, as if it had been said.

    Where nothing fits it is the least that the job can have, so that no remedy asks for it.
    """
    job, before = request.job, request.job.workload
    step = _least(request) if found.choice is None else found.choice.workload
    if step == before:
        return request
    chosen = {name: getattr(step, name) for name in request.freedom.names}
    changed = {name: value for name, value in chosen.items() if value != getattr(before, name)}
    said = replace(options, **changed)
    read = ReadModel(model=job.model, traced=job.traced, notes=request.traced)
    made = make_request(said, job.machine, facts, script_args, read)
    return replace(made, job=replace(job, workload=step), freedom=request.freedom)


def _least(request: Request) -> Workload:
    step = request.job.workload
    smallest = split_batch(step)[0] if request.freedom.split else step
    recomputes = step.gradient_checkpointing or True in request.freedom.checkpointing
    return replace(smallest, gradient_checkpointing=recomputes)


def _refuse_unsupported(options: Options, request: Request, decision: Decision) -> None:
    """A config is written only where DeepSpeed trains what was asked for."""
    if decision.chosen is not None:
        refuse_strategy(options, request, decision.chosen.strategy)


def refuse_strategy(options: Options, request: Request, strategy: Strategy) -> None:
    """Raise where DeepSpeed does not train what was asked for with this strategy."""
    if options.config is not None:
        return
    handover, job = request.handover, request.job
    if request.constraints.stage is None and strategy.stage == 0:
        # Where all fits one GPU the states stay in fp32: the flowchart chose stage 0, no person.
        job = replace(job, state_dtype=None)
    refuse_unsupported(
        job,
        strategy,
        handover.integration,
        script_has_optimizer=handover.script_has_optimizer,
    )
