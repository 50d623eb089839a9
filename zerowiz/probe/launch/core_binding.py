"""Try whether each rank can be bound to cores of its own, as DeepSpeed's launcher would do it."""

import os
import shutil
import subprocess
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

from zerowiz.core.launch.plan import CoreBinding
from zerowiz.probe.machine.host import parse_list
from zerowiz.words import _

_PATIENCE_S = 2.0
_SYSTEM = Path("/sys/devices/system")


def try_core_binding(environ: Mapping[str, str], ranks: int, system: Path = _SYSTEM) -> CoreBinding:
    """The cores to bind the ranks of this host to, if a trial of each rank's own succeeds.

    Args:
        environ: The job's environment.
        ranks: On this host.
        system: Where the kernel lists cores and NUMA nodes.
    """
    numactl = shutil.which("numactl", path=environ.get("PATH", ""))
    if numactl is None:
        return CoreBinding(cores=None, why_not=_("`numactl` is not installed"))
    # deepspeed/utils/numa.py, get_numactl_cmd.
    if "KMP_AFFINITY" in environ:
        return CoreBinding(
            cores=None, why_not=_("DeepSpeed does not bind cores if `KMP_AFFINITY` is set")
        )
    cores = sorted(_physical(os.sched_getaffinity(0), system))
    each = len(cores) // ranks
    if not each:
        return CoreBinding(cores=None, why_not=_("there are fewer cores than ranks"))
    nodes = [*_nodes(system)]
    of_ranks = [cores[each * rank : each * (rank + 1)] for rank in range(ranks)]
    if all(_binds([numactl, *_words(own, nodes)], environ) for own in of_ranks):
        return CoreBinding(cores=_listed(cores))
    return CoreBinding(
        cores=None, why_not=_("`numactl` is not allowed to bind cores or memory here")
    )


def _physical(allowed: Collection[int], system: Path) -> Iterator[int]:
    """One core of those that are threads of one."""
    for core in allowed:
        threads = _read(system / f"cpu/cpu{core}/topology/thread_siblings_list")
        if core == min(threads.intersection(allowed), default=core):
            yield core


def _nodes(system: Path) -> Iterator[tuple[str, frozenset[int]]]:
    """Each NUMA node's number and cores."""
    for folder in sorted(system.glob("node/node[0-9]*")):
        yield folder.name.removeprefix("node"), _read(folder / "cpulist")


def _read(path: Path) -> frozenset[int]:
    try:
        return parse_list(path.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return frozenset()


def _words(cores: Sequence[int], nodes: Sequence[tuple[str, frozenset[int]]]) -> tuple[str, ...]:
    """As DeepSpeed does: memory of the node too, where all cores of a rank are of one."""
    node = next((name for name, inside in nodes if inside.issuperset(cores)), None)
    memory = () if node is None else ("-m", node)
    return (*memory, "-C", _listed(cores), "true")


def _listed(cores: Sequence[int]) -> str:
    """`0-3,8`; DeepSpeed wants them in ascending order."""
    spans: list[list[int]] = []
    for core in cores:
        if spans and core == spans[-1][1] + 1:
            spans[-1][1] = core
        else:
            spans.append([core, core])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in spans)


def _binds(words: Sequence[str], environ: Mapping[str, str]) -> bool:
    try:
        done = subprocess.run(  # noqa: S603 - numactl's own words
            words, env=dict(environ), capture_output=True, timeout=_PATIENCE_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0
