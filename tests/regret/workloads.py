"""The jobs whose settings are chosen and held against the best that was measured, and its rows."""

import json
import os
import statistics
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from measured.trials import measured_step
from msgspec import Struct

from zerowiz.app.machines.machine import find_machine
from zerowiz.app.options import Options
from zerowiz.core.decision.job import Job
from zerowiz.core.machine.names import parse_spec
from zerowiz.core.machine.types import Accelerator, Machine, with_host_memory, with_interconnect
from zerowiz.core.memory.buffers import DEEPSPEED_DEFAULTS, outside_bytes
from zerowiz.core.model.types import Model
from zerowiz.core.speed.costs import find_rates
from zerowiz.core.structs import replace
from zerowiz.core.workload import Method, Precision, Workload
from zerowiz.probe.files import read_gpu_table

Row = Mapping[str, Any]

ROWS = Path(__file__).parents[1] / "measured" / "regret"


def read_regret_rows(folder: Path = ROWS) -> list[Row]:
    """Every row, in the order in which the files are named."""
    return [
        json.loads(line)
        for path in sorted(folder.glob("*.jsonl"))
        for line in path.read_text(encoding="utf-8").splitlines()
    ]


def by_setting(rows: Iterable[Row]) -> dict[str, list[Row]]:
    """The rows of each setting by `job/setting`; a second run of one has `@2` after it."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(str(row["id"]).partition("@")[0], []).append(row)
    return found


def seconds_of(row: Row) -> float | None:
    """Of a steady step; None where the run ran out of memory, or failed."""
    return measured_step(row) if row["ok"] else None


def says_something(row: Row) -> bool:
    """Running out of memory is an answer, failing is none."""
    return seconds_of(row) is not None or row["oom_phase"] is not None


# The jobs.

GIB = 2**30
CPU = "cpu"
# A host that is smaller shows it: then a setting with offload runs out of memory.
HOST_GIB_A_GPU = 100


@cache
def read_host_speeds(gpu: str, gpus: int) -> tuple[float, ...]:
    """What a call took in Python, as it was read beside the runs of these jobs.

    Until there are runs on so many of these GPUs, those of any number of them count.
    """
    marker = gpu.partition("-")[0]
    rows = [row for row in read_regret_rows() if marker in row["gpu"]]
    same = [row for row in rows if row["gpus"] == gpus] or rows
    read = (row["python_call_seconds"] for row in same)
    return tuple(float(seconds) for seconds in read if seconds is not None)


class RegretJob(Struct, frozen=True, kw_only=True):
    """A model, a machine and a global batch: what nobody wants to think about is left open."""

    id: str
    model: str
    """A folder of `tests/models`."""
    gpu: str
    """As in a spec, or `cpu`: ranks on the CPU accelerator."""
    gpus: int
    sequences: int
    """Of one optimizer step, over all ranks."""
    tokens: int
    """Of one sequence."""
    card_gib: int | None = None
    """The memory of the card that a cap on the allocator stands for; None is the whole GPU."""
    nccl_p2p: bool = True
    lora_rank: int | None = None
    precision: Precision = Precision.BF16

    @property
    def machine(self) -> Machine:
        """What it runs on."""
        table = read_gpu_table()
        if self.gpu == CPU:
            options = Options(accelerator=Accelerator.CPU, gpus_per_node=self.gpus)
            return find_machine(options, os.environ)
        machine = with_host_memory(
            parse_spec(f"{self.gpus}x{self.gpu}", table), self.gpus * HOST_GIB_A_GPU * GIB
        )
        # A plan for that machine rests on how fast its host ran Python beside the runs.
        call_seconds = statistics.mean(read_host_speeds(self.gpu, self.gpus))
        host = replace(machine.host, python_call_seconds=call_seconds)
        machine = replace(machine, host=host)
        # NCCL_P2P_DISABLE=1 sends through host memory, as GPUs on PCIe do.
        return machine if self.nccl_p2p else with_interconnect(machine, "pcie")

    @property
    def cap_bytes(self) -> int | None:
        """What torch's allocator may take: the card, less what a rank takes beside it."""
        if self.card_gib is None:
            return None
        return self.card_gib * GIB - outside_bytes(self.machine, DEEPSPEED_DEFAULTS)

    @property
    def workload(self) -> Workload:
        """At micro-batch 1, without checkpointing."""
        step = Workload(
            micro_batch=1,
            accumulation_steps=max(1, self.sequences // self.gpus),
            sequence_tokens=self.tokens,
            precision=self.precision,
        )
        if self.lora_rank is None:
            return step
        return replace(step, method=Method.LORA, lora_rank=self.lora_rank)

    def plan_input(self, model: Model) -> Job:
        """What its strategies are evaluated with."""
        machine = self.machine
        return Job(
            machine=machine,
            model=model,
            workload=self.workload,
            budget_bytes=None if self.card_gib is None else self.card_gib * GIB,
            rates=find_rates(machine, read_gpu_table()),
        )


class _Work(NamedTuple):
    """What is trained, whichever the GPUs are."""

    id: str
    model: str
    sequences: int
    tokens: int
    card_gib: int | None
    lora_rank: int | None = None
    nccl_p2p: bool = True


# Short steps: each figure takes a minute of a machine that is lent for a few.
_ON_ONE = (
    _Work("qwen-0.5b-16", "qwen2.5-0.5b", 16, 512, 16),
    _Work("qwen-0.5b-8k-40", "qwen2.5-0.5b", 2, 8192, 40),
    _Work("llama-1b-16", "llama-3.2-1b", 4, 512, 16),
    _Work("llama-1b-24", "llama-3.2-1b", 4, 1024, 24),
    _Work("llama-1b-40", "llama-3.2-1b", 4, 4096, 40),
    _Work("mistral-2b-lora-16k-40", "mistral-7b-8l", 2, 16384, 40, 16),
    _Work("pythia-1.4b-40", "pythia-1.4b", 16, 512, 40),
    _Work("gemma-2b-80", "gemma-2-2b", 4, 1024, 80),
    _Work("phi-3.8b", "phi-3-mini", 2, 2048, None),
    _Work("mistral-7b-lora-24", "mistral-7b", 4, 512, 24, 16),
    _Work("llama-8b-lora-40", "llama-3.1-8b", 4, 2048, 40, 16),
    _Work("qwen-14b-lora-40", "qwen2.5-14b", 4, 512, 40, 16),
    _Work("qwen-32b-lora-80", "qwen3-32b", 2, 512, 80, 16),
)
_ON_TWO = (
    _Work("qwen-0.5b-16", "qwen2.5-0.5b", 32, 512, 16),
    _Work("llama-1b-24", "llama-3.2-1b", 16, 1024, 24),
    _Work("llama-1b-24-pcie", "llama-3.2-1b", 16, 1024, 24, nccl_p2p=False),
    _Work("gemma-2b-40-pcie", "gemma-2-2b", 8, 1024, 40, nccl_p2p=False),
    _Work("phi-3.8b-80", "phi-3-mini", 8, 2048, 80),
    _Work("mistral-7b-80", "mistral-7b", 8, 2048, 80),
    _Work("phi-3.8b-pcie", "phi-3-mini", 8, 2048, None, nccl_p2p=False),
    _Work("llama-8b-lora-24", "llama-3.1-8b", 8, 1024, 24, 16),
    _Work("qwen-14b-lora-40", "qwen2.5-14b", 8, 512, 40, 16),
    _Work("qwen-32b-lora-80", "qwen3-32b", 8, 512, 80, 16),
)
H100, H200 = "H100-80GB", "H200"
_H100_GIB = 80


def _jobs(works: Iterable[_Work], gpu: str, gpus: int) -> Iterator[RegretJob]:
    """The jobs of one kind of machine; a card as large as the GPU is the whole GPU."""
    kind = gpu.partition("-")[0].lower()
    for work in works:
        whole = work.card_gib == _H100_GIB and gpu == H100
        yield RegretJob(
            id=f"{work.id}-{kind}" if gpus == 1 else f"{work.id}-{gpus}x{kind}",
            model=work.model,
            gpu=gpu,
            gpus=gpus,
            sequences=work.sequences,
            tokens=work.tokens,
            card_gib=None if whole else work.card_gib,
            nccl_p2p=work.nccl_p2p,
            lora_rank=work.lora_rank,
        )


JOBS = tuple(
    job
    for gpus, works in ((1, _ON_ONE), (2, _ON_TWO))
    for gpu in (H100, H200)
    for job in _jobs(works, gpu, gpus)
)
"""At most 16384 tokens a sequence, and cards of 16, 24, 40, 80 GiB or whole."""
