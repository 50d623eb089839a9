"""Write the JSON that `--json` promises, alone on stdout."""

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import msgspec

from zerowiz.app.decide.decision import NoStrategyError, Plan
from zerowiz.app.decide.plan_json import encode_plan
from zerowiz.core.search.limits import Limit

if TYPE_CHECKING:
    from zerowiz.core.catalog.planned_run import PlannedRun


def write_json(content: object) -> None:
    """One value of JSON."""
    sys.stdout.write(json.dumps(content, indent=2) + "\n")


def write_plan(
    plan: Plan,
    command: Sequence[str] | None = None,
    env: Mapping[str, str] | None = None,
    run: "PlannedRun | None" = None,
    limits: Sequence[Limit] | None = None,
) -> None:
    """The contract's object of what was decided."""
    # As `write_json`, eight times faster: only without an indent does json use its C encoder.
    text = json.dumps(encode_plan(plan, command, env, run, limits))
    sys.stdout.write(msgspec.json.format(text, indent=2) + "\n")


@contextmanager
def showing_refused_plan(*, as_json: bool) -> Iterator[None]:
    """Where nothing fits, `--json` still gets the plan that says so."""
    try:
        yield
    except NoStrategyError as error:
        if as_json:
            write_plan(error.plan)
        raise
