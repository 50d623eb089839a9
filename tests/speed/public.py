"""Step times that others published, beside what zerowiz says: none of them fitted a constant.

python tests/speed/public.py
"""

import json
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from zerowiz.core.machine.names import parse_spec
from zerowiz.core.memory.buffers import DEEPSPEED_DEFAULTS
from zerowiz.core.memory.rank_sizes import rank_sizes
from zerowiz.core.model.hf_config import model_from_config
from zerowiz.core.speed.costs import COSTS, Costs, StepTime, find_rates
from zerowiz.core.speed.step_time import predict_step_time
from zerowiz.core.strategies import STRATEGIES
from zerowiz.core.workload import Attention, Method, Workload
from zerowiz.probe.files import read_gpu_table

FILE = Path(__file__).parents[1] / "measured" / "public_times.json"
Run = Mapping[str, Any]


class Published(NamedTuple):
    """One published time beside its prediction."""

    run: Run
    predicted: StepTime

    @property
    def error(self) -> float:
        """Signed, as a fraction of what was published."""
        return float(self.predicted.expected_seconds / self.run["step_seconds"] - 1)


SOURCES = ("chenyaofo", "qwen")


@cache
def _content() -> Mapping[str, Any]:
    content: Mapping[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
    return content


def _predict(run: Run, costs: Costs) -> StepTime:
    adapters = run["lora_rank"] is not None
    workload = Workload(
        micro_batch=run["micro_batch"],
        accumulation_steps=run["accumulation_steps"],
        sequence_tokens=run["sequence_tokens"],
        gradient_checkpointing=run["gradient_checkpointing"],
        attention=Attention.FLASH,
        method=Method.LORA if adapters else Method.FULL,
        lora_rank=run["lora_rank"] or Workload().lora_rank,
    )
    model = model_from_config(run["model"], _content()["models"][run["model"]])
    strategy = next(each for each in STRATEGIES if each.name == run["strategy"])
    machine = parse_spec(run["machine"], read_gpu_table())
    rank = rank_sizes(model, workload, machine.world_size, strategy, DEEPSPEED_DEFAULTS)
    rates = find_rates(machine, read_gpu_table())
    found = predict_step_time(model, rank, machine, rates, costs=costs)
    assert found is not None
    return found


def read_published(costs: Costs = COSTS) -> Iterator[Published]:
    """Every published time."""
    for run in _content()["runs"]:
        yield Published(run, _predict(run, costs))


def main() -> None:
    """A line for each."""
    for each in read_published():
        run = each.run
        job = (
            f"{run['machine']} {run['model']} {run['strategy']} {run['micro_batch']} x"
            f" {run['sequence_tokens']} x {run['accumulation_steps']}"
            f"{', checkpointed' if run['gradient_checkpointing'] else ''}"
            f"{', LoRA' if run['lora_rank'] else ''}"
        )
        parts = " ".join(f"{t.kind}={t.exposed_seconds:.2f}" for t in each.predicted.terms)
        seconds = f"{run['step_seconds']:.1f} s, predicted {each.predicted.expected_seconds:.1f}"
        sys.stdout.write(f"{job}: {seconds} ({each.error:+.0%}); {parts}\n")


if __name__ == "__main__":
    main()
