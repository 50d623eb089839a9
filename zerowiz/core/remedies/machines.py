"""Other machines for a job, from the table: more of its GPUs, larger ones, more nodes."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial

from zerowiz.core.catalog.candidates import (
    ADAPTER_BYTES_PER_S,
    GPUS_OF_A_NODE,
    NODES,
    MachineKind,
    Size,
)
from zerowiz.core.decision.flowchart import Constraints
from zerowiz.core.decision.plan_input import PlanInput
from zerowiz.core.machine.interconnect_option import with_interconnect
from zerowiz.core.machine.names.gpus import GpuModel, match_models
from zerowiz.core.machine.network import Network
from zerowiz.core.machine.types import Accelerator, Machine
from zerowiz.core.remedies.remedy import Attempt, Lazy
from zerowiz.core.settings import Change
from zerowiz.core.speed.rates import find_rates
from zerowiz.core.values import replace
from zerowiz.core.workload.choices import Precision

Complete = Callable[[Machine], Machine]
"""What the options add to a machine of the table: the memory of its hosts."""

_BITS_OF_A_BYTE = 8


class MachineTable:
    """The machines that a job can be tried on."""

    def __init__(self, table: Sequence[GpuModel], complete: Complete) -> None:
        # Of those with as much memory the ones that NVLink joins, then the slowest: the cheapest.
        self._table = sorted(
            table,
            key=lambda gpu: (
                gpu.usable_bytes // 2**30,
                -gpu.nvlink_gpus,
                -gpu.nvlink_bytes_per_s,
                gpu.fp16_flop_per_s,
            ),
        )
        self._complete = complete

    def more_of_the_same(self, job: PlanInput, constraints: Constraints) -> Iterator[Attempt]:
        """More GPUs like those of the job in its node, then more nodes."""
        gpu, machine = self._own(job.machine), job.machine
        if gpu is None:
            return
        count = len(machine.gpus)
        for gpus in GPUS_OF_A_NODE:
            if gpus > count and machine.nodes == 1:
                yield from self._on(gpu, Size(nodes=1, gpus=gpus), job, constraints)
        count = max(count, GPUS_OF_A_NODE[-1]) if machine.nodes == 1 else count
        for nodes in (2 * machine.nodes, 4 * machine.nodes):
            if nodes <= NODES[-1]:
                yield from self._on(gpu, Size(nodes=nodes, gpus=count), job, constraints)

    def larger(self, job: PlanInput, constraints: Constraints) -> list[Lazy]:
        """As many GPUs with more memory, the smallest of them first."""
        machine = job.machine
        if machine.accelerator is Accelerator.CPU:
            return []
        size = Size(nodes=machine.nodes, gpus=len(machine.gpus))
        return self.of_size(size, job, constraints, above_bytes=machine.total_bytes or 0)

    def of_size(
        self, size: Size, job: PlanInput, constraints: Constraints, above_bytes: int = 0
    ) -> list[Lazy]:
        """Every GPU of the table in this number, the smallest first; over nodes with a network."""
        bf16 = job.workload.precision is Precision.BF16
        return [
            partial(self._last, gpu, size, job, constraints)
            for gpu in self._table
            if gpu.usable_bytes > above_bytes and (gpu.bf16_flop_per_s or not bf16)
        ]

    def _last(
        self, gpu: GpuModel, size: Size, job: PlanInput, constraints: Constraints
    ) -> Attempt | None:
        return list(self._on(gpu, size, job, constraints))[-1]

    def _own(self, machine: Machine) -> GpuModel | None:
        """The row of a machine's GPUs; None where they are of two kinds, or in no table."""
        sliced = any(gpu.mig_slice is not None for gpu in machine.gpus)
        if machine.accelerator is Accelerator.CPU or not machine.is_uniform or sliced:
            return None
        found = match_models(machine.gpus[0].name, self._table)
        return found[0] if len(found) == 1 else None

    def _on(
        self, gpu: GpuModel, size: Size, job: PlanInput, constraints: Constraints
    ) -> Iterator[Attempt]:
        """The job on so many of these; over several nodes also with the network of their time."""
        built = MachineKind(gpu=gpu, sizes=()).build(size, self._table)
        plain = replace(built.machine, network=Network())
        yield self._attempt({"machine": built.name}, plain, job, constraints)
        if size.nodes > 1:
            bytes_per_s = size.gpus * ADAPTER_BYTES_PER_S[min(5, gpu.pcie_generation)]
            words = f"infiniband:{bytes_per_s * _BITS_OF_A_BYTE // 10**9}Gb/s"
            joined = with_interconnect(plain, words)
            change = {"machine": built.name, "interconnect": words}
            yield self._attempt(change, joined, job, constraints)

    def _attempt(
        self, change: Change, machine: Machine, job: PlanInput, constraints: Constraints
    ) -> Attempt:
        machine = self._complete(machine)
        changed = replace(
            job,
            machine=machine,
            rates=find_rates(machine, self._table),
            # What was seen on the job's own machine says nothing of another.
            calibration=None,
            ran_out=(),
        )
        return Attempt(change=change, job=changed, constraints=constraints)


# The sizes in which the smallest machine is looked for; clusters are built of whole nodes.
SIZES: tuple[Size, ...] = (
    *(Size(nodes=1, gpus=gpus) for gpus in GPUS_OF_A_NODE),
    *(Size(nodes=nodes, gpus=GPUS_OF_A_NODE[-1]) for nodes in NODES if nodes > 1),
)
