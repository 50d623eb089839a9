"""One line says what was chosen, why, and how to have one's own; another, what would be faster."""

import pytest

from zerowiz.core.decision.evaluate import StrategyEstimate, Verdict, evaluate
from zerowiz.core.decision.job import Job
from zerowiz.core.decision.open_settings import Candidate
from zerowiz.core.machine.names import parse_spec
from zerowiz.core.model.from_name import model_from_size
from zerowiz.core.speed.costs import StepTime
from zerowiz.core.strategies import ZERO2
from zerowiz.core.structs import replace
from zerowiz.core.workload import Attention, Loss, Workload
from zerowiz.probe.files import read_gpu_table
from zerowiz.ui import choice

JOB = Job(
    machine=parse_spec("4xH100-80GB", read_gpu_table()),
    model=model_from_size("1b", 10**9),
    workload=Workload(micro_batch=8),
)
ON_ZERO2 = evaluate(JOB, ZERO2)
OWN = Workload(micro_batch=8)
GIB = 2**30


def candidate(
    step: Workload,
    seconds: float | None,
    verdict: Verdict = Verdict.FITS,
    *,
    takes_gib: int = 20,
    slow_host_seconds: float | None = None,
    of: StrategyEstimate = ON_ZERO2,
) -> Candidate:
    """A candidate as a search would have evaluated it."""
    time = None
    if seconds is not None:
        time = StepTime(
            terms=(),
            expected_seconds=seconds,
            low_seconds=seconds,
            high_seconds=seconds,
            tokens=1,
        )
    evaluated = replace(of, verdict=verdict, step_time=time, device_bytes=takes_gib * GIB)
    return Candidate(workload=step, evaluated=evaluated, slow_host_seconds=slow_host_seconds)


def split(micro_batch: int, steps: int, **changes: object) -> Workload:
    return Workload(micro_batch=micro_batch, accumulation_steps=steps, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("own", "chosen", "said"),
    [
        (
            candidate(OWN, 1.8),
            candidate(split(4, 2), 1.0),
            (
                "micro-batch 4 x 2, 1.8 times faster than the script's 8 x 1;"
                " `$micro_batch 8` keeps yours"
            ),
        ),
        (
            candidate(OWN, 1.12),
            candidate(split(4, 2), 1.0),
            (
                "micro-batch 4 x 2, 12 % faster than the script's 8 x 1;"
                " `$micro_batch 8` keeps yours"
            ),
        ),
        (
            candidate(OWN, 1.0, Verdict.DOES_NOT_FIT),
            candidate(split(2, 4, gradient_checkpointing=True), 2.0),
            (
                "micro-batch 2 x 4, gradient checkpointing, as the script's 8 x 1 does not"
                " fit with ZeRO-2; `$micro_batch 8 $no_gradient_checkpointing` keeps yours"
            ),
        ),
        (
            candidate(OWN, 1.0, Verdict.TIGHT),
            candidate(split(4, 2), 1.0),
            (
                "micro-batch 4 x 2, as the script's 8 x 1 comes near the memory limit"
                " with ZeRO-2; `$micro_batch 8` keeps yours"
            ),
        ),
        (
            candidate(OWN, 1.0, takes_gib=23),
            candidate(split(4, 2), 1.01),
            (
                "micro-batch 4 x 2, as fast as the script's 8 x 1 with 3.0 GiB less per"
                " rank; `$micro_batch 8` keeps yours"
            ),
        ),
        (
            candidate(OWN, 1.0, takes_gib=23),
            candidate(split(1, 8), 1.5),
            (
                "micro-batch 1 x 8, which needs 3.0 GiB less per rank than the script's"
                " 8 x 1; `$micro_batch 8` keeps yours"
            ),
        ),
        (
            candidate(split(2, 4), None),
            candidate(OWN, None),
            (
                "micro-batch 8 x 1, the fewest micro-steps that fit, instead of the script's"
                " 2 x 4; `$micro_batch 2` keeps yours"
            ),
        ),
        (
            candidate(OWN, None, takes_gib=21),
            candidate(split(1, 8), None),
            (
                "micro-batch 1 x 8, which needs 1.0 GiB less per rank than the script's"
                " 8 x 1; `$micro_batch 8` keeps yours"
            ),
        ),
        (
            candidate(replace(OWN, gradient_checkpointing=True), None),
            candidate(OWN, None),
            (
                "no gradient checkpointing, which needs no more memory than the step with it;"
                " `$gradient_checkpointing` keeps yours"
            ),
        ),
        (
            candidate(OWN, 1.0),
            candidate(split(4, 2), 1.01),
            ("micro-batch 4 x 2, as fast as the script's 8 x 1; `$micro_batch 8` keeps yours"),
        ),
        (
            candidate(replace(OWN, gradient_checkpointing=True), 1.3),
            candidate(OWN, 1.0),
            (
                "no gradient checkpointing, 30 % faster than the step with it;"
                " `$gradient_checkpointing` keeps yours"
            ),
        ),
        (
            candidate(split(2, 4), 1.0, slow_host_seconds=3.0),
            candidate(OWN, 1.1, slow_host_seconds=1.5, takes_gib=30),
            (
                "micro-batch 8 x 1, 2.0 times faster than the script's 2 x 4 on a slow"
                " host; `$micro_batch 2` keeps yours"
            ),
        ),
        (
            candidate(OWN, 1.3),
            candidate(replace(OWN, attention=Attention.FLASH, loss=Loss.LIGER), 1.0),
            (
                "flash attention, liger loss, 30 % faster than the step as it was;"
                " `$attention sdpa $loss plain` keeps yours"
            ),
        ),
    ],
)
def test_a_choice_is_said_in_one_line(own: Candidate, chosen: Candidate, said: str) -> None:
    assert said == choice.chosen_step(own, chosen, by_script=True)


def test_where_the_script_has_no_batch_of_its_own_any_can_be_said() -> None:
    said = choice.chosen_step(candidate(split(1, 8), 2.0), candidate(OWN, 1.0), by_script=False)
    assert (
        "micro-batch 8 x 1, 2.0 times faster than 1 x 8; `$micro_batch N` sets your own"
    ) == said
