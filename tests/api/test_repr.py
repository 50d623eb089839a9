"""What the Python API returns shows itself in a line, with the figures that a person looks for."""

import io
from collections.abc import Iterator

import pytest
from msgspec import Struct
from msgspec.structs import fields
from rich.console import Console

from zerowiz.app import api

LONGEST_CHARACTERS = 1000
"""Of any value in a result."""
SHORT_CHARACTERS = 200
"""Of those that people meet."""

PLAN = api.plan("4xA100-40GB", model="7b", gradient_checkpointing=True)
NOTHING = api.plan("2xRTX4090", model="70b", stage="1")
FOUND = api.find_machines(
    model="1b", gpus_per_node=1, nodes=1, tokens="1B", price="H100-80GB=2.50/gpu-hour"
)
RUN = PLAN.run(tokens="1B", price="2.50/gpu-hour")
CHOSEN, CHOICE = PLAN.chosen, PLAN.choice
assert CHOSEN is not None
assert CHOICE is not None
assert CHOSEN.step_time is not None


def structs_in(value: object) -> Iterator[Struct]:
    """The values in a value, and those in them."""
    if isinstance(value, Struct):
        yield value
        for each in fields(value):
            yield from structs_in(getattr(value, each.name))
    elif isinstance(value, tuple):
        for item in value[:2]:
            yield from structs_in(item)


@pytest.mark.parametrize(
    "value",
    [
        PLAN.chosen,
        PLAN.choice,
        PLAN.machine,
        PLAN.model,
        CHOSEN.estimate,
        CHOSEN.host,
        CHOSEN.step_time,
        CHOSEN.strategy,
        RUN,
        RUN.strategies[0],
        FOUND,
        FOUND.offers,
        FOUND.offers.offers[0],
        NOTHING.strategies[0],
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_value_that_people_meet_is_short_here_and_in_rich(value: Struct) -> None:
    assert len(repr(value)) <= SHORT_CHARACTERS
    console = Console(file=io.StringIO(), width=1000)
    console.print(value)
    assert isinstance(console.file, io.StringIO)
    assert len(console.file.getvalue()) <= 2 * SHORT_CHARACTERS


@pytest.mark.parametrize(
    ("value", "figures"),
    [
        (
            CHOSEN,
            (
                "strategy.name=zero3",
                "verdict=fits",
                f"device_bytes={CHOSEN.device_bytes}",
                f"budget_bytes={CHOSEN.budget_bytes}",
                f"step_time.expected_seconds={CHOSEN.step_time.expected_seconds:.4g}",
            ),
        ),
        (
            CHOICE,
            ("workload.micro_batch=1", "workload.accumulation_steps=1", "strategy.name=zero3"),
        ),
        (PLAN.machine, ("world_size=4", "gpus[0].name=NVIDIA A100-SXM4-40GB", "nvlink_all")),
        (PLAN.model, ("name=7b", "params=7000000000")),
        (CHOSEN.estimate, (f"peak_bytes={CHOSEN.estimate.peak_bytes}", "peak_phase=backward")),
        (
            CHOSEN.step_time,
            (
                f"expected_seconds={CHOSEN.step_time.expected_seconds:.4g}",
                f"low_seconds={CHOSEN.step_time.low_seconds:.4g}",
            ),
        ),
        (CHOSEN.strategy, ("name=zero3", "stage=3", "offload=none")),
        (RUN, ("tokens=1000000000", "chosen=zero3", "price_per_hour=10")),
        (RUN.strategies[0], ("zero3", "run.expected_hours=3", "run.cost.expected_cost=3")),
        (FOUND, (f"len(offers.offers)={len(FOUND.offers.offers)}", "name=1xH100-80GB")),
        (FOUND.offers.offers[0], ("1xH100-80GB", "ddp", "price_per_hour=2.5", "expected_cost=2")),
        (NOTHING.decided.decision, ("chosen.strategy.name=None", "chosen.verdict=None")),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_value_shows_its_figures_by_the_names_that_they_have(
    value: Struct, figures: tuple[str, ...]
) -> None:
    shown = repr(value)
    assert shown.startswith(f"<{type(value).__name__}: ")
    assert [] == [figure for figure in figures if figure not in shown]


@pytest.mark.parametrize(
    "settings",
    [
        {"gradient_checkpointing": True},
        {"accounting": "textbook"},
        {"micro_batch": 64, "stage": "3", "offload": "all"},
    ],
)
def test_no_value_in_a_result_is_longer_than_a_screen(settings: dict[str, object]) -> None:
    result = api.plan("2xRTX4090", model="7b", **settings)  # type: ignore[arg-type]
    parts = (result.decided.decision, result.remedies, FOUND)
    shown = {type(each).__name__: len(repr(each)) for part in parts for each in structs_in(part)}
    assert {} == {name: size for name, size in shown.items() if size > LONGEST_CHARACTERS}
