"""Check how the ranks meet, and variables that make them slower than the machine is."""

from collections.abc import Callable, Iterator

from msgspec import Struct

from zerowiz.core.launch.doctor.finding import PreflightFinding, found
from zerowiz.core.launch.doctor.inputs import PreflightInput
from zerowiz.core.machine.network import NetworkKind
from zerowiz.core.machine.types import Machine
from zerowiz.core.memory.allocator import expands_segments
from zerowiz.core.rule import Rule, Severity
from zerowiz.words import _

_RDMA = frozenset({NetworkKind.INFINIBAND, NetworkKind.ROCE, NetworkKind.EFA})


PORT_TAKEN = Rule(
    code="PF601",
    name="port-taken",
    severity=Severity.ERROR,
    why=_("the ranks cannot open the port where they connect to each other"),
    when=_("another process uses the `MASTER_PORT` of a job on several nodes"),
)


def _port(inputs: PreflightInput) -> Iterator[PreflightFinding]:
    if inputs.facts.port_taken:
        yield found(
            PORT_TAKEN,
            _(
                "another process uses port {master_port} (`MASTER_PORT`)",
                master_port=inputs.facts.master_port,
            ),
            _(
                "see which: `ss -ltnp 'sport = :{master_port}'`",
                master_port=inputs.facts.master_port,
            ),
            _("or set another port on all nodes: `export MASTER_PORT=29501`"),
        )


class _Switch(Struct, frozen=True, kw_only=True):
    """A variable, and when its value works against the machine."""

    variable: str
    is_bad: Callable[[str, Machine], bool]
    rule: Rule
    why: str


def _is_on(text: str) -> bool:
    """NCCL, ncclLoadParam: a number that is not 0."""
    return text.strip().lstrip("+-").lstrip("0")[:1].isdigit()


def _has_nvlink(machine: Machine) -> bool:
    return any(gpu.nvlinks for gpu in machine.gpus)


def _between_rdma(machine: Machine) -> bool:
    return machine.nodes > 1 and any(nic.kind in _RDMA for nic in machine.network.nics)


NO_SUCH_ADAPTER = Rule(
    code="PF603",
    name="no-such-adapter",
    severity=Severity.WARNING,
    why=_("NCCL uses TCP instead, which is many times slower"),
    when=_("RDMA between nodes is disabled, or `NCCL_IB_HCA` names no adapter"),
)
SLOW_BY_CHOICE = Rule(
    code="PF604",
    name="slow-by-choice",
    severity=Severity.WARNING,
    why=_("the job runs slower than it could"),
    when=_(
        "`NCCL_P2P_DISABLE` with NVLink, `NCCL_SHM_DISABLE` without, `CUDA_LAUNCH_BLOCKING`,"
        " bf16 before Ampere or on a CPU that emulates it"
    ),
)


# NCCL user guide, environment variables. ZeRO-2 took 1.75 s a step without peer-to-peer, and
# 0.43 s over NVLink (docs/accuracy.md's machines).
_SWITCHES = (
    _Switch(
        variable="NCCL_P2P_DISABLE",
        is_bad=lambda text, machine: _is_on(text) and _has_nvlink(machine),
        rule=SLOW_BY_CHOICE,
        why=_("the GPUs have NVLink, but NCCL will copy through the host"),
    ),
    _Switch(
        variable="NCCL_SHM_DISABLE",
        is_bad=lambda text, machine: (
            _is_on(text) and len(machine.gpus) > 1 and not _has_nvlink(machine)
        ),
        rule=SLOW_BY_CHOICE,
        why=_("without shared memory, NCCL may use TCP within a node"),
    ),
    _Switch(
        variable="NCCL_IB_DISABLE",
        is_bad=lambda text, machine: _is_on(text) and _between_rdma(machine),
        rule=NO_SUCH_ADAPTER,
        why=_("the nodes have RDMA adapters"),
    ),
    _Switch(
        variable="NCCL_NET",
        is_bad=lambda text, machine: text.lower() == "socket" and _between_rdma(machine),
        rule=NO_SUCH_ADAPTER,
        why=_("the nodes have RDMA adapters"),
    ),
    _Switch(
        variable="CUDA_LAUNCH_BLOCKING",
        is_bad=lambda text, _: _is_on(text),
        rule=SLOW_BY_CHOICE,
        why=_("CUDA waits for every kernel, which is meant for debugging"),
    ),
)


def _switches(inputs: PreflightInput) -> Iterator[PreflightFinding]:
    for switch in _SWITCHES if inputs.on_gpus else ():
        text = inputs.environ.get(switch.variable)
        if text is not None and inputs.machine is not None and switch.is_bad(text, inputs.machine):
            yield found(
                switch.rule,
                f"`{switch.variable}={text}`: " + switch.why,
                f"unset {switch.variable}",
            )


def _meets_over_nccl(inputs: PreflightInput) -> bool:
    return inputs.on_gpus


def _meets_over_gloo(inputs: PreflightInput) -> bool:
    return inputs.machine is not None and not inputs.on_gpus


def _goes_over_rdma(inputs: PreflightInput) -> bool:
    return inputs.on_gpus and inputs.machine is not None and _between_rdma(inputs.machine)


NO_SUCH_INTERFACE = Rule(
    code="PF602",
    name="no-such-interface",
    severity=Severity.ERROR,
    why=_("the ranks find no network interface to connect through"),
    when=_(
        "`NCCL_SOCKET_IFNAME` (`GLOO_SOCKET_IFNAME` on the CPU) names no interface of this host"
    ),
)


# NCCL, misc/socket.cc: where nothing has the name, `Bootstrap : no socket interface found`, on one
# node as well. torch, ProcessGroupGloo::createDeviceForInterface: `Unable to find address for`.
_INTERFACES = (
    ("NCCL_SOCKET_IFNAME", _meets_over_nccl, NO_SUCH_INTERFACE),
    ("GLOO_SOCKET_IFNAME", _meets_over_gloo, NO_SUCH_INTERFACE),
    ("NCCL_IB_HCA", _goes_over_rdma, NO_SUCH_ADAPTER),
)


def _interfaces(inputs: PreflightInput) -> Iterator[PreflightFinding]:
    for variable, is_used, rule in _INTERFACES:
        if inputs.facts.interfaces.get(variable) is False and is_used(inputs):
            yield found(
                rule,
                _(
                    "`{variable}={value}` names no interface of this host",
                    variable=variable,
                    value=inputs.environ.get(variable, ""),
                ),
                f"unset {variable}",
                _("`ls /sys/class/net /sys/class/infiniband` lists those that exist"),
            )


FRAGMENTS = Rule(
    code="PF605",
    name="fragments",
    severity=Severity.INFO,
    why=_(
        "without it, torch reserves up to a third more memory than it uses; the plan allows for"
        " that"
    ),
    when=_("the allocator setting lacks `expandable_segments:True`"),
)


def _allocator(inputs: PreflightInput) -> Iterator[PreflightFinding]:
    if inputs.on_gpus and not expands_segments(inputs.environ):
        names = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
        setting = next(f"{name}={inputs.environ[name]}" for name in names if name in inputs.environ)
        yield found(
            FRAGMENTS,
            _("`{setting}` lacks `expandable_segments:True`", setting=setting),
            f"export {setting},expandable_segments:True",
        )


def check_network(inputs: PreflightInput) -> Iterator[PreflightFinding]:
    """The port, the interfaces, and variables of NCCL and of the allocator."""
    for each in (_port, _interfaces, _switches, _allocator):
        yield from each(inputs)
