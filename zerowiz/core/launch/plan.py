"""Plan a launch: the files, the command and the environment, as one value that can be shown."""

from collections.abc import Mapping, Sequence
from enum import StrEnum

from msgspec import Struct

from zerowiz.core.machine.types import Accelerator, Machine
from zerowiz.core.memory.allocator import ALLOCATOR
from zerowiz.errors import UsageError
from zerowiz.words import _, listing


class Launcher(StrEnum):
    """The launchers of DeepSpeed that start ranks on other nodes."""

    PDSH = "pdsh"
    OPENMPI = "openmpi"
    MPICH = "mpich"


class PlannedFile(Struct, frozen=True, kw_only=True):
    """A file to write, whole."""

    path: str
    text: str
    own_folder: bool = False
    """Whether it lies in the folder of this run, which holds no person's work and is private."""
    copy_of: str | None = None
    """A person's own file, whose permissions it gets: it may hold a secret."""
    shown: str | None = None
    """What a person is shown of it, where that is not its text."""
    elsewhere: str | None = None
    """The hint where it cannot be written; None: another folder for what zerowiz writes."""

    @property
    def content(self) -> bytes:
        """The bytes of the text; it may name a path that is no UTF-8."""
        return self.text.encode("utf-8", "surrogateescape")


class LaunchPlan(Struct, frozen=True, kw_only=True):
    """What `emit.run.execute` does and `--dry-run` prints; there is no second path."""

    files: tuple[PlannedFile, ...]
    argv: tuple[str, ...]
    env: Mapping[str, str]
    """Variables that differ from the caller's environment."""
    unset: tuple[str, ...] = ()
    """Variables of the caller's environment that the job must not see."""
    notes: tuple[str, ...] = ()
    """For a person to read: what is not sent to other nodes."""
    master_port: int | None = None
    """The port of torch's rendezvous."""
    supervised: bool = False
    """Whether zerowiz supervises the job, instead of being replaced by it."""
    by_rank_program: bool = False
    """Whether DeepSpeed starts `worker/rank.py` in each rank, which starts the script."""

    def environ(self, callers: Mapping[str, str]) -> dict[str, str]:
        """The whole environment of the job."""
        kept = {name: value for name, value in callers.items() if name not in self.unset}
        return {**kept, **self.env}


class EntryPoint(Struct, frozen=True, kw_only=True):
    """What each rank runs: a script, or a module."""

    target: str
    """The path of the script, or the name of the module."""
    is_module: bool = False
    takes_local_rank: bool = True
    """Whether DeepSpeed's launcher may put `--local_rank=N` before the words of the script."""

    @property
    def program(self) -> tuple[str, ...]:
        """As the words that follow `python`."""
        return ("-m", self.target) if self.is_module else (self.target,)


class Programs(Struct, frozen=True, kw_only=True):
    """The programs and folders of a job, as the probe found them."""

    deepspeed: str
    bin_folder: str
    """The interpreter's; JIT builds look for ninja on PATH."""
    master_port: int
    """A free one; DeepSpeed's default is the same for two jobs that share a host."""
    rank_program: str
    """`worker/rank.py`, which a supervised job starts for each rank instead of the script."""
    extensions_folder: str | None
    """The folder of this environment's compiled ops; None outside of a virtual environment."""


class CoreBinding(Struct, frozen=True, kw_only=True):
    """Whether each rank can have cores of its own."""

    cores: str | None
    """Of all ranks together, such as `0-31`; None where they cannot be bound."""
    why_not: str | None = None

    @property
    def notes(self) -> tuple[str, ...]:
        """What a person could gain."""
        if self.why_not is None:
            return ()
        # DeepSpeed's own measurement of its `--bind_cores_to_rank`.
        gain = _("DeepSpeed measured an offloaded optimizer 1.29 times faster with bound cores")
        return (
            _(
                "the ranks are not bound to cores, as {why_not}; {gain}",
                why_not=self.why_not,
                gain=gain,
            ),
        )


def launcher_options(machine: Machine, bound_cores: str | None = None) -> tuple[str, ...]:
    """DeepSpeed's own options for ranks on this host; they stand before the script.

    `--include` names the slots explicitly, because with `--num_gpus` DeepSpeed ignores
    CUDA_VISIBLE_DEVICES and takes the first GPUs. The CPU accelerator counts only one slot, so
    there it is `--num_gpus` (deepspeed/launcher/runner.py, 0.19.8).
    """
    if machine.accelerator is Accelerator.CPU:
        return ("--num_gpus", str(len(machine.gpus)))
    refuse_slices(machine)
    slots = ",".join(str(gpu.cuda_ordinal) for gpu in machine.gpus)
    included = ("--include", f"localhost:{slots}")
    if bound_cores is None:
        return included
    # Without a list DeepSpeed takes the first cores of the host, allowed or not (utils/numa.py).
    return (*included, "--bind_cores_to_rank", "--bind_core_list", bound_cores)


def refuse_slices(machine: Machine) -> None:
    """Refuse MIG slices, which DeepSpeed's launcher cannot name.

    The launcher takes only whole numbers, and CUDA gives a process only one slice.

    Raises:
        UsageError: One of the GPUs is a MIG slice.
    """
    slices = [gpu.label for gpu in machine.gpus if gpu.mig_slice is not None]
    if slices:
        raise UsageError(
            _(
                "GPU {slices}: DeepSpeed's launcher cannot name a MIG slice",
                slices=listing(slices),
            ),
            _(
                "write the config with `zerowiz init`, then start the job with"
                " `CUDA_VISIBLE_DEVICES=MIG-... torchrun --nproc-per-node 1 SCRIPT ...`"
            ),
            _("or use whole GPUs: `$gpus 0,1`"),
        )


def launch_env(
    machine: Machine, programs: Programs, environ: Mapping[str, str], delivery: Mapping[str, str]
) -> dict[str, str]:
    """The variables that the job needs and the caller's environment lacks.

    A variable that the caller has set is kept, except for PATH, which gets one more folder.

    Args:
        machine: What the job runs on.
        programs: The programs and folders of the job.
        environ: The caller's environment.
        delivery: The variables that pass the config to the script.
    """
    env = dict(delivery)
    if machine.accelerator is Accelerator.CPU:
        env["DS_ACCELERATOR"] = "cpu"
    else:
        # NVML's indices are in PCI order; CUDA's are only with this variable.
        env |= _unless_set(environ, {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"})
        # Runs b4-009 and d4-013: reserved memory 64.0 GB without it, 50.6 GB with it.
        if not {"PYTORCH_ALLOC_CONF", ALLOCATOR} & {*environ, *delivery}:
            env[ALLOCATOR] = "expandable_segments:True"
        if _lacks_peer_to_peer(machine):
            env |= _unless_set(environ, {"NCCL_P2P_DISABLE": "1", "NCCL_IB_DISABLE": "1"})
    if machine.host.cores is not None:
        # torch would take every core in every rank.
        threads = max(1, machine.host.cores // len(machine.gpus))
        env |= _unless_set(environ, {"OMP_NUM_THREADS": str(threads)})
    if programs.extensions_folder is not None:
        env |= _unless_set(environ, {"TORCH_EXTENSIONS_DIR": programs.extensions_folder})
    folders = environ.get("PATH", "").split(":")
    if programs.bin_folder not in folders:
        env["PATH"] = ":".join([programs.bin_folder, *filter(None, folders)])
    return env


# accelerate 1.15, utils/environment.py, check_cuda_p2p_ib_support: with a driver before this one,
# NCCL assumes peer-to-peer access between these GPUs, and hangs.
_NO_PEER_TO_PEER = "RTX 40"
_FIXED_BY_DRIVER = (550, 40, 7)


def _lacks_peer_to_peer(machine: Machine) -> bool:
    named = any(_NO_PEER_TO_PEER in gpu.name for gpu in machine.gpus)
    parts = (machine.driver_version or "").split(".")
    driver = tuple(int(part) for part in parts if part.isdecimal())
    return named and machine.world_size > 1 and () < driver < _FIXED_BY_DRIVER


def _unless_set(environ: Mapping[str, str], wanted: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in wanted.items() if name not in environ}


def sees_one_rank(env: Mapping[str, str]) -> bool:
    """Whether Accelerate would see one rank alone, but for `worker/rank.py` (ACCELERATE_ON_CPU).

    Args:
        env: The variables of the job.
    """
    return env.get("ACCELERATE_USE_DEEPSPEED") == "true" and env.get("DS_ACCELERATOR") == "cpu"


def entry_options(entry: EntryPoint, *, by_rank_program: bool) -> tuple[str, ...]:
    """DeepSpeed's options for what the ranks run (deepspeed/launcher/runner.py, 0.19.8).

    Args:
        entry: What each rank runs.
        by_rank_program: Whether DeepSpeed starts `worker/rank.py`, which starts that.
    """
    module = () if by_rank_program or not entry.is_module else ("--module",)
    return module if entry.takes_local_rank else (*module, "--no_local_rank")


def launch_argv(
    deepspeed: str, options: Sequence[str], master_port: int, words: Sequence[str]
) -> tuple[str, ...]:
    """The command of a job.

    Args:
        deepspeed: The path of `deepspeed`.
        options: DeepSpeed's options, which stand before the script.
        master_port: The port of torch's rendezvous.
        words: The program that it takes as the script, and the arguments of that.
    """
    return (deepspeed, *options, "--master_port", str(master_port), *words)
