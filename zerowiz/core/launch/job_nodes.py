"""The nodes of a job: this one's rank, how the others are reached, and what they agree on."""

import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, islice

from msgspec import Struct

from zerowiz.core.launch.plan import EntryPoint, LauncherCommand, RankEnv, refuse_slices
from zerowiz.core.launch.provenance import PlannedFile
from zerowiz.core.machine.types import Machine
from zerowiz.core.structs import Count, encode
from zerowiz.errors import UsageError, ZerowizError

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
# are kept. MAX_RANGE of src/common/hostlist.c: Slurm itself expands no more hosts.
_WORDS = re.compile(r"[^,\[\]]*(?:\[[\d,-]+\][^,\[\]]*)*", re.ASCII)
_MOST_HOSTS = 65_536


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
    words = [word for word in _WORDS.findall(text) if word]
    try:
        hosts = tuple(islice(chain.from_iterable(map(_expand, words)), _MOST_HOSTS + 1))
    except ValueError:
        hosts = ()
    if ",".join(words) != text or not 0 < len(hosts) <= _MOST_HOSTS:
        raise UsageError(
            f"`{text:.60}` is not a list of hosts as SLURM writes it",
            'compare it with `scontrol show hostnames "$SLURM_JOB_NODELIST"`',
        )
    return hosts


def _expand(word: str) -> Iterator[str]:
    """The hosts of one word with brackets; the number in the last bracket changes fastest."""
    before, bracket, rest = word.partition("[")
    if not bracket:
        yield word
        return
    ranges, _, rest = rest.partition("]")
    for part in ranges.split(","):
        first, _, last = part.partition("-")
        numbers = range(int(first), int(last or first) + 1)
        if part[-1:] == "-" or not numbers:
            raise ValueError(part)
        for number in numbers:
            for end in _expand(rest):
                yield f"{before}{number:0{len(first)}d}{end}"


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
