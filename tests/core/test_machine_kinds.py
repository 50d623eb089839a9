"""Prices as people write them, and the price of a machine."""

import pytest

from zerowiz.core.machine.spec import parse_machine
from zerowiz.core.machine.types import Machine
from zerowiz.core.machine_kinds import PriceList, read_prices, split_prices
from zerowiz.core.structs import replace
from zerowiz.errors import UsageError
from zerowiz.probe.package_data import read_gpu_table, read_instances

TABLE, INSTANCES = read_gpu_table(), read_instances()


def prices(text: str) -> PriceList:
    return read_prices(split_prices(text), TABLE, INSTANCES)


def machine(text: str) -> Machine:
    return parse_machine(text, TABLE, INSTANCES)


@pytest.mark.parametrize(
    ("text", "of", "instance", "expected"),
    [
        ("2.50/gpu-hour", "8xH200", None, 20.0),
        ("2.50 / gpu-hour", "8xH200", None, 20.0),
        ("2.50/GPU-hour", "8xH200", None, 20.0),
        ("H200=2.50/gpu-hour,4/gpu-hour", "8xH200", None, 20.0),
        ("32/node-hour", "8xH200", None, 32.0),
        ("32/node-hour", "4x8xH200", None, 128.0),
        ("H200=3/gpu-hour,2/gpu-hour", "8xH200", None, 24.0),
        ("2/gpu-hour,H200=3/gpu-hour", "8xH200", None, 24.0),
        ("H200=3/gpu-hour,2/gpu-hour", "8xA100-80GB", None, 16.0),
        ("8xH200=32/node-hour", "8xH200", None, 32.0),
        ("8xH200=32/node-hour", "2x8xH200", None, 64.0),
        ("8xH200=32/node-hour", "4xH200", None, None),
        ("8xH200=32/node-hour,H200=5/gpu-hour", "4xH200", None, 20.0),
        ("8xH200=32/node-hour,H200=5/gpu-hour", "8xH200", None, 32.0),
        ("H200=3/gpu-hour", "8xA100-80GB", None, None),
        ("p5.48xlarge=98/node-hour", "2xp5.48xlarge", "p5.48xlarge", 196.0),
        ("P5.48XLARGE=98/node-hour", "p5.48xlarge", "p5.48xlarge", 98.0),
        ("p5.48xlarge=98/node-hour", "8xH100-80GB", None, None),
        ("H100-80GB=2/gpu-hour,p5.48xlarge=98/node-hour", "p5.48xlarge", "p5.48xlarge", 98.0),
        ("H100-80GB=2/gpu-hour", "p5.48xlarge", "p5.48xlarge", 16.0),
    ],
)
def test_the_most_special_price_of_a_machine_counts(
    text: str, of: str, instance: str | None, expected: float | None
) -> None:
    assert expected == prices(text).per_hour(machine(of), instance)


@pytest.mark.parametrize(
    ("text", "currency"),
    [
        ("2.50/gpu-hour", ""),
        ("$2.50/gpu-hour", "$"),
        ("2.50eur/gpu-hour", "EUR"),
        ("€2/gpu-h", "€"),
    ],
)
def test_a_currency_is_kept_as_it_was_written(text: str, currency: str) -> None:
    assert currency == prices(text).currency


@pytest.mark.parametrize(
    "text",
    [
        "",
        "2.50",
        "/gpu-hour",
        "-1/gpu-hour",
        "2.50/hour",
        "2/tpu-hour",
        "$2EUR/gpu-hour",
        "1e9/gpu-hour",
    ],
)
def test_what_is_no_price_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is not an hourly price"):
        prices(text)


@pytest.mark.parametrize(
    "name", ["Foo", "foo 9000", "NVIDIA Foo 9000", "nvidia-foo-9000", "1xFoo 9000"]
)
def test_the_gpu_of_the_job_has_a_price_by_its_name(name: str) -> None:
    own = machine("1xH200")
    own = replace(own, gpus=(replace(own.gpus[0], name="NVIDIA Foo 9000"),))
    found = read_prices({name: "2/gpu-hour"}, TABLE, INSTANCES, ["NVIDIA Foo 9000"])
    assert 2.0 == found.per_hour(own, None)
    with pytest.raises(UsageError, match="is not a GPU or an instance"):
        read_prices({name: "2/gpu-hour"}, TABLE, INSTANCES)


def test_a_name_of_several_rows_means_the_gpu_of_the_job_and_that_of_one_row_this_one() -> None:
    own = machine("8xA100-80GB")
    found = read_prices({"A100": "2/gpu-hour"}, TABLE, INSTANCES, [own.gpus[0].name])
    assert 16.0 == found.per_hour(own, None)
    listed = read_prices({"H200": "2/gpu-hour"}, TABLE, INSTANCES, ["NVIDIA H200 Super"])
    assert 16.0 == listed.per_hour(machine("8xH200"), None)


@pytest.mark.parametrize("name", ["NVIDIA", "Fo", "9000", "Foo 9000 Ti"])
def test_other_words_are_not_the_gpu_of_the_job(name: str) -> None:
    with pytest.raises(UsageError, match="is not a GPU or an instance"):
        read_prices({name: "2/gpu-hour"}, TABLE, INSTANCES, ["NVIDIA Foo 9000"])


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("H100=2/gpu-hour", "matches more than one GPU"),
        ("Z9000=2/gpu-hour", "is not a GPU or an instance"),
        ("H200=32/node-hour", "does not say how many GPUs"),
        ("H200=1/gpu-hour,H200=2/gpu-hour", "two prices of `H200`"),
        ("1/gpu-hour,2/gpu-hour", "two prices"),
        ("=2/gpu-hour", "has no name before `=`"),
        ("H200=1/gpu-hour, =2/gpu-hour", "has no name before `=`"),
        ("2,50/gpu-hour", "has a comma in its number"),
        ("$2,5/gpu-hour", "has a comma in its number"),
        ("$1/gpu-hour,H200=2/gpu-hour", "more than one currency: none and `\\$`"),
    ],
)
def test_a_price_that_has_no_meaning_is_refused(text: str, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        prices(text)


def test_a_price_of_an_unknown_name_is_helped_with_a_price_and_with_no_machine() -> None:
    with pytest.raises(UsageError) as refused:
        read_prices(split_prices("h800x=2/gpu-hour"), TABLE, INSTANCES)
    similar, any_machine = refused.value.hints
    assert "`H800`" in similar
    assert any_machine.startswith("`$price 2.50/gpu-hour`")
