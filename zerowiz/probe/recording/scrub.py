"""Remove from a recording what identifies its machine and users: UUIDs, names of hosts and jobs."""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from zerowiz.core.machine.cuda_visible import VARIABLE, visible_gpus
from zerowiz.core.machine.types import Gpu
from zerowiz.probe.recording.files import FileAnswers
from zerowiz.probe.recording.hashes import hash_addresses, hash_bytes, hash_uuids

_CGROUPS = "proc/self/cgroup"
_CGROUP_MOUNT = "sys/fs/cgroup/"
# Levels of a cgroup's path that identify nothing: the parent, and the mounts of version 1.
_PUBLIC_LEVELS = ("..", "memory", "cpu")

# Of files with other content too, only the lines that are read.
_LINES: Mapping[str, re.Pattern[str]] = {
    "proc/self/status": re.compile(r"^Cpus_allowed_list:.*\n?", re.MULTILINE),
    "proc/self/limits": re.compile(r"^Max locked memory.*\n?", re.MULTILINE),
    "proc/meminfo": re.compile(r"^(?:MemTotal|MemFree|MemAvailable):.*\n?", re.MULTILINE),
}

# Paths that a plan depends on; the others (folders of PATH) are not recorded.
_PATHS = re.compile(r"proc/meminfo|proc/(?:self|\d+)/\w+|sys/.+|dev/shm|dev/infiniband/\w+|\{\w+\}")

# Variables that list host names, that name a file of host names, and that are names themselves.
_HOST_LISTS = ("LSB_MCPU_HOSTS", "LSB_HOSTS")
_HOST_FILES = ("PBS_NODEFILE",)
_NAMES = (
    *("SLURM_JOB_ID", "SLURMD_NODENAME", "SLURM_CONF", "PBS_JOBID", "LSB_JOBID"),
    *("PBS_CONF_FILE", "PBS_DEFAULT", "PBS_SERVER", "LSF_ENVDIR", "LSF_SERVERDIR"),
    *("TORCHELASTIC_RUN_ID", "KUBERNETES_SERVICE_HOST"),
)

# Variables that a plan depends on; the others that were looked up name folders and hosts.
_KEPT = re.compile(
    r"CUDA_\w+|NCCL_\w+|DS_ACCELERATOR|PET_\w+|(LOCAL_)?WORLD_SIZE|OMPI_COMM_WORLD_\w*SIZE|PMI_SIZE"
    r"|SLURM_(JOB_NUM_NODES|NNODES|GPUS\w*|JOB_GPUS|STEP_GPUS|TASKS_PER_NODE|MEM_\w+"
    r"|CPUS_ON_NODE|JOB_CPUS_PER_NODE)|PBS_(NODEFILE|NGPUS|NUM_NODES)"
    r"|LSB_(MCPU_HOSTS|HOSTS|DJOB_NUMPROC)|" + "|".join(_NAMES)
)

# An entry of CUDA_VISIBLE_DEVICES that looks like a UUID to a person, but not to CUDA.
_NO_UUID = re.compile(r"(?:GPU|MIG)-.*", re.IGNORECASE | re.DOTALL)

Rename = Callable[[str], str]


def scrub_calls(calls: Mapping[str, Any]) -> dict[str, Any]:
    """NVML's answers with hashed UUIDs, also that of the NVLink domain."""
    return {call: _scrub_answer(answer) for call, answer in calls.items()}


def _scrub_answer(answer: Any) -> Any:  # noqa: ANN401 - JSON
    match answer:
        case str():
            return hash_uuids(answer)
        case {"clusterUuid": cluster, **rest} if any(cluster):
            return {**rest, "clusterUuid": list(hash_bytes(bytes(cluster)))}
        case dict():
            return {key: _scrub_answer(each) for key, each in answer.items()}
        case list():
            return [_scrub_answer(each) for each in answer]
        case _:
            return answer


def scrub_environ(environ: Mapping[str, str], uuids: tuple[str, ...]) -> dict[str, str]:
    """The variables that a plan depends on, without names.

    Args:
        environ: The variables that were looked up.
        uuids: Of all GPUs and slices, to complete a prefix before it is hashed.
    """
    hosts = _number(word for key in _HOST_LISTS for word in _words(environ.get(key, "")))
    kept = {name: hash_addresses(each) for name, each in environ.items() if _KEPT.fullmatch(name)}
    for name, value in kept.items():
        if name in _HOST_LISTS:
            kept[name] = " ".join(hosts.get(word, word) for word in value.split())
        elif name in _NAMES:
            kept[name] = value and "1"
        elif name in _HOST_FILES:
            kept[name] = f"/{name}"
        elif name == VARIABLE:
            kept[name] = ",".join(_complete(entry, uuids) for entry in value.split(","))
    return kept


def _words(text: str) -> Iterator[str]:
    return (word for word in text.split() if not word.isdecimal())


def _number(words: Iterator[str]) -> dict[str, str]:
    return {word: f"host-{number}" for number, word in enumerate(dict.fromkeys(words))}


def _complete(entry: str, uuids: tuple[str, ...]) -> str:
    """A prefix as the whole UUID, hashed; `unknown` for one that no GPU has."""
    if not entry.startswith(("GPU-", "MIG-")):
        return _NO_UUID.sub("unknown", entry)
    known = [Gpu(index=index, name="", uuid=each) for index, each in enumerate(uuids)]
    matching = [gpu.uuid for gpu in visible_gpus(entry, known)]
    return hash_uuids(matching[0] or "") if matching else f"{entry[:4]}unknown"


def scrub_files(files: FileAnswers, environ: Mapping[str, str]) -> FileAnswers:
    """What was read of the host, without names in the contents and the paths.

    Args:
        files: Every answer of the host.
        environ: The variables that were looked up; some name files of host names.
    """
    rename = _rename_levels(files.text.get(_CGROUPS) or "")
    lists = {environ[name].lstrip("/"): name for name in _HOST_FILES if name in environ}

    def clean(path: str) -> str:
        return hash_addresses(rename(path))

    def keep(answers: Mapping[str, Any]) -> dict[str, Any]:
        return {clean(path): each for path, each in answers.items() if _PATHS.fullmatch(path)}

    texts = {path: _scrub_text(path, text, rename) for path, text in keep(files.text).items()}
    for path, name in lists.items():
        texts[name] = _scrub_hosts(files.text.get(path))
    return FileAnswers(
        text=texts,
        names={path: tuple(map(clean, each)) for path, each in keep(files.names).items()},
        real={path: each and clean(each) for path, each in keep(files.real).items()},
        space=keep(files.space),
        opens=keep(files.opens),
    )


def _scrub_text(path: str, text: str | None, rename: Rename) -> str | None:
    if text is None:
        return None
    if path in _LINES:
        return "".join(_LINES[path].findall(text))
    if path == _CGROUPS:
        return "".join(_scrub_cgroup(line, rename) for line in text.splitlines())
    return hash_addresses(text)


def _scrub_cgroup(line: str, rename: Rename) -> str:
    *head, path = _split_cgroup(line)
    inside = rename(_CGROUP_MOUNT + path.lstrip("/")).removeprefix(_CGROUP_MOUNT)
    return ":".join([*head, f"/{inside}\n"])


def _split_cgroup(line: str) -> list[str]:
    """`ID:CONTROLLERS:PATH`, where the path may hold colons (`pod12.slice:cri-containerd:34`)."""
    return line.split(":", 2)


def _scrub_hosts(text: str | None) -> str | None:
    if text is None:
        return None
    numbers = _number(iter(text.split()))
    return "".join(f"{numbers[word]}\n" for word in text.split())


def _rename_levels(cgroups: str) -> Rename:
    """A function that numbers the levels of this process's cgroup, which name users and pods."""
    paths = [_split_cgroup(line)[-1] for line in cgroups.splitlines()]
    levels = dict.fromkeys(part for path in paths for part in path.split("/") if part)
    numbers = {part: f"level-{n}" for n, part in enumerate(levels) if part not in _PUBLIC_LEVELS}

    def rename(path: str) -> str:
        if not path.startswith(_CGROUP_MOUNT):
            return path
        inside = path.removeprefix(_CGROUP_MOUNT).split("/")
        return _CGROUP_MOUNT + "/".join(numbers.get(part, part) for part in inside)

    return rename
