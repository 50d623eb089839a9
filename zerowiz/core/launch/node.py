"""This node's rank in a job with one zerowiz on each node, and DeepSpeed's options for it."""

import re
from collections.abc import Iterator, Sequence

from msgspec import Struct

from zerowiz.core.launch.plan import refuse_slices
from zerowiz.core.machine.types import Accelerator, Machine
from zerowiz.errors import UsageError
from zerowiz.words import _

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

# Slurm, slurm.conf(5), NodeName: numbers in brackets, with leading zeros kept.
_HOSTS = re.compile(r"[^,\[\]]*(?:\[[^\[\]]*\][^,\[\]]*)*", re.ASCII)
_BRACKETS = re.compile(r"\[([^\[\]]*)\]")
_NUMBERS = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?", re.ASCII)

# Slurm, MAX_RANGE of src/common/hostlist.c: Slurm itself expands no more.
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

    @property
    def port_here(self) -> int | None:
        """The port that must be free on this node; only node 0 listens on `master_port`."""
        return None if self.node_rank else self.master_port

    def __post_init__(self) -> None:
        if not 0 <= self.node_rank < self.nodes or len(set(self.hosts)) != self.nodes:
            raise UsageError(
                _(
                    "this process is node {node_rank} of {nodes}, but the job's hosts are "
                    "`{hosts}`",
                    node_rank=self.node_rank,
                    nodes=self.nodes,
                    hosts=",".join(self.hosts),
                ),
                _("the launcher that started this process set conflicting variables"),
            )


def expand_hosts(text: str) -> tuple[str, ...]:
    """The hosts in a list of Slurm, such as `n[01-04,7],m3`, in its order.

    Raises:
        UsageError: The text is no such list.
    """
    hosts: list[str] = []
    position = 0
    while position <= len(text):
        match = _HOSTS.match(text, position)
        if match is None or not match[0] or text[match.end() : match.end() + 1] not in {"", ","}:
            raise _no_list(text)
        for host in _expand(match[0], text):
            hosts.append(host)
            if len(hosts) > _MOST_HOSTS:
                raise _no_list(text)
        position = match.end() + 1
    return tuple(hosts)


def _expand(word: str, text: str) -> Iterator[str]:
    """The hosts of one word with brackets; the number in the last bracket changes fastest."""
    match = _BRACKETS.search(word)
    if match is None:
        yield word
        return
    for number in _count(match[1], text):
        for rest in _expand(word[match.end() :], text):
            yield word[: match.start()] + number + rest


def _count(ranges: str, text: str) -> Iterator[str]:
    for part in ranges.split(","):
        match = _NUMBERS.fullmatch(part)
        if match is None:
            raise _no_list(text)
        first, last = match[1], match[2] or match[1]
        if int(last) < int(first):
            raise _no_list(text)
        for number in range(int(first), int(last) + 1):
            yield f"{number:0{len(first)}d}"


def _no_list(text: str) -> UsageError:
    return UsageError(_("`{text:.60}` is not a list of hosts as SLURM writes it", text=text))


def slots_of(machine: Machine) -> tuple[int, ...]:
    """DeepSpeed's numbers for the devices of this node: CUDA's ordinals, or a count for the CPU.

    They are in ascending order, as `--include` sorts them (deepspeed/launcher/runner.py,
    parse_node_config_list, 0.19.8).

    Raises:
        UsageError: One of the devices is a MIG slice.
    """
    if machine.accelerator is Accelerator.CPU:
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
    return "".join(f"{host} slots={max(own) + 1}\n" for host, own in hosts)


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
    named = (f"{host}:{','.join(map(str, own))}" for host, own in hosts)
    return (
        *("--hostfile", hostfile, "--no_ssh", "--node_rank", str(node_rank.node_rank)),
        *("--master_addr", master_addr, "--include", "@".join(named)),
    )
