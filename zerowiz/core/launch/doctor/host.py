"""Check the memory, the limits and the disks of the host."""

from collections.abc import Iterator, Mapping

from zerowiz.core import shell
from zerowiz.core.launch.doctor.finding import PreflightFinding, found, size
from zerowiz.core.launch.doctor.inputs import PlannedJob, PreflightInput
from zerowiz.core.machine.host import UNLIMITED_BYTES
from zerowiz.core.machine.network import NetworkKind
from zerowiz.core.memory.host_phases import HostPhase
from zerowiz.core.memory.nvme import offload_to_nvme
from zerowiz.core.rule import Rule, Severity
from zerowiz.core.workload.choices import Method
from zerowiz.words import _, listing

# NVIDIA, NCCL user guide, troubleshooting, shared memory: the size for a container.
_SHM_OF_NCCL_BYTES = 2**30
# deepspeed/ops/csrc/cpu/comm/shm.cpp, allreduce_workspace (0.19.8). With less, two ranks trained,
# and ended with signal 11 at the first `inference_all_reduce` (tried with 40 and 64 MiB).
_SHM_OF_CPU_RANK_BYTES = 2 * 2**20 + 2 * 32 * 2**20

# NICs of which a job locks the memory that it registers; Linux, RLIMIT_MEMLOCK, ibv_reg_mr(3).
_LOCKING = frozenset({NetworkKind.INFINIBAND, NetworkKind.ROCE, NetworkKind.EFA})

_SHM = "/dev/shm"  # noqa: S108 - shared memory, not a file of ours
_CONTAINER = _(
    "in a container: `docker run --shm-size=8g`; in Kubernetes an `emptyDir` of `medium: Memory`"
)
# DeepSpeed's buffers of CPU ranks stay there after a job that was killed.
_LEFT_BEHIND = f"rm {_SHM}/deepspeed_allreduce_buffer_*"


NVME_FOLDER = Rule(
    code="PF501",
    name="nvme-folder",
    severity=Severity.ERROR,
    why=_("DeepSpeed cannot write the offloaded states"),
    when=_("the folder for NVMe offload does not exist or is not writable"),
)
NVME_FULL = Rule(
    code="PF502",
    name="nvme-full",
    severity=Severity.ERROR,
    why=_("the offloaded states do not fit on the drive"),
    when=_("the drive has less free space than the ranks write"),
)


def _nvme(inputs: PreflightInput) -> Iterator[PreflightFinding]:
    folder, planned = inputs.facts.nvme, inputs.planned
    if folder is None or planned is None or not planned.evaluated.buffers.on_nvme:
        return
    if folder.is_folder is False:
        yield found(
            NVME_FOLDER,
            _("`{path}` is not a folder", path=folder.path),
            f"mkdir -p {shell.quote(folder.path)}",
        )
    elif folder.writable is False:
        yield found(
            NVME_FOLDER,
            _("`{path}` cannot be written to", path=folder.path),
            _(
                "`sudo install -d -o $USER {path}/$USER`, then use `$nvme_path {path}/$USER`",
                path=shell.quote(folder.path),
            ),
        )
    elif folder.free_bytes is not None:
        offload = offload_to_nvme(planned.job.model, planned.evaluated.estimate.rank)
        need_bytes = offload.node_bytes(len(planned.job.machine.gpus))
        if need_bytes > folder.free_bytes:
            yield found(
                NVME_FULL,
                _(
                    "`{path}` has {free_bytes} free, and the ranks write {need_bytes}",
                    path=folder.path,
                    free_bytes=size(folder.free_bytes),
                    need_bytes=size(need_bytes),
                ),
                _("choose another drive with `$nvme_path DIR`"),
                severity=Severity.WARNING if folder.holds_states else Severity.ERROR,
            )


SMALL_SHM = Rule(
    code="PF503",
    name="small-shm",
    severity=Severity.WARNING,
    why=_(
        "ranks and data loaders exchange data through it: a rank dies with a bus error or a"
        " segmentation fault"
    ),
    when=_("`/dev/shm` is too small for the ranks, as the 64 MiB of a default container"),
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
                _(
                    "{shm} has {size_bytes}; NCCL asks for {shm_of_nccl_bytes}",
                    shm=_SHM,
                    size_bytes=size(size_bytes),
                    shm_of_nccl_bytes=size(_SHM_OF_NCCL_BYTES),
                ),
                _CONTAINER,
            )
        return
    need_bytes = _SHM_OF_CPU_RANK_BYTES * len(machine.gpus)
    if free_bytes < need_bytes:
        yield found(
            SMALL_SHM,
            _(
                "{shm} has {free_bytes} free, and {gpus} ranks take {need_bytes}",
                shm=_SHM,
                free_bytes=size(free_bytes),
                gpus=len(machine.gpus),
                need_bytes=size(need_bytes),
            ),
            _(
                "`{left_behind}` removes what killed jobs left behind; run it only while "
                "no job runs",
                left_behind=_LEFT_BEHIND,
            ),
            _CONTAINER,
        )


MEMLOCK = Rule(
    code="PF504",
    name="memlock",
    severity=Severity.WARNING,
    why=_("memory that an RDMA adapter or an NVMe drive reads must be locked"),
    when=_("`ulimit -l` is too low for RDMA between nodes, or for NVMe"),
)


def _memlock(inputs: PreflightInput) -> Iterator[PreflightFinding]:
    machine, limit_bytes = inputs.machine, inputs.machine and inputs.machine.host.memlock_bytes
    if machine is None or limit_bytes in (None, UNLIMITED_BYTES) or inputs.facts.locks_any_amount:
        return
    locking = [
        nic.name for nic in machine.network.nics if nic.unusable is None and nic.kind in _LOCKING
    ]
    need = None
    if machine.nodes > 1 and locking:
        need = _(
            "NCCL registers memory with {locking}",
            locking=listing(f"`{name}`" for name in locking),
        )
    if inputs.planned is not None and inputs.planned.evaluated.buffers.on_nvme:
        need = _("DeepSpeed locks its buffers for NVMe")
    if need is not None:
        yield found(
            MEMLOCK,
            _(
                "this process may lock only {limit_bytes} (`ulimit -l`), and {need}",
                limit_bytes=size(limit_bytes or 0),
                need=need,
            ),
            "ulimit -l unlimited",
            _("permanently: add `* - memlock unlimited` to /etc/security/limits.conf"),
            _("in a container: `docker run --ulimit memlock=-1`"),
        )


CHECKPOINT_ROOM = Rule(
    code="PF505",
    name="checkpoint-room",
    severity=Severity.WARNING,
    why=_("the job fails when it saves, hours later"),
    when=_("the script's output folder has no space for one checkpoint"),
)


def _checkpoints(inputs: PreflightInput) -> Iterator[PreflightFinding]:
    folder, planned = inputs.facts.checkpoints, inputs.planned
    if folder is None or folder.free_bytes is None or planned is None:
        return
    need_bytes = checkpoint_bytes(planned)
    if need_bytes > folder.free_bytes:
        yield found(
            CHECKPOINT_ROOM,
            _(
                "`{path}` has {free_bytes} left, and one checkpoint (weights, master "
                "weights, optimizer states) takes about {need_bytes}",
                path=folder.path,
                free_bytes=size(folder.free_bytes),
                need_bytes=size(need_bytes),
            ),
            _("set the script's output folder to a larger disk"),
            _("the Trainer: `--save_total_limit 1`, `--save_only_model`"),
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
    why=_("when the host runs out of memory, the kernel kills a rank, and the job ends"),
    when=_(
        "the ranks of a node need more host memory than is free to build, start, train or save;"
        " an error if all of it is too little even to start"
    ),
)

# What is done, and how to do with less.
_PHASES: Mapping[HostPhase, tuple[str, tuple[str, ...]]] = {
    HostPhase.LOAD: (
        _("build the model at once"),
        (
            _("build it in shards with `$stage 3`"),
            _("build it on the GPU: `with torch.device(local_rank): ...`"),
        ),
    ),
    HostPhase.INIT: (_("move their shares of the weights through the host"), ()),
    HostPhase.TRAINING: (
        _("keep what is offloaded there"),
        (_("keep everything on the GPUs with `$offload none`"),),
    ),
    HostPhase.SAVING: (
        _("collect the weights to save them"),
        (
            _("collect them on one rank only with `$stage 3`"),
            _("the Trainer: `--save_strategy no` saves nothing"),
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
        _(
            "{gpus} ranks {done}: {phase_bytes} of host memory, of which {left_bytes} {rest}",
            gpus=len(machine.gpus),
            done=done,
            phase_bytes=size(need.phase_bytes[phase]),
            left_bytes=size(all_bytes if never and all_bytes else free_bytes),
            rest=_("is all there is") if never else _("is free"),
        ),
        *hints,
        severity=Severity.ERROR if never else Severity.WARNING,
    )


def check_host(inputs: PreflightInput) -> Iterator[PreflightFinding]:
    """Disks, shared memory, locked memory and host memory."""
    for each in (_nvme, _shm, _memlock, _checkpoints, _host_memory):
        yield from each(inputs)
