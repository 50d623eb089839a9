"""`zerowiz plan … --compare …`: two plans side by side."""

import shlex
import sys
from collections.abc import Sequence

from msgspec import structs

from zerowiz.app.api import PlanResult
from zerowiz.app.decide import note_basis, note_settled, require_strategy
from zerowiz.app.options import Options, changed_by, rows
from zerowiz.app.plan import plan_job
from zerowiz.app.reporter import Reporter
from zerowiz.app.run_question import RunQuestion
from zerowiz.cli.options import read_options
from zerowiz.cli.usage import write_json
from zerowiz.core import shell
from zerowiz.errors import UsageError
from zerowiz.ui.pictures import Side, compare
from zerowiz.ui.reporter import TerminalReporter
from zerowiz.words import _

_NO_LENGTH = RunQuestion(tokens=None, sequences=None, epochs=None, prices=())


class _NotesOnce(TerminalReporter):
    """Says a note once, though both plans rest on it."""

    def __init__(self, *, quiet: bool, with_waits: bool) -> None:
        super().__init__(quiet=quiet, with_waits=with_waits)
        self._noted: set[str] = set()

    def note(self, text: str) -> None:
        """What a plan rests on, unless it is said already."""
        if text not in self._noted:
            self._noted.add(text)
            super().note(text)


def compare_plans(
    script: str | None,
    script_args: Sequence[str],
    options: Options,
    words: str,
) -> None:
    """Plan twice, the second time with other options, and show both.

    Args:
        script: As it was named, if it was.
        script_args: The words after it.
        options: Of the first plan.
        words: What the other plan changes of them.

    Raises:
        ZerowizError: One of them cannot be planned, or is for many machines.
        NoStrategyError: Nothing fits in either.
    """
    changes = read_options(_split(words), "zerowiz plan")
    changed = changed_by(options, changes)
    if changed == options:
        raise UsageError(
            _("`$compare` needs options that make the other plan differ"),
            _("add them: `$compare $machine 8xH100-80GB`"),
        )
    reporter = _NotesOnce(quiet=options.quiet, with_waits=not options.as_json)
    first = _plan(script, script_args, options, reporter)
    second = _plan(script, script_args, changed, reporter, first)
    if options.as_json or changed.as_json:
        content = {"schema_version": 1, "plans": [plan.to_dict() for plan in (first, second)]}
        write_json(content)
    else:
        before = _said(options, changes) or _("as you set it")
        compare(
            Side(words=before, decision=first.decided.decision),
            Side(words=words, decision=second.decided.decision),
            sys.stdout,
        )
    if not (first or second):
        require_strategy(first.decided)


def _split(words: str) -> list[str]:
    try:
        return shlex.split(words)
    except ValueError as error:
        why = str(error).lower()
        raise UsageError(_("`$compare`: `{words}`: {why}", words=words, why=why)) from error


def _plan(
    script: str | None,
    script_args: Sequence[str],
    options: Options,
    reporter: Reporter,
    beside: PlanResult | None = None,
) -> PlanResult:
    planned = plan_job(script, script_args, options, _NO_LENGTH, reporter)
    if not isinstance(planned, PlanResult):
        raise UsageError(
            _("`$compare` is for two plans, and one of them compares many machines"),
            _("name one machine: `$machine 8xH100-80GB`"),
        )
    note_basis(planned.decided, reporter, None if beside is None else beside.decided)
    note_settled(planned.decided, reporter)
    return planned


def _said(options: Options, changes: Options) -> str:
    """What the first plan says of the options that the other one changes."""
    defaults = structs.asdict(Options())
    words: list[str] = []
    for name, value in structs.asdict(changes).items():
        before = getattr(options, name)
        if value == defaults[name] or before == defaults[name]:
            continue
        words += [rows()[name].on if before is not False else rows()[name].off]
        words += [] if isinstance(before, bool) else [str(before)]
    return shell.join(words)
