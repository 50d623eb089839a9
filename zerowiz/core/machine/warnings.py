"""Warn of facts of a machine that a person should know before they rely on a plan for it."""

from collections import Counter
from collections.abc import Callable, Iterator

from zerowiz.core.machine.types import (
    P2P_OK,
    Gpu,
    LinkClass,
    Machine,
    lanes_bytes_per_s,
    slot_bytes_per_s,
)

# The values of nvmlGpuP2PStatus_t as sentences.
_P2P_WHY = {
    "CNS": "the chipset does not support it",
    "GNS": "the GPUs do not support it",
    "TNS": "the PCIe path does not support it",
    "DR": "a registry key disables it",
    "NS": "it is not supported",
    "U": "the reason is unknown",
}


def find_warnings(machine: Machine) -> tuple[str, ...]:
    """The warnings about a machine, one sentence each."""
    sentences = [sentence for find in _FINDERS for sentence in find(machine)]
    return tuple(dict.fromkeys(sentences))


def _renumbered(machine: Machine) -> Iterator[str]:
    """CUDA's numbers differ from those of `nvidia-smi`."""
    moved = [gpu for gpu in machine.gpus if gpu.cuda_ordinal != gpu.index]
    if moved and machine.left_out:
        pairs = ", ".join(f"GPU {gpu.index} is number {gpu.cuda_ordinal}" for gpu in moved)
        yield f"CUDA numbers only GPUs that it can open: {pairs}"


def _left_out(machine: Machine) -> Iterator[str]:
    for gpu in machine.left_out:
        yield f"zerowiz does not use GPU {gpu.index}: {gpu.why}"


def _unlike(machine: Machine) -> Iterator[str]:
    """The GPUs are of different models, and the plan is for the smallest."""
    if machine.is_uniform:
        return
    [(usual, _count), *others] = Counter(gpu.name for gpu in machine.gpus).most_common()
    for name, _count in others:
        labels = ", ".join(gpu.label for gpu in machine.gpus if gpu.name == name)
        yield (
            f"GPU {labels} is not like the others (`{name}`, not `{usual}`): the plan uses "
            "the GPU with the least memory"
        )


def _narrow(machine: Machine) -> Iterator[str]:
    for gpu in machine.gpus:
        slot = gpu.pcie
        if slot.current_lanes and slot.max_lanes and slot.current_lanes < slot.max_lanes:
            yield f"GPU {gpu.label} uses {slot.current_lanes} of its {slot.max_lanes} PCIe lanes"
        lanes_speed, path_speed = lanes_bytes_per_s(slot), slot_bytes_per_s(slot)
        if lanes_speed is not None and path_speed is not None and path_speed < lanes_speed:
            yield f"GPU {gpu.label} is behind a PCIe bridge that is narrower than its slot"


def _fabric(machine: Machine) -> Iterator[str]:
    # A virtual machine with one GPU of a board never trains its links, and does not need them.
    waiting = [gpu.label for gpu in machine.gpus if not gpu.fabric_ready and gpu.nvlinks]
    if waiting:
        yield (
            f"Fabric Manager is not ready for GPU {', '.join(waiting)}: NVSwitch does not work, and"
            " CUDA may fail to start (error 802); see `systemctl status nvidia-fabricmanager`"
        )


def _fewer_links(machine: Machine) -> Iterator[str]:
    """A GPU has fewer active links than others of its model: a switch or a bridge is down."""
    if len(machine.gpus) == 1:
        return
    most: dict[str, int] = {}
    for gpu in machine.gpus:
        most[gpu.name] = max(most.get(gpu.name, 0), gpu.nvlinks or 0, gpu.expected_nvlinks or 0)
    lacking: dict[tuple[int, int], list[str]] = {}
    for gpu in machine.gpus:
        if gpu.nvlinks is not None and gpu.nvlinks < most[gpu.name]:
            lacking.setdefault((gpu.nvlinks, most[gpu.name]), []).append(gpu.label)
    for (active, of), labels in lacking.items():
        yield f"{active} of {of} NVLinks are active on GPU {', '.join(labels)}"


def _no_p2p(machine: Machine) -> Iterator[str]:
    refused = Counter(
        link.p2p for link in machine.links if link.p2p not in (None, P2P_OK) and not link.nvlinks
    )
    around = machine.interconnect.link_class is LinkClass.NVLINK_RING
    so = "NCCL's rings avoid these pairs" if around else "NCCL copies through the host"
    for word, count in refused.items():
        why = _P2P_WHY.get(word or "", _P2P_WHY["U"])
        yield (
            f"{count} of {len(machine.links)} pairs of GPUs cannot reach each other's memory "
            f"({word}: {why}): {so}"
        )


def _shared_memory(machine: Machine) -> Iterator[str]:
    if any(gpu.shares_host_memory for gpu in machine.gpus):
        yield (
            "the GPU and the host share their memory: the budget of both is what the host has "
            "available"
        )


def _busy(machine: Machine) -> Iterator[str]:
    for gpu in machine.gpus:
        if gpu.processes:
            held = "; ".join((p.name or "a process") + f" ({p.pid})" for p in gpu.processes)
            yield (
                f"GPU {gpu.label} is in use by {held}: the plan uses the memory that is free now"
            )


# Less than that a display takes, or a daemon.
_HELD_FRACTION = 0.1


def _held(machine: Machine) -> Iterator[str]:
    """Others hold a part of the memory; in a container nobody sees who."""
    if machine.lives_on_host:
        return
    percent = {gpu.label: _held_percent(gpu) for gpu in machine.gpus}
    held = {label: part for label, part in percent.items() if part > 100 * _HELD_FRACTION}
    if not held:
        return
    few, most = min(held.values()), max(held.values())
    range_of = f"{most} %" if few == most else f"{few} to {most} %"
    if len(held) == len(machine.gpus):
        if all(gpu.processes for gpu in machine.gpus):
            return  # `_busy` names them
        whose = "the GPU" if len(held) == 1 else "every GPU"
        yield f"others hold {range_of} of the memory of {whose}: the plan uses what is free now"
        return
    left = ",".join(label for label in percent if label not in held)
    sliced = any(gpu.mig_slice is not None for gpu in machine.gpus)
    advice = (
        ""
        if sliced
        else f": `$gpus {left}` leaves it out"
        if len(held) == 1
        else f": `$gpus {left}` leaves them out"
    )
    yield f"others hold {range_of} of the memory of GPU {', '.join(held)}{advice}"


def _held_percent(gpu: Gpu) -> int:
    """The part of a GPU's memory that is not free; 0 where it is not known."""
    if gpu.free_bytes is None or not gpu.total_bytes:
        return 0
    usable = max(1, gpu.total_bytes - (gpu.reserved_bytes or 0))
    return round(100 * max(0, usable - gpu.free_bytes) / usable)


def _slices(machine: Machine) -> Iterator[str]:
    slices = [gpu for gpu in machine.gpus if gpu.mig_slice is not None]
    if len(slices) == 1:
        yield (
            f"GPU {slices[0].label} is a MIG slice: a process can use only one, so a node "
            "has one rank"
        )
    elif slices:
        yield "MIG slices have no links, and exchange data through the host"


def _bound_task(machine: Machine) -> Iterator[str]:
    allocation = machine.allocation
    if allocation is None or allocation.gpus_per_node is None:
        return
    given, planned = allocation.gpus_per_node, len(machine.gpus)
    if planned != given:
        advice = ": select yours with `$gpus 0,1`" if planned > given else ""
        yield (
            f"{allocation.scheduler} gave the job {given} GPUs per node, but this plan is for "
            f"{planned}{advice}"
        )


def _slow_network(machine: Machine) -> Iterator[str]:
    if machine.nodes > 1:
        for nic in machine.network.nics:
            if nic.unusable is not None:
                yield f"zerowiz does not use network adapter `{nic.name}`: {nic.unusable}"


_FINDERS: tuple[Callable[[Machine], Iterator[str]], ...] = (
    *(_left_out, _renumbered, _unlike, _busy, _held, _shared_memory, _slices),
    *(_fabric, _fewer_links, _no_p2p, _narrow),
    *(_bound_task, _slow_network),
)
