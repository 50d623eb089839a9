"""Say that the machine has changed since the last plan of a job, and offer to keep its batch."""

from zerowiz.app.ask.person import Person, confirms
from zerowiz.app.decide.batch_change import keeping
from zerowiz.app.decide.decision import Plan
from zerowiz.app.decide.machine_change import find_machine_change
from zerowiz.app.options import Options, with_plain
from zerowiz.app.reporter import Reporter
from zerowiz.core.decision.questions import confirmation
from zerowiz.core.outcome.resume import RESUME, resumes
from zerowiz.ui import remedies
from zerowiz.ui.basis.machine_change import machine_change
from zerowiz.words import _


def note_change(plan: Plan, reporter: Reporter, person: Person | None = None) -> Options:
    """Note what has changed; the options of the job, with the batch kept if the person wants that.

    Args:
        plan: Of today; nothing of it is written yet.
        reporter: Hears of the change.
        person: Is asked whether the batch is kept; None where nobody is there.
    """
    change = find_machine_change(plan)
    if change is None:
        return plan.options
    reporter.note(machine_change(change, plan.request.job.machine))
    if plan.facts is not None and change.has_other_ranks and resumes(plan.facts, plan.script_args):
        reporter.note(
            _(
                "`{resume}` continues on any number of ranks; the random numbers and each rank's"
                " share of the data are new",
                resume=RESUME,
            )
        )
    batch = change.global_batch
    kept = {} if batch is None else keeping(batch)
    if person is None or batch is None or not kept:
        return plan.options
    question = confirmation(
        "keep_batch",
        _(
            "Keep the global batch of {before}, with `{options}`?",
            before=batch.before,
            options=remedies.options(kept),
        ),
    )
    return with_plain(plan.options, kept) if confirms(person, question) else plan.options
