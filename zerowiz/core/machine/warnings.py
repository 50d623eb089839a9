"""Warn of facts of a machine that a person should know before they rely on a plan for it."""

from collections import Counter
from collections.abc import Callable, Iterator

from zerowiz.core.machine.interconnect import P2P_OK, lanes_bytes_per_s, slot_bytes_per_s
from zerowiz.core.machine.types import Gpu, LinkClass, Machine
from zerowiz.translation import _, joined, listing

# The values of nvmlGpuP2PStatus_t as sentences.
_P2P_WHY = {
    "CNS": _("the chipset does not support it"),
    "GNS": _("the GPUs do not support it"),
    "TNS": _("the PCIe path does not support it"),
    "DR": _("a registry key disables it"),
    "NS": _("it is not supported"),
    "U": _("the reason is unknown"),
}


def find_warnings(machine: Machine) -> tuple[str, ...]:
    """The warnings about a machine, one sentence each."""
    sentences = [sentence for find in _FINDERS for sentence in find(machine)]
    return tuple(dict.fromkeys(sentences))


def _renumbered(machine: Machine) -> Iterator[str]:
    """CUDA's numbers differ from those of `nvidia-smi`."""
    moved = [gpu for gpu in machine.gpus if gpu.cuda_ordinal != gpu.index]
    if moved and machine.left_out:
        pairs = listing(
            _(
                "GPU {index} is number {cuda_ordinal}",
                index=gpu.index,
                cuda_ordinal=gpu.cuda_ordinal,
            )
            for gpu in moved
        )
        yield _("CUDA numbers only GPUs that it can open: {pairs}", pairs=pairs)


def _left_out(machine: Machine) -> Iterator[str]:
    for gpu in machine.left_out:
        yield _("zerowiz does not use GPU {index}: {why}", index=gpu.index, why=gpu.why)


def _unlike(machine: Machine) -> Iterator[str]:
    """The GPUs are of different models, and the plan is for the smallest."""
    if machine.is_uniform:
        return
    [(usual, _count), *others] = Counter(gpu.name for gpu in machine.gpus).most_common()
    for name, _count in others:
        labels = listing(gpu.label for gpu in machine.gpus if gpu.name == name)
        yield _(
            "GPU {labels} is not like the others (`{name}`, not `{usual}`): the plan uses the "
            "GPU with the least memory",
            labels=labels,
            name=name,
            usual=usual,
        )


def _narrow(machine: Machine) -> Iterator[str]:
    for gpu in machine.gpus:
        slot = gpu.pcie
        if slot.current_lanes and slot.max_lanes and slot.current_lanes < slot.max_lanes:
            yield _(
                "GPU {label} uses {current_lanes} of its {max_lanes} PCIe lanes",
                label=gpu.label,
                current_lanes=slot.current_lanes,
                max_lanes=slot.max_lanes,
            )
        lanes_speed, path_speed = lanes_bytes_per_s(slot), slot_bytes_per_s(slot)
        if lanes_speed is not None and path_speed is not None and path_speed < lanes_speed:
            yield _(
                "GPU {label} is behind a PCIe bridge that is narrower than its slot",
                label=gpu.label,
            )


def _fabric(machine: Machine) -> Iterator[str]:
    # A virtual machine with one GPU of a board never trains its links, and does not need them.
    waiting = [gpu.label for gpu in machine.gpus if not gpu.fabric_ready and gpu.nvlinks]
    if waiting:
        yield _(
            "Fabric Manager is not ready for GPU {waiting}: NVSwitch does not work, "
            "and CUDA may fail to start (error 802); see `systemctl status "
            "nvidia-fabricmanager`",
            waiting=listing(waiting),
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
        yield _(
            "{active} of {of} NVLinks are active on GPU {labels}",
            active=active,
            of=of,
            labels=listing(labels),
        )


def _no_p2p(machine: Machine) -> Iterator[str]:
    refused = Counter(
        link.p2p for link in machine.links if link.p2p not in (None, P2P_OK) and not link.nvlinks
    )
    around = machine.interconnect.link_class is LinkClass.NVLINK_RING
    so = _("NCCL's rings avoid these pairs") if around else _("NCCL copies through the host")
    for word, count in refused.items():
        why = _P2P_WHY.get(word or "", _P2P_WHY["U"])
        yield _(
            "{count} of {links} pairs of GPUs cannot reach each other's memory "
            "({word}: {why}): {so}",
            count=count,
            links=len(machine.links),
            word=word,
            why=why,
            so=so,
        )


def _shared_memory(machine: Machine) -> Iterator[str]:
    if any(gpu.shares_host_memory for gpu in machine.gpus):
        yield _(
            "the GPU and the host share their memory: the budget of both is what the host has"
            " available"
        )


def _busy(machine: Machine) -> Iterator[str]:
    for gpu in machine.gpus:
        if gpu.processes:
            held = joined("; ", ((p.name or _("a process")) + f" ({p.pid})" for p in gpu.processes))
            yield _(
                "GPU {label} is in use by {held}: the plan uses the memory that is free now",
                label=gpu.label,
                held=held,
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
    range_of = f"{most} %" if few == most else _("{few} to {most} %", few=few, most=most)
    if len(held) == len(machine.gpus):
        if all(gpu.processes for gpu in machine.gpus):
            return  # `_busy` names them
        whose = _("the GPU") if len(held) == 1 else _("every GPU")
        yield _(
            "others hold {range_of} of the memory of {whose}: the plan uses what is free now",
            range_of=range_of,
            whose=whose,
        )
        return
    left = ",".join(label for label in percent if label not in held)
    sliced = any(gpu.mig_slice is not None for gpu in machine.gpus)
    advice = (
        ""
        if sliced
        else _(": `$gpus {left}` leaves it out", left=left)
        if len(held) == 1
        else _(": `$gpus {left}` leaves them out", left=left)
    )
    yield _(
        "others hold {range_of} of the memory of GPU {held}{advice}",
        range_of=range_of,
        held=listing(held),
        advice=advice,
    )


def _held_percent(gpu: Gpu) -> int:
    """The part of a GPU's memory that is not free; 0 where it is not known."""
    if gpu.free_bytes is None or not gpu.total_bytes:
        return 0
    usable = max(1, gpu.total_bytes - (gpu.reserved_bytes or 0))
    return round(100 * max(0, usable - gpu.free_bytes) / usable)


def _slices(machine: Machine) -> Iterator[str]:
    slices = [gpu for gpu in machine.gpus if gpu.mig_slice is not None]
    if len(slices) == 1:
        yield _(
            "GPU {label} is a MIG slice: a process can use only one, so a node has one rank",
            label=slices[0].label,
        )
    elif slices:
        yield _("MIG slices have no links, and exchange data through the host")


def _bound_task(machine: Machine) -> Iterator[str]:
    allocation = machine.allocation
    if allocation is None or allocation.gpus_per_node is None:
        return
    given, planned = allocation.gpus_per_node, len(machine.gpus)
    if planned != given:
        advice = _(": select yours with `$gpus 0,1`") if planned > given else ""
        yield _(
            "{scheduler} gave the job {given} GPUs per node, but this plan is for "
            "{planned}{advice}",
            scheduler=allocation.scheduler,
            given=given,
            planned=planned,
            advice=advice,
        )


def _slow_network(machine: Machine) -> Iterator[str]:
    if machine.nodes > 1:
        for nic in machine.network.nics:
            if nic.unusable is not None:
                yield _(
                    "zerowiz does not use network adapter `{nic}`: {unusable}",
                    nic=nic.name,
                    unusable=nic.unusable,
                )


_FINDERS: tuple[Callable[[Machine], Iterator[str]], ...] = (
    *(_left_out, _renumbered, _unlike, _busy, _held, _shared_memory, _slices),
    *(_fabric, _fewer_links, _no_p2p, _narrow),
    *(_bound_task, _slow_network),
)
