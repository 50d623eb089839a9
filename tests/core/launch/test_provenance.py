"""A plan file is the contract's object, what it belongs to, and nobody's secrets."""

import hashlib
import json
import os
import subprocess
import time
from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from recorded import play, recording

from zerowiz.core.launch.provenance import (
    BatchChange,
    ChangedFact,
    EarlierPlan,
    MachineChange,
    PlannedFile,
    Provenance,
    change_batch,
    compare_machines,
    difference,
    encode_machine_change,
    is_config_of_plan,
    is_plan_path,
    is_unchanged_plan,
    plan_path,
    read_earlier_plan,
    render_plan,
    without_identities,
)
from zerowiz.core.machine.names import encode_machine
from zerowiz.core.machine.types import (
    Gpu,
    GpuProcess,
    Machine,
    MachineSource,
    with_gpus,
)
from zerowiz.core.structs import replace
from zerowiz.core.workload import Workload

# A diff is short, honest about what it cannot show, and steers no terminal.

WANTED = '{\n  "stage": 2,\n  "bf16": true\n}\n'


OTHER = WANTED.replace("2", "3")
CRLF = WANTED.replace("\n", "\r\n")
CHANGED = ('-  "stage": 3,', '+  "stage": 2,')


@pytest.mark.parametrize(
    ("there", "wanted", "shown"),
    [
        pytest.param(
            OTHER, WANTED, ("@@ -1,4 +1,4 @@", " {", *CHANGED, '   "bf16": true', " }"), id="a line"
        ),
        pytest.param(
            WANTED.removesuffix("\n"),
            WANTED,
            ("-}", "\\ No newline at end of file", "+}"),
            id="the end of the last line",
        ),
        pytest.param(OTHER.replace("\n", "\r\n"), WANTED, CHANGED, id="a line of Windows"),
        pytest.param("\ufeff{\n\t\x1b[2J\n", "{\n", ("-\\ufeff{", "-\\t\\x1b[2J"), id="unseen"),
    ],
)
def test_a_difference_shows(there: str, wanted: str, shown: tuple[str, ...]) -> None:
    found = difference("a\nb", there.encode(), wanted)
    assert isinstance(found, tuple)
    assert [line for line in found if line in shown] == [*shown]


@pytest.mark.parametrize(
    ("there", "wanted", "why"),
    [
        (CRLF.encode(), WANTED, "line endings"),
        (b"\xff\xfe{\x00}\x00", WANTED, "not UTF-8"),
        (b"\x89PNG\r\n", WANTED, "not UTF-8"),
        (b"{\0}", WANTED, "not UTF-8"),
        (b"x" * 10**6, WANTED, "too large"),
        (b"\n" * 20_000, WANTED, "too large"),
        (WANTED.encode(), "x" * 10**6, "too large"),
    ],
    ids=["CRLF", "UTF-16", "picture", "null", "large", "long", "large to write"],
)
def test_what_is_not_compared_says_why(there: bytes, wanted: str, why: str) -> None:
    assert why in difference("a.json", there, wanted)


def test_the_worst_that_is_compared_keeps_nobody_waiting() -> None:
    """Few different lines, each of which stands nearly everywhere."""
    there = "".join(f"{i * i % 7}\n" for i in range(10_000)).encode()
    wanted = "".join(f"{i * i % 11}\n" for i in range(190))
    started = time.process_time()
    assert isinstance(difference("a.json", there, wanted), tuple)
    assert time.process_time() - started < 5


@settings(deadline=None)
@given(st.binary(max_size=200), st.text(max_size=200))
def test_nothing_that_is_shown_steers_a_terminal(there: bytes, wanted: str) -> None:
    found = difference("a.json", there, wanted.encode("utf-8", "replace").decode())
    assert isinstance(found, str) or all(line.isprintable() for line in found)


@settings(deadline=None)
@given(st.lists(st.sampled_from("abc"), max_size=30), st.lists(st.sampled_from("abc"), max_size=30))
def test_what_goes_and_what_comes_make_up_the_difference(
    there: list[str], wanted: list[str]
) -> None:
    found = difference(
        "f", "".join(f"{x}\n" for x in there).encode(), "".join(f"{x}\n" for x in wanted)
    )
    lines = () if isinstance(found, str) else found[2:]
    gone = sum(line.startswith("-") for line in lines)
    come = sum(line.startswith("+") for line in lines)
    assert len(wanted) - len(there) == come - gone


# What has changed since an earlier plan, and what becomes of the global batch.

FOUR = play(recording("h200-x4"))
TWO = with_gpus(FOUR, 2)


def facts(before: Machine, now: Machine) -> list[tuple[str, int | str, int | str]]:
    return [(each.fact, each.before, each.now) for each in compare_machines(before, now)]


def test_a_machine_is_like_itself() -> None:
    assert not compare_machines(FOUR, FOUR)


def test_gpus_and_nodes_are_counted_apart() -> None:
    assert facts(FOUR, TWO) == [("gpus_per_node", 4, 2)]
    assert facts(replace(FOUR, nodes=2), FOUR) == [("nodes", 2, 1)]


def test_another_kind_of_gpu_is_named() -> None:
    other = replace(FOUR, gpus=tuple(replace(gpu, name="NVIDIA L4") for gpu in FOUR.gpus))
    assert facts(FOUR, other) == [("gpu_names", "NVIDIA H200", "NVIDIA L4")]
    by_spec = replace(FOUR, source=MachineSource.SPEC)
    assert not facts(by_spec, other), "names of the table differ"


@pytest.mark.parametrize(
    ("before", "step", "wanted"),
    [
        (64, Workload(micro_batch=8), BatchChange(before=64, now=32, accumulation_steps=2)),
        (24, Workload(micro_batch=5), BatchChange(before=24, now=20)),
        (8, Workload(micro_batch=4), BatchChange(before=8, now=16)),
        (64, Workload(micro_batch=8, accumulation_steps=2), None),
        (
            32,
            Workload(micro_batch=8, accumulation_steps=2),
            BatchChange(before=32, now=64, accumulation_steps=1),
        ),
    ],
    ids=["halved", "no whole number", "micro-batch too large", "kept", "doubled"],
)
def test_the_batch_is_kept_by_whole_micro_steps(
    before: int, step: Workload, wanted: BatchChange | None
) -> None:
    assert change_batch(before, step, FOUR) == wanted


def plan(**fields: object) -> bytes:
    content: dict[str, object] = {
        "schema_version": 1,
        "machine": encode_machine(FOUR),
        "workload": {"global_batch": 64},
        "reproduce": {"argv": ["zerowiz", "launch", "--yes", "train.py", "--lr", "1"]},
    }
    return json.dumps({**content, **fields}).encode()


def test_a_plan_file_of_this_script_is_read() -> None:
    found = read_earlier_plan("out/a.plan.json", plan(), "train.py")
    assert found == EarlierPlan(path="out/a.plan.json", machine=FOUR, global_batch=64)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"{",
        plan(schema_version=2),
        plan(machine=None),
        plan(machine={"gpus": []}),
        plan(workload={"global_batch": "64"}),
        plan(workload={"global_batch": 0}),
        plan(reproduce={"argv": ["zerowiz", "launch", "other.py"]}),
        plan(reproduce=3),
    ],
)
def test_what_is_no_plan_of_this_script_is_passed_over(content: bytes) -> None:
    assert read_earlier_plan("a.plan.json", content, "train.py") is None


def test_a_change_as_json() -> None:
    change = MachineChange(
        plan_path="ds_config_zero2.plan.json",
        facts=(ChangedFact(fact="gpus_per_node", before=8, now=4),),
        global_batch=BatchChange(before=64, now=32, accumulation_steps=2),
    )
    assert encode_machine_change(change) == {
        "plan_path": "ds_config_zero2.plan.json",
        "facts": [{"fact": "gpus_per_node", "before": 8, "now": 4}],
        "global_batch": {"before": 64, "now": 32, "keep_with_accumulation_steps": 2},
    }
    assert encode_machine_change(replace(change, global_batch=None))["global_batch"] is None


PLAN: Mapping[str, object] = {
    "schema_version": 1,
    "zerowiz_version": "9",
    "machine": {"nodes": 1},
    "chosen": "zero2",
    "reasons": ["because"],
    "command": None,
}
PROVENANCE = Provenance(
    config=PlannedFile(path="runs/a b/ds_config_zero2.json", text='{"é": 1}\n'),
    written={"é": 1},
    argv=("zerowiz", "launch", "--yes", "a b.py", "$x", "\udcff"),
    versions={"zerowiz": "9", "torch": None},
)


def test_the_plan_lies_beside_its_config() -> None:
    assert "runs/a.b/ds_config_zero2.plan.json" == plan_path("runs/a.b/ds_config_zero2.json")
    assert is_plan_path(plan_path("ds_config_zero2.json"))
    assert not is_plan_path("ds_config_zero2.json")


def test_the_text_is_the_plan_and_where_it_belongs() -> None:
    text = render_plan(PLAN, PROVENANCE)
    content = json.loads(text)
    assert PLAN == {key: content[key] for key in PLAN}
    assert {"config", "plan_sha256", "reproduce", "versions"} == set(content) - set(PLAN)
    assert {
        "name": "ds_config_zero2.json",
        "sha256": hashlib.sha256(PROVENANCE.config.text.encode()).hexdigest(),
        "written": PROVENANCE.written,
    } == content["config"]
    assert {"zerowiz": "9", "torch": None} == content["versions"]
    assert text.endswith("}\n")


def test_a_plan_knows_itself_and_its_config_until_one_byte_changes() -> None:
    plan, config = render_plan(PLAN, PROVENANCE).encode(), PROVENANCE.config.text.encode()
    name = "ds_config_zero2.json"
    assert is_unchanged_plan(plan)
    assert is_config_of_plan(name, config, plan)
    assert not is_config_of_plan("ds_config_zero3.json", config, plan)
    assert not is_config_of_plan(name, config + b" ", plan)
    for edited in (plan + b" ", plan.replace(b"because", b"Ann asked"), plan.replace(b"9", b"8")):
        assert not is_unchanged_plan(edited)
    for other in (b"", b"[]", b"{}", b"\xff", b'{"config": 1}', b'{"plan_sha256": "x"}'):
        assert not is_unchanged_plan(other)
        assert not is_config_of_plan(name, config, other)


def test_the_shells_line_is_the_command_whatever_its_words_hold() -> None:
    content = json.loads(render_plan(PLAN, PROVENANCE))
    assert list(PROVENANCE.argv) == content["reproduce"]["argv"]
    line = content["reproduce"]["shell"]
    read = subprocess.run(["bash", "-c", f"printf '%s\\0' {line}"], capture_output=True, check=True)
    assert list(PROVENANCE.argv) == [os.fsdecode(word) for word in read.stdout.split(b"\0")[:-1]]
    # A name that is no text can still be written as UTF-8.
    assert render_plan(PLAN, PROVENANCE).encode().isascii()


def test_a_machine_is_told_without_people() -> None:
    gpu = Gpu(
        index=0,
        name="NVIDIA H200",
        uuid="GPU-1",
        free_bytes=7,
        clique="c1",
        processes=(GpuProcess(pid=4, used_bytes=3, name="alice's job"),),
    )
    other = Gpu(index=1, name="NVIDIA H200", uuid="GPU-2", free_bytes=8, clique="c1")
    machine = Machine(
        source=MachineSource.NVML, gpus=(gpu, other), notes=("GPU-1 is odd",), nodes=2
    )
    told = without_identities(machine, lambda text: text.replace("GPU-", "hash-"))
    assert ["hash-1", "hash-2"] == [gpu.uuid for gpu in told.gpus]
    assert ("hash-1 is odd",) == told.notes
    assert [(), ()] == [gpu.processes for gpu in told.gpus]
    assert [7, 8] == [gpu.free_bytes for gpu in told.gpus]
    # Which GPUs share a domain is still told, but not which domain it is.
    assert told.clique not in {None, "c1"}
    assert () == without_identities(machine, str, names_hosts=True).notes
