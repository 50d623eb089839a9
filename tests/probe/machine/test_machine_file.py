import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from recorded import names, play, recording

from zerowiz.core.machine.names import encode_machine, parse_spec
from zerowiz.core.machine.types import Machine, MachineSource
from zerowiz.core.structs import replace
from zerowiz.errors import ExitCode, UsageError, ZerowizError
from zerowiz.probe.files import read_gpu_table
from zerowiz.probe.machine.machine_file import parse_machine_file, read_machine_file

MACHINE = parse_spec("4xA100-40GB", read_gpu_table())

each_recording = pytest.mark.parametrize("name", names())


def save(folder: Path, **content: object) -> Path:
    path = folder / "machine.json"
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


def description(machine: Machine) -> dict[str, object]:
    return {"schema_version": 1, "machine": encode_machine(machine)}


def parse(content: object, gpus: str | None = None) -> Machine:
    return parse_machine_file(json.dumps(content), "m.json", gpus=gpus)


def refuse(text: str) -> UsageError:
    """Why that is no machine file: one line, which names it."""
    with pytest.raises(UsageError) as caught:
        parse_machine_file(text, "m.json")
    assert "m.json" in caught.value.message
    assert "\n" not in caught.value.message
    return caught.value


def test_a_saved_machine_comes_back_as_one_from_a_file(tmp_path: Path) -> None:
    path = save(tmp_path, schema_version=1, machine=encode_machine(MACHINE))
    assert replace(MACHINE, source=MachineSource.FILE) == read_machine_file(path)


def test_the_whole_output_of_a_plan_is_a_machine_file(tmp_path: Path) -> None:
    path = save(
        tmp_path,
        schema_version=1,
        zerowiz_version="0.1",
        machine=encode_machine(MACHINE),
        chosen="zero2",
        strategies=[],
    )
    assert MACHINE.gpus == read_machine_file(path).gpus


@each_recording
def test_a_recorded_machine_comes_back_from_its_description(name: str) -> None:
    machine = replace(play(recording(name)), source=MachineSource.FILE)
    assert machine == parse(description(machine))


def test_gpus_are_chosen_in_a_file() -> None:
    content = description(MACHINE)
    assert [3, 1] == [gpu.index for gpu in parse(content, gpus="3,1").gpus]
    with pytest.raises(UsageError, match="there is no usable GPU 4"):
        parse(content, gpus="4")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is not JSON"),
        ("{", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ('{"a": ' + "9" * 5000 + "}", "is not JSON"),
        ("[]", "has no JSON object"),
        ("2", "has no JSON object"),
        (
            "{}",
            "has no `schema_version`; this version of zerowiz reads 1",
        ),
        (
            '{"schema_version": 0, "machine": {}}',
            "has `schema_version` 0; this version of zerowiz reads 1",
        ),
        (
            '{"schema_version": 3, "nvml": {}}',
            "has `schema_version` 3; this version of zerowiz reads 1",
        ),
        (
            '{"schema_version": "2", "nvml": {}}',
            "has `schema_version` '2'; this version of zerowiz reads",
        ),
        (
            '{"schema_version": {"a": [2]}}',
            "has `schema_version` {'a': [2]}; this version of zerowiz",
        ),
        ('{"schema_version": 1}', "has no `machine`"),
        (
            '{"schema_version": 1, "machine": []}',
            "`m.json: machine`: expected `object`, got `array`",
        ),
        ('{"schema_version": 1, "machine": {}}', "`m.json: machine.gpus` is missing"),
        # A recording of the driver, as zerowiz saved it before.
        (
            '{"schema_version": 2, "nvml": {}}',
            "has `schema_version` 2; this version of zerowiz reads 1",
        ),
    ],
)
def test_a_text_that_is_no_machine_is_refused_in_one_line(text: str, said: str) -> None:
    assert said in refuse(text).message


@pytest.mark.parametrize(
    ("of_a_slice", "label"), [({}, "1"), ({"mig_slice": 2}, "1:2")], ids=["whole", "slice"]
)
def test_a_person_who_says_that_more_is_free_than_there_is_is_told_which_gpu(
    of_a_slice: dict[str, int], label: str
) -> None:
    """They contradict themselves; without the GPU the plan would be for another machine."""
    sizes = {"total_bytes": 10, "free_bytes": 11, **of_a_slice}
    gpus = [{"index": 0, "name": "A"}, {"index": 1, "name": "A", **sizes}]
    refused = refuse(json.dumps({"schema_version": 1, "machine": {"gpus": gpus}}))
    said = f"`m.json: machine`: GPU {label} cannot have 11 of 10 bytes free"
    assert said == refused.message
    assert ExitCode.USAGE == refused.exit_code


def oks(*values: object) -> list[object]:
    return [{"ok": value} for value in values]


def errs(*codes: object) -> list[object]:
    return [{"err": code} for code in codes]


JUNK: list[object] = [
    *(None, True, False, -1, 0, 1, 7, 2**31, 2**32 - 1, 2**64, 10**30, 1.5),
    *(float("nan"), float("inf"), "", "x", "gpu0", "GPU-0", "\ud800", "\udcff", "9" * 40),
    *("0-99999,1", "64.0 GT/s PCIe", "../../..", "MemTotal: x kB", "\u0663", "max"),
    *([], [1], ["x"], [[]], {}, {"x": 1}),
    *oks(5, "x", None, -1, [1, 2], 2**32 - 1, 1.5, [], {}, [{}], ["x", 1]),
    *errs("x", 0, -1, float("inf"), 2**32, None, 7, 13, 15),
]

Place = tuple[str | int, ...]


def list_places(value: Any, place: Place = ()) -> Iterator[Place]:
    """Where each value of a JSON text is."""
    steps = value.items() if isinstance(value, dict) else enumerate(value)
    for step, each in steps:
        yield (*place, step)
        if isinstance(each, dict | list):
            yield from list_places(each, (*place, step))


def put(value: Any, place: Place, junk: object) -> Any:
    """The value with another one at that place."""
    if not place:
        return junk
    step, *rest = place
    copy = value.copy()
    copy[step] = put(value[step], tuple(rest), junk)
    return copy


def end(content: object) -> None:
    """Read a machine file that may be broken: a machine, or an error of ours in one line."""
    try:
        machine = parse(content)
    except ZerowizError as error:
        said = error.message
    else:
        said = json.dumps(encode_machine(machine))
    assert "\n" not in said


WHOLE = {
    name: description(play(recording(name)))
    for name in ("h200-x4-busy", "synthetic/a100-mig-container")
}
PLACES = [(name, place) for name, content in WHOLE.items() for place in list_places(content)]
SMALLEST = "synthetic/a100-mig-container"


@pytest.mark.parametrize("junk", JUNK, ids=lambda junk: f"{junk!a:.30}")
def test_junk_at_any_place_of_a_file_ends_in_a_machine_or_an_error_of_ours(
    junk: object,
) -> None:
    for name, place in PLACES:
        if name == SMALLEST:
            end(put(WHOLE[name], place, junk))


PRINTED = st.characters(exclude_categories=["Cc", "Cs"])
json_values = st.recursive(
    st.sampled_from(JUNK) | st.integers() | st.floats() | st.text(PRINTED, max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(["gpus", "index", "kind", "pid"]), inner, max_size=3)
    ),
    max_leaves=6,
)


@settings(max_examples=400, deadline=None)
@given(st.sampled_from(PLACES), json_values)
def test_any_value_at_any_place_ends_in_a_machine_or_an_error_of_ours(
    at: tuple[str, Place], value: object
) -> None:
    name, place = at
    end(put(WHOLE[name], place, value))


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("none.json", r"none\.json` does not exist"),
        ("folder", "cannot be read: it is a folder, not a file"),
        ("binary", "is not text"),
    ],
)
def test_what_is_no_file_of_text_is_refused(tmp_path: Path, name: str, said: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match=said):
        read_machine_file(tmp_path / name)
