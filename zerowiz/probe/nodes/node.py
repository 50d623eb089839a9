"""Read this node's rank in a job on several nodes, from the variables of SLURM or a launcher.

In such a job one zerowiz runs on each node, and starts the ranks of its own node.
"""

import re
import socket
from collections.abc import Mapping

from msgspec import Struct

from zerowiz.core.launch.node import NodeRank, expand_hosts
from zerowiz.errors import PreflightError, UsageError
from zerowiz.probe.machine.scheduler import parse_count, parse_elastic
from zerowiz.words import _

_Environ = Mapping[str, str]

_ALONE = _("launch on this node only: `$nodes 1`")
_NUMBER = re.compile(r"\d{1,9}", re.ASCII)
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")


def read_node_rank(environ: Mapping[str, str]) -> NodeRank | None:
    """This node's rank; `None` in a job on one node, or where no variable says otherwise.

    Raises:
        UsageError: zerowiz runs more than once on a node, or on one of several nodes only, or the
            variables contradict each other.
    """
    _refuse_copies_of_torchrun(environ)
    if "SLURM_JOB_ID" in environ:
        return _read_slurm(environ)
    found = (node_rank for row in _LAUNCHERS if (node_rank := _read_row(environ, row)))
    return next(found, None)


def require_address(node_rank: NodeRank) -> None:
    """Refuse to go on where this node cannot resolve the name of node 0.

    Raises:
        PreflightError: The name has no address on this node.
    """
    try:
        socket.getaddrinfo(node_rank.master_addr, None)
    except OSError:
        raise PreflightError(
            _(
                "`{master_addr}`, the first of the job's {nodes} nodes, has no address on "
                "`{hosts}`",
                master_addr=node_rank.master_addr,
                nodes=node_rank.nodes,
                hosts=node_rank.hosts[node_rank.node_rank],
            ),
            _("in the job script, set MASTER_ADDR to an address of that node"),
        ) from None


# Slurm, srun(1), output environment variables. A batch script's own shell has SLURM_NODEID too, but
# no SLURM_STEP_ID, and the shell of salloc has neither (tried: 22.05.8).


def _read_slurm(environ: _Environ) -> NodeRank | None:
    job_nodes = parse_count(environ.get("SLURM_JOB_NUM_NODES")) or 1
    step = environ.get("SLURM_STEP_ID", "")
    nodes = (parse_count(environ.get("SLURM_STEP_NUM_NODES")) or 1) if step else 1
    if step:
        _refuse_tasks(environ, nodes)
    if nodes < job_nodes and nodes == 1:
        raise _srun_is_missing(job_nodes, in_step=bool(step))
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


def _refuse_tasks(environ: _Environ, nodes: int) -> None:
    tasks = re.sub(r"\(x\d+\)", "", environ.get("SLURM_STEP_TASKS_PER_NODE", "1"))
    if set(tasks.split(",")) != {"1"} or environ.get("SLURM_LOCALID", "0") != "0":
        raise UsageError(
            _(
                "SLURM started zerowiz more than once on a node; one zerowiz starts all ranks of"
                " the node"
            ),
            _("start it once per node: `{srun_line}`", srun_line=_srun_line(nodes)),
        )


def _srun_is_missing(nodes: int, *, in_step: bool) -> UsageError:
    if in_step:
        message = _(
            "SLURM gave the job {nodes} nodes, but zerowiz runs on one of them only", nodes=nodes
        )
    else:
        message = _(
            "SLURM gave the job {nodes} nodes, but zerowiz runs without `srun`", nodes=nodes
        )
    return UsageError(
        message, _("start one per node: `{srun_line}`", srun_line=_srun_line(nodes)), _ALONE
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
    address = _first(environ, row.master_addr)
    if nodes is None or nodes == 1 or not address or row.node_rank not in environ:
        return None
    port = parse_count(_first(environ, row.master_port))
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
            _first(environ, ("PET_MASTER_PORT", "MASTER_PORT")),
        ),
    )


def _refuse_copies_of_torchrun(environ: _Environ) -> None:
    copies = parse_count(environ.get("LOCAL_WORLD_SIZE"))
    if copies is not None and copies > 1:
        raise UsageError(
            _(
                "a launcher started zerowiz {copies} times on this node; one zerowiz "
                "starts all ranks of the node",
                copies=copies,
            ),
            _("on one node, start it without the launcher: `zerowiz launch train.py`"),
            _("on several nodes: `torchrun --nproc-per-node=1 ... --no-python zerowiz launch ...`"),
        )


def _rank(environ: _Environ, name: str) -> int:
    text = environ.get(name, "")
    if not _NUMBER.fullmatch(text):
        raise UsageError(_("`{name}={text}` is not a node number", name=name, text=text))
    return int(text)


def _first(environ: _Environ, names: tuple[str, ...]) -> str:
    return next((environ[name] for name in names if environ.get(name)), "")


def _key(*parts: str) -> str:
    return "-".join(_UNSAFE.sub("-", part) for part in parts if part)
