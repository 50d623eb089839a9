"""`zerowiz plan`: decide, write nothing."""

import shlex
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

from zerowiz.app.api import PlanResult
from zerowiz.app.decide import (
    NoStrategyError,
    next_words,
    note_basis,
    note_choices,
    note_emulation,
    require_strategy,
)
from zerowiz.app.options import (
    FileUse,
    Layers,
    Options,
    TakesScript,
    as_words,
    changes,
)
from zerowiz.app.plan import plan_job, write_page
from zerowiz.app.reporter import Reporter
from zerowiz.cli.options import option_of, read_options, takes_options
from zerowiz.cli.output import Refusal, write_plan
from zerowiz.cli.usage import PlainCommand, write_json
from zerowiz.core import shell
from zerowiz.core.decision.evaluate import StrategyEstimate
from zerowiz.core.decision.flowchart import Decision
from zerowiz.core.decision.job import Objective
from zerowiz.core.decision.open_settings import Limit
from zerowiz.core.machine.names import TAKEN_TO_BE
from zerowiz.core.settings import OTHER_SETTINGS
from zerowiz.core.strategies import STRATEGIES, find_strategy
from zerowiz.core.structs import replace
from zerowiz.errors import ExitCode, UsageError, refuse_any
from zerowiz.translation import _
from zerowiz.ui.reporter import TerminalReporter
from zerowiz.ui.text import CountedLines, Paragraph, most_lines, notes, paragraphs

if TYPE_CHECKING:
    from zerowiz.app.catalog import MachineChoice

# Read the words of `plan`: a value that may be left out, and the options of another plan.

CHOSEN = "chosen"
"""What `--explain` is without a value."""
_COMPARE, _EXPLAIN = OTHER_SETTINGS["compare"].flag, OTHER_SETTINGS["explain"].flag


class PlanCommand(PlainCommand):
    """The command whose `--explain` may stand alone, and whose `--compare` opens other options."""

    # click's context is typer's own or click's, by typer's release.
    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401 - as said above
        """Give each of the two the value that typer asks for."""
        words_of_ours, script = self._split(ctx, args)
        compares = _COMPARE in words_of_ours
        end = words_of_ours.index(_COMPARE) if compares else len(words_of_ours)
        words, other = words_of_ours[:end], words_of_ours[end + 1 :]
        given = [
            f"{word}={CHOSEN}" if word == _EXPLAIN and not _names(words, place) else word
            for place, word in enumerate(words)
        ]
        compared = [f"{_COMPARE}={shlex.join(other)}"] if compares else []
        return super().parse_args(ctx, [*given, *compared, *script])

    def _split(self, ctx: Any, args: list[str]) -> tuple[list[str], list[str]]:  # noqa: ANN401 - as above
        """The words up to the script, and the script with the words after it."""
        params: list[Any] = self.get_params(ctx)
        valued = {
            name
            for param in params
            if param.param_type_name == "option" and not param.is_flag
            for name in (*param.opts, *param.secondary_opts)
        } - {_COMPARE, _EXPLAIN}
        place = 0
        while place < len(args) and args[place].startswith("-") and args[place] != "--":
            takes_next = args[place] in valued or (args[place] == _EXPLAIN and _names(args, place))
            place += 2 if takes_next else 1
        return args[:place], args[place:]


def _names(words: list[str], place: int) -> bool:
    """Whether the word behind this one is a strategy."""
    return place + 1 < len(words) and find_strategy(words[place + 1]) is not None


def _explained(decision: Decision, name: str) -> StrategyEstimate | None:
    """The strategy that is explained: the chosen one, or the one that is named.

    Raises:
        UsageError: There is no such strategy.
    """
    if name == CHOSEN:
        return decision.chosen
    strategy = find_strategy(name)
    if strategy is None:
        names = ", ".join(row.name for row in STRATEGIES)
        raise UsageError(
            f"`$explain {name}`: there is no such strategy",
            f"use one of {names}",
        )
    return decision.of(strategy)


@takes_options(FileUse(takes_script=TakesScript.WITHOUT_MODEL, starts_here=False))
def plan(
    options: Options,
    layers: Layers,
    script: Annotated[
        str | None,
        typer.Argument(help="Training script; the plan uses its settings"),
    ] = None,
    args: Annotated[list[str] | None, typer.Argument(help="Arguments of the script")] = None,
    *,
    explain: Annotated[str | None, option_of(OTHER_SETTINGS["explain"])] = None,
    verbose: Annotated[bool, option_of(OTHER_SETTINGS["verbose"])] = False,
    price: Annotated[list[str] | None, option_of(OTHER_SETTINGS["price"])] = None,
    limits: Annotated[bool, option_of(OTHER_SETTINGS["limits"])] = False,
    html: Annotated[Path | None, option_of(OTHER_SETTINGS["html"])] = None,
    compare: Annotated[str | None, option_of(OTHER_SETTINGS["compare"])] = None,
    origins: Annotated[bool, option_of(OTHER_SETTINGS["origins"])] = False,
) -> None:
    """Show what each ZeRO strategy needs on this machine, and choose one"""
    of_one = {"$explain": explain, "$limits": limits, "$html": html, "$origins": origins}
    if compare is not None:
        given = {**of_one, "$verbose": verbose, "$price": price}
        refuse_any(given, "is for one plan, and `$compare` shows two", "remove it")
        compare_plans(script, args or (), options, compare)
        return
    reporter = _NotesLast(quiet=options.quiet, with_waits=not options.as_json)
    reporter.holds = not (options.as_json or verbose)
    try:
        planned = plan_job(script, args or (), options, price or (), reporter)
        if not isinstance(planned, PlanResult):
            alone = "is for one machine, and this plan compares many"
            refuse_any(of_one, alone, "name one: `$machine 8xH100-80GB`")
            _show_machines(planned, options, reporter)
            return
        one = "is for many machines, and this plan is for one"
        refuse_any({"$price": price}, one, "compare them: `$machine all`")
        _show_plan(
            planned,
            layers,
            reporter,
            explain=explain,
            limits=limits,
            is_verbose=verbose,
            html=html,
            with_origins=origins,
        )
    finally:
        reporter.release()


def _show_plan(
    result: PlanResult,
    layers: Layers,
    reporter: "_NotesLast",
    *,
    explain: str | None,
    limits: bool,
    is_verbose: bool,
    html: Path | None,
    with_origins: bool,
) -> None:
    """The plan for one machine, and what was asked for beside its page."""
    plan, options = result.decided, layers.options
    # A wrong name is refused before anything is shown.
    explained = None if explain is None else _explained(plan.decision, explain)
    # What is assumed stands on the screen itself; what was found in the script comes last.
    found = reporter.withdraw()
    note_basis(plan, reporter, plan if reporter.holds else None)
    note_emulation(plan, reporter)
    for text in found:
        reporter.note(text)
    note_choices(plan, reporter)
    largest = result.limits() if limits else None
    origins = None
    if with_origins:
        from zerowiz.app.answers_file import find_origins  # noqa: PLC0415 - few plans show them

        origins = find_origins(plan, layers)
    texts: list[Paragraph] = []
    room = None
    if options.as_json:
        write_plan(plan, limits=largest, origins=origins)
    else:
        room = most_lines(sys.stdout, _LINES_OF_A_REFUSAL if plan.strategy is None else _LINES)
        screen = CountedLines(sys.stdout)
        texts = _show_page(
            result, options, reporter, screen, is_verbose=is_verbose, is_whole=room is None
        )
        screen.show()
        room = None if room is None else room - screen.lines
    if html is not None:
        write_page(plan, html, reporter)
    refusal: Refusal | None = None
    below = CountedLines(sys.stdout)
    try:
        strategy = require_strategy(plan)
        if not options.as_json:
            from zerowiz.ui import show  # noqa: PLC0415 - as below

            words = next_words(*layers.typed(), plan.decision.job.machine)
            show.next_command(words, strategy, below)
    except NoStrategyError as error:
        refusal = Refusal(error)
    last = refusal or below
    if room is not None:
        room -= last.lines
    says_last = plan.resolved.script is not None
    room = reporter.beside(texts, room, is_refused=refusal is not None, says_last=says_last)
    if not options.as_json:
        _show_asked(plan.decision, explained, largest, origins)
    if refusal is not None:
        refusal.show(None if room is None else room + refusal.lines)
        raise typer.Exit(ExitCode.NOTHING_FITS)
    below.show()


# Of 24, the prompt has one.
_LINES, _LINES_OF_A_REFUSAL = 18, 23
# Where nothing fits, what would help needs the room.
_NOTES_OF_A_REFUSAL = 1


def _show_page(
    result: PlanResult,
    options: Options,
    reporter: "_NotesLast",
    stream: TextIO,
    *,
    is_verbose: bool,
    is_whole: bool,
) -> list[Paragraph]:
    """The plan as a person reads it, and what gives way below it where a screen has no room.

    What names were taken to be is assumed, too.
    """
    from zerowiz.ui import choice, remedies, sentences, show  # noqa: PLC0415 - `--json` shows none

    decision, resolved = result.decided.decision, result.decided.resolved
    searched = None if options.objective is Objective.FLOWCHART else result.decided.search
    helps = () if decision.chosen is None else result.remedies  # else they stand below the error
    learning = sentences.learning_in_short(resolved.learning)
    assumed = (*reporter.withdraw_guesses(), *resolved.assumed)
    if is_verbose or is_whole:
        if is_verbose:
            show.whole_plan(decision, stream, sentences.learning(resolved.learning))
        else:
            show.plan(decision, stream, learning, assumed, resolved.by_default)
        if helps:
            remedies.table(helps, stream)
        if searched is not None:
            choice.search(searched, options.objective, stream)
        return []
    show.answers(decision, stream, learning)
    *texts, last = show.besides(decision, assumed, resolved.by_default)
    if searched is not None and (why := choice.search_in_short(searched, options.objective)):
        texts.append((_("search: "), why, None))
    if helps:
        more = _(" ({count} more: `$verbose`)", count=len(helps) - 1) if helps[1:] else ""
        texts.append((_("would help: "), remedies.hint(helps[0]) + more, None))
    return [*texts, last]


def _show_asked(
    decision: Decision,
    explained: StrategyEstimate | None,
    largest: Sequence[Limit] | None,
    origins: Mapping[str, tuple[object, str]] | None,
) -> None:
    """What was asked for besides."""
    from zerowiz.ui import choice, show  # noqa: PLC0415 - as above

    if largest is not None:
        choice.limits(largest, decision.job, sys.stdout)
    if explained is not None:
        from zerowiz.ui.pictures import explain  # noqa: PLC0415 - most plans explain nothing

        explain(decision, explained, sys.stdout)
    if origins is not None:
        rows = [(name, value, origin) for name, (value, origin) in origins.items()]
        show.origins(rows, sys.stdout)


def _show_machines(offered: "MachineChoice", options: Options, reporter: Reporter) -> None:
    """The machines of the tables that the job fits."""
    from zerowiz.ui.catalog import machines  # noqa: PLC0415 - most plans are for one machine

    for note in offered.notes:
        reporter.note(note)
    if options.as_json:
        write_json(offered.to_dict())
    else:
        machines(
            offered.offers,
            offered.resolved.job,
            offered.prices,
            sys.stdout,
            options.objective,
        )
    offered.require_any()


class _NotesLast(TerminalReporter):
    """Says notes below the plan, as far as there is room, and none twice."""

    def __init__(self, *, quiet: bool, with_waits: bool) -> None:
        super().__init__(quiet=quiet, with_waits=with_waits)
        self.holds = True
        self._held: list[str] = []

    def note(self, text: str) -> None:
        """What a plan rests on."""
        if self.holds and not self.quiet:
            self._held.append(text)
        else:
            super().note(text)

    def withdraw(self) -> list[str]:
        """What is held, to be said later."""
        held, self._held = self._held, []
        return held

    def withdraw_guesses(self) -> list[str]:
        """What names were taken to be, for a screen that says it among what is assumed."""
        if not self.stream.isatty():
            return []
        notes = self.withdraw()
        self._held = [text for text in notes if TAKEN_TO_BE not in text]
        clauses = (text.partition(";")[0] for text in notes if TAKEN_TO_BE in text)
        return [clause.replace(TAKEN_TO_BE, _(" is ")) for clause in dict.fromkeys(clauses)]

    def beside(
        self, texts: Sequence[Paragraph], room: int | None, *, is_refused: bool, says_last: bool
    ) -> int | None:
        """Say what stands below a plan, and the notes; how many lines that leaves.

        Args:
            texts: What stands below it.
            room: How many lines there are; None for as many as it takes.
            is_refused: Whether nothing fits, so that what would help needs the room.
            says_last: Whether the last note says more of the job than what is assumed.
        """
        least = len(self._held[:1])
        if least and says_last and not is_refused:
            last, screen = notes(self._held[-1:]), CountedLines(self.stream)
            least, _gone = paragraphs(last, screen, None, len(self._held))
        most = None if room is None else room - least
        taken, gone = paragraphs(texts, sys.stdout, most, None if least else 0)
        left = None if room is None else room - taken
        if is_refused and left is not None and left < 1:
            self.withdraw()
        noted = self.release(_NOTES_OF_A_REFUSAL if is_refused else left, gone)
        return None if left is None else left - noted

    def release(self, lines: int | None = None, left_out: int = 0) -> int:
        """Say what is held, in so many lines; how many it took.

        Args:
            lines: The most; None for as many as it takes.
            left_out: How many texts have no room elsewhere.
        """
        held = notes(dict.fromkeys(self.withdraw()))
        with suppress(OSError):
            return paragraphs(held, self.stream, lines, left_out if held else None)[0]
        return 0


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
    other = changes(read_options(shell.split(words), "zerowiz plan"))
    changed = replace(options, **other)
    if changed == options:
        raise UsageError(
            "`$compare` needs options that make the other plan differ",
            "add them: `$compare $machine 8xH100-80GB`",
        )
    reporter = _NotesLast(quiet=options.quiet, with_waits=not options.as_json)
    try:
        first = _plan(script, script_args, options, reporter)
        second = _plan(script, script_args, changed, reporter, first)
    finally:
        reporter.release()
    if options.as_json or changed.as_json:
        content = {"schema_version": 1, "plans": [plan.to_dict() for plan in (first, second)]}
        write_json(content)
    else:
        from zerowiz.ui.pictures import Side, compare  # noqa: PLC0415 - few plans are compared

        own = Options(**{name: getattr(options, name) for name in other})
        before = shell.join(as_words(own)) or "as you set it"
        compare(
            Side(words=before, decision=first.decided.decision),
            Side(words=words, decision=second.decided.decision),
            sys.stdout,
        )
    if not (first or second):
        require_strategy(first.decided)


def _plan(
    script: str | None,
    script_args: Sequence[str],
    options: Options,
    reporter: Reporter,
    beside: PlanResult | None = None,
) -> PlanResult:
    planned = plan_job(script, script_args, options, (), reporter)
    if not isinstance(planned, PlanResult):
        raise UsageError(
            "`$compare` is for two plans, and one of them compares many machines",
            "name one machine: `$machine 8xH100-80GB`",
        )
    note_basis(planned.decided, reporter, None if beside is None else beside.decided)
    note_choices(planned.decided, reporter)
    return planned
