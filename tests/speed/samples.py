"""Which measured steps may say how long a step takes, and the machine that each ran on."""

import statistics
from functools import cache
from typing import NamedTuple

from accuracy.split import Split, split_of
from measured.rows import Row, family_of, rank_of, read_every_row, read_model, read_times
from measured.trials import measured_step

from zerowiz.core.machine.names import GpuModel, parse_spec
from zerowiz.core.machine.types import Machine, without_peer_to_peer
from zerowiz.core.memory.rank_sizes import RankSizes
from zerowiz.core.model.types import Model
from zerowiz.core.speed.costs import COSTS, Calibration, Costs, StepTime, find_rates
from zerowiz.core.speed.step_time import predict_step_time
from zerowiz.core.strategy_types import Offload, Part
from zerowiz.core.structs import replace
from zerowiz.probe.files import read_gpu_table

# Other jobs ran on the same GPUs (tests/measured/README.md); launches have no times.
DISTURBED = frozenset({"2026-11-grid.jsonl", "2026-11-trl.jsonl", "launches.jsonl"})
# Steps that were synchronised at each phase: how many there must be, and how much the last two may
# differ, as a fraction of the last. None of stage 3: most were not steady yet, and those that were
# took twice what free-running ones do (8B, 2 x H100: 1.0 to 1.3 s a micro-step).
_LEAST_STEPS, _UNSTEADY = 3, 0.15
# Rented by the GPU, with so many cores for each; of PCIe 5.0 x16 (docs/concepts/links.md).
_CORES_EACH, _PCIE_BYTES_PER_S = 16, 63_000_000_000
# Of rows that do not say it: what was read beside an H200 of the same renter.
_PYTHON_CALL_SECONDS = 87e-9


class Sample(NamedTuple):
    """One setting whose step was timed."""

    id: str
    side: Split
    row: Row
    """As tests/measured has it."""
    model: Model
    rank: RankSizes
    machine: Machine
    rates: GpuModel
    measured_seconds: float
    free_running: bool
    """Whether nothing was synchronised inside its steps."""

    def predict(
        self, costs: Costs = COSTS, calibration: Calibration | None = None
    ) -> StepTime | None:
        """What zerowiz says about it."""
        return predict_step_time(
            self.model, self.rank, self.machine, self.rates, calibration, costs=costs
        )

    @property
    def offloaded(self) -> bool:
        """Whether the optimizer stepped on the host."""
        return self.rank.strategy.offload is not Offload.NONE

    @property
    def setting(self) -> tuple[object, ...]:
        """Its workload: what a person would not change to be faster."""
        row = self.row
        names = (
            *(
                "model",
                "gpus",
                "gpu",
                "precision",
                "torch_autocast",
                "sequence_tokens",
                "lora_rank",
            ),
            *("attention", "loss", "nccl_p2p"),
        )
        step = row["micro_batch"] * row["accumulation_steps"]
        return (*(row.get(name) for name in names), step, row.get("quantized"))


def _phased_seconds(row: Row) -> float | None:
    """The last step of a run that was synchronised at each phase, if it was steady by then."""
    seconds = row.get("step_seconds") or []
    sharded = row["stage"] == 3
    flushed = row["memory_cap_bytes"] or row.get("allocator_retries")
    if sharded or flushed or len(seconds) < _LEAST_STEPS:
        return None
    before, last = seconds[-2:]
    if abs(before - last) > _UNSTEADY * last:
        return None
    # The first step is never steady; with more steps a single one decides less.
    steady = seconds[-2:] if len(seconds) == _LEAST_STEPS else seconds[-3:]
    return float(statistics.median(steady))


def _seconds(row: Row) -> tuple[float, bool] | None:
    timed = measured_step(row)
    if timed is not None and not row.get("timed_allocator_retries"):
        return timed, True
    phased = None if timed else _phased_seconds(row)
    return None if phased is None else (phased, False)


@cache
def machine_of(
    gpu: str, gpus: int, *, p2p: bool, cores: int, python_call_seconds: float
) -> Machine:
    """What a row ran on; without peer-to-peer the GPUs talk through the host."""
    machine = parse_spec(f"{gpus}x{gpu}", read_gpu_table())
    host = replace(machine.host, cores=cores, python_call_seconds=python_call_seconds)
    machine = replace(machine, host=host)
    if p2p or gpus == 1:
        return machine
    # A spec knows no slots, as a machine that is read does.
    link = replace(without_peer_to_peer(machine).interconnect, bytes_per_s=_PCIE_BYTES_PER_S)
    return replace(machine, interconnect=link)


_SPECS = {"NVIDIA H200": "H200", "NVIDIA H100 80GB HBM3": "H100-80GB-SXM"}


def sample_of(row: Row) -> Sample | None:
    """The row with what it is predicted by; None where its times say nothing."""
    trains = row["ok"] and row["stage"] is not None and row["kind"] != "forward_backward"
    spec = _SPECS.get(row.get("gpu") or "NVIDIA H200")
    family = family_of(row)
    timed = _seconds(row) if trains and row["file"] not in DISTURBED else None
    if timed is None or spec is None or family is None:
        return None
    gpus = row["gpus"]
    cores = row.get("cpu_cores") or _CORES_EACH * gpus
    machine = machine_of(
        spec,
        gpus,
        p2p=row.get("nccl_p2p") is not False,
        cores=cores,
        python_call_seconds=row.get("python_call_seconds") or _PYTHON_CALL_SECONDS,
    )
    rates = find_rates(machine, read_gpu_table())
    assert rates is not None
    seconds, free_running = timed
    sample = Sample(
        id=row["id"],
        side=split_of(row, family),
        row=row,
        model=read_model(row["model"]),
        rank=rank_of(row),
        machine=machine,
        rates=rates,
        measured_seconds=seconds,
        free_running=free_running,
    )
    return None if sample.predict() is None else sample


@cache
def read_samples() -> tuple[Sample, ...]:
    """All of them, on both sides."""
    found = (sample_of(row) for row in (*read_every_row(), *read_times()))
    return tuple(each for each in found if each is not None)


def kind_of(sample: Sample) -> str:
    """What the job is, for tables and intervals."""
    if sample.offloaded:
        return "offload"
    return "stage 3" if Part.PARAMETERS in sample.rank.strategy.sharded else "stages 0 to 2"
