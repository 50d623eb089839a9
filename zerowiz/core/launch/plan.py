"""Plan a launch: files, command and environment as one value, supervised or not, new or resumed."""

import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from itertools import product

from msgspec import Struct

from zerowiz.core.launch.provenance import PlannedFile
from zerowiz.core.launch.secrets import is_secret
from zerowiz.core.machine.types import Accelerator, Machine
from zerowiz.core.memory.buffers import ALLOCATOR
from zerowiz.core.script.arguments import SWITCHES, Takes
from zerowiz.core.script.config_delivery import BASE_VARIABLE
from zerowiz.core.script.facts import RESUME, Convention, Resolver
from zerowiz.core.strategy_types import Offload, Strategy
from zerowiz.core.structs import Count, encode
from zerowiz.errors import UsageError, ZerowizError

# Variables of the caller's environment that are sent: settings of the libraries that train.
_FAMILIES = (
    "ACCELERATE_",
    "PL_DEEPSPEED_",
    "CUDA_",
    "DEEPSPEED_",
    "DS_",
    "FI_",
    "GLOO_",
    "HF_",
    "HUGGINGFACE_",
    "HUGGING_FACE_",
    "MKL_",
    "NCCL_",
    "OMP_",
    "PYTORCH_",
    "TOKENIZERS_",
    "TORCHINDUCTOR_",
    "TORCH_",
    "TRANSFORMERS_",
    "TRITON_",
    "WANDB_",
    "ZEROWIZ_",
)
# The nodes share the interpreter's path, so they share the paths of its programs and libraries.
_NAMES = ("LD_LIBRARY_PATH", "PATH")
# Not for other nodes: the GPUs of this one, and the name of the file that is written here.
_NEVER = ("CUDA_VISIBLE_DEVICES", "DS_ENV_FILE")
# This job depends on zerowiz's value; a line of the user cannot be meant for this job.
_OURS = ("ACCELERATE_", "DS_ACCELERATOR", "ZEROWIZ_")
# deepspeed/launcher/runner.py, EXPORT_ENVS and export_envs of the CUDA accelerator (0.19.8): what
# it sends unasked.
_EXPORTED = ("MLFLOW", "MV2", "NCCL", "PYTHON", "UCX")

# A line of the user's files; DeepSpeed's runner fails on a blank one, and on a comment.
_USER_LINE = r"(?a)(?:export )?([A-Za-z_]\w*=.*)"


class RankEnv(Struct, frozen=True, kw_only=True):
    """The environment variables for the ranks of other nodes."""

    text: str
    """The file of them, for DeepSpeed's runner."""
    unset: tuple[str, ...] = ()
    """Secrets that the runner would put into a command line by itself."""
    notes: tuple[str, ...] = ()
    """For a person to read: what is not sent."""


def merge_env(
    environ: Mapping[str, str], planned: Mapping[str, str], user_lines: Sequence[str] = ()
) -> RankEnv:
    r"""The variables of a job on several nodes.

    A line of the user takes precedence over the caller's environment and over what zerowiz would
    set, but not over variables that this job depends on. The shell of the node expands `$NAME` in
    it; every other value reaches the ranks as it is.

    Args:
        environ: The caller's environment.
        planned: The variables that zerowiz sets for the job.
        user_lines: Of the user's files; a later one takes precedence.

    Example:
        >>> merge_env({"HF_HOME": "/a b", "EDITOR": "vi"}, {"OMP_NUM_THREADS": "4"}).text
        'HF_HOME=/a b\nOMP_NUM_THREADS=4\n'
    """
    matches = [re.fullmatch(_USER_LINE, line.strip()) for line in user_lines]
    lines = [match[1] for match in matches if match is not None]
    named = {line.partition("=")[0] for line in lines}
    ours = {name for name in planned if name.startswith(_OURS)}
    every = {**{name: value for name, value in environ.items() if _is_sent(name)}, **planned}
    values = {name: value for name, value in every.items() if name in ours or name not in named}
    unasked = {name for name in environ if name.startswith(_EXPORTED)} - named
    secrets = sorted(name for name in {*values, *unasked} if is_secret(name) and environ.get(name))
    broken = [name for name, value in values.items() if "\n" in value]
    notes = [
        *(
            f"`{name}` is not sent to the nodes, where every user could see it in the "
            "process list; to send it, add it to `.deepspeed_env`"
            for name in secrets
        ),
        *(
            f"`{name}` is not sent to the nodes: DeepSpeed cannot send a value with a line break"
            for name in broken
        ),
    ]
    sent = {name: value for name, value in values.items() if name not in {*secrets, *broken}}
    before = [f"{name}={escape(value)}" for name, value in sent.items() if name not in ours]
    after = [f"{name}={escape(value)}" for name, value in sent.items() if name in ours]
    return RankEnv(
        text="".join(f"{line}\n" for line in (*before, *lines, *after)),
        unset=tuple(name for name in secrets if name.startswith(_EXPORTED)),
        notes=tuple(notes),
    )


def escape(value: str) -> str:
    """A value, escaped for the `"` that DeepSpeed puts around it, and for pdsh."""
    return re.sub(r'([\\$`"])', r"\\\1", value).replace("%", "%%")


def _is_sent(name: str) -> bool:
    chosen = name in _NAMES or name.startswith(_FAMILIES)
    return chosen and name not in _NEVER and name.isascii() and name.isidentifier()


# The launch as one value.


class LauncherCommand(Struct, frozen=True, kw_only=True):
    """DeepSpeed's options and environment to start the ranks on their nodes."""

    options: tuple[str, ...]
    """DeepSpeed's, before the script."""
    env: Mapping[str, str]
    """All that differs from the caller's environment."""
    unset: tuple[str, ...] = ()
    """What of the caller's environment the launcher must not see."""
    files: tuple[PlannedFile, ...] = ()
    notes: tuple[str, ...] = ()
    by_pdsh: bool = False
    """Whether the shell of a node gets the words after the launcher's options."""
    master_port: int | None = None
    """As it was given; None where a free one is taken."""


class LaunchPlan(Struct, frozen=True, kw_only=True):
    """What `emit.job.execute` does and `--dry-run` prints; there is no second path."""

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
    """That of the ranks' Python; JIT builds look for ninja on PATH."""
    master_port: int
    """A free one; DeepSpeed's default is the same for two jobs that share a host."""
    rank_program: str
    """`worker/rank.py`, which a supervised job starts for each rank instead of the script."""
    extensions_folder: str | None
    """The folder of that Python's compiled ops; None outside of a virtual environment."""
    tool_folder: str | None = None
    """Like `bin_folder`, that of an environment which has zerowiz alone: `uvx` puts it first."""


class CoreBinding(Struct, frozen=True, kw_only=True):
    """Whether each rank can have cores of its own."""

    cores: str | None
    """Of all ranks together, such as `0-31`; None where they cannot be bound."""
    notes: tuple[str, ...] = ()
    """What a person could gain."""


def launcher_options(machine: Machine, bound_cores: str | None = None) -> tuple[str, ...]:
    """DeepSpeed's own options for ranks on this host; they stand before the script.

    `--include` names the slots explicitly, because with `--num_gpus` DeepSpeed ignores
    CUDA_VISIBLE_DEVICES and takes the first GPUs. The CPU accelerator counts only one slot, so
    there it is `--num_gpus` (deepspeed/launcher/runner.py, 0.19.8).
    """
    if machine.accelerator.row.on_host:
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
            f"GPU {', '.join(slices)}: DeepSpeed's launcher cannot name a MIG slice",
            (
                "write the config with `zerowiz init`, then start the job with "
                "`CUDA_VISIBLE_DEVICES=MIG-... torchrun --nproc-per-node 1 SCRIPT ...`"
            ),
            "or use whole GPUs: `$gpus 0,1`",
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
    env, accelerator = dict(delivery), machine.accelerator
    # The default of DeepSpeed, where nobody says more.
    if environ.get("DS_ACCELERATOR", Accelerator.CUDA.value) != accelerator.value:
        env["DS_ACCELERATOR"] = accelerator.value
    if accelerator is Accelerator.CUDA:
        # NVML's indices are in PCI order; CUDA's are only with this variable.
        env |= _unless_set(environ, {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"})
        # Runs b4-009 and d4-013: reserved memory 64.0 GB without it, 50.6 GB with it.
        if not {"PYTORCH_ALLOC_CONF", ALLOCATOR} & {*environ, *delivery}:
            env[ALLOCATOR] = "expandable_segments:True"
        named = any(_NO_PEER_TO_PEER in gpu.name for gpu in machine.gpus)
        parts = (machine.driver_version or "").split(".")
        driver = tuple(int(part) for part in parts if part.isdecimal())
        if named and machine.world_size > 1 and () < driver < _FIXED_BY_DRIVER:
            env |= _unless_set(environ, {"NCCL_P2P_DISABLE": "1", "NCCL_IB_DISABLE": "1"})
    if machine.host.cores is not None:
        # torch would take every core in every rank.
        threads = max(1, machine.host.cores // len(machine.gpus))
        env |= _unless_set(environ, {"OMP_NUM_THREADS": str(threads)})
    if programs.extensions_folder is not None:
        env |= _unless_set(environ, {"TORCH_EXTENSIONS_DIR": programs.extensions_folder})
    said = environ.get("PATH", "").split(":")
    folders = sorted(said, key=lambda folder: folder == programs.tool_folder)
    if programs.bin_folder not in folders:
        folders.insert(0, programs.bin_folder)
    if folders != said:
        env["PATH"] = ":".join(filter(None, folders))
    return env


# accelerate 1.15, utils/environment.py, check_cuda_p2p_ib_support: with a driver before this one,
# NCCL assumes peer-to-peer access between these GPUs, and hangs.
_NO_PEER_TO_PEER = "RTX 40"
_FIXED_BY_DRIVER = (550, 40, 7)


def _unless_set(environ: Mapping[str, str], wanted: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in wanted.items() if name not in environ}


PROGRESS_VARIABLE = "ZEROWIZ_PROGRESS"
"""Where a person looks on: the planned peak in bytes, a colon, the planned seconds of a step."""


def needs_rank_program(env: Mapping[str, str]) -> bool:
    """Whether only `worker/rank.py` prepares a rank as this job needs it.

    Accelerate would see one rank alone (ACCELERATE_ON_CPU), the script would read the base, or a
    person who looks on would see nothing until the first step.

    Args:
        env: The variables of the job.
    """
    by_accelerate = env.get("ACCELERATE_USE_DEEPSPEED") == "true"
    on_cpu = env.get("DS_ACCELERATOR") == "cpu"
    return bool({BASE_VARIABLE, PROGRESS_VARIABLE} & env.keys()) or (by_accelerate and on_cpu)


def entry_options(entry: EntryPoint, *, by_rank_program: bool) -> tuple[str, ...]:
    """DeepSpeed's options for what the ranks run (deepspeed/launcher/runner.py, 0.19.8).

    Args:
        entry: What each rank runs.
        by_rank_program: Whether DeepSpeed starts `worker/rank.py`, which starts that.
    """
    module = () if by_rank_program or not entry.is_module else ("--module",)
    return module if entry.takes_local_rank else (*module, "--no_local_rank")


# Decide from where a restarted script resumes, and with which arguments.


class ResumeFrom(StrEnum):
    """From where a restarted script resumes."""

    CHECKPOINT = "checkpoint"
    """Weights, optimizer, schedule and step."""
    WEIGHTS = "weights"
    """Its saved weights, with a new optimizer and schedule."""
    START = "start"
    """From nothing: it saved nothing that the new strategy can load."""


class Saved(Struct, frozen=True, kw_only=True):
    """The checkpoints in the script's output folder; None if there is none of a kind."""

    portable: str | None = None
    """The newest one of `portable_checkpoint`, which loads at every stage."""
    engine: str | None = None
    """The newest one of the Trainer with DeepSpeed's own state."""
    weights: str | None = None
    """The newest one of the Trainer with whole weights."""


class Resume(Struct, frozen=True, kw_only=True):
    """How a script is started again."""

    resume_from: ResumeFrom
    script_args: tuple[str, ...]
    path: str | None = None
    """Of the checkpoint."""


_RESUME_FROM = "--resume_from_checkpoint"
# deepspeed 0.19.8, runtime/engine.py, load_checkpoint: a state of one of these stages loads at the
# other; from 2 to 3 and from 0 to 2 it raises.
_LOADS_EACH_OTHER = frozenset({1, 2})


def output_folder(script: Resolver) -> str | None:
    """The folder that the script saves to, by its options; None where they do not name one."""
    given = script.said.get("output_dir")
    if given is not None:
        return given.value if isinstance(given.value, str) else None
    defaults = [option.default for option in script.facts.parser.of("output_dir")]
    return next((default for default in defaults if isinstance(default, str)), None)


def resumed_checkpoint(script: Resolver) -> str | None:
    """The checkpoint that the script's options name to go on from; None where they name none."""
    given = script.said.get("resume_from_checkpoint")
    return given.value if given is not None and isinstance(given.value, str) else None


def plan_resume(
    script: Resolver,
    saved: Saved,
    before: Strategy,
    after: Strategy,
) -> Resume:
    """How to start the script again with another strategy, keeping as much progress as possible.

    Args:
        script: The script with the words that it was started with.
        saved: The checkpoints in its output folder.
        before: The strategy that ran out of memory.
        after: The next strategy.
    """
    words = script.words
    options = script.facts.parser.find(RESUME) if script.facts.saves_portably else ()
    if any(option.takes in SWITCHES or option.takes is Takes.PERHAPS for option in options):
        if saved.portable is None:
            return Resume(resume_from=ResumeFrom.START, script_args=words)
        again = words if script.resumes else (*words, RESUME)
        return Resume(resume_from=ResumeFrom.CHECKPOINT, script_args=again, path=saved.portable)
    trainer = script.facts.convention is Convention.HF_PARSER
    loads = {before.stage, after.stage} <= _LOADS_EACH_OTHER
    stays = {before.offload, after.offload} == {Offload.NONE}
    if trainer and saved.engine is not None and loads and stays:
        again = (*words, _RESUME_FROM, saved.engine)
        return Resume(resume_from=ResumeFrom.CHECKPOINT, script_args=again, path=saved.engine)
    flag = script.facts.model.flag
    if trainer and saved.weights is not None and flag is not None:
        again = (*words, flag, saved.weights)
        return Resume(resume_from=ResumeFrom.WEIGHTS, script_args=again, path=saved.weights)
    return Resume(resume_from=ResumeFrom.START, script_args=words)


# The nodes of a job: this one's rank, how the others are reached, and what they agree on.

OTHER_LAUNCHERS_VARIABLES = (
    # PyTorch, torch/distributed/elastic/agent/server/local_elastic_agent.py, _start_workers: the
    # variables of torchrun's own ranks. With its agent's store, no rank of ours would open one.
    "TORCHELASTIC_USE_AGENT_STORE",
    "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_RESTART_COUNT",
    "TORCHELASTIC_MAX_RESTARTS",
    "TORCHELASTIC_ERROR_FILE",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "GROUP_WORLD_SIZE",
    "ROLE_NAME",
    "ROLE_RANK",
    "ROLE_WORLD_SIZE",
)
"""Variables that another launcher set for this process, and that DeepSpeed's ranks must not see.

DeepSpeed sets RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT itself (launch.py, 0.19.8).
"""

# Slurm, slurm.conf(5), NodeName: words between commas, with numbers in brackets whose leading zeros
# are kept.
_WORDS = re.compile(r"(?:[^,\[\]]+|\[[\d,-]+\])+", re.ASCII)
_PARTS = re.compile(r"\[[^\]]+\]|[^\[]+")


class NodeRank(Struct, frozen=True, kw_only=True):
    """This node in a job with one zerowiz on each node, which starts the ranks of its own node."""

    node_rank: int
    nodes: int
    hosts: tuple[str, ...]
    """A name for each node, by its rank; DeepSpeed uses the names only to distinguish nodes."""
    master_addr: str
    """The address by which every node reaches node 0."""
    master_port: int | None = None
    """None where node 0 chooses a free one."""
    job_key: str
    """The same on every node of this job; different for the next job, where that is known."""

    def __post_init__(self) -> None:
        if not 0 <= self.node_rank < self.nodes or len(set(self.hosts)) != self.nodes:
            raise UsageError(
                (
                    f"this process is node {self.node_rank} of {self.nodes}, but the job's "
                    f"hosts are `{','.join(self.hosts)}`"
                ),
                "the launcher that started this process set conflicting variables",
            )


def expand_hosts(text: str) -> tuple[str, ...]:
    """The hosts in a list of Slurm, such as `n[01-04,7],m3`, in its order.

    Raises:
        UsageError: The text is no such list.
    """
    words = _WORDS.findall(text)
    try:
        # The number in the last bracket changes fastest.
        each = (product(*map(_names, _PARTS.findall(word))) for word in words)
        hosts = tuple("".join(names) for word in each for names in word)
    except ValueError:
        hosts = ()
    if ",".join(words) != text or not hosts:
        raise UsageError(
            f"`{text:.60}` is not a list of hosts as SLURM writes it",
            'compare it with `scontrol show hostnames "$SLURM_JOB_NODELIST"`',
        )
    return hosts


def _names(part: str) -> Iterator[str]:
    """A part of a word, or each number in its brackets."""
    if not part.startswith("["):
        yield part
        return
    for numbers in part[1:-1].split(","):
        first, _, last = numbers.partition("-")
        for number in range(int(first), int(last or first) + 1):
            yield f"{number:0{len(first)}d}"


def slots_of(machine: Machine) -> tuple[int, ...]:
    """DeepSpeed's numbers for the devices of this node: CUDA's ordinals, or a count for the CPU.

    They are in ascending order, as `--include` sorts them (deepspeed/launcher/runner.py,
    parse_node_config_list, 0.19.8).

    Raises:
        UsageError: One of the devices is a MIG slice.
    """
    if machine.accelerator.row.on_host:
        return tuple(range(len(machine.gpus)))
    refuse_slices(machine)
    return tuple(sorted(gpu.cuda_ordinal for gpu in machine.gpus))


def hostfile_text(node_rank: NodeRank, slots: Sequence[Sequence[int]]) -> str:
    """DeepSpeed's hostfile; a host's count is one above its highest slot.

    DeepSpeed accepts only slots below the host's count in `--include`
    (deepspeed/launcher/runner.py, parse_inclusion_exclusion, 0.19.8).

    Args:
        node_rank: Of any node of the job.
        slots: Of each node, by its rank.
    """
    hosts = zip(node_rank.hosts, slots, strict=True)
    return "".join(f"{host} slots={max(numbers) + 1}\n" for host, numbers in hosts)


def node_options(
    node_rank: NodeRank, hostfile: str, slots: Sequence[Sequence[int]], master_addr: str
) -> tuple[str, ...]:
    """DeepSpeed's own options for starting the ranks of this node alone.

    `--no_ssh` needs the hostfile and `--node_rank`. Without `--master_addr` DeepSpeed asks the
    first host by ssh. `--include` cannot be combined with `--num_gpus`
    (deepspeed/launcher/runner.py, main, 0.19.8). Every node names the same slots, because DeepSpeed
    numbers the ranks over all of them.

    Args:
        node_rank: Of this node.
        hostfile: The path of the file with `hostfile_text` of the same slots.
        slots: Of each node, by its rank.
        master_addr: The address of node 0.
    """
    hosts = zip(node_rank.hosts, slots, strict=True)
    named = (f"{host}:{','.join(map(str, numbers))}" for host, numbers in hosts)
    return (
        *("--hostfile", hostfile, "--no_ssh", "--node_rank", str(node_rank.node_rank)),
        *("--master_addr", master_addr, "--include", "@".join(named)),
    )


# The files by which the zerowiz processes of several nodes meet and agree on a launch.
#
# The leader on node 0 plans, and the followers on the other nodes do as it says. Files of an
# earlier job may lie in the same folder, because a launcher need not give each job a name of its
# own. Clocks are not trusted. So each side proves by a random word that its file is new:
#
# 1. The leader opens a rendezvous: it makes a folder that is named by a new word, and writes the
#    word to `call.json`.
# 2. Every follower joins each rendezvous that it sees: it writes `hello-RANK.json` to that folder,
#    with a new word of its own and the machine of its node.
# 3. Once every node has joined, the leader writes `attempt-1.json` to the folder, with the words.
# 4. A follower accepts only an attempt that has its own word. Before it joins another rendezvous,
#    it looks for an attempt in the folders of those that it has joined.
#
# A later attempt is `attempt-2.json` and so on. Each one is a launch, or the end of the job.

OPEN_FILE = "call.json"
"""Holds an OpenRendezvous."""


class OpenRendezvous(Struct, frozen=True, kw_only=True):
    """The leader waits for the other nodes."""

    word: str
    """The name of the folder in which it waits."""


class Join(Struct, frozen=True, kw_only=True):
    """A node joins a rendezvous."""

    rank: Count
    """The node's."""
    host: str
    word: str
    """Random; proves that a later file is for this process."""
    zerowiz_version: str
    machine: Machine


class LaunchSpec(Struct, frozen=True, kw_only=True):
    """All that a node needs to start its own ranks."""

    entry: EntryPoint
    script_args: tuple[str, ...]
    """With the words that pass the config to the script."""
    env: Mapping[str, str]
    """Variables that pass the config to the script."""
    sha256_by_path: Mapping[str, str]
    """The files that the ranks read, which have to be the same on each node."""
    master_addr: str
    master_port: Count
    slots: tuple[tuple[Count, ...], ...]
    """The devices of each node, by its rank, as DeepSpeed calls them."""
    run_folder: str


class AttemptSpec(Struct, frozen=True, kw_only=True):
    """What the leader says of an attempt: a launch, or the end of the job."""

    heard: tuple[str, ...]
    """The words of the nodes that it is for."""
    spec: LaunchSpec | None = None
    """None ends the job."""
    end: Count | None = None
    """The exit status of every node's zerowiz."""
    why: str = ""
    """Why the job ends, in one sentence."""


def job_folder(output_dir: str, job_key: str) -> str:
    """The folder in which the nodes of this job meet."""
    return f"{output_dir or '.'}/.zerowiz/jobs/{job_key}"


def join_name(rank: int) -> str:
    """The name of the file by which a node joins."""
    return f"hello-{rank}.json"


def attempt_name(number: int) -> str:
    """The name of an attempt's file; attempts count from 1."""
    return f"attempt-{number}.json"


def encode_file(value: OpenRendezvous | Join | AttemptSpec) -> str:
    """The text of its file."""
    return json.dumps(encode(value), indent=2) + "\n"


def refuse_unlike(joins: Sequence[Join]) -> None:
    """Refuse nodes that cannot train together.

    DeepSpeed numbers the ranks of a node by `rank % ranks of the node`, which is wrong where nodes
    have different counts (deepspeed/launcher/launch.py, main, 0.19.8).

    Raises:
        ZerowizError: The nodes have different releases of zerowiz, different accelerators, or
            different counts of devices.
    """
    compared = {join.host: _compared(join) for join in joins}
    host, first = next(iter(compared.items()))
    for other_host, other in compared.items():
        for what, value in first.items():
            if other[what] != value:
                raise ZerowizError(
                    f"{what} is {value} on `{host}`, {other[what]} on `{other_host}`",
                    "use the same on every node: `$accelerator`, `$gpus 0,1`, one release",
                )


def _compared(join: Join) -> Mapping[str, object]:
    return {
        "zerowiz": join.zerowiz_version,
        "the accelerator": join.machine.accelerator.value,
        "the number of devices": len(slots_of(join.machine)),
    }


# Plan a launch over a hostfile: options, variables and quoting for pdsh, by which DeepSpeed reaches
# the other nodes. It passes a command line to the shell of each.

# ssh_config(5): `ssh` gives up a node that does not answer after so many messages with this
# interval. Without the options it waits until the kernel gives up, after two hours. The first value
# of an option counts, so a person's own options stand before these.
ALIVE_EVERY_S = 5
ALIVE_TRIES = 3
KEEPALIVE = f"-o ServerAliveInterval={ALIVE_EVERY_S} -o ServerAliveCountMax={ALIVE_TRIES}"
# The variable from which pdsh(1) takes options of `ssh`.
_SSH_OPTIONS = "PDSH_SSH_ARGS_APPEND"


def pdsh_command(
    hostfile: str,
    rank_env: RankEnv,
    environ: Mapping[str, str],
    env: Mapping[str, str],
    *,
    env_file: str,
    master_addr: str | None,
) -> LauncherCommand:
    """How DeepSpeed starts the ranks on the nodes that a hostfile names.

    Args:
        hostfile: Its path.
        rank_env: The variables of the ranks.
        environ: The caller's environment.
        env: What the job gets beside that.
        env_file: The absolute path of the file of variables.
        master_addr: The address by which the other nodes reach the first one. With None DeepSpeed
            takes the first address that the node has.
    """
    address = () if master_addr is None else ("--master_addr", master_addr)
    ssh_options = f"{environ.get(_SSH_OPTIONS, '')} {KEEPALIVE}".strip()
    return LauncherCommand(
        options=("--hostfile", hostfile, "--launcher", "pdsh", *address),
        env={**env, "DS_ENV_FILE": env_file, _SSH_OPTIONS: ssh_options},
        unset=rank_env.unset,
        files=(PlannedFile(path=env_file, text=rank_env.text, own_folder=True),),
        notes=rank_env.notes,
        by_pdsh=True,
    )


def quote_words(words: Sequence[str]) -> tuple[str, ...]:
    """The words after the script, quoted so that the ranks get them unchanged.

    PDSHRunner (deepspeed/launcher/multinode_runner.py, 0.19.8) puts `"` around a word with a space
    and escapes only `"` in it. It passes every other word to the shell of the node as it is.
    """
    quoted = (
        re.sub(r"([\\$`])", r"\\\1", word) if " " in word else shlex.quote(word) for word in words
    )
    # pdsh(1): it replaces `%h`, `%u` and `%n`, also inside quotes; `%%` is a `%`.
    return tuple(word.replace("%", "%%") for word in quoted)


def quote_script(path: str) -> str:
    """The path of the script, quoted: PDSHRunner passes it to the shell as it is."""
    return shlex.quote(path).replace("%", "%%")


def refuse_unsafe_paths(paths: Mapping[str, str]) -> None:
    """Refuse paths that DeepSpeed puts unquoted into the command of a node.

    Args:
        paths: By what they are, such as the working folder, the interpreter.

    Raises:
        UsageError: A shell would split one of them, or replace a part of it.
    """
    for what, path in paths.items():
        if shlex.quote(path) != path or "%" in path:
            raise UsageError(
                f"{what} `{path}`: DeepSpeed's pdsh launcher cannot handle these characters",
                "move it to a path with letters, digits and `._-/` only",
            )
