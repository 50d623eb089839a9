"""Where nothing fits, let a person choose what to change, and undo it."""

from collections.abc import Sequence

from zerowiz.app.ask.person import Person
from zerowiz.app.decide.decision import Plan, machine_of, note_basis, note_settled, plan_options
from zerowiz.app.machines.machine import is_here
from zerowiz.app.options import Options, with_plain
from zerowiz.app.reporter import Reporter
from zerowiz.core.decision.questions import AnswerKind, Back, Choice, Question
from zerowiz.core.machine.types import Machine
from zerowiz.core.remedies.remedy import Expense, Remedy
from zerowiz.core.script import ScriptFacts
from zerowiz.errors import DeclinedError, ZerowizError
from zerowiz.ui import remedies as remedies_text


def takeable(plan: Plan) -> tuple[Remedy, ...]:
    """The remedies that a person can take here.

    What only the script can change is none of them, nor for a job on this machine another machine.
    """
    hardware = frozenset({Expense.GPUS, Expense.HOST_MEMORY})
    here = is_here(plan.request.job.machine)
    return tuple(
        remedy
        for remedy in plan.remedies
        if remedy.edit is None and not (here and hardware & remedy.costs)
    )


_STOP = Choice(value="stop", title="stop here", detail="nothing is written")


def remedy_question(plan: Plan) -> Question | None:
    """Which remedy a person takes; None where something fits, or none can be taken here."""
    remedies = takeable(plan)
    if plan.strategy is not None or not remedies:
        return None
    listed = [
        Choice(
            value=str(index), title=remedies_text.options(each), detail=remedies_text.outcome(each)
        )
        for index, each in enumerate(remedies)
    ]
    return Question(
        key="remedy",
        flag="$stage",
        text="Nothing fits yet. What do you want to change?",
        why="Each change was planned again: it leads to what stands beside it.",
        more="Slower and faster compare with the job as it is, if it did fit. What costs nothing"
        " but time comes first, then what costs precision, then hardware, then another model.",
        default="0",
        kind=AnswerKind.CHOICE,
        choices=(*listed, _STOP),
    )


def _beyond(plan: Plan) -> list[str]:
    """What would help, and cannot be done here."""
    here = takeable(plan)
    others = [remedies_text.hint(each) for each in plan.remedies if each not in here]
    return ["What would help, and cannot be chosen here:", *others] if others else []


def take_remedy(
    plan: Plan, answer: str, machine: Machine, facts: ScriptFacts | None, script_args: Sequence[str]
) -> tuple[Plan, Machine]:
    """The plan after a remedy was taken, and the machine that it is for.

    Args:
        plan: Without a strategy.
        answer: To `remedy_question`.
        machine: That of the plan.
        facts: What the script shows.
        script_args: The words after it.

    Raises:
        ZerowizError: The job cannot be so.
    """
    change = takeable(plan)[int(answer)].change
    changed = with_plain(plan.options, change)
    machine = machine_of(changed, change, machine)
    return plan_options(changed, machine, facts, script_args), machine


def _listed(plan: Plan) -> tuple[Remedy, ...]:
    """The remedies that are listed beside the table: where nothing fits they are asked for next.

    Without a person the error names them.
    """
    return () if plan.strategy is None else plan.remedies


def decide_with(
    person: Person | None,
    options: Options,
    machine: Machine,
    facts: ScriptFacts | None,
    script_args: Sequence[str],
    reporter: Reporter,
) -> Plan:
    """Decide, and as long as nothing fits offer the remedies to the person, if there is one."""
    remedying = Remedying(person, facts, script_args, reporter)
    while True:
        decided = remedying.decide(options, machine, can_go_back=False)
        if not isinstance(decided, Back):
            return decided


class Remedying:
    """Decides; as long as nothing fits the person takes one remedy after the other.

    Args:
        person: Takes them; None where nobody is there.
        facts: What the script shows; None without one.
        script_args: The words after it.
        reporter: Hears what is decided.
    """

    def __init__(
        self,
        person: Person | None,
        facts: ScriptFacts | None,
        script_args: Sequence[str],
        reporter: Reporter,
    ) -> None:
        self._person, self._facts, self._script_args = person, facts, script_args
        self._reporter = reporter
        self._before: list[tuple[Plan, Machine]] = []

    @property
    def can_undo(self) -> bool:
        """Whether a remedy was taken."""
        return bool(self._before)

    def decide(
        self, options: Options, machine: Machine, *, can_go_back: bool = True
    ) -> Plan | Back:
        """The plan of these options, or the one that the remedies lead to.

        Going back undoes the remedy that was taken last; where there is none it is the answer.

        Raises:
            DeclinedError: The person takes none of the remedies.
        """
        plan = plan_options(options, machine, self._facts, self._script_args, self._reporter)
        note_basis(plan, self._reporter)
        if self._facts is not None:
            self._reporter.script(self._facts)
        self._reporter.decision(plan.decision, _listed(plan))
        return self._take(plan, machine, can_go_back=can_go_back)

    def undo(self, *, can_go_back: bool) -> Plan | Back:
        """The plan without the remedy that was taken last, and what the person takes instead."""
        plan, machine = self._before.pop()
        return self._take(plan, machine, can_go_back=can_go_back)

    def _take(self, plan: Plan, machine: Machine, *, can_go_back: bool) -> Plan | Back:
        person = self._person
        while person and (question := remedy_question(plan)) is not None:
            person.tell(_beyond(plan))
            answer = person.ask(question, can_go_back=self.can_undo or can_go_back)
            if isinstance(answer, Back):
                if not self._before:
                    return answer
                plan, machine = self._before.pop()
                continue
            if answer == _STOP.value:
                raise DeclinedError("nothing was written")
            before = plan, machine
            try:
                plan, machine = take_remedy(plan, answer, machine, self._facts, self._script_args)
            except ZerowizError as error:
                person.tell([f"error: {error.message}", *(f"hint: {h}" for h in error.hints)])
                continue
            self._before.append(before)
            self._reporter.decision(plan.decision, _listed(plan))
        note_settled(plan, self._reporter)
        return plan
