"""Read hostfiles, and what the nodes of a job say of each other: rank, addresses, rendezvous."""

import hashlib
import ipaddress
import os
import re
import socket
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from msgspec import Struct

from zerowiz.core.launch.plan import NodeRank, expand_hosts
from zerowiz.core.structs import decode, parse_json
from zerowiz.errors import PreflightError, UsageError, ZerowizError
from zerowiz.probe.files import first_set, read_named_text
from zerowiz.probe.machine.scheduler import parse_count, parse_elastic


def find_master_address(host: str) -> str | None:
    """The address of the first host, as its name resolves here.

    DeepSpeed takes the first word of `hostname -I` on that host, which may be a container's bridge
    or another network (runner.py, 0.19.8).

    Args:
        host: As the hostfile names it.

    Returns:
        None where the name does not resolve, as of an alias of ssh_config, or where it is a
        loopback address; DeepSpeed then asks the node.
    """
    try:
        rows = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:
        return None
    # IPv4 first: DeepSpeed writes `address:port` without brackets in places.
    rows.sort(key=lambda row: row[0] is not socket.AF_INET)
    addresses = [ipaddress.ip_address(row[4][0]) for row in rows]
    usable = [address for address in addresses if not address.is_link_local]
    return str(usable[0]) if usable and not usable[0].is_loopback else None


# Read the files of environment variables that DeepSpeed's runner sends to the nodes.

# deepspeed/launcher/runner.py, DEEPSPEED_ENVIRONMENT_NAME (0.19.8).
_NAME = ".deepspeed_env"


def read_env_lines(environ: Mapping[str, str], folder: Path = Path()) -> list[str]:
    """The lines of the file in the home folder, then of the one in the working folder.

    Args:
        environ: The caller's environment; its DS_ENV_FILE renames both files.
        folder: The working folder.

    Raises:
        UsageError: A file exists and cannot be read.
    """
    name = environ.get("DS_ENV_FILE", _NAME)
    paths = (Path("~").expanduser() / name, folder / name)
    files = (path for path in dict.fromkeys(paths) if path.is_file())
    texts = (_read(path, f"`{path}`, whose variables DeepSpeed sends,") for path in files)
    return [line for text in texts for line in text.splitlines()]


def _read(path: Path, what: str, *hints: str) -> str:
    try:
        return read_named_text(path, "utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not text"
        raise UsageError(f"{what} cannot be read: {reason}", *hints) from None


# Read a DeepSpeed hostfile.

# deepspeed/launcher/runner.py, _parse_hostfile (0.19.8): the rest of a line is ignored.
_LINE = re.compile(r"^(\S+)\s+slots=(\d{1,9})(?!\d)")


def parse_hostfile(text: str, name: str) -> dict[str, int]:
    """The count of slots by host, in the file's order.

    Args:
        text: The content of the file.
        name: What errors call the file.

    Raises:
        UsageError: A line is not `host slots=N`, a host stands twice, or there is no host.
    """
    slots: dict[str, int] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        match = _LINE.match(line.strip())
        if match is None or match[1] in slots or int(match[2]) < 1:
            raise UsageError(
                f"hostfile `{name}` line {number}: `{line.strip():.60}` is not valid",
                "list each host once, as `host slots=N`",
            )
        slots[match[1]] = int(match[2])
    if not slots:
        raise UsageError(f"hostfile `{name}` names no host", "write one `host slots=N` per line")
    return slots


def read_hostfile(path: Path) -> dict[str, int]:
    """The count of slots by host.

    Raises:
        UsageError: The file cannot be read or parsed.
    """
    text = _read(path, f"hostfile `{path}`", "write one `host slots=N` per line")
    return parse_hostfile(text, str(path))


# Read this node's rank in a job on several nodes, from the variables of SLURM or a launcher.
#
# In such a job one zerowiz runs on each node, and starts the ranks of its own node.

_Environ = Mapping[str, str]

_ALONE = "launch on this node only: `$nodes 1`"
_NUMBER = re.compile(r"\d{1,9}", re.ASCII)
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")


def read_node_rank(environ: Mapping[str, str]) -> NodeRank | None:
    """This node's rank; `None` in a job on one node, or where no variable says otherwise.

    Raises:
        UsageError: zerowiz runs more than once on a node, or on one of several nodes only, or the
            variables contradict each other.
    """
    copies = parse_count(environ.get("LOCAL_WORLD_SIZE"))
    if copies is not None and copies > 1:
        raise UsageError(
            (
                f"a launcher started zerowiz {copies} times on this node; one zerowiz starts "
                "all ranks of the node"
            ),
            "on one node, start it without the launcher: `zerowiz launch train.py`",
            "on several nodes: `torchrun --nproc-per-node=1 ... --no-python zerowiz launch ...`",
        )
    if "SLURM_JOB_ID" in environ:
        return _read_slurm(environ)
    ranks = (node_rank for row in _LAUNCHERS if (node_rank := _read_row(environ, row)))
    return next(ranks, None)


def require_address(node_rank: NodeRank) -> None:
    """Refuse to go on where this node cannot resolve the name of node 0.

    Raises:
        PreflightError: The name has no address on this node.
    """
    try:
        socket.getaddrinfo(node_rank.master_addr, None)
    except OSError:
        raise PreflightError(
            (
                f"`{node_rank.master_addr}`, the first of the job's {node_rank.nodes} nodes, "
                f"has no address on `{node_rank.hosts[node_rank.node_rank]}`"
            ),
            "in the job script, set MASTER_ADDR to an address of that node",
        ) from None


# Slurm, srun(1), output environment variables. A batch script's own shell has SLURM_NODEID too, but
# no SLURM_STEP_ID, and the shell of salloc has neither (tried: 22.05.8).


def _read_slurm(environ: _Environ) -> NodeRank | None:
    job_nodes = parse_count(environ.get("SLURM_JOB_NUM_NODES")) or 1
    step = environ.get("SLURM_STEP_ID", "")
    nodes = (parse_count(environ.get("SLURM_STEP_NUM_NODES")) or 1) if step else 1
    if step:
        tasks = re.sub(r"\(x\d+\)", "", environ.get("SLURM_STEP_TASKS_PER_NODE", "1"))
        if set(tasks.split(",")) != {"1"} or environ.get("SLURM_LOCALID", "0") != "0":
            raise UsageError(
                (
                    "SLURM started zerowiz more than once on a node; one zerowiz starts all "
                    "ranks of the node"
                ),
                f"start it once per node: `{_srun_line(nodes)}`",
            )
    if nodes < job_nodes and nodes == 1:
        if step:
            message = f"SLURM gave the job {job_nodes} nodes, but zerowiz runs on one of them only"
        else:
            message = f"SLURM gave the job {job_nodes} nodes, but zerowiz runs without `srun`"
        raise UsageError(message, f"start one per node: `{_srun_line(job_nodes)}`", _ALONE)
    if nodes == 1:
        return None
    hosts = expand_hosts(environ.get("SLURM_STEP_NODELIST", ""))
    parts = ("SLURM_CLUSTER_NAME", "SLURM_JOB_ID", "SLURM_STEP_ID")
    # Each task of an array has its own job number; a requeued job keeps its number.
    key = (*(environ.get(name, "") for name in parts), environ.get("SLURM_RESTART_COUNT", "0"))
    return NodeRank(
        node_rank=_rank(environ, "SLURM_NODEID"),
        nodes=nodes,
        hosts=hosts,
        master_addr=environ.get("MASTER_ADDR") or hosts[0],
        master_port=parse_count(environ.get("MASTER_PORT")),
        job_key=_key("slurm", *key),
    )


def _srun_line(nodes: int) -> str:
    return (
        f"srun --nodes={nodes} --ntasks={nodes} --ntasks-per-node=1 --kill-on-bad-exit=1"
        " zerowiz launch ..."
    )


class _Launcher(Struct, frozen=True, kw_only=True):
    """The variables of a launcher that starts zerowiz on each node; the first one set counts."""

    node_rank: str
    nodes: str
    master_addr: tuple[str, ...] = ("MASTER_ADDR",)
    master_port: tuple[str, ...] = ("MASTER_PORT",)


# The innermost launcher comes first.
_LAUNCHERS = (
    # PyTorch, torch/distributed/run.py, "Environment Variables". torchrun's own store listens on
    # MASTER_PORT.
    _Launcher(node_rank="GROUP_RANK", nodes="GROUP_WORLD_SIZE", master_port=()),
    # Kubeflow, trainer, pkg/runtime/framework/plugins/torch/torch.go; training-operator,
    # pkg/controller.v1/pytorch/envvar.go. It sets RANK and WORLD_SIZE too, to pods or to ranks.
    _Launcher(
        node_rank="PET_NODE_RANK",
        nodes="PET_NNODES",
        master_addr=("PET_MASTER_ADDR", "MASTER_ADDR"),
        master_port=("PET_MASTER_PORT", "MASTER_PORT"),
    ),
    # Variables that people export for `torchrun --nnodes $NNODES --node-rank $NODE_RANK`.
    _Launcher(node_rank="NODE_RANK", nodes="NNODES"),
    # Kubeflow, PyTorchJob, one process for each pod.
    _Launcher(node_rank="RANK", nodes="WORLD_SIZE"),
)


def _read_row(environ: _Environ, row: _Launcher) -> NodeRank | None:
    nodes = parse_elastic(environ.get(row.nodes, ""))
    address = first_set(environ, row.master_addr)
    if nodes is None or nodes == 1 or not address or row.node_rank not in environ:
        return None
    port = parse_count(first_set(environ, row.master_port))
    return NodeRank(
        node_rank=_rank(environ, row.node_rank),
        nodes=nodes,
        # The names of the pods are not known; DeepSpeed uses them only to distinguish nodes.
        hosts=tuple(f"node-{number}" for number in range(nodes)),
        master_addr=address,
        master_port=port,
        job_key=_key(
            "torch",
            environ.get("TORCHELASTIC_RUN_ID") or environ.get("PET_RDZV_ID", ""),
            address,
            first_set(environ, ("PET_MASTER_PORT", "MASTER_PORT")),
        ),
    )


def _rank(environ: _Environ, name: str) -> int:
    text = environ.get(name, "")
    if not _NUMBER.fullmatch(text):
        raise UsageError(
            f"`{name}={text}` is not a node number",
            "set it to 0 on the first node, to 1 on the next",
        )
    return int(text)


def _key(*parts: str) -> str:
    return "-".join(_UNSAFE.sub("-", part) for part in parts if part)


# Read the files of the rendezvous, which the zerowiz processes of several nodes write.

_Value = TypeVar("_Value")


def read_message(kind: type[_Value], path: Path) -> _Value | None:
    """What a node wrote; None where nothing is there, or another version of zerowiz wrote it.

    Raises:
        ZerowizError: The file cannot be read.
    """
    # A network file system caches for up to a minute that a file is missing, unless its folder is
    # read (nfs(5), "Directory entry caching").
    with suppress(OSError):
        os.listdir(path.parent)  # noqa: PTH208 - the names are not used
    try:
        return decode(kind, parse_json(path.read_text(encoding="utf-8")), path.name)
    except (FileNotFoundError, UsageError, ValueError):
        return None
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise ZerowizError(f"`{path}` cannot be read: {reason}") from None


def has_content(path: Path, sha256: str) -> bool:
    """Whether a file exists and its content has this hash."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest() == sha256
    except OSError:
        return False
