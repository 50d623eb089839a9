"""What has changed since an earlier plan, and what becomes of the global batch."""

import json

import pytest
from recorded import play, recording

from zerowiz.core.launch.provenance import (
    BatchChange,
    ChangedFact,
    EarlierPlan,
    MachineChange,
    MachineFact,
    compare_batches,
    compare_machines,
    encode_machine_change,
    read_earlier_plan,
)
from zerowiz.core.machine.spec import encode_machine
from zerowiz.core.machine.types import Accelerator, Machine, MachineSource, with_gpus, with_nodes
from zerowiz.core.structs import replace
from zerowiz.core.workload import Workload

FOUR = play(recording("h200-x4"))
TWO = with_gpus(FOUR, 2)
GIB = 2**30


def free(size_bytes: int, accelerator: Accelerator = Accelerator.CUDA) -> Machine:
    gpus = tuple(replace(gpu, free_bytes=size_bytes) for gpu in FOUR.gpus)
    return replace(FOUR, gpus=gpus, accelerator=accelerator)


def facts(before: Machine, now: Machine) -> list[tuple[MachineFact, int | str, int | str]]:
    return [(each.fact, each.before, each.now) for each in compare_machines(before, now)]


def test_a_machine_is_like_itself() -> None:
    assert not compare_machines(FOUR, FOUR)


def test_gpus_and_nodes_are_counted_apart() -> None:
    assert facts(FOUR, TWO) == [(MachineFact.GPUS, 4, 2)]
    assert facts(with_nodes(FOUR, 2), FOUR) == [(MachineFact.NODES, 2, 1)]


def test_another_kind_of_gpu_is_named() -> None:
    other = replace(FOUR, gpus=tuple(replace(gpu, name="NVIDIA L4") for gpu in FOUR.gpus))
    assert facts(FOUR, other) == [(MachineFact.KIND, "NVIDIA H200", "NVIDIA L4")]
    by_spec = replace(FOUR, source=MachineSource.SPEC)
    assert not facts(by_spec, other), "names of the table differ"
    small = replace(
        other,
        gpus=tuple(replace(gpu, total_bytes=24 * GIB, free_bytes=None) for gpu in other.gpus),
    )
    assert facts(by_spec, small) == [(MachineFact.KIND, "NVIDIA H200", "NVIDIA L4")]


@pytest.mark.parametrize(("now", "said"), [(89, True), (91, False), (130, False)])
def test_free_memory_counts_where_more_than_a_tenth_is_gone(now: int, *, said: bool) -> None:
    wanted = [(MachineFact.FREE_MEMORY, 100 * GIB, now * GIB)] if said else []
    assert facts(free(100 * GIB), free(now * GIB)) == wanted


def test_the_share_of_a_rank_on_the_cpu_is_no_change() -> None:
    before, now = (free(size, Accelerator.CPU) for size in (8 * GIB, 4 * GIB))
    assert not facts(before, now)


@pytest.mark.parametrize(
    ("before", "ranks", "step", "wanted"),
    [
        (64, 4, Workload(micro_batch=16), None),
        (64, 8, Workload(micro_batch=8), BatchChange(before=64, now=32, accumulation_steps=2)),
        (24, 8, Workload(micro_batch=5), BatchChange(before=24, now=20)),
        (8, 2, Workload(micro_batch=4), BatchChange(before=8, now=16)),
        (64, 2, Workload(micro_batch=8, accumulation_steps=2), None),
        (
            32,
            2,
            Workload(micro_batch=8, accumulation_steps=2),
            BatchChange(before=32, now=64, accumulation_steps=1),
        ),
    ],
    ids=["same ranks", "halved", "no whole number", "micro-batch too large", "kept", "doubled"],
)
def test_the_batch_is_kept_by_whole_micro_steps(
    before: int, ranks: int, step: Workload, wanted: BatchChange | None
) -> None:
    machine = with_gpus(with_nodes(FOUR, 2), ranks // 2)
    earlier = EarlierPlan(path="p", machine=machine, global_batch=before)
    assert compare_batches(earlier, step, FOUR) == wanted


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
        facts=(ChangedFact(fact=MachineFact.GPUS, before=8, now=4),),
        global_batch=BatchChange(before=64, now=32, accumulation_steps=2),
    )
    assert encode_machine_change(change) == {
        "plan_path": "ds_config_zero2.plan.json",
        "facts": [{"fact": "gpus_per_node", "before": 8, "now": 4}],
        "global_batch": {"before": 64, "now": 32, "keep_with_accumulation_steps": 2},
    }
    assert encode_machine_change(replace(change, global_batch=None))["global_batch"] is None
