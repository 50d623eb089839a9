"""Write a plan as the JSON that `--json` promises, and what stands around a table of remedies."""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from zerowiz.app.decide import NoStrategyError, Plan, encode_plan, find_machine_change, next_words
from zerowiz.app.options import with_plain
from zerowiz.cli.usage import expects_json, write_error, write_json, write_json_text
from zerowiz.core.decision.open_settings import Limit
from zerowiz.core.launch.provenance import encode_machine_change
from zerowiz.errors import NothingFitsError
from zerowiz.ui.text import CountedLines


def write_plan(
    plan: Plan,
    command: Sequence[str] | None = None,
    env: Mapping[str, str] | None = None,
    limits: Sequence[Limit] | None = None,
    origins: Mapping[str, tuple[object, str]] | None = None,
) -> None:
    """The contract's object of what was decided, with what has changed since an earlier plan."""
    content = encode_plan(plan, command, env, limits)
    change = find_machine_change(plan)
    if change is not None:
        content["machine_change"] = encode_machine_change(change)
    if origins is not None:
        content["origins"] = {
            name: {"value": str(value) if isinstance(value, Path) else value, "origin": origin}
            for name, (value, origin) in origins.items()
        }
    # As `write_json`, eight times faster: only without an indent does json use its C encoder.
    written = json.dumps(content)
    try:
        write_json_text(msgspec.json.format(written, indent=2))
    except msgspec.DecodeError:  # it names a path that is no UTF-8, which json alone writes
        write_json(json.loads(written))


class Refusal:
    """That nothing fits, what would help as a table, and the command with the first of that.

    A log keeps the form of every error.

    Args:
        error: Says so.
    """

    def __init__(self, error: NothingFitsError) -> None:
        from zerowiz.ui import remedies, show, text  # noqa: PLC0415 - few commands are refused

        self._above, self._below, self._first = (CountedLines(sys.stderr) for _place in range(3))
        is_seen = sys.stderr.isatty()
        plan = error.plan if isinstance(error, NoStrategyError) and is_seen else None
        self._remedies = () if plan is None else plan.remedies
        said = {remedies.hint(remedy) for remedy in self._remedies}
        text.error(error.message, [hint for hint in error.hints if hint not in said], self._above)
        if plan is not None and self._remedies:
            remedies.table(self._remedies[:1], self._first)
            remedy = self._remedies[0]
            if remedy.edit is None:
                options, script = with_plain(plan.options, remedy.change), plan.script
                path, args = (None, ()) if script is None else (script.facts.target, script.words)
                words = next_words(options, path, args, plan.decision.job.machine)
                memory = remedy.change.get("host_memory")
                show.next_command(words, remedies.strategy_of(remedy), self._below, memory)

    @property
    def lines(self) -> int:
        """How many it takes, of the table with the first remedy, and how many more there are."""
        more = len(self._remedies[1:2])
        return self._above.lines + self._below.lines + self._first.lines + more

    def show(self, most_lines: int | None = None) -> None:
        """Say it on stderr.

        Args:
            most_lines: How many lines there are for it; None for as many as it takes.
        """
        from zerowiz.ui import remedies  # noqa: PLC0415 - as above

        self._above.show()
        if self._remedies:
            others = self._above.lines + self._below.lines
            left = None if most_lines is None else most_lines - others
            remedies.table(self._remedies, sys.stderr, left)
        self._below.show()


def refuse(error: NothingFitsError) -> None:
    """Say that nothing fits; where JSON was asked for, with the plan that says so."""
    if isinstance(error, NoStrategyError) and expects_json():
        write_plan(error.plan)
    write_error(error)
    Refusal(error).show()
