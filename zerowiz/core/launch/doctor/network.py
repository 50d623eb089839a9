"""Check how the ranks meet, and variables that make them slower than the machine is."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from zerowiz.core.launch.doctor import rules
from zerowiz.core.launch.doctor.finding import PreflightFinding, found
from zerowiz.core.launch.doctor.situation import Situation
from zerowiz.core.machine.network import NetworkKind
from zerowiz.core.machine.types import Machine
from zerowiz.core.memory.allocator import expands_segments
from zerowiz.core.rule import Rule

_RDMA = frozenset({NetworkKind.INFINIBAND, NetworkKind.ROCE, NetworkKind.EFA})


def _port(s: Situation) -> Iterator[PreflightFinding]:
    if s.found.port_taken:
        yield found(
            rules.PORT_TAKEN,
            f"somebody listens on port {s.found.master_port} (`MASTER_PORT`)",
            f"`ss -ltnp 'sport = :{s.found.master_port}'` tells who",
            "choose another for all nodes: `export MASTER_PORT=...`",
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Switch:
    """A variable, and when its value works against the machine."""

    variable: str
    is_bad: Callable[[str, Machine], bool]
    rule: Rule
    why: str


def _is_on(text: str) -> bool:
    """NCCL, ncclLoadParam: a number that is not 0."""
    return text.strip().lstrip("+-").lstrip("0")[:1].isdigit()


def _has_nvlink(machine: Machine) -> bool:
    return any(link.nvlinks for link in machine.links)


def _between_rdma(machine: Machine) -> bool:
    return machine.nodes > 1 and any(nic.kind in _RDMA for nic in machine.network.nics)


# NCCL user guide, environment variables. ZeRO-2 took 1.75 s a step without peer-to-peer, and
# 0.43 s over NVLink (docs/accuracy.md's machines).
_SWITCHES = (
    _Switch(
        variable="NCCL_P2P_DISABLE",
        is_bad=lambda text, machine: _is_on(text) and _has_nvlink(machine),
        rule=rules.SLOW_BY_CHOICE,
        why="the GPUs have NVLink, and NCCL copies through the host",
    ),
    _Switch(
        variable="NCCL_SHM_DISABLE",
        is_bad=lambda text, machine: (
            _is_on(text) and len(machine.gpus) > 1 and not _has_nvlink(machine)
        ),
        rule=rules.SLOW_BY_CHOICE,
        why="without shared memory NCCL may go over TCP within a node",
    ),
    _Switch(
        variable="NCCL_IB_DISABLE",
        is_bad=lambda text, machine: _is_on(text) and _between_rdma(machine),
        rule=rules.NO_SUCH_ADAPTER,
        why="the nodes have RDMA adapters",
    ),
    _Switch(
        variable="NCCL_NET",
        is_bad=lambda text, machine: text.lower() == "socket" and _between_rdma(machine),
        rule=rules.NO_SUCH_ADAPTER,
        why="the nodes have RDMA adapters",
    ),
    _Switch(
        variable="CUDA_LAUNCH_BLOCKING",
        is_bad=lambda text, _: _is_on(text),
        rule=rules.SLOW_BY_CHOICE,
        why="each kernel is waited for, which is for finding faults",
    ),
)


def _switches(s: Situation) -> Iterator[PreflightFinding]:
    for switch in _SWITCHES if s.on_gpus else ():
        text = s.environ.get(switch.variable)
        if text is not None and s.machine is not None and switch.is_bad(text, s.machine):
            yield found(
                switch.rule,
                f"`{switch.variable}={text}`: {switch.why}",
                f"unset {switch.variable}",
            )


def _meets_over_nccl(s: Situation) -> bool:
    return s.on_gpus


def _meets_over_gloo(s: Situation) -> bool:
    return s.machine is not None and not s.on_gpus


def _goes_over_rdma(s: Situation) -> bool:
    return s.on_gpus and s.machine is not None and _between_rdma(s.machine)


# NCCL, misc/socket.cc: where nothing has the name, `Bootstrap : no socket interface found`, on one
# node as well. torch, ProcessGroupGloo::createDeviceForInterface: `Unable to find address for`.
_INTERFACES = (
    ("NCCL_SOCKET_IFNAME", _meets_over_nccl, rules.NO_SUCH_INTERFACE),
    ("GLOO_SOCKET_IFNAME", _meets_over_gloo, rules.NO_SUCH_INTERFACE),
    ("NCCL_IB_HCA", _goes_over_rdma, rules.NO_SUCH_ADAPTER),
)


def _interfaces(s: Situation) -> Iterator[PreflightFinding]:
    for variable, is_used, rule in _INTERFACES:
        if s.found.interfaces.get(variable) is False and is_used(s):
            yield found(
                rule,
                f"`{variable}={s.environ.get(variable, '')}` names nothing on this host",
                f"unset {variable}",
                "`ls /sys/class/net /sys/class/infiniband` lists what there is",
            )


def _allocator(s: Situation) -> Iterator[PreflightFinding]:
    if s.on_gpus and not expands_segments(s.environ):
        names = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
        said = next(f"{name}={s.environ[name]}" for name in names if name in s.environ)
        yield found(
            rules.FRAGMENTS,
            f"`{said}` has no `expandable_segments:True`",
            f"export {said},expandable_segments:True",
        )


CHECKS = (_port, _interfaces, _switches, _allocator)
