"""Where nothing fits, or may not fit, let a person choose what to change, and undo it."""

from collections.abc import Sequence
from enum import Enum
from typing import cast

from zerowiz.app.command import Person
from zerowiz.app.decide import (
    Plan,
    RemedyFinder,
    note_basis,
    note_choices,
    plan_options,
    plan_resolved,
)
from zerowiz.app.machines.machine import is_here
from zerowiz.app.options import Options
from zerowiz.app.reporter import Reporter
from zerowiz.core.command_words import spell_change
from zerowiz.core.decision.questions import AnswerKind, Back, Choice, Question
from zerowiz.core.decision.remedies import Expense, Remedy
from zerowiz.core.machine.types import Machine
from zerowiz.core.script.settings import ScriptRun
from zerowiz.core.settings import Change
from zerowiz.errors import DeclinedError
from zerowiz.translation import _
from zerowiz.ui import remedies as remedies_text


def takeable(plan: Plan) -> tuple[Remedy, ...]:
    """The remedies that a person can take here.

    What only the script can change is none of them, nor for a job on this machine another machine.
    """
    hardware = frozenset({Expense.GPUS, Expense.HOST_MEMORY})
    here = is_here(plan.resolved.job.machine)
    return tuple(
        remedy
        for remedy in plan.remedies
        if remedy.edit is None and not (here and hardware & remedy.costs)
    )


class Again(Enum):
    """What a person answers who has edited the script."""

    AGAIN = "again"


# What a person has to know of the nodes, as nobody here does, machines that they may not have, and
# master weights that lose small updates: Enter alone does not state it.
_STATED = frozenset({"host_memory", "interconnect", "machine", "optimizer_state_dtype"})
_AGAIN = Choice(
    value=Again.AGAIN.value, title=_("read my script again"), detail=_("once you have edited it")
)
_NOTHING = Choice(value="nothing", title=_("nothing, go on"), detail=_("it may still fit"))
_STOP = Choice(value="stop", title=_("stop here"), detail=_("nothing is written"))


def can_be_surer(plan: Plan) -> bool:
    """Whether what was chosen may not fit, and some change makes it fit."""
    return plan.strategy is not None and bool(takeable(plan))


def _menu(text: str, remedies: Sequence[Remedy], others: Sequence[Choice]) -> Question:
    """The remedies, then what else can be done; Enter takes the first that needs no statement."""
    listed = tuple(
        Choice(
            value=str(index),
            title=spell_change(remedy.change),
            detail=remedies_text.outcome(remedy),
        )
        for index, remedy in enumerate(remedies)
    )
    pairs = zip(remedies, listed, strict=True)
    free = (choice for remedy, choice in pairs if not _STATED & remedy.change.keys())
    return Question(
        key="remedy",
        flag="$stage",
        text=text,
        why=_("Beside each change stands what it leads to."),
        more=_(
            "What keeps all that you set comes first; of that what costs nothing but time, then"
            " what costs precision, then hardware, then another model."
        ),
        default=next(free, others[-1]).value,
        kind=AnswerKind.CHOICE,
        choices=(*listed, *others),
    )


def decide_with(
    person: Person | None,
    options: Options,
    machine: Machine,
    script: ScriptRun | None,
    reporter: Reporter,
) -> Plan:
    """Decide, and as long as nothing fits offer the remedies to the person, if there is one.

    The menu does not offer to read the script again: what was read of it has been checked by now,
    no answer would be lost, and the same command reads it anew.
    """
    decided = Remedying(person, script, reporter).decide(options, machine, can_go_back=False)
    return cast("Plan", decided)


class Remedying:
    """Decides; as long as nothing fits the person takes one remedy after the other.

    Args:
        person: Takes them; None where nobody is there.
        script: The script as it is run; None without one.
        reporter: Hears what is decided.
        can_read_again: Whether the person may have the script read again.
    """

    def __init__(
        self,
        person: Person | None,
        script: ScriptRun | None,
        reporter: Reporter,
        *,
        can_read_again: bool = False,
    ) -> None:
        self._person, self._script = person, script
        self._reporter, self._can_read_again = reporter, can_read_again
        self._taken: list[tuple[Plan, Change]] = []

    @property
    def taken(self) -> tuple[Change, ...]:
        """The remedies that were taken and not undone, in order."""
        return tuple(change for _before, change in self._taken)

    def decide(
        self, options: Options, machine: Machine, *, can_go_back: bool = True
    ) -> Plan | Back | Again:
        """The plan of these options, or the one that the remedies lead to.

        Going back undoes the remedy that was taken last; where there is none it is the answer.
        To read the script again is an answer, too.

        Raises:
            DeclinedError: The person takes none of the remedies.
        """
        plan = plan_options(options, machine, self._script, self._reporter)
        note_basis(plan, self._reporter)
        if self._script is not None:
            self._reporter.script(self._script.facts)
        self._show(plan)
        return self.take(plan, can_go_back=can_go_back)

    def _show(self, plan: Plan) -> None:
        # Where nothing fits they are asked for next; without a person the error names them.
        listed = () if plan.strategy is None else plan.remedies
        self._reporter.decision(plan.decision, listed, plan.resolved.learning)

    def undo(self) -> Plan:
        """The plan without the remedy that was taken last."""
        before, _change = self._taken.pop()
        return before

    def _question(self, plan: Plan, *, makes_surer: bool) -> Question | None:
        """Which remedy is taken where nothing fits; None where something does, or none can be."""
        remedies = takeable(plan)
        if not remedies or (plan.strategy is not None and not makes_surer):
            return None
        if makes_surer:
            return _menu(_("It may not fit. What do you want to change?"), remedies, (_NOTHING,))
        edits = any(remedy.edit is not None for remedy in plan.remedies)
        others = (_AGAIN, _STOP) if edits and self._can_read_again else (_STOP,)
        return _menu(_("Nothing fits yet. What do you want to change?"), remedies, others)

    def take(
        self, plan: Plan, *, can_go_back: bool, makes_surer: bool = False
    ) -> Plan | Back | Again:
        """The plan after the remedies that the person takes.

        Args:
            plan: What was decided.
            can_go_back: Whether it is an answer to take none, and go back.
            makes_surer: Whether one is offered where a strategy was chosen, which may not fit.
        """
        person = self._person
        while person and (question := self._question(plan, makes_surer=makes_surer)):
            can_take = takeable(plan)
            others = [remedies_text.hint(each) for each in plan.remedies if each not in can_take]
            heading = _("Not in the menu below, as it changes your script or this machine:")
            person.tell([heading, *others] if others else [])
            answer = person.ask(question, can_go_back=bool(self._taken) or can_go_back)
            if answer == _NOTHING.value or (makes_surer and isinstance(answer, Back)):
                break
            if isinstance(answer, Back):
                if not self._taken:
                    return answer
                plan = self.undo()
                continue
            if answer == _AGAIN.value:
                return Again.AGAIN
            if answer == _STOP.value:
                raise DeclinedError(_("nothing was written"))
            change, makes_surer = can_take[int(answer)].change, False
            self._taken.append((plan, change))
            # It was planned so before it was offered.
            plan = plan_resolved(RemedyFinder(plan.resolved).request(change))
            self._show(plan)
        note_choices(plan, self._reporter, is_asked=person is not None)
        return plan
