"""Which layers have adapters, and in what format."""

import pytest
from measured.rows import read_model

from zerowiz.core.memory.activations import lay_adapters, value_bytes
from zerowiz.core.workload import ALL_LINEAR, Method, Precision, Workload, parse_modules
from zerowiz.errors import UsageError

LORA = Workload(method=Method.LORA)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (None, ()),
        ("all-linear", ()),
        ("All-Linear", ()),
        ("q_proj", ("q_proj",)),
        ("q_proj, v_proj,q_proj", ("q_proj", "v_proj")),
    ],
)
def test_modules_are_names_with_commas_between_them(
    text: str | None, expected: tuple[str, ...]
) -> None:
    assert expected == parse_modules(text)


@pytest.mark.parametrize("text", ["", ",", "q_proj,,v_proj"])
def test_a_list_with_a_hole_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is not a list of names"):
        parse_modules(text)


@pytest.mark.parametrize("text", [ALL_LINEAR, "q_proj,v_proj"])
def test_modules_are_said_as_they_were_told(text: str) -> None:
    assert text == Workload(lora_target_modules=parse_modules(text)).lora_targets


@pytest.mark.parametrize(
    ("workload", "sharded", "expected"),
    [
        (LORA, False, 2),
        (LORA, True, 4),
        (Workload(method=Method.LORA, zero_init=False), True, 2),
        (Workload(method=Method.QLORA), True, 2),
        (Workload(method=Method.LORA, precision=Precision.FP32), False, 4),
        (Workload(), True, 2),
    ],
)
def test_only_adapters_of_a_model_that_zero_init_built_stay_in_fp32(
    workload: Workload, expected: int, *, sharded: bool
) -> None:
    assert expected == value_bytes(workload, sharded=sharded)


def test_a_model_that_trains_itself_has_no_adapters() -> None:
    architecture = read_model("llama-3.2-1b").architecture
    assert lay_adapters(architecture, Workload(), sharded=False) is None
