import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import inspect
from msgspec.structs import fields

from zerowiz.core.job_end import KeptRun, MachineResults
from zerowiz.core.launch.plan import AttemptSpec, Join, OpenRendezvous
from zerowiz.core.machine.names import decode_machine, encode_machine
from zerowiz.core.machine.types import Gpu, Host, Interconnect, LinkClass, Machine, MachineSource
from zerowiz.core.memory.micro_step import Traced
from zerowiz.core.structs import decode, replace
from zerowiz.errors import UsageError

# Field by field, from their types: a new field is tried without a word here.
sizes = st.integers(0, 2**60)
st.register_type_strategy(int, sizes)
# A machine has no other float; a call in Python takes less than a second.
st.register_type_strategy(float, st.floats(0, 1, exclude_min=True, exclude_max=True))


@st.composite
def gpus(draw: st.DrawFn) -> Gpu:
    total, free = draw(st.none() | sizes), draw(st.none() | sizes)
    if total is not None and free is not None:
        free, total = sorted((free, total))
    drawn = {"total_bytes", "free_bytes"}
    others = st.builds(Gpu, **{f.name: ... for f in fields(Gpu) if f.name not in drawn})
    return replace(draw(others), total_bytes=total, free_bytes=free)


machines = st.builds(
    Machine,
    **{f.name: ... for f in fields(Machine) if f.name not in {"nodes", "gpus"}},
    nodes=st.integers(1, 999),
    gpus=st.lists(gpus(), min_size=1, max_size=4, unique_by=lambda gpu: gpu.label).map(tuple),
)

WHOLE: dict[str, Any] = {
    "source": "nvml",
    "accelerator": "cuda",
    "nodes": 2,
    "gpus": [
        {
            "index": 0,
            "name": "NVIDIA H200",
            "uuid": "GPU-182dd796",
            "total_bytes": 150754820096,
            "free_bytes": 150109880320,
            "compute_capability": [9, 0],
        },
        {
            "index": 1,
            "name": "NVIDIA H200",
            "uuid": None,
            "total_bytes": None,
            "free_bytes": None,
            "compute_capability": None,
        },
    ],
    "interconnect": {"class": "nvlink_all", "bytes_per_s": 450000000000, "weakest_pair": [0, 1]},
    "host": {"total_bytes": 2**40, "available_bytes": None},
    "notes": ["GPU 2 is left out: it has to be reset"],
}


@given(machines)
def test_a_machine_comes_back_from_json_as_it_went(machine: Machine) -> None:
    assert machine == decode_machine(json.loads(json.dumps(encode_machine(machine))))


def without_unsaid(encoded: Any, said: Any) -> Any:
    """What was encoded, less the keys that were not said."""
    if isinstance(said, dict):
        return {key: without_unsaid(encoded[key], each) for key, each in said.items()}
    if isinstance(said, list):
        return [without_unsaid(*pair) for pair in zip(encoded, said, strict=True)]
    return encoded


def test_the_json_has_the_shape_of_the_contract() -> None:
    assert WHOLE == without_unsaid(encode_machine(decode_machine(copy.deepcopy(WHOLE))), WHOLE)


def test_what_a_person_leaves_out_is_unknown() -> None:
    expected = Machine(
        source=MachineSource.FILE,
        gpus=(Gpu(index=0, name="mine"),),
        interconnect=Interconnect(link_class=LinkClass.UNKNOWN),
        host=Host(),
    )
    assert expected == decode_machine({"gpus": [{"index": 0, "name": "mine"}], "comment": "hi"})


@pytest.mark.parametrize(
    ("keys", "bad", "named"),
    [
        (("source",), "guess", "machine.source"),
        (("accelerator",), 1, "machine.accelerator"),
        (("nodes",), 0, "machine"),
        (("nodes",), True, "machine.nodes"),
        (("nodes",), "2", "machine.nodes"),
        (("gpus",), [], "machine"),
        (("gpus",), {}, "machine.gpus"),
        (("gpus", 1), None, "machine.gpus[1]"),
        (("gpus", 1, "index"), 0, "machine"),
        (("gpus", 0, "index"), -1, "machine.gpus[0].index"),
        (("gpus", 0, "name"), None, "machine.gpus[0].name"),
        (("gpus", 0, "uuid"), 7, "machine.gpus[0].uuid"),
        (("gpus", 0, "total_bytes"), 1.5, "machine.gpus[0].total_bytes"),
        (("gpus", 0, "free_bytes"), "80GB", "machine.gpus[0].free_bytes"),
        (("gpus", 0, "compute_capability"), [9], "machine.gpus[0].compute_capability"),
        (("gpus", 0, "compute_capability"), "9.0", "machine.gpus[0].compute_capability"),
        (("interconnect",), "nvlink_all", "machine.interconnect"),
        (("interconnect", "class"), "NVLINK", "machine.interconnect.class"),
        (("interconnect", "class"), [], "machine.interconnect.class"),
        (("interconnect", "bytes_per_s"), -1, "machine.interconnect.bytes_per_s"),
        (("interconnect", "weakest_pair"), [0, "1"], "machine.interconnect.weakest_pair[1]"),
        (("host", "available_bytes"), False, "machine.host.available_bytes"),
        (("gpus", 0, "pcie"), {"max_lanes": "x16"}, "machine.gpus[0].pcie.max_lanes"),
        (("links",), [{"pair": [0]}], "machine.links[0].pair"),
        (("links",), [{"pair": [0, 1], "path": "NV4"}], "machine.links[0].path"),
        (("network",), {"kind": "wifi"}, "machine.network.kind"),
        (("allocation",), {"nodes": 2}, "machine.allocation.scheduler"),
        (("notes",), "note", "machine.notes"),
        (("notes",), [1], "machine.notes[0]"),
    ],
)
def test_bad_content_is_refused_naming_its_key(
    keys: tuple[str | int, ...], bad: object, named: str
) -> None:
    content: Any = copy.deepcopy(WHOLE)
    inner = content
    for key in keys[:-1]:
        inner = inner[key]
    inner[keys[-1]] = bad
    with pytest.raises(UsageError) as caught:
        decode_machine(content)
    assert f"`{named}`" in caught.value.message


@pytest.mark.parametrize(
    ("content", "error"),
    [
        ({}, r"`machine\.gpus` is missing"),
        ("h100", "`machine`: expected `object`, got `str`"),
        *(
            (
                {**WHOLE, "host": {**WHOLE["host"], "python_call_seconds": seconds}},
                rf"`machine\.host\.python_call_seconds`: expected `float` {bound}",
            )
            for seconds, bound in (
                (float("nan"), "> 0"),
                (-1.0, "> 0"),
                (0.0, "> 0"),
                (1e300, "< 1"),
            )
        ),
    ],
)
def test_what_is_no_machine_is_refused(content: Any, error: str) -> None:
    with pytest.raises(UsageError, match=error):
        decode_machine(content)


def test_null_is_the_default_also_where_the_type_has_no_null() -> None:
    nulls: Any = {**copy.deepcopy(WHOLE), "nodes": None, "notes": None, "links": None}
    nulls["gpus"][0] |= {"pcie": None, "fabric_ready": None}
    said = {key: value for key, value in nulls.items() if value is not None}
    assert decode_machine({**said, "gpus": WHOLE["gpus"]}) == decode_machine(nulls)


def test_null_stays_where_a_mapping_holds_it() -> None:
    setting = {"sequence_tokens": None}
    content = {"setting": setting, "strategy": "ddp", "formulas": "1", "measured_seconds": 1.0}
    run = decode(KeptRun, {**content, "predicted_seconds": {}}, "run")
    assert setting == run.setting


READ = (Machine, Traced, MachineResults, OpenRendezvous, Join, AttemptSpec)
each_read = pytest.mark.parametrize("kind", READ, ids=lambda kind: kind.__name__)


def parts_of(kind: inspect.Type) -> Iterator[inspect.Type]:
    """A type and all that it is made of."""
    yield kind
    fields_in = getattr(kind, "fields", ())
    inner = [*(field.type for field in fields_in), *getattr(kind, "types", ())]
    inner += getattr(kind, "item_types", ())
    inner += [getattr(kind, name) for name in ("item_type", "value_type") if hasattr(kind, name)]
    for each in inner:
        yield from parts_of(each)


@each_read
def test_a_whole_number_that_is_read_is_a_count(kind: type) -> None:
    numbers = [p for p in parts_of(inspect.type_info(kind)) if isinstance(p, inspect.IntType)]
    assert [0] * len(numbers) == [number.ge for number in numbers]


@each_read
def test_a_field_that_may_be_null_is_null_where_nothing_is_said(kind: type) -> None:
    """`decode` leaves such a null to msgspec."""
    structs = [p for p in parts_of(inspect.type_info(kind)) if isinstance(p, inspect.StructType)]
    fields_in = [(struct.cls, field) for struct in structs for field in struct.fields]
    nullable = [(c, f) for c, f in fields_in if inspect.NoneType() in getattr(f.type, "types", ())]
    assert [] == [(cls, field.name) for cls, field in nullable if field.default is not None]


# `replace`; each `type: ignore` here is one that mypy would call unused if it checked nothing.


def test_a_copy_is_checked_by_mypy() -> None:
    assert Host(cores=4, total_bytes=2**30) == replace(Host(cores=8, total_bytes=2**30), cores=4)
    with pytest.raises(TypeError):
        replace(Host(), core=4)  # type: ignore[call-arg]
    # A value of another type is refused by mypy alone.
    assert "4" == replace(Host(), cores="4").cores  # type: ignore[arg-type]
