"""Encode what was decided as the contract has it."""

from collections.abc import Mapping, Sequence

from zerowiz import __version__
from zerowiz.app.decide.decision import Plan
from zerowiz.app.resolve.request import config_file
from zerowiz.core.plan_json import encode_decision
from zerowiz.ui import sentences


def encode_plan(
    plan: Plan,
    command: Sequence[str] | None = None,
    env: Mapping[str, str] | None = None,
) -> dict[str, object]:
    """The contract's object of what was decided."""
    strategy, decision = plan.strategy, plan.decision
    return encode_decision(
        decision,
        version=__version__,
        reasons=sentences.reasons(decision),
        remedies=plan.remedies,
        settled=plan.request.settled,
        config_path=None if strategy is None else config_file(plan.options, strategy),
        command=command,
        env=env,
    )
