"""A fake host: a folder where /proc, /sys and /dev would be."""

from collections.abc import Mapping
from pathlib import Path

from recorded import FileAnswers

from zerowiz.probe.files import Files, Space

# A host that answers whatever is asked of one: each fact of `Host` is read from these files.
ANSWERING = FileAnswers(
    text={
        "proc/meminfo": "MemTotal:       16384256 kB\nMemAvailable:   12000000 kB\n",
        "proc/self/status": "Name:\tpython\nCpus_allowed_list:\t0-7\n",
        "proc/self/limits": "Max locked memory         8388608              8388608     bytes\n",
        "proc/cpuinfo": "processor\t: 0\nflags\t\t: fpu sse2 avx2\n",
        "sys/devices/system/node/has_cpu": "0-1\n",
    },
    space={
        "dev/shm": Space(total_bytes=2**33, free_bytes=2**33),
    },
)


def build_host(
    root: Path, files: Mapping[str, str | int], links: Mapping[str, str] | None = None
) -> Files:
    """A host with these files, and these links to other paths of it (folders, made if missing)."""
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content if isinstance(content, str) else f"{content}\n")
    for name, target in (links or {}).items():
        if not (root / target).exists():
            (root / target).mkdir(parents=True)
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).symlink_to(root / target)
    return Files(root=root)
