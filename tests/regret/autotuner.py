"""What DeepSpeed's autotuner found for four models, beside what zerowiz chooses for them."""

from functools import partial
from typing import NamedTuple

import zerowiz
from zerowiz.core.decision.job import Objective
from zerowiz.core.workload import Attention, Precision

# One node of 16 V100 with 32 GB, which NVSwitch joins.
_GPUS, _MACHINE, _LINK = 16, "16xV100-32GB", "nvlink"
_SEQUENCE_TOKENS = 1024


class Tuned(NamedTuple):
    """What the autotuner found for one model."""

    model: str
    strategy: str
    micro_batch: int
    minutes: int
    experiments: int
    samples_per_s: float
    """Of forward, backward and optimizer step alone, as it measures them."""


# DeepSpeedExamples at b90ffab, training/autotuning/hf/gpt2*/README.md: fp16, transformers 4.12,
# which had eager attention alone. Without accumulation, so its global batch is that of all GPUs.
FOUND = (
    Tuned("gpt2", "zero1", 15, 25, 17, 452.004),
    Tuned("gpt2-medium", "zero1", 6, 25, 15, 175.46),
    Tuned("gpt2-large", "zero1", 3, 27, 13, 87.3017),
    Tuned("gpt2-xl", "zero1", 1, 21, 9, 40.1749),
)


class Chosen(NamedTuple):
    """What zerowiz chooses for the same model and global batch."""

    strategy: str
    micro_batch: int
    samples_per_s: float
    """As predicted, with the autotuner's own setting."""


def choose(found: Tuned) -> Chosen:
    """Plan the job of the autotuner, with what it tuned left open."""
    plan = partial(
        zerowiz.plan,
        _MACHINE,
        model=found.model,
        interconnect=_LINK,
        sequence_tokens=_SEQUENCE_TOKENS,
        precision=Precision.FP16,
        attention=Attention.EAGER,
        gradient_checkpointing=False,
    )
    sequences = _GPUS * found.micro_batch
    choice = plan(objective=Objective.FASTEST, global_batch=sequences).choice
    same = plan(stage="1", micro_batch=found.micro_batch).chosen
    assert choice is not None
    assert same is not None
    assert same.step_time is not None
    return Chosen(
        strategy=choice.strategy.name,
        micro_batch=choice.workload.micro_batch,
        samples_per_s=sequences / same.step_time.expected_seconds,
    )


def autotuner_table() -> str:
    """The table of docs/accuracy.md."""
    heads = ("model", "the autotuner found", "in", "samples/s", "as predicted", "zerowiz chooses")
    lines = [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}"]
    for found in FOUND:
        chosen = choose(found)
        cells = (
            found.model,
            f"`{found.strategy}-mb{found.micro_batch}`",
            f"{found.minutes} minutes, {found.experiments} launches",
            f"{found.samples_per_s:.1f}",
            f"{chosen.samples_per_s:.1f} ({chosen.samples_per_s / found.samples_per_s - 1:+.0%})",
            f"`{chosen.strategy}-mb{chosen.micro_batch}`",
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"
