"""Write recordings of machines that public logs describe.

A row of VARIANTS is one machine, and becomes `synthetic/NAME.json`. Each says in `sources` what
was read where, and what is filled in. Run as `python tests/machines/make_synthetic.py`.
"""

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from uuid import NAMESPACE_DNS, uuid5

from msgspec import Struct, field

from zerowiz.core.structs import replace

HERE = Path(__file__).parent
FOLDER = HERE / "synthetic"

Answer = dict[str, object]
Calls = Iterator[tuple[str, Answer]]

# nvml.h, nvmlReturn_t.
INVALID_ARGUMENT, NOT_SUPPORTED, NO_PERMISSION, NOT_FOUND = 2, 3, 4, 6
FUNCTION_NOT_FOUND, GPU_IS_LOST = 13, 15

# nvml.h, nvmlGpuTopologyLevel_t and nvmlGpuP2PStatus_t, in the words of `nvidia-smi topo`.
LEVELS = {"PIX": 10, "PXB": 20, "PHB": 30, "NODE": 40, "SYS": 50}
P2P = {"OK": 0, "CNS": 1, "GNS": 2, "TNS": 3, "DR": 4, "NS": 5}

# nvml.h, NVML_FI_DEV_NVLINK_LINK_COUNT, _GET_SPEED and _GET_STATE.
LINK_COUNT, LINK_SPEED, LINK_STATE = 91, 164, 165

# nvml.h, nvmlIntNvLinkDeviceType_t.
TO_GPU, TO_SWITCH = 0, 2

# nvml.h, nvmlMemory_v2 and nvmlGpuFabricInfo_v2: the struct's size and its version in one number.
MEMORY_V2, FABRIC_V2 = 33554472, 33554468

# nvidia-ml-py 11.450.129 to 12.550.89: the first driver branch whose bindings have the call.
FIRST_BRANCHES = {
    "nvmlDeviceGetNvLinkRemoteDeviceType": 470,
    "nvmlDeviceGetMemoryInfo_v2": 510,
    "nvmlDeviceGetComputeRunningProcesses_v3": 510,
    "nvmlDeviceGetGpuFabricInfoV": 550,
}
FIRST_BRANCH_OF_LINK_FIELDS = 525

# What a GPU of A100's kind answers to nvmlDeviceGetMaxMigDeviceCount when MIG is on.
MOST_SLICES = 7

MIB = 2**20


class Card(Struct, frozen=True, kw_only=True):
    """What every GPU of a model answers alike."""

    name: str
    device: int
    """The PCI device id."""
    capability: tuple[int, int]
    total_mib: int | None
    """`None` where NVML does not support the question."""
    reserved_mib: int = 0
    ecc: int | None = 1
    has_mig: bool = False
    generation: int = 4
    lanes: int = 16
    link_mb_per_s: int = 0


class Slice(Struct, frozen=True, kw_only=True):
    """A MIG slice."""

    profile: str
    total_mib: int
    used_mib: int
    processes: tuple[tuple[int, int], ...] = ()


class Seat(Struct, frozen=True, kw_only=True):
    """One GPU where it sits."""

    bus: str
    """As /sys writes it: `0000:1a:00.0`."""
    node: int | None = None
    used_mib: int = 0
    processes: tuple[tuple[int, int], ...] = ()
    """A pid and its MiB."""
    generation: int | None = None
    """Of PCIe now; `None` when it is the best one."""
    lanes: int | None = None
    down: frozenset[int] = frozenset()
    """NVLinks that are not active."""
    slices: tuple[Slice, ...] = ()
    in_container: bool = False
    """Whether the container may not ask about the whole GPU."""
    is_lost: bool = False


class Variant(Struct, frozen=True, kw_only=True):
    """A machine."""

    name: str
    sources: str
    """What was read where, and what is filled in: a paragraph each."""
    driver: str
    cuda: int
    card: Card
    seats: tuple[Seat, ...]
    near: tuple[tuple[str, str], ...] = ()
    """A word of `nvidia-smi topo -m`, and the groups of GPUs that it holds within: `01 23`."""
    far: str = "SYS"
    """The word of every other pair."""
    wires: str = ""
    """NVLinks from GPU to GPU: `01x2` are two between the first and the second."""
    switches: tuple[str, ...] = ()
    """The NVSwitch at the end of each NVLink of a GPU, as /sys writes it."""
    p2p_without_nvlink: str = "OK"
    fabric_state: int = 3
    texts: Mapping[str, str] = field(default_factory=dict)

    @property
    def branch(self) -> int:
        """The driver's branch."""
        return int(self.driver.partition(".")[0])


def ok(value: object) -> Answer:
    """An answer."""
    return {"ok": value}


def err(code: int) -> Answer:
    """A refusal."""
    return {"err": code}


# The calls of a machine, in the order of the file.


def list_calls(variant: Variant) -> Calls:
    """Every call that a reader makes, and what the driver answers."""
    yield "nvmlInitWithFlags(0)", ok(None)
    yield "nvmlSystemGetDriverVersion()", ok(variant.driver)
    yield "nvmlSystemGetCudaDriverVersion_v2()", ok(variant.cuda)
    yield "nvmlDeviceGetCount_v2()", ok(len(variant.seats))
    there = [index for index, seat in enumerate(variant.seats) if not seat.is_lost]
    for index in range(len(variant.seats)):
        handle = ok(f"gpu{index}") if index in there else err(GPU_IS_LOST)
        yield f"nvmlDeviceGetHandleByIndex_v2({index})", handle
    for index in there:
        yield from _gpu_calls(variant, index)
        yield from _link_calls(variant, index)
        yield from _slice_calls(variant, index)
    for one, other in combinations(there, 2):
        yield from _pair_calls(variant, one, other)


def _since(variant: Variant, symbol: str, answer: Answer) -> Answer:
    """The answer of a driver that has the call."""
    return err(FUNCTION_NOT_FOUND) if variant.branch < FIRST_BRANCHES.get(symbol, 0) else answer


def _gpu_calls(variant: Variant, index: int) -> Calls:
    card, seat, gpu = variant.card, variant.seats[index], f"gpu{index}"
    domain, bus, place = seat.bus.partition(".")[0].split(":")
    split = int(bool(seat.slices))
    answers = {
        "nvmlDeviceGetName": ok(card.name),
        "nvmlDeviceGetUUID": ok(f"GPU-{_uuid(variant, gpu)}"),
        "nvmlDeviceGetPciInfo_v3": ok(
            {
                "busId": _bus_id(seat.bus),
                "domain": int(domain, 16),
                "bus": int(bus, 16),
                "device": int(place, 16),
                "pciDeviceId": card.device << 16 | 0x10DE,
            }
        ),
        **_memory(card.total_mib, card.reserved_mib, seat.used_mib, hidden=seat.in_container),
        "nvmlDeviceGetCudaComputeCapability": ok(list(card.capability)),
        "nvmlDeviceGetMigMode": ok([split, split]) if card.has_mig else err(NOT_SUPPORTED),
        "nvmlDeviceGetMaxMigDeviceCount": ok(MOST_SLICES * split),
        "nvmlDeviceGetEccMode": err(NOT_SUPPORTED) if card.ecc is None else ok([card.ecc] * 2),
        "nvmlDeviceGetMaxPcieLinkGeneration": ok(card.generation),
        "nvmlDeviceGetCurrPcieLinkGeneration": ok(seat.generation or card.generation),
        "nvmlDeviceGetMaxPcieLinkWidth": ok(card.lanes),
        "nvmlDeviceGetCurrPcieLinkWidth": ok(seat.lanes or card.lanes),
        "nvmlDeviceGetComputeRunningProcesses_v3": _processes(seat),
        "nvmlDeviceGetGpuFabricInfoV": _fabric(variant),
    }
    for symbol, answer in answers.items():
        yield f"{symbol}({gpu})", _since(variant, symbol, answer)


def _bus_id(bus: str) -> str:
    """As NVML writes it: `00000000:1A:00.0`."""
    return bus.rjust(16, "0").upper()


def _uuid(variant: Variant, handle: str) -> str:
    return str(uuid5(NAMESPACE_DNS, f"{handle}.{variant.name}.example"))


def _memory(
    total_mib: int | None, reserved_mib: int, used_mib: int, *, hidden: bool = False
) -> dict[str, Answer]:
    newer, older = "nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetMemoryInfo"
    if hidden or total_mib is None:
        refusal = err(NO_PERMISSION if hidden else NOT_SUPPORTED)
        return {newer: refusal, older: refusal}
    total, reserved, used = (size * MIB for size in (total_mib, reserved_mib, used_mib))
    free = total - reserved - used
    sizes = {"total": total, "reserved": reserved, "free": free, "used": used}
    return {
        newer: ok({"version": MEMORY_V2, **sizes}),
        older: ok({"total": total, "free": free, "used": reserved + used}),
    }


def _processes(seat: Seat) -> Answer:
    """nvml.h: of a GPU in MIG mode those of all its slices, to whom may know."""
    if seat.in_container:
        return err(NO_PERMISSION)
    return _list_processes([*seat.processes, *(p for part in seat.slices for p in part.processes)])


def _list_processes(processes: Sequence[tuple[int, int]]) -> Answer:
    return ok([{"pid": pid, "usedGpuMemory": size * MIB} for pid, size in processes])


def _fabric(variant: Variant) -> Answer:
    if variant.card.capability < (9, 0) or not variant.switches:
        return err(NOT_SUPPORTED)
    state = {"state": variant.fabric_state, "status": 0, "cliqueId": 0}
    return ok({"version": FABRIC_V2, **state, "clusterUuid": [0] * 16, "healthMask": 0})


def _ends(variant: Variant, index: int) -> list[str]:
    """What each NVLink of a GPU ends in, as NVML writes it."""
    if variant.switches:
        return [_bus_id(bus) for bus in variant.switches]
    ends: list[str] = []
    for wire in variant.wires.split():
        pair, _, count = wire.partition("x")
        if str(index) in pair:
            peer = int(pair.replace(str(index), ""))
            ends += [_bus_id(variant.seats[peer].bus)] * int(count)
    return ends


def _live_ends(variant: Variant, index: int) -> list[str]:
    down = variant.seats[index].down
    return [end for link, end in enumerate(_ends(variant, index)) if link not in down]


def _link_calls(variant: Variant, index: int) -> Calls:
    gpu, ends = f"gpu{index}", _ends(variant, index)
    down = variant.seats[index].down
    yield _field(gpu, LINK_COUNT, 0), ok(len(ends)) if ends else err(NOT_SUPPORTED)
    for link, end in enumerate(ends):
        yield _field(gpu, LINK_STATE, link), _state_field(variant, active=link not in down)
        yield f"nvmlDeviceGetNvLinkState({gpu}, {link})", ok(int(link not in down))
        yield f"nvmlDeviceGetNvLinkCapability({gpu}, {link}, 0)", ok(1)
        for symbol, answer in _end_answers(variant, end, active=link not in down).items():
            yield f"{symbol}({gpu}, {link})", _since(variant, symbol, answer)
    live = [link for link in range(len(ends)) if link not in down]
    yield _field(gpu, LINK_SPEED, live[0] if live else 0), _speed_field(variant, live)
    beyond = err(INVALID_ARGUMENT if ends else NOT_SUPPORTED)
    yield _field(gpu, LINK_STATE, len(ends)), beyond
    yield f"nvmlDeviceGetNvLinkState({gpu}, {len(ends)})", beyond


def _field(gpu: str, number: int, scope: int) -> str:
    return f"nvmlDeviceGetFieldValues({gpu}, {number}, {scope})"


def _state_field(variant: Variant, *, active: bool) -> Answer:
    if variant.branch < FIRST_BRANCH_OF_LINK_FIELDS:
        return err(INVALID_ARGUMENT)
    return ok(int(active)) if variant.card.capability >= (9, 0) else err(NOT_SUPPORTED)


def _speed_field(variant: Variant, live: Sequence[int]) -> Answer:
    if variant.branch < FIRST_BRANCH_OF_LINK_FIELDS:
        return err(INVALID_ARGUMENT)
    return ok(variant.card.link_mb_per_s) if live else err(NOT_SUPPORTED)


def _end_answers(variant: Variant, end: str, *, active: bool) -> dict[str, Answer]:
    kind = TO_SWITCH if variant.switches else TO_GPU
    return {
        "nvmlDeviceGetNvLinkRemoteDeviceType": ok(kind) if active else err(NOT_SUPPORTED),
        "nvmlDeviceGetNvLinkRemotePciInfo_v2": (
            ok({"busId": end}) if active else err(NOT_SUPPORTED)
        ),
    }


def _slice_calls(variant: Variant, index: int) -> Calls:
    gpu, slices = f"gpu{index}", variant.seats[index].slices
    for place in range(MOST_SLICES if slices else 0):
        call = f"nvmlDeviceGetMigDeviceHandleByIndex({gpu}, {place})"
        yield call, ok(f"{gpu}.mig{place}") if place < len(slices) else err(NOT_FOUND)
    for place, part in enumerate(slices):
        handle = f"{gpu}.mig{place}"
        answers = {
            "nvmlDeviceGetName": ok(f"{variant.card.name} MIG {part.profile}"),
            "nvmlDeviceGetUUID": ok(f"MIG-{_uuid(variant, handle)}"),
            **_memory(part.total_mib, 0, part.used_mib),
            "nvmlDeviceGetCudaComputeCapability": ok(list(variant.card.capability)),
            "nvmlDeviceGetMigMode": err(INVALID_ARGUMENT),
            "nvmlDeviceGetEccMode": err(NOT_SUPPORTED),
            "nvmlDeviceGetComputeRunningProcesses_v3": _list_processes(part.processes),
        }
        for symbol, answer in answers.items():
            yield f"{symbol}({handle})", _since(variant, symbol, answer)


def _pair_calls(variant: Variant, one: int, other: int) -> Calls:
    pair = f"gpu{one}, gpu{other}"
    level = LEVELS[_word(variant, one, other)]
    yield f"nvmlDeviceGetTopologyCommonAncestor({pair})", ok(level)
    linked = _is_linked(variant, one, other)
    direct = P2P["OK" if linked else variant.p2p_without_nvlink]
    for kind, status in enumerate((direct, direct, P2P["OK" if linked else "NS"])):
        yield f"nvmlDeviceGetP2PStatus({pair}, {kind})", ok(status)


def _word(variant: Variant, one: int, other: int) -> str:
    """The way of a pair over PCIe: of the first group that holds both."""
    for word, groups in variant.near:
        if any(str(one) in group and str(other) in group for group in groups.split()):
            return word
    return variant.far


def _is_linked(variant: Variant, one: int, other: int) -> bool:
    ends, others_ends = _live_ends(variant, one), _live_ends(variant, other)
    if variant.switches:
        return bool(ends and others_ends)
    return _bus_id(variant.seats[other].bus) in ends


# The file.


def record(variant: Variant) -> dict[str, object]:
    """The recording of a machine."""
    texts = {
        f"sys/bus/pci/devices/{seat.bus}/numa_node": f"{seat.node}\n"
        for seat in variant.seats
        if seat.node is not None
    }
    # Linux: the class of a bridge that is no bus, which NVSwitches have.
    texts |= {
        f"sys/bus/pci/devices/{bus}/class": "0x068000\n"
        for bus in sorted(set(variant.switches))
        if bus != HIDDEN_SWITCH
    }
    return {
        "schema_version": 2,
        "kind": "synthetic",
        "made_by": "tests/machines/make_synthetic.py",
        "sources": [" ".join(part.split()) for part in variant.sources.split("\n\n")],
        "nvml": dict(list_calls(variant)),
        "files": {
            "text": texts | dict(variant.texts),
            "names": {},
            "real": {},
            "space": {},
            "opens": {},
        },
        "environ": {},
    }


def render(recording: Mapping[str, object]) -> str:
    """The text of a recording, with one call to a line."""
    parts = (f" {json.dumps(key)}: {_render_part(value)}" for key, value in recording.items())
    return "{\n" + ",\n".join(parts) + "\n}\n"


def _render_part(value: object) -> str:
    if isinstance(value, dict) and value:
        lines = [f"  {json.dumps(key)}: {json.dumps(each)}" for key, each in value.items()]
        return "{\n" + ",\n".join(lines) + "\n }"
    if isinstance(value, list):
        return "[\n" + ",\n".join(f"  {json.dumps(each)}" for each in value) + "\n ]"
    return json.dumps(value)


def render_all() -> dict[str, str]:
    """Every file, by its name."""
    return {f"{variant.name}.json": render(record(variant)) for variant in VARIANTS}


# The machines.

# What NVML gives for an NVSwitch that it cannot name; the recorded H200 hosts have such.
HIDDEN_SWITCH = "ffffffff:ff:ff.0"


def _seats(buses: str, nodes: str = "", **alike: object) -> tuple[Seat, ...]:
    """GPUs at these PCI buses, on these NUMA nodes."""
    where: list[int | None] = [int(node) for node in nodes.split()]
    where = where or [None] * len(buses.split())
    return tuple(
        replace(Seat(bus=f"0000:{bus}:00.0", node=node), **alike)  # type: ignore[arg-type]
        for bus, node in zip(buses.split(), where, strict=True)
    )


def _switches(buses: str) -> tuple[str, ...]:
    """NVSwitches at these PCI buses, one for each NVLink of a GPU."""
    return tuple(f"0000:{bus}:00.0" for bus in buses.split())


def _change(seats: tuple[Seat, ...], index: int, **fields: object) -> tuple[Seat, ...]:
    """The GPUs with one of them changed."""
    changed = replace(seats[index], **fields)  # type: ignore[arg-type]
    return (*seats[:index], changed, *seats[index + 1 :])


# Totals are those of `nvidia-smi`, link rates those of `nvidia-smi nvlink -s`. The reserve is what
# the totals of drivers before R510 left out, or what torch finds less.
RTX_3090 = Card(
    name="NVIDIA GeForce RTX 3090",
    device=0x2204,
    capability=(8, 6),
    total_mib=24576,
    reserved_mib=308,
    ecc=None,
    generation=3,
    link_mb_per_s=14062,
)
V100 = Card(
    name="Tesla V100-SXM2-32GB",
    device=0x1DB5,
    capability=(7, 0),
    total_mib=32768,
    reserved_mib=258,
    generation=3,
    link_mb_per_s=25781,
)
A100_PCIE = Card(
    name="NVIDIA A100 80GB PCIe",
    device=0x20B5,
    capability=(8, 0),
    total_mib=81920,
    reserved_mib=669,
    has_mig=True,
)
L40S = Card(
    name="NVIDIA L40S",
    device=0x26B9,
    capability=(8, 9),
    total_mib=46068,
    reserved_mib=602,
)
A100_40 = Card(
    name="NVIDIA A100-SXM4-40GB",
    device=0x20B0,
    capability=(8, 0),
    total_mib=40960,
    reserved_mib=424,
    has_mig=True,
    link_mb_per_s=25000,
)
A100_80 = replace(
    A100_40,
    name="NVIDIA A100-SXM4-80GB",
    device=0x20B2,
    total_mib=81920,
    reserved_mib=669,
)
H100 = Card(
    name="NVIDIA H100 80GB HBM3",
    device=0x2330,
    capability=(9, 0),
    total_mib=81559,
    reserved_mib=550,
    has_mig=True,
    generation=5,
    link_mb_per_s=26562,
)
B200 = Card(
    name="NVIDIA B200",
    device=0x2901,
    capability=(10, 0),
    total_mib=183359,
    reserved_mib=717,
    has_mig=True,
    generation=5,
    link_mb_per_s=53125,
)
GB10 = Card(
    name="NVIDIA GB10",
    device=0x2E12,
    capability=(12, 1),
    total_mib=None,
    ecc=None,
    generation=1,
    lanes=1,
)
RTX_4090 = Card(
    name="NVIDIA GeForce RTX 4090",
    device=0x2684,
    capability=(8, 9),
    total_mib=24564,
    reserved_mib=316,
    ecc=0,
)

_NVML_H = "nvml.h: the codes of returns, levels, P2P states, fields and fabric states."
_INVENTED = "and all that is not named here; UUIDs are invented"

_DGX_A100_SOURCES = """
    https://github.com/NVIDIA/nccl/issues/1505: a DGX A100 40GB: PCI device 0x20b0, the first GPU
    at 07:00.0 and the last at bd:00.0, each with two NVLinks to each of c7, c4, c6, c9, c5 and
    c8:00.0, which are of class 0x068000.

    https://github.com/NVIDIA/DCGM/issues/149: `nvidia-smi topo -m` of such a machine: NV12
    between all, NUMA nodes 3, 1 and 7 of the first six GPUs, NICs PXB to two GPUs each."""
_DGX_A100_FILLED = f"""the GPUs' other addresses and NUMA nodes, PXB between the two GPUs of a NIC,
    the order of the links, idle memory, {_INVENTED}."""
_DGX_A100 = Variant(
    name="",
    sources="",
    driver="550.54.15",
    cuda=12040,
    card=A100_40,
    seats=_seats("07 0f 47 4e 87 90 b7 bd", "3 3 1 1 7 7 5 5"),
    near=(("PXB", "01 23 45 67"),),
    switches=_switches("c7 c7 c4 c4 c6 c6 c9 c9 c5 c5 c8 c8"),
)

VARIANTS = (
    Variant(
        name="rtx3090-x4-bridged",
        sources=f"""
            https://github.com/noonghunna/club-3090/issues/688: a host of 4 x RTX 3090: names,
            24576 MiB, driver 595.71.05, buses 01 and 41, 16 lanes, at most generation 3.

            https://github.com/noonghunna/club-3090/issues/130: two bridged RTX 3090: CUDA 13.2,
            no ECC mode.

            https://github.com/vllm-project/vllm/issues/29070: `nvidia-smi topo -m` of 4 x A30 in
            two bridged pairs: NV4 within, SYS between, NUMA nodes 0 0 1 1.

            https://github.com/huggingface/transformers/issues/9371: four links of 14.0625 GB/s to
            a bridged pair of RTX 3090.

            {_NVML_H}

            Filled in: that this host has the bridges of the A30 host, buses 81 and c1, P2P CNS
            between the pairs, generation 1 while idle, memory in use, {_INVENTED}.
        """,
        driver="595.71.05",
        cuda=13020,
        card=RTX_3090,
        seats=_seats("01 41 81 c1", "0 0 1 1", generation=1, used_mib=1),
        wires="01x4 23x4",
        p2p_without_nvlink="CNS",
    ),
    Variant(
        name="dgx1v-cube",
        sources=f"""
            https://github.com/microsoft/msccl-tools: tests/test_topologies.py holds `nvidia-smi
            topo -m` of a DGX-1: every NV1, NV2 and SYS; NICs PIX to their two GPUs and PHB to the
            two others of the socket.

            https://github.com/NVIDIA/nccl/issues/671: NCCL's topology of a DGX-1V: PCI device
            0x1db5, buses 06 07 0a 0b 85 86, the same links, 8 GT/s x 16, GPUs 0 and 1 behind one
            PLX switch.

            https://github.com/Azure/azhpc-diagnostics/issues/73: `nvidia-smi nvlink -s` of a
            `Tesla V100-SXM2-32GB`: six links, the active ones at 25.781 GB/s.

            {_NVML_H}

            Filled in: buses 89 and 8a, the driver, memory, the order of the links, P2P TNS
            between GPUs without NVLink, {_INVENTED}.
        """,
        driver="535.129.03",
        cuda=12020,
        card=V100,
        seats=_seats("06 07 0a 0b 85 86 89 8a", "0 0 0 0 1 1 1 1"),
        near=(("PIX", "01 23 45 67"), ("PHB", "0123 4567")),
        wires="01x1 02x1 03x2 04x2 12x2 13x1 15x2 23x2 26x1 37x1 45x1 46x1 47x2 56x2 57x1 67x2",
        p2p_without_nvlink="TNS",
    ),
    Variant(
        name="a100-pcie-x4",
        sources=f"""
            https://github.com/vllm-project/vllm/issues/14944: `NVIDIA A100 80GB PCIe` under
            driver 550.127.05.

            https://github.com/bitsandbytes-foundation/bitsandbytes/issues/520: 81920 MiB, buses
            4f and 52.

            https://github.com/lattice/quda/issues/669: `nvidia-smi topo -m` of PCIe GPUs behind
            switches on two sockets: PXB within a socket, SYS between.

            {_NVML_H}

            Filled in: that these cards sit in such a host, buses ce and d1, NUMA nodes, P2P OK
            between all, memory in use, {_INVENTED}.
        """,
        driver="550.127.05",
        cuda=12040,
        card=A100_PCIE,
        seats=_seats("4f 52 ce d1", "0 0 1 1", used_mib=4),
        near=(("PXB", "01 23"),),
    ),
    Variant(
        name="l40s-x8",
        sources=f"""
            https://github.com/NVIDIA/nccl/issues/1817: `nvidia-smi topo -m` of 8 x L20 (the
            L40S's smaller sibling): PIX in pairs, NODE in a socket, SYS between, NUMA node 0
            first; buses 12 13 47 48 91 92 c4 c5; P2P works.

            https://github.com/NVIDIA/nccl-tests/issues/273: `nvidia-smi topo -m` of 8 x L40S:
            NODE in a socket, SYS between, NUMA nodes 0 0 0 0 1 1 1 1.

            {_NVML_H}

            Filled in: that the cards of the L20 host are L40S, 46068 MiB, the driver, memory in
            use, {_INVENTED}.
        """,
        driver="550.54.15",
        cuda=12040,
        card=L40S,
        seats=_seats("12 13 47 48 91 92 c4 c5", "0 0 0 0 1 1 1 1", used_mib=1),
        near=(("PIX", "01 23 45 67"), ("NODE", "0123 4567")),
    ),
    Variant(
        name="a100-mig",
        sources=f"""
            https://github.com/XuehaiPan/nvitop/pull/8: `nvidia-smi` of June 2022 on a host of
            A100-SXM4-80GB: GPU 0 whole with two processes, GPU 1 with three slices of 19968 MiB
            (2g.20gb by their 28 SMs), their memory in use and their processes.

            https://docs.nvidia.com/datacenter/tesla/fabric-manager-user-guide/index.html: MIG
            mode takes the NVLinks of an A100 away.

            {_NVML_H}

            Filled in: that the host has only these two of its four GPUs, twelve inactive NVLinks
            to each, PCI addresses, NUMA nodes, SYS and P2P NS between the two, the driver, what
            GPU 0 uses beyond its processes, {_INVENTED}.
        """,
        driver="515.48.07",
        cuda=11070,
        card=A100_80,
        seats=(
            Seat(
                bus="0000:01:00.0",
                node=0,
                used_mib=22481,
                processes=((29185, 10233), (33724, 12247)),
                down=frozenset(range(12)),
            ),
            Seat(
                bus="0000:41:00.0",
                node=1,
                used_mib=24259,
                down=frozenset(range(12)),
                slices=(
                    Slice(
                        profile="2g.20gb",
                        total_mib=19968,
                        used_mib=14366,
                        processes=((17967, 149), (34965, 14195)),
                    ),
                    Slice(
                        profile="2g.20gb",
                        total_mib=19968,
                        used_mib=9880,
                        processes=((10108, 9861),),
                    ),
                    Slice(profile="2g.20gb", total_mib=19968, used_mib=13),
                ),
            ),
        ),
        wires="01x12",
        p2p_without_nvlink="NS",
    ),
    Variant(
        name="a100-mig-container",
        sources=f"""
            https://github.com/NVIDIA/nvidia-container-toolkit/issues/842: in a container with a
            MIG device of an A100 or H100, nvmlDeviceGetMemoryInfo of the whole GPU answers
            NO_PERMISSION.

            https://github.com/ollama/ollama/issues/932: the same with driver 535.104.12 and CUDA
            12.2; `nvidia-smi` lists the GPU and its MIG device.

            {_NVML_H}

            Filled in: an A100-SXM4-80GB with one 3g.40gb slice of 40192 MiB, NO_PERMISSION for
            the processes too, the PCI address, twelve inactive NVLinks, {_INVENTED}.
        """,
        driver="535.104.12",
        cuda=12020,
        card=A100_80,
        seats=(
            Seat(
                bus="0000:07:00.0",
                in_container=True,
                down=frozenset(range(12)),
                slices=(Slice(profile="3g.40gb", total_mib=40192, used_mib=37),),
            ),
        ),
        switches=(HIDDEN_SWITCH,) * 12,
    ),
    Variant(
        name="gb10",
        sources=f"""
            https://github.com/XuehaiPan/nvitop/pull/208: a comment with NVML's answers on a DGX
            Spark under driver 580.173.02: both memory calls NOT_SUPPORTED, MemTotal,
            MemAvailable, bus 0000000F:01:00.0.

            https://github.com/NVIDIA/k8s-device-plugin/issues/1482: `nvidia-smi`: `NVIDIA GB10`,
            CUDA 13.0, no ECC, no MIG.

            https://github.com/Syllo/nvtop/issues/426: PCIe generation 1, one lane.

            {_NVML_H}

            Filled in: that one lane of generation 1 is also the most, the PCI device,
            {_INVENTED}.
        """,
        driver="580.173.02",
        cuda=13000,
        card=GB10,
        seats=(Seat(bus="000f:01:00.0"),),
        texts={
            "proc/meminfo": "MemTotal:       127600748 kB\nMemAvailable:   118566368 kB\n",
        },
    ),
    replace(
        _DGX_A100,
        name="a100-x8-lost-gpu",
        sources=f"""
            {_DGX_A100_SOURCES}

            https://github.com/NVIDIA/k8s-device-plugin/issues/231: the fourth GPU of a host is
            lost: its handle cannot be had (`GPU is lost`), the others work.

            https://github.com/rossumai/nvgpu/issues/6: nvmlDeviceGetHandleByIndex raises
            NVMLError_GpuIsLost.

            {_NVML_H}

            Filled in: that it happens to a DGX A100, the driver, {_DGX_A100_FILLED}
        """,
        driver="535.129.03",
        cuda=12020,
        seats=_change(_DGX_A100.seats, 3, is_lost=True),
    ),
    replace(
        _DGX_A100,
        name="a100-x8-switch-down",
        sources=f"""
            {_DGX_A100_SOURCES}

            https://docs.nvidia.com/datacenter/tesla/fabric-manager-user-guide/index.html:
            NVSWITCH_FAILURE_MODE=1 disables a failed NVSwitch, which leaves 5/6 of the bandwidth;
            on A100 machines alone: on others Fabric Manager aborts and no CUDA program starts.

            {_NVML_H}

            Filled in: that c9:00.0 failed, that its two links of each GPU show as inactive and
            have no other end, the driver, {_DGX_A100_FILLED}
        """,
        seats=tuple(replace(seat, down=frozenset({6, 7})) for seat in _DGX_A100.seats),
    ),
    replace(
        _DGX_A100,
        name="a100-r450",
        sources=f"""
            https://github.com/pytorch/pytorch/issues/45028: `nvidia-smi` of an `A100-SXM4-40GB`
            (no NVIDIA in the name) under driver 450.119.03, CUDA 11.0: 1404 of 40537 MiB in use.

            {_DGX_A100_SOURCES}

            nvidia-ml-py 11.450.129 on PyPI: which calls and fields R450 has, and has not.

            {_NVML_H}

            Filled in: that it is a DGX A100, the same memory on all its GPUs, INVALID_ARGUMENT
            for fields newer than the driver, {_DGX_A100_FILLED}
        """,
        driver="450.119.03",
        cuda=11000,
        card=replace(A100_40, name="A100-SXM4-40GB", total_mib=40537, reserved_mib=0),
        seats=tuple(replace(seat, used_mib=1404) for seat in _DGX_A100.seats),
    ),
    Variant(
        name="rtx4090-x2-idle-gen1",
        sources=f"""
            https://github.com/vllm-project/vllm/issues/3991: 2 x `NVIDIA GeForce RTX 4090` under
            driver 535.129.03.

            https://github.com/tinygrad/open-gpu-kernel-modules/issues/6: `lspci` of an idle RTX
            4090: 2.5 GT/s (downgraded) on 16 lanes.

            https://github.com/noonghunna/club-3090/issues/1095: `lspci` of an idle card of 16
            lanes on 8: LnkCap 16 GT/s x16, LnkSta 2.5 GT/s (downgraded), x8 (downgraded).

            https://github.com/noonghunna/club-3090/issues/1229: two GeForce cards: PHB, P2P GNS.

            https://github.com/geerlingguy/raspberry-pi-pcie-devices/issues/504: PCI device 2684.

            {_NVML_H}

            Filled in: that all this is one host, 24564 MiB, buses, NUMA node, ECC off, memory in
            use, {_INVENTED}.
        """,
        driver="535.129.03",
        cuda=12020,
        card=RTX_4090,
        seats=_change(_seats("01 02", "0 0", generation=1, used_mib=10), 1, lanes=8),
        far="PHB",
        p2p_without_nvlink="GNS",
    ),
    Variant(
        name="h100-x8-fabric-not-ready",
        sources=f"""
            https://github.com/NVIDIA/gpu-operator/issues/2511: `nvidia-smi -q` of a node of 8
            GPUs under driver 580.159.04 whose Fabric State stays In Progress: CUDA does not
            start.

            https://github.com/NVIDIA/NVSentinel/issues/883: H100 nodes without a working Fabric
            Manager.

            https://github.com/NVIDIA/nccl/issues/1182: `nvidia-smi nvlink -R` of an H100: the
            NVSwitch at the end of each of 18 links, 05 to 08:00.0.

            https://github.com/aliyun/SimAI/issues/128: PCI device 0x2330, switches of class
            0x068000, 32 GT/s x 16.

            https://github.com/NVIDIA/nccl/issues/1264: `nvidia-smi` and `topo -m` of 8 x H100:
            81559 MiB, buses 18 and 2a, NV18 when ready, NUMA nodes 0 0 0 0 1 1 1 1, the NIC of a
            GPU SYS to all others.

            {_NVML_H}

            Filled in: that all this is one host, the other buses, one order of links for all
            GPUs, links active and P2P OK although the fabric is not ready (so that its state
            alone tells), memory in use, {_INVENTED}.
        """,
        driver="580.159.04",
        cuda=13000,
        card=H100,
        seats=_seats("18 2a 3a 5d 9a ab ba db", "0 0 0 0 1 1 1 1"),
        switches=_switches("07 07 06 06 07 07 06 06 05 05 07 06 08 08 05 05 08 08"),
        fabric_state=2,
    ),
    Variant(
        name="b200-x8-odd-gpu",
        sources=f"""
            https://github.com/vllm-project/vllm/issues/16336: `nvidia-smi topo -m` of 8 x B200:
            NV18 between all but GPU 2, which is NODE to 0, 1 and 3 and SYS to the rest; NUMA
            nodes 0 0 0 0 1 1 of the first six; a container of CUDA 12.8.1.

            The recordings of H200 hosts beside this folder: what NVML gives for NVSwitches that
            it cannot name.

            {_NVML_H}

            Filled in: why (all links of GPU 2 inactive, its fabric state completed as that of the
            others), P2P OK over PCIe, the last GPU, buses, 183359 MiB, the driver, memory in use,
            {_INVENTED}.
        """,
        driver="570.124.06",
        cuda=12080,
        card=B200,
        seats=_change(
            _seats("1b 43 52 61 9d c3 d1 df", "0 0 0 0 1 1 1 1"), 2, down=frozenset(range(18))
        ),
        near=(("NODE", "0123 4567"),),
        switches=(HIDDEN_SWITCH,) * 18,
    ),
)


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, text in render_all().items():
        (FOLDER / name).write_text(text, encoding="utf-8")
    sys.stdout.write(f"{len(VARIANTS)} recordings written\n")
