"""Every byte of a plan belongs to one part."""

from itertools import chain

import pytest
from changed_settings import CHANGED

from zerowiz.core.decision.evaluate import evaluate_all, parts, parts_by_phase
from zerowiz.core.decision.plan_input import PlanInput
from zerowiz.core.machine.spec import parse_spec
from zerowiz.core.memory.allocations import KINDS, AllocationKind, MemoryPart
from zerowiz.core.model.from_name import model_from_size
from zerowiz.core.structs import replace
from zerowiz.core.workload import Accounting, Trainer, Workload
from zerowiz.probe.package_data import read_gpu_table

JOB = PlanInput(
    machine=parse_spec("4xA100-40GB", read_gpu_table()),
    model=model_from_size("7b", 7 * 10**9),
    workload=Workload(gradient_checkpointing=True),
)
VLLM = Workload(trainer=Trainer.GRPO, completion_tokens=32, vllm_memory_fraction=0.3)
JOBS = [
    *(replace(JOB, workload=step) for steps in CHANGED.values() for step in steps),
    replace(JOB, accounting=Accounting.TEXTBOOK),
    replace(JOB, workload=VLLM),
    replace(JOB, workload=replace(VLLM, vllm_sleeps=True)),
]


@pytest.mark.parametrize("job", JOBS)
def test_the_parts_add_up_to_what_a_strategy_needs(job: PlanInput) -> None:
    for each in evaluate_all(job):
        found = parts(job, each)
        assert each.device_bytes == sum(found.values())
        assert all(size_bytes > 0 for size_bytes in found.values())
        assert max(sum(phase.values()) for phase in parts_by_phase(job, each).values()) == sum(
            found.values()
        )


def test_a_kind_belongs_to_one_part() -> None:
    listed = list(chain.from_iterable(KINDS.values()))
    assert len(set(listed)) == len(listed)


def test_a_kind_without_a_part_stands_in_host_memory() -> None:
    """Those of the ledger's last section, which no bar of a GPU has."""
    alone = set(AllocationKind) - set(chain.from_iterable(KINDS.values()))
    last = list(AllocationKind).index(AllocationKind.MASTER_WEIGHTS_PINNED)
    assert set(list(AllocationKind)[last:]) == alone


def test_a_vllm_is_a_part_of_its_own() -> None:
    job = replace(JOB, workload=VLLM)
    for each in evaluate_all(job):
        assert each.vllm is not None
        assert each.vllm.share_bytes == parts(job, each)[MemoryPart.VLLM]
