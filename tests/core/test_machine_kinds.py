"""Prices as people write them, and the price of a machine."""

import pytest

from zerowiz.core.machine.spec import parse_machine
from zerowiz.core.machine_kinds import PriceList, read_prices
from zerowiz.errors import UsageError
from zerowiz.probe.package_data import read_gpu_table, read_instances

TABLE, INSTANCES = read_gpu_table(), read_instances()


def prices(*texts: str) -> PriceList:
    return read_prices(texts, TABLE, INSTANCES)


@pytest.mark.parametrize(
    ("texts", "of", "instance", "expected"),
    [
        (["2.50"], "8xH200", None, 20.0),
        ([" 2.50 "], "4x8xH200", None, 80.0),
        (["H200=2.50", "4"], "8xH200", None, 20.0),
        (["4", "H200 = 2.50"], "8xH200", None, 20.0),
        (["H200=3", "2"], "8xA100-80GB", None, 16.0),
        (["H200=3,A100=2"], "8xA100-80GB", None, 16.0),
        (["H200=3"], "8xA100-80GB", None, None),
        (["p5.48xlarge=12.25"], "2xp5.48xlarge", "p5.48xlarge", 196.0),
        (["P5.48XLARGE=12.25"], "p5.48xlarge", "p5.48xlarge", 98.0),
        (["p5.48xlarge=12.25"], "8xH100-80GB", None, None),
        (["H100-80GB=2,p5.48xlarge=12.25"], "p5.48xlarge", "p5.48xlarge", 98.0),
        (["H100-80GB=2"], "p5.48xlarge", "p5.48xlarge", 16.0),
    ],
)
def test_the_most_special_price_of_a_machine_counts(
    texts: list[str], of: str, instance: str | None, expected: float | None
) -> None:
    machine = parse_machine(of, TABLE, INSTANCES)
    assert expected == prices(*texts).per_hour(machine, instance)


@pytest.mark.parametrize(
    "text",
    [
        *("", "-1", "1e9", "=2", "H200=", "H200=cheap", "prices.toml"),
        # As they were written before, and as half of the world writes 2.50.
        *("2.50/gpu-hour", "32/node-hour", "$2.50", "2.50EUR", "2,50", "H200=2,50"),
    ],
)
def test_what_is_no_price_is_refused_with_how_one_is_written(text: str) -> None:
    with pytest.raises(UsageError) as refused:
        prices(text)
    assert f"`$price {text}` is not a price" == refused.value.message
    (hint,) = refused.value.hints
    assert "dollars per GPU hour: `$price 2.50`" in hint
    assert prices(*hint.split("`$price ")[2].rstrip("`").split(","))


@pytest.mark.parametrize(
    ("texts", "why"),
    [
        (["Z9000=2"], "`Z9000` is not a GPU or an instance"),
        (["8xH200=2"], "`8xH200` is not a GPU or an instance"),
        (["H200=1,H200=2"], "a second price of the same"),
        (["1", "2"], "a second price of the same"),
    ],
)
def test_a_price_that_has_no_meaning_is_refused(texts: list[str], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        prices(*texts)
