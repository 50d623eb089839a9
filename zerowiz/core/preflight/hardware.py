"""Check the GPUs, the host and the network that the ranks get."""

from collections.abc import Callable, Iterator, Mapping

from msgspec import Struct

from zerowiz.core import shell
from zerowiz.core.decision.job import BF16_IS_EMULATED, emulates_bf16
from zerowiz.core.findings import PreflightFinding, Rule, Severity, found, size
from zerowiz.core.machine.types import UNLIMITED_BYTES, Machine, NetworkKind
from zerowiz.core.memory.buffers import expands_segments
from zerowiz.core.memory.host import HostPhase, offload_to_nvme
from zerowiz.core.preflight.facts import PlannedJob, PreflightInput
from zerowiz.core.workload import Method, Precision, Workload

# NICs of which a job locks the memory that it registers; Linux, RLIMIT_MEMLOCK, ibv_reg_mr(3).
_RDMA = frozenset({NetworkKind.INFINIBAND, NetworkKind.ROCE, NetworkKind.EFA})


PORT_TAKEN = Rule(
    code="PF601",
    name="port-taken",
    severity=Severity.ERROR,
    why="the ranks cannot open the port where they connect to each other",
    when="another process uses the `MASTER_PORT` of a job on several nodes",
)


def _port(inputs: PreflightInput) -> Iterator[PreflightFinding]:
    if inputs.facts.port_taken:
        yield found(
            PORT_TAKEN,
            f"another process uses port {inputs.facts.master_port} (`MASTER_PORT`)",
            f"see which: `ss -ltnp 'sport = :{inputs.facts.master_port}'`",
            "or set another port on all nodes: `export MASTER_PORT=29501`",
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
    why="NCCL uses TCP instead, which is many times slower",
    when="RDMA between nodes is disabled, or `NCCL_IB_HCA` names no adapter",
)
SLOW_BY_CHOICE = Rule(
    code="PF604",
    name="slow-by-choice",
    severity=Severity.WARNING,
    why="the job runs slower than it could",
    when=(
        "`NCCL_P2P_DISABLE` with NVLink, `NCCL_SHM_DISABLE` without, "
        "`CUDA_LAUNCH_BLOCKING`, bf16 before Ampere or on a CPU that emulates it"
    ),
)


# NCCL user guide, environment variables. ZeRO-2 took 1.75 s a step without peer-to-peer, and
# 0.43 s over NVLink (docs/accuracy.md's machines).
_SWITCHES = (
    _Switch(
        variable="NCCL_P2P_DISABLE",
        is_bad=lambda text, machine: _is_on(text) and _has_nvlink(machine),
        rule=SLOW_BY_CHOICE,
        why="the GPUs have NVLink, but NCCL will copy through the host",
    ),
    _Switch(
        variable="NCCL_SHM_DISABLE",
        is_bad=lambda text, machine: (
            _is_on(text) and len(machine.gpus) > 1 and not _has_nvlink(machine)
        ),
        rule=SLOW_BY_CHOICE,
        why="without shared memory, NCCL may use TCP within a node",
    ),
    _Switch(
        variable="NCCL_IB_DISABLE",
        is_bad=lambda text, machine: _is_on(text) and _between_rdma(machine),
        rule=NO_SUCH_ADAPTER,
        why="the nodes have RDMA adapters",
    ),
    _Switch(
        variable="NCCL_NET",
        is_bad=lambda text, machine: text.lower() == "socket" and _between_rdma(machine),
        rule=NO_SUCH_ADAPTER,
        why="the nodes have RDMA adapters",
    ),
    _Switch(
        variable="CUDA_LAUNCH_BLOCKING",
        is_bad=lambda text, _: _is_on(text),
        rule=SLOW_BY_CHOICE,
        why="CUDA waits for every kernel, which is meant for debugging",
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
    why="the ranks find no network interface to connect through",
    when="`NCCL_SOCKET_IFNAME` (`GLOO_SOCKET_IFNAME` on the CPU) names no interface of this host",
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
                (
                    f"`{variable}={inputs.environ.get(variable, '')}` names no interface of "
                    "this host"
                ),
                f"unset {variable}",
                "`ls /sys/class/net /sys/class/infiniband` lists those that exist",
            )


FRAGMENTS = Rule(
    code="PF605",
    name="fragments",
    severity=Severity.INFO,
    why=(
        "without it, torch reserves up to a third more memory than it uses; the plan allows "
        "for that"
    ),
    when="the allocator setting lacks `expandable_segments:True`",
)


def _allocator(inputs: PreflightInput) -> Iterator[PreflightFinding]:
    if inputs.on_gpus and not expands_segments(inputs.environ):
        names = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
        setting = next(f"{name}={inputs.environ[name]}" for name in names if name in inputs.environ)
        yield found(
            FRAGMENTS,
            f"`{setting}` lacks `expandable_segments:True`",
            f"export {setting},expandable_segments:True",
        )


def check_network(inputs: PreflightInput) -> Iterator[PreflightFinding]:
    """The port, the interfaces, and variables of NCCL and of the allocator."""
    for check in (_port, _interfaces, _switches, _allocator):
        yield from check(inputs)


# Check that torch, the driver and the number format fit the chosen GPUs, or the CPU.

# NVIDIA, CUDA compatibility, minor version compatibility: from CUDA 11 on a driver runs what any
# release of its own major version built, and what older ones did. What NVML tells is that of the
# libcuda which is loaded, so a forward compatibility package counts.
_FIRST_COMPATIBLE_MAJOR = 11

# Linux drivers by the major version of CUDA; same page, table 1.
_DRIVERS = {11: "450", 12: "525", 13: "580"}

# Reinstalling picks the build for another CUDA; https://pytorch.org/get-started/locally.
_TORCH_PAGE = "choose a build at https://pytorch.org/get-started/locally"

# deepspeed/accelerator/cuda_accelerator.py, is_fp16_supported (0.19.8).
_FP16_MAJOR = 7
_DEPRECATED_FP16 = (6, "DS_ALLOW_DEPRECATED_FP16")


ACCELERATOR = Rule(
    code="PF307",
    name="accelerator",
    severity=Severity.ERROR,
    why="DeepSpeed uses the device that the variable names",
    when="`DS_ACCELERATOR` conflicts with the plan",
)


def _accelerator(inputs: PreflightInput) -> Iterator[PreflightFinding]:
    """A launch sets the variable for the CPU alone."""
    name = inputs.environ.get("DS_ACCELERATOR")
    if name is not None and inputs.on_gpus and name != "cuda":
        yield found(
            ACCELERATOR,
            f"`DS_ACCELERATOR={name}` is set, but the plan is for GPUs",
            "unset DS_ACCELERATOR",
            "use the CPU instead: `$accelerator cpu`",
        )


TORCH_WITHOUT_CUDA = Rule(
    code="PF302",
    name="torch-without-cuda",
    severity=Severity.ERROR,
    why="torch sees none of the GPUs",
    when="torch is a build for the CPU or ROCm, and the GPUs are NVIDIA's",
)


def _cuda_build(inputs: PreflightInput) -> Iterator[PreflightFinding]:
    torch = inputs.facts.torch
    if inputs.on_gpus and torch is not None and torch.cuda_version is None:
        kind = "ROCm" if torch.hip else "the CPU"
        yield found(
            TORCH_WITHOUT_CUDA,
            f"torch {torch.version} is a build for {kind}",
            _TORCH_PAGE,
        )


OLD_DRIVER = Rule(
    code="PF303",
    name="old-driver",
    severity=Severity.ERROR,
    why="a driver supports its own major version of CUDA and older ones only",
    when="torch is built for a newer major version of CUDA than the driver supports",
)


def _driver(inputs: PreflightInput) -> Iterator[PreflightFinding]:
    torch, machine = inputs.facts.torch, inputs.machine
    if machine is None or not inputs.on_gpus or torch is None or torch.cuda_version is None:
        return
    newest = machine.cuda_version
    if newest is None:
        return
    same_major = torch.cuda_version[0] <= newest[0] and newest[0] >= _FIRST_COMPATIBLE_MAJOR
    if same_major or torch.cuda_version <= newest:
        return
    wanted, least = _dotted(torch.cuda_version), _DRIVERS.get(torch.cuda_version[0])
    yield found(
        OLD_DRIVER,
        (
            f"torch {torch.version} is built for CUDA {wanted}, and driver "
            f"{machine.driver_version or 'here'} supports up to {_dotted(newest)}"
        ),
        f"install a torch built for CUDA {newest[0]}: {_TORCH_PAGE}",
        *([f"or install driver {least} or later"] if least else []),
    )


NO_CODE_FOR_GPU = Rule(
    code="PF304",
    name="no-code-for-gpu",
    severity=Severity.ERROR,
    why="the first kernel fails with `no kernel image is available`",
    when="the GPU is too old for this release of torch",
)


def _code(inputs: PreflightInput) -> Iterator[PreflightFinding]:
    """An older GPU than any that there is code for; a newer one may have its code made."""
    torch, machine = inputs.facts.torch, inputs.machine
    if machine is None or not inputs.on_gpus or torch is None or not torch.capabilities:
        return
    oldest = min(torch.capabilities)
    for gpu in machine.gpus:
        capability = gpu.compute_capability
        if capability is not None and capability < oldest:
            yield found(
                NO_CODE_FOR_GPU,
                (
                    f"torch {torch.version} supports compute capability {_dotted(oldest)} "
                    f"and later, and GPU {gpu.label} ({gpu.name}) is {_dotted(capability)}"
                ),
                f"install a torch built for an older CUDA: {_TORCH_PAGE}",
            )


BUSY_GPU = Rule(
    code="PF305",
    name="busy-gpu",
    severity=Severity.INFO,
    why="the plan uses the memory that is free now",
    when="other processes use a GPU of the job",
)


def _busy(inputs: PreflightInput) -> Iterator[PreflightFinding]:
    for gpu in () if inputs.machine is None or not inputs.on_gpus else inputs.machine.gpus:
        if gpu.processes:
            pids = " ".join(str(process.pid) for process in gpu.processes)
            names = ", ".join(f"{p.name or 'a process'} ({p.pid})" for p in gpu.processes)
            yield found(
                BUSY_GPU,
                f"GPU {gpu.label} is in use by {names}",
                f"see whose they are with `ps -fp {pids}`, or choose other GPUs with `$gpus`",
            )


def _precision(inputs: PreflightInput) -> Iterator[PreflightFinding]:
    if inputs.planned is None or inputs.machine is None:
        return
    step = inputs.planned.job.workload
    if not inputs.on_gpus:
        yield from _precision_on_cpu(inputs.machine, step)
        return
    formats = {step.precision, step.torch_autocast}
    if Precision.FP16 in formats:
        yield from _fp16(inputs, inputs.machine)
    if Precision.BF16 in formats and not inputs.machine.takes_bf16:
        gpu = min(inputs.machine.gpus, key=lambda gpu: gpu.compute_capability or (99, 0))
        yield found(
            SLOW_BY_CHOICE,
            f"the job uses bf16, and GPU {gpu.label} ({gpu.name}) has no matrix units for it",
            "use fp16, unless the script sets bf16: `$precision fp16`",
        )


HALF_PRECISION = Rule(
    code="PF306",
    name="half-precision",
    severity=Severity.ERROR,
    why="DeepSpeed rejects fp16 on this device",
    when="fp16 on a GPU or CPU that DeepSpeed does not support it on",
)


def _precision_on_cpu(machine: Machine, step: Workload) -> Iterator[PreflightFinding]:
    fixes = ("`$precision fp32`", "if the script sets fp16, remove that")
    # deepspeed/runtime/engine.py, _do_sanity_check (0.19.8); autocast does not ask.
    if step.precision is Precision.FP16 and machine.host.computes_fp16 is False:
        yield found(
            HALF_PRECISION, "the job uses fp16, and this CPU has no fp16 instructions", *fixes
        )
    if emulates_bf16(machine, step):
        yield found(SLOW_BY_CHOICE, BF16_IS_EMULATED, *fixes)


def _fp16(inputs: PreflightInput, machine: Machine) -> Iterator[PreflightFinding]:
    major, variable = _DEPRECATED_FP16
    allowed = inputs.environ.get(variable) == "1"
    for gpu in machine.gpus:
        capability = gpu.compute_capability
        if capability is None or capability[0] >= _FP16_MAJOR:
            continue
        if not (allowed and capability[0] == major):
            yield found(
                HALF_PRECISION,
                (
                    f"the job uses fp16, and GPU {gpu.label} ({gpu.name}) has compute "
                    f"capability {_dotted(capability)}"
                ),
                "use fp32, unless the script sets fp16: `$precision fp32`",
                *([f"or `export {variable}=1`"] if capability[0] == major else []),
            )


def _dotted(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"


def check_gpus(inputs: PreflightInput) -> Iterator[PreflightFinding]:
    """The accelerator, torch's build, the driver, other processes and the number format."""
    for check in (_accelerator, _cuda_build, _driver, _code, _busy, _precision):
        yield from check(inputs)


# Check the memory, the limits and the disks of the host.

# NVIDIA, NCCL user guide, troubleshooting, shared memory: the size for a container.
_SHM_OF_NCCL_BYTES = 2**30
# deepspeed/ops/csrc/cpu/comm/shm.cpp, allreduce_workspace (0.19.8). With less, two ranks trained,
# and ended with signal 11 at the first `inference_all_reduce` (tried with 40 and 64 MiB).
_SHM_OF_CPU_RANK_BYTES = 2 * 2**20 + 2 * 32 * 2**20

_SHM = "/dev/shm"  # noqa: S108 - shared memory, not a file of ours
_CONTAINER = (
    "in a container: `docker run --shm-size=8g`; in Kubernetes an `emptyDir` of `medium: Memory`"
)
# DeepSpeed's buffers of CPU ranks stay there after a job that was killed.
_LEFT_BEHIND = f"rm {_SHM}/deepspeed_allreduce_buffer_*"


NVME_FOLDER = Rule(
    code="PF501",
    name="nvme-folder",
    severity=Severity.ERROR,
    why="DeepSpeed cannot write the offloaded states",
    when="the folder for NVMe offload does not exist or is not writable",
)
NVME_FULL = Rule(
    code="PF502",
    name="nvme-full",
    severity=Severity.ERROR,
    why="the offloaded states do not fit on the drive",
    when="the drive has less free space than the ranks write",
)


def _nvme(inputs: PreflightInput) -> Iterator[PreflightFinding]:
    folder, planned = inputs.facts.nvme, inputs.planned
    if folder is None or planned is None or not planned.evaluated.buffers.on_nvme:
        return
    if folder.is_folder is False:
        yield found(
            NVME_FOLDER,
            f"`{folder.path}` is not a folder",
            f"mkdir -p {shell.quote(folder.path)}",
        )
    elif folder.writable is False:
        yield found(
            NVME_FOLDER,
            f"`{folder.path}` cannot be written to",
            (
                f"`sudo install -d -o $USER {shell.quote(folder.path)}/$USER`, then use "
                f"`$nvme_path {shell.quote(folder.path)}/$USER`"
            ),
        )
    elif folder.free_bytes is not None:
        offload = offload_to_nvme(planned.job.model, planned.evaluated.estimate.rank)
        need_bytes = offload.node_bytes(len(planned.job.machine.gpus))
        if need_bytes > folder.free_bytes:
            yield found(
                NVME_FULL,
                (
                    f"`{folder.path}` has {size(folder.free_bytes)} free, and the ranks "
                    f"write {size(need_bytes)}"
                ),
                "choose another drive with `$nvme_path DIR`",
                severity=Severity.WARNING if folder.holds_states else Severity.ERROR,
            )


SMALL_SHM = Rule(
    code="PF503",
    name="small-shm",
    severity=Severity.WARNING,
    why=(
        "ranks and data loaders exchange data through it: a rank dies with a bus error or a "
        "segmentation fault"
    ),
    when="`/dev/shm` is too small for the ranks, as the 64 MiB of a default container",
)


def _shm(inputs: PreflightInput) -> Iterator[PreflightFinding]:
    machine, free_bytes = inputs.machine, inputs.facts.shm_free_bytes
    if machine is None or free_bytes is None or len(machine.gpus) == 1:
        return
    if inputs.on_gpus:
        if (machine.host.shm_bytes or free_bytes) < _SHM_OF_NCCL_BYTES:
            size_bytes = machine.host.shm_bytes or free_bytes
            yield found(
                SMALL_SHM,
                f"{_SHM} has {size(size_bytes)}; NCCL asks for {size(_SHM_OF_NCCL_BYTES)}",
                _CONTAINER,
            )
        return
    need_bytes = _SHM_OF_CPU_RANK_BYTES * len(machine.gpus)
    if free_bytes < need_bytes:
        yield found(
            SMALL_SHM,
            (
                f"{_SHM} has {size(free_bytes)} free, and {len(machine.gpus)} ranks take "
                f"{size(need_bytes)}"
            ),
            (
                f"`{_LEFT_BEHIND}` removes what killed jobs left behind; run it only while "
                "no job runs"
            ),
            _CONTAINER,
        )


MEMLOCK = Rule(
    code="PF504",
    name="memlock",
    severity=Severity.WARNING,
    why="memory that an RDMA adapter or an NVMe drive reads must be locked",
    when="`ulimit -l` is too low for RDMA between nodes, or for NVMe",
)


def _memlock(inputs: PreflightInput) -> Iterator[PreflightFinding]:
    machine, limit_bytes = inputs.machine, inputs.machine and inputs.machine.host.memlock_bytes
    if machine is None or limit_bytes in (None, UNLIMITED_BYTES) or inputs.facts.locks_any_amount:
        return
    locking = [
        nic.name for nic in machine.network.nics if nic.unusable is None and nic.kind in _RDMA
    ]
    need = None
    if machine.nodes > 1 and locking:
        need = "NCCL registers memory with {locking}".format(
            locking=", ".join(f"`{name}`" for name in locking)
        )
    if inputs.planned is not None and inputs.planned.evaluated.buffers.on_nvme:
        need = "DeepSpeed locks its buffers for NVMe"
    if need is not None:
        yield found(
            MEMLOCK,
            f"this process may lock only {size(limit_bytes or 0)} (`ulimit -l`), and {need}",
            "ulimit -l unlimited",
            "permanently: add `* - memlock unlimited` to /etc/security/limits.conf",
            "in a container: `docker run --ulimit memlock=-1`",
        )


CHECKPOINT_ROOM = Rule(
    code="PF505",
    name="checkpoint-room",
    severity=Severity.WARNING,
    why="the job fails when it saves, hours later",
    when="the script's output folder has no space for one checkpoint",
)


def _checkpoints(inputs: PreflightInput) -> Iterator[PreflightFinding]:
    folder, planned = inputs.facts.checkpoints, inputs.planned
    if folder is None or folder.free_bytes is None or planned is None:
        return
    need_bytes = checkpoint_bytes(planned)
    if need_bytes > folder.free_bytes:
        yield found(
            CHECKPOINT_ROOM,
            (
                f"`{folder.path}` has {size(folder.free_bytes)} left, and one checkpoint "
                f"(weights, master weights, optimizer states) takes about {size(need_bytes)}"
            ),
            "set the script's output folder to a larger disk",
            "the Trainer: `--save_total_limit 1`, `--save_only_model`",
        )


def checkpoint_bytes(planned: PlannedJob) -> int:
    """Of one checkpoint of all ranks; of adapters, the trained part alone."""
    rank, model = planned.evaluated.estimate.rank, planned.job.model
    whole = planned.job.workload.method is Method.FULL
    weights = model.params if whole else rank.trainable
    states_bytes = rank.trainable * rank.master_bytes + rank.states_bytes(rank.trainable)
    return weights * rank.weight_bytes + states_bytes


HOST_MEMORY = Rule(
    code="PF506",
    name="host-memory",
    severity=Severity.WARNING,
    why="when the host runs out of memory, the kernel kills a rank, and the job ends",
    when=(
        "the ranks of a node need more host memory than is free to build, start, train or "
        "save; an error if all of it is too little even to start"
    ),
)

# What is done, and how to do with less.
_PHASES: Mapping[HostPhase, tuple[str, tuple[str, ...]]] = {
    HostPhase.LOAD: (
        "build the model at once",
        (
            "build it in shards with `$stage 3`",
            "build it on the GPU: `with torch.device(local_rank): ...`",
        ),
    ),
    HostPhase.INIT: ("move their shares of the weights through the host", ()),
    HostPhase.TRAINING: (
        "keep what is offloaded there",
        ("keep everything on the GPUs with `$offload none`",),
    ),
    HostPhase.SAVING: (
        "collect the weights to save them",
        (
            "collect them on one rank only with `$stage 3`",
            "the Trainer: `--save_strategy no` saves nothing",
        ),
    ),
}


def _host_memory(inputs: PreflightInput) -> Iterator[PreflightFinding]:
    planned, machine = inputs.planned, inputs.machine
    if planned is None or machine is None or machine.lives_on_host:
        return
    need, host = planned.evaluated.host, machine.host
    free_bytes, all_bytes = host.available_bytes, host.total_bytes
    if free_bytes is None or need.peak_bytes <= free_bytes:
        return
    never = all_bytes is not None and need.running_bytes > all_bytes
    phase = need.running_phase if never else need.peak_phase
    done, hints = _PHASES[phase]
    yield found(
        HOST_MEMORY,
        (
            f"{len(machine.gpus)} ranks {done}: {size(need.phase_bytes[phase])} of host "
            f"memory, of which {size(all_bytes if never and all_bytes else free_bytes)} "
            f"{'is all there is' if never else 'is free'}"
        ),
        *hints,
        severity=Severity.ERROR if never else Severity.WARNING,
    )


def check_host(inputs: PreflightInput) -> Iterator[PreflightFinding]:
    """Disks, shared memory, locked memory and host memory."""
    for check in (_nvme, _shm, _memlock, _checkpoints, _host_memory):
        yield from check(inputs)
