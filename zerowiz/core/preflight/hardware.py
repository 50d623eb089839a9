"""Check the GPUs and the host that the ranks get."""

from collections.abc import Iterator, Mapping

from zerowiz.core import shell
from zerowiz.core.decision.job import bf16_emulated
from zerowiz.core.findings import Finding, Rule, Severity, dotted, found, size
from zerowiz.core.machine.types import UNLIMITED_BYTES, Machine, NetworkKind
from zerowiz.core.memory.host import HostPhase, nvme_written_bytes
from zerowiz.core.preflight.facts import Folder, PlannedJob, PreflightFacts, PreflightInput, Torch
from zerowiz.core.workload import Method, Precision, Workload

# NICs of which a job locks the memory that it registers; Linux, RLIMIT_MEMLOCK, ibv_reg_mr(3).
_RDMA = frozenset({NetworkKind.INFINIBAND, NetworkKind.ROCE, NetworkKind.EFA})

# Check that torch, the driver and the number format fit the chosen GPUs, or the CPU.

# Linux drivers by the major version of CUDA: NVIDIA, CUDA compatibility, table 1. A driver runs
# what any release of its own major version built, and what older ones did. What NVML tells is that
# of the libcuda which is loaded, so a forward compatibility package counts.
_DRIVERS = {11: "450", 12: "525", 13: "580"}

# Reinstalling picks the build for another CUDA; https://pytorch.org/get-started/locally.
_TORCH_PAGE = "choose a build at https://pytorch.org/get-started/locally"

# deepspeed/accelerator/cuda_accelerator.py, is_fp16_supported (0.19.8).
_FP16_MAJOR, _DEPRECATED_FP16_MAJOR = 7, 6

TORCH_WITHOUT_CUDA = Rule(
    code="PF302",
    name="torch-without-cuda",
    severity=Severity.ERROR,
    why="torch sees none of the GPUs",
    when="torch is a build without CUDA, such as that for the CPU, and the GPUs are NVIDIA's",
)
OLD_DRIVER = Rule(
    code="PF303",
    name="old-driver",
    severity=Severity.ERROR,
    why="a driver supports its own major version of CUDA and older ones only",
    when="torch is built for a newer major version of CUDA than the driver supports",
)
BUSY_GPU = Rule(
    code="PF305",
    name="busy-gpu",
    severity=Severity.INFO,
    why="the plan uses the memory that is free now",
    when="other processes use a GPU of the job",
)
SLOW_BY_CHOICE = Rule(
    code="PF604",
    name="slow-by-choice",
    severity=Severity.WARNING,
    why="the job runs slower than it could",
    when="bf16 before Ampere, or on a CPU that emulates it",
)
HALF_PRECISION = Rule(
    code="PF306",
    name="half-precision",
    severity=Severity.ERROR,
    why="DeepSpeed rejects fp16 on this device",
    when="fp16 on a GPU or CPU that DeepSpeed does not support it on",
)


def check_gpus(inputs: PreflightInput) -> Iterator[Finding]:
    """Torch's build, the driver, other processes and the number format."""
    machine, torch, planned = inputs.machine, inputs.facts.torch, inputs.planned
    if machine is None:
        return
    if inputs.on_gpus:
        yield from () if torch is None else _torch(torch, machine)
        yield from _busy(machine)
    if planned is not None:
        step = planned.job.workload
        by_gpu = _fp16_on_gpus(machine, step, inputs.environ)
        yield from by_gpu if inputs.on_gpus else _fp16_on_cpu(machine, step)
        if emulated := bf16_emulated(machine, step):
            other = "fp16" if inputs.on_gpus else "fp32"
            fix = f"use {other}, unless the script sets bf16: `$precision {other}`"
            yield found(SLOW_BY_CHOICE, emulated, fix)


def _torch(torch: Torch, machine: Machine) -> Iterator[Finding]:
    built, newest = torch.cuda_version, machine.cuda_version
    if built is None:
        yield found(
            TORCH_WITHOUT_CUDA, f"torch {torch.version} is a build without CUDA", _TORCH_PAGE
        )
        return
    if newest is not None and newest[0] < built[0]:
        least = _DRIVERS.get(built[0])
        yield found(
            OLD_DRIVER,
            (
                f"torch {torch.version} is built for CUDA {dotted(built)}, and driver "
                f"{machine.driver_version or 'here'} supports up to {dotted(newest)}"
            ),
            f"install a torch built for CUDA {newest[0]}: {_TORCH_PAGE}",
            *([f"or install driver {least} or later"] if least else []),
        )


def _busy(machine: Machine) -> Iterator[Finding]:
    for gpu in machine.gpus:
        if gpu.processes:
            pids = " ".join(str(process.pid) for process in gpu.processes)
            names = ", ".join(f"{p.name or 'a process'} ({p.pid})" for p in gpu.processes)
            yield found(
                BUSY_GPU,
                f"GPU {gpu.label} is in use by {names}",
                f"see whose they are with `ps -fp {pids}`, or choose other GPUs with `$gpus`",
            )


def _fp16_on_gpus(
    machine: Machine, step: Workload, environ: Mapping[str, str]
) -> Iterator[Finding]:
    formats = {step.precision, step.torch_autocast}
    allows_old = environ.get("DS_ALLOW_DEPRECATED_FP16") == "1"
    oldest = (_DEPRECATED_FP16_MAJOR if allows_old else _FP16_MAJOR, 0)
    for gpu in machine.gpus if Precision.FP16 in formats else ():
        if (gpu.compute_capability or oldest) < oldest:
            yield found(
                HALF_PRECISION,
                (
                    f"the job uses fp16, and GPU {gpu.label} ({gpu.name}) has compute "
                    f"capability {dotted(gpu.compute_capability or oldest)}"
                ),
                "use fp32, unless the script sets fp16: `$precision fp32`",
            )


def _fp16_on_cpu(machine: Machine, step: Workload) -> Iterator[Finding]:
    # deepspeed/runtime/engine.py, _do_sanity_check (0.19.8); autocast does not ask.
    if step.precision is Precision.FP16 and machine.host.computes_fp16 is False:
        yield found(
            HALF_PRECISION,
            "the job uses fp16, and this CPU has no fp16 instructions",
            "use fp32, unless the script sets fp16: `$precision fp32`",
        )


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
# What they keep there stays after a job that was killed.
_LEFT_BY_NCCL = f"rm {_SHM}/nccl-*"
_LEFT_BY_DEEPSPEED = f"rm {_SHM}/deepspeed_allreduce_buffer_*"


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
MEMLOCK = Rule(
    code="PF504",
    name="memlock",
    severity=Severity.WARNING,
    why="memory that an RDMA adapter or an NVMe drive reads must be locked",
    when="`ulimit -l` is too low for RDMA between nodes, or for NVMe",
)
CHECKPOINT_ROOM = Rule(
    code="PF505",
    name="checkpoint-room",
    severity=Severity.WARNING,
    why="the job fails when it saves, hours later",
    when="the script's output folder has no space for one checkpoint",
)
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


def check_host(inputs: PreflightInput) -> Iterator[Finding]:
    """Disks, shared memory, locked memory and host memory."""
    machine, planned, facts = inputs.machine, inputs.planned, inputs.facts
    on_nvme = planned is not None and planned.evaluated.buffers.on_nvme
    if planned is not None and on_nvme and facts.nvme is not None:
        yield from _nvme(planned, facts.nvme)
    if machine is not None:
        yield from _shm(machine, facts.shm_free_bytes, on_gpus=inputs.on_gpus)
        yield from _memlock(machine, facts, on_nvme=on_nvme)
    if planned is not None and facts.checkpoints is not None:
        yield from _checkpoints(planned, facts.checkpoints)
    if planned is not None and machine is not None and not machine.lives_on_host:
        yield from _host_memory(planned, machine)


def _nvme(planned: PlannedJob, folder: Folder) -> Iterator[Finding]:
    written_bytes = nvme_written_bytes(planned.job.model, planned.evaluated.estimate.rank)
    need_bytes = len(planned.job.machine.gpus) * written_bytes
    if folder.is_folder is False:
        yield found(
            NVME_FOLDER, f"`{folder.path}` is not a folder", f"mkdir -p {shell.quote(folder.path)}"
        )
    elif folder.writable is False:
        yield found(
            NVME_FOLDER,
            f"`{folder.path}` cannot be written to",
            f"`sudo install -d -o $USER {shell.quote(folder.path)}/$USER`, then use"
            f" `$nvme_path {shell.quote(folder.path)}/$USER`",
        )
    elif folder.free_bytes is not None and need_bytes > folder.free_bytes:
        yield found(
            NVME_FULL,
            (
                f"`{folder.path}` has {size(folder.free_bytes)} free, and the ranks "
                f"write {size(need_bytes)}"
            ),
            "choose another drive with `$nvme_path DIR`",
            severity=Severity.WARNING if folder.holds_states else Severity.ERROR,
        )


def _shm(machine: Machine, free_bytes: int | None, *, on_gpus: bool) -> Iterator[Finding]:
    ranks = len(machine.gpus)
    if free_bytes is None or ranks == 1:
        return
    if on_gpus:
        need_bytes, remove = _SHM_OF_NCCL_BYTES, _LEFT_BY_NCCL
        needs = f"NCCL asks for {size(need_bytes)}"
    else:
        need_bytes, remove = _SHM_OF_CPU_RANK_BYTES * ranks, _LEFT_BY_DEEPSPEED
        needs = f"{ranks} ranks take {size(need_bytes)}"
    if free_bytes < need_bytes:
        yield found(
            SMALL_SHM,
            f"{_SHM} has {size(free_bytes)} free, and {needs}",
            *((_CONTAINER,) if (machine.host.shm_bytes or 0) < need_bytes else ()),
            f"`{remove}` removes what killed jobs left behind; run it only while no job runs",
        )


def _memlock(machine: Machine, facts: PreflightFacts, *, on_nvme: bool) -> Iterator[Finding]:
    limit_bytes = machine.host.memlock_bytes
    if limit_bytes in (None, UNLIMITED_BYTES) or facts.locks_any_amount:
        return
    usable = (nic for nic in machine.network.nics if nic.unusable is None and nic.kind in _RDMA)
    names = ", ".join(f"`{nic.name}`" for nic in usable if machine.nodes > 1)
    if on_nvme or names:
        by_nccl = f"NCCL registers memory with {names}"
        need = "DeepSpeed locks its buffers for NVMe" if on_nvme else by_nccl
        yield found(
            MEMLOCK,
            f"this process may lock only {size(limit_bytes or 0)} (`ulimit -l`), and {need}",
            "ulimit -l unlimited",
            "permanently: add `* - memlock unlimited` to /etc/security/limits.conf",
            "in a container: `docker run --ulimit memlock=-1`",
        )


def _checkpoints(planned: PlannedJob, folder: Folder) -> Iterator[Finding]:
    need_bytes = checkpoint_bytes(planned)
    if folder.free_bytes is not None and need_bytes > folder.free_bytes:
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


def _host_memory(planned: PlannedJob, machine: Machine) -> Iterator[Finding]:
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
