"""Write a plan as the JSON that `--json` promises, and what stands around a table of remedies."""

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from zerowiz.app.decide import NoStrategyError, Plan, encode_plan, find_machine_change, next_words
from zerowiz.app.options import with_plain
from zerowiz.cli.usage import write_json, write_json_text
from zerowiz.core.decision.open_settings import Limit
from zerowiz.core.launch.provenance import encode_machine_change
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


@contextmanager
def showing_refused_plan(*, as_json: bool) -> Iterator[None]:
    """Where nothing fits, `--json` still gets the plan that says so."""
    try:
        yield
    except NoStrategyError as error:
        if as_json:
            write_plan(error.plan)
        raise


def refusal(error: NoStrategyError) -> tuple[CountedLines, CountedLines]:
    """What stands above the table of remedies, and below it: the error, and what to type next."""
    from zerowiz.ui import remedies, show, text  # noqa: PLC0415 - few commands are refused

    above, below = CountedLines(sys.stderr), CountedLines(sys.stderr)
    plan, script = error.plan, error.plan.script
    said = {remedies.hint(remedy) for remedy in plan.remedies}
    text.error(error.message, [hint for hint in error.hints if hint not in said], above)
    if plan.remedies and plan.remedies[0].edit is None:
        change = plan.remedies[0].change
        options = with_plain(plan.options, change)
        path, args = (None, ()) if script is None else (script.facts.target, script.words)
        words = next_words(options, path, args, plan.decision.job.machine)
        show.next_command(words, below, change.get("host_memory"))
    return above, below
