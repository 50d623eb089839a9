"""Write a plan as the JSON that `--json` promises."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from zerowiz.app.decide import NoStrategyError, Plan
from zerowiz.app.plan_files import encode_plan, find_machine_change
from zerowiz.cli.usage import write_json, write_json_text
from zerowiz.core.decision.open_settings import Limit
from zerowiz.core.launch.provenance import encode_machine_change

if TYPE_CHECKING:
    from zerowiz.core.catalog import PlannedRun


def write_plan(
    plan: Plan,
    command: Sequence[str] | None = None,
    env: Mapping[str, str] | None = None,
    run: "PlannedRun | None" = None,
    limits: Sequence[Limit] | None = None,
    origins: Mapping[str, tuple[object, str]] | None = None,
) -> None:
    """The contract's object of what was decided, with what has changed since an earlier plan."""
    content = encode_plan(plan, command, env, run, limits)
    change = find_machine_change(plan)
    if change is not None:
        content["machine_change"] = encode_machine_change(change)
    if origins is not None:
        content["origins"] = {
            name: {"value": str(value) if isinstance(value, Path) else value, "origin": origin}
            for name, (value, origin) in origins.items()
        }
    # As `write_json`, eight times faster: only without an indent does json use its C encoder.
    text = json.dumps(content)
    try:
        write_json_text(msgspec.json.format(text, indent=2))
    except msgspec.DecodeError:  # it names a path that is no UTF-8, which json alone writes
        write_json(json.loads(text))


@contextmanager
def showing_refused_plan(*, as_json: bool) -> Iterator[None]:
    """Where nothing fits, `--json` still gets the plan that says so."""
    try:
        yield
    except NoStrategyError as error:
        if as_json:
            write_plan(error.plan)
        raise
