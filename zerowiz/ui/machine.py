"""Show a machine: its GPUs, the matrix of links, the host, the network."""

from collections.abc import Iterator
from typing import TextIO

from zerowiz.core.machine.types import (
    UNLIMITED_BYTES,
    Gpu,
    Host,
    JobAllocation,
    Machine,
    Nic,
    PcieSlot,
)
from zerowiz.translation import N_, _
from zerowiz.ui import sentences
from zerowiz.ui.pictures import links
from zerowiz.ui.text import (
    LABEL_COLUMNS,
    columns_of,
    draw,
    gib,
    labelled,
    mib,
    say,
    show_rows,
    small,
)

_UNKNOWN = "-"


def machine(value: Machine, stream: TextIO) -> None:
    """Everything that the probe saw, as people read it."""
    _gpu_table(value, stream)
    if value.links:
        stream.write("\n")
        draw(links(value, columns_of(stream)), stream)
    stream.write("\n")
    for label, words in _facts(value):
        say(stream, labelled(label, words), hang=LABEL_COLUMNS)


# Rule: each way to name a machine that is not this one, with examples that are accepted.
_NAMED = (
    ("8xH100, 4x8xH200", _("GPUs, and nodes of GPUs")),
    ("p5.48xlarge, 2xdgx-h100", _("instances, with their host and network")),
    ("node.json", _("written there by `zerowiz machine --save node.json`")),
    ("cpu", _("ranks on the CPU of this host")),
    ("all", _("every machine of the tables that the job fits")),
)
_NAMES_COLUMNS = 2 + max(len(names) for names, _what in _NAMED)


def show_names(stream: TextIO) -> None:
    """How to plan for another machine from a host without a GPU that can be used."""
    say(stream, _("`zerowiz plan --machine NAME` plans for another machine. NAME can be:"))
    for names, what in _NAMED:
        say(stream, f"  {names:<{_NAMES_COLUMNS}}{what}", hang=_NAMES_COLUMNS + 2)


def _gpu_table(value: Machine, stream: TextIO) -> None:
    if value.accelerator.row.on_host:
        ranks = [(r.label, _(r.name), gib(r.total_bytes), gib(r.free_bytes)) for r in value.gpus]
        show_rows(stream, ("rank", "name", N_("share"), N_("free")), ranks, ("name",))
        return
    headings = ("GPU", "name", N_("total"), N_("reserved"), "free", "PCIe", "cc", "ECC", "NUMA")
    rows = [_gpu_row(gpu) for gpu in value.gpus]
    rows += [(str(lost.index), _("(left out)"), *[_UNKNOWN] * 7) for lost in value.left_out]
    show_rows(stream, headings, rows, ("NUMA", "ECC", "cc", "PCIe", "reserved", "total", "name"))
    for gpu in value.gpus:
        for process in gpu.processes:
            held = _(
                "GPU {label}: {process} (pid {pid}) holds",
                label=gpu.label,
                process=process.name or _("unnamed"),
                pid=process.pid,
            )
            say(stream, f"  {held} {mib(process.used_bytes)}")


def _gpu_row(gpu: Gpu) -> tuple[str, ...]:
    capability = gpu.compute_capability
    return (
        gpu.label,
        _(gpu.name),
        gib(gpu.total_bytes),
        _UNKNOWN if gpu.reserved_bytes is None else gib(gpu.reserved_bytes),
        gib(gpu.free_bytes),
        _slot(gpu.pcie),
        _UNKNOWN if capability is None else f"{capability[0]}.{capability[1]}",
        _UNKNOWN if gpu.ecc is None else (_("on") if gpu.ecc else _("off")),
        _UNKNOWN if gpu.numa_node is None else str(gpu.numa_node),
    )


def _slot(slot: PcieSlot) -> str:
    """`gen5 x16`; `gen1/4 x8/16` where it runs at less now."""
    if slot.max_generation is None or slot.max_lanes is None:
        return _UNKNOWN
    generation = _now_of(slot.current_generation, slot.max_generation)
    return f"gen{generation} x{_now_of(slot.current_lanes, slot.max_lanes)}"


def _now_of(now: int | None, most: int) -> str:
    return str(most) if now in (None, most) else f"{now}/{most}"


def _facts(value: Machine) -> Iterator[tuple[str, str]]:
    """A label and a sentence for everything that is no table."""
    if value.nodes > 1:
        yield (
            _("Nodes"),
            _("{nodes}; the plan assumes that all of them are like this one", nodes=value.nodes),
        )
    yield _("Link"), _link(value)
    if value.driver_version is not None:
        cuda = value.cuda_version
        yield (
            _("Driver"),
            value.driver_version
            + (_(", CUDA {major}.{minor}", major=cuda[0], minor=cuda[1]) if cuda else ""),
        )
    yield _("Host"), _host(value.host)
    nics = "; ".join(map(_nic, value.network.nics))
    yield _("Network"), sentences.network(value.network) + (f" ({nics})" if nics else "")
    if value.allocation is not None:
        yield _("Job"), _allocation(value.allocation)


def _link(value: Machine) -> str:
    words = sentences.link(value.interconnect)
    pair = value.interconnect.weakest_pair
    weakest = next((link for link in value.links if link.pair == pair), None)
    if weakest is None or pair is None:
        return words
    p2p = "" if weakest.p2p is None else f", P2P {weakest.p2p}"
    return _(
        "{words}, weakest pair {first}-{second} ({word}){p2p}",
        words=words,
        first=pair[0],
        second=pair[1],
        word=weakest.word,
        p2p=p2p,
    )


def _allocation(job: JobAllocation) -> str:
    """`SLURM: 2 nodes, 8 GPUs on each`; what the scheduler does not say is left out."""
    parts = (
        _count(job.nodes, _("1 node"), N_("{count} nodes")),
        _count(job.gpus_per_node, _("1 GPU on each"), N_("{count} GPUs on each")),
        None
        if job.memory_bytes is None
        else _("{memory_bytes} of memory on each", memory_bytes=gib(job.memory_bytes)),
    )
    return f"{job.scheduler}: {', '.join(filter(None, parts)) or _('no nodes or GPUs given')}"


def _host(host: Host) -> str:
    memory = _(
        "{available_bytes} available of {total_bytes}",
        available_bytes=gib(host.available_bytes),
        total_bytes=gib(host.total_bytes),
    )
    if host.available_bytes is None and host.total_bytes is None:
        memory = _("memory unknown")
    if host.available_by is not None:
        memory += f" ({host.available_by})"
    lock = host.memlock_bytes
    more = {
        "cores": _count(host.cores, _("1 core"), N_("{count} cores")),
        "numa": _count(host.numa_nodes, _("1 NUMA node"), N_("{count} NUMA nodes")),
        "shm": None
        if host.shm_bytes is None
        else _("shared memory {shm_bytes}", shm_bytes=gib(host.shm_bytes)),
        "memlock": None
        if lock is None
        else _("memlock {lock}", lock=_("unlimited") if lock == UNLIMITED_BYTES else small(lock)),
        "bf16": {True: _("computes bf16"), False: _("emulates bf16"), None: None}[
            host.computes_bf16
        ],
    }
    return "; ".join((memory, *filter(None, more.values())))


def _count(count: int | None, single: str, more: str) -> str | None:
    """So many of a thing, in the words for one or for several."""
    if count is None:
        return None
    return single if count == 1 else _(more, count=count)


def _nic(nic: Nic) -> str:
    rate = "" if nic.bytes_per_s is None else f" {nic.bytes_per_s * 8 / 1e9:g} Gb/s"
    unusable = "" if nic.unusable is None else _(", unusable: {unusable}", unusable=nic.unusable)
    return f"{nic.name} {nic.kind}{rate}{unusable}"
