"""How near the edge a run may come, and what it takes beside its tensors."""

from itertools import pairwise

import pytest
from measured.rows import read_model

from zerowiz.core.decision.evaluate import evaluate
from zerowiz.core.decision.job import Job
from zerowiz.core.machine.types import Gpu, Host, Interconnect, LinkClass, Machine, MachineSource
from zerowiz.core.memory.buffers import Buffers, expands_segments, margin, outside_bytes
from zerowiz.core.strategies import ZERO2
from zerowiz.core.structs import replace
from zerowiz.core.workload import Workload


def machine_of(gpus: int, free_bytes: int | None = None) -> Machine:
    link = LinkClass.NVLINK_ALL if gpus > 1 else LinkClass.NONE
    return Machine(
        source=MachineSource.FILE,
        gpus=tuple(Gpu(index=i, name="NVIDIA H200", free_bytes=free_bytes) for i in range(gpus)),
        interconnect=Interconnect(link_class=link),
        host=Host(),
    )


@pytest.mark.parametrize(
    ("environ", "expands"),
    [
        ({}, True),
        ({"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}, True),
        ({"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:128, expandable_segments: True"}, True),
        ({"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:128"}, False),
        ({"PYTORCH_ALLOC_CONF": "expandable_segments:False"}, False),
        (
            {
                "PYTORCH_ALLOC_CONF": "max_split_size_mb:128",
                "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
            },
            False,
        ),
    ],
)
def test_segments_expand_unless_a_person_set_the_allocator_otherwise(
    environ: dict[str, str], expands: bool
) -> None:
    assert expands is expands_segments(environ)


def test_without_expandable_segments_a_job_needs_more_to_start_and_more_to_fit() -> None:
    expandable, fixed = margin(expandable_segments=True), margin(expandable_segments=False)
    assert expandable.slack_fraction < fixed.slack_fraction
    assert expandable.tight_fraction < fixed.tight_fraction


@pytest.mark.parametrize("expandable", [True, False])
def test_tight_is_at_most_a_tenth_of_the_budget_wide(expandable: bool) -> None:
    near = margin(expandable_segments=expandable)
    largest_peak = 1 / (1 + near.slack_fraction)
    assert (near.tight_fraction - near.slack_fraction) * largest_peak <= 0.1


@pytest.mark.parametrize("expandable", [True, False])
def test_the_verdict_changes_where_the_margin_says(expandable: bool) -> None:
    near, two = margin(expandable_segments=expandable), machine_of(2)
    job = Job(
        machine=two,
        model=read_model("llama-3.2-1b"),
        workload=Workload(),
        expandable_segments=expandable,
    )
    evaluated = evaluate(replace(job, machine=machine_of(2, 2**60)), ZERO2)
    job = replace(job, own_buffers=evaluated.buffers)
    peak_bytes = evaluated.estimate.peak_bytes
    beside_bytes = outside_bytes(two, evaluated.buffers)
    enough_bytes, plenty_bytes = (
        peak_bytes + int(fraction * peak_bytes) + beside_bytes
        for fraction in (near.slack_fraction, near.tight_fraction)
    )
    assert evaluated.interval is not None
    high_bytes = evaluated.interval.high_bytes
    sure_bytes = high_bytes + int(near.sure_fraction * high_bytes) + beside_bytes
    # Without expandable segments a run that is not sure to live may die at any margin of speed.
    changes = [enough_bytes, sure_bytes, plenty_bytes] if expandable else [enough_bytes, sure_bytes]
    verdicts = [
        evaluate(replace(job, machine=machine_of(2, free_bytes)), ZERO2).verdict
        for change_bytes in changes
        for free_bytes in (change_bytes - 1, change_bytes)
    ]
    steps = ["does_not_fit", "uncertain", *(["tight"] if expandable else []), "fits"]
    assert [step for pair in pairwise(steps) for step in pair] == verdicts


def test_a_second_copy_of_the_parameters_opens_groups_of_its_own() -> None:
    plain, shared = (
        outside_bytes(machine_of(2), Buffers(hpz_partition_size=size)) for size in (1, 2)
    )
    assert plain < shared
    assert outside_bytes(machine_of(1), Buffers()) < plain
