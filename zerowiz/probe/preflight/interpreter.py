"""Find the Python that the ranks run with, its libraries, launchers, programs and ports."""

import ast
import errno
import os
import platform
import re
import shutil
import socket
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.machinery import PathFinder
from importlib.util import find_spec
from pathlib import Path

from zerowiz.core import shell
from zerowiz.core.launch.plan import Launcher, Programs
from zerowiz.core.preflight.facts import Installed, Package, Torch
from zerowiz.errors import PreflightError
from zerowiz.probe.host_files import Files
from zerowiz.probe.machine.network import parse_name_list

# Where a path is long or has a space, pip and uv write `#!/bin/sh` and this second line.
_TRAMPOLINE = re.compile(r"""^'''exec' "?([^"\n]+?)"? "\$0" "\$@"$""")
# The longest first line that Linux starts (include/uapi/linux/binfmts.h, BINPRM_BUF_SIZE) is 256.
_FIRST_LINES_BYTES = 1024

_ASSIGNMENT = re.compile(r"^(__version__|cuda|hip)\b[^=\n]*=\s*(.+?)\s*$", re.MULTILINE)
_CUDA = re.compile(r"(\d{1,3})\.(\d{1,3})", re.ASCII)
# A release that PyTorch published, for which the table below holds: `2.13.0+cu130`.
_RELEASE = re.compile(r"\d+\.\d+\.\d+\+cu\d+", re.ASCII)
# torch/cuda/__init__.py, PYTORCH_RELEASES_CODE_CC: by CUDA's version, then by architecture.
_TABLE = re.compile(r"^PYTORCH_RELEASES_CODE_CC\b[^=\n]*= (\{.+?^\})", re.MULTILINE | re.DOTALL)


def read_interpreter(program: str, environ: Mapping[str, str]) -> str | None:
    """The Python in the first line of a program; None where it names none.

    Args:
        program: The path of `deepspeed`, as pip or uv wrote it.
        environ: The environment whose PATH `env python3` searches.
    """
    try:
        with Path(program).open("rb") as file:
            text = file.read(_FIRST_LINES_BYTES).decode("utf-8", "replace")
    except OSError:
        return None
    return parse_interpreter(text, environ.get("PATH", ""))


def parse_interpreter(text: str, path: str) -> str | None:
    """As `read_interpreter`, of the program's text.

    Args:
        text: The beginning of the program.
        path: The PATH that `env python3` searches.
    """
    first, _, rest = text.partition("\n")
    if not first.startswith("#!"):
        return None
    line = first.removeprefix("#!").strip()
    trampoline = _TRAMPOLINE.match(rest.partition("\n")[0])
    if line == "/bin/sh":
        return trampoline[1] if trampoline else None
    words = line.split()
    if words and Path(words[0]).name == "env" and len(words) > 1:
        return shutil.which(words[-1], path=path)
    return line if Path(line).is_absolute() else None


def read_installed(program: str, environ: Mapping[str, str], names: Iterable[str]) -> Installed:
    """The libraries that the ranks of a `deepspeed` will find.

    Args:
        program: The path of `deepspeed`.
        environ: The job's environment.
        names: The libraries to look for.
    """
    interpreter = read_interpreter(program, environ)
    is_own = None if interpreter is None else _is_own(interpreter)
    folders = None if is_own is not False else _list_folders(interpreter or "")
    paths = {name: _find(name, folders) for name in names}
    deepspeed, torch = paths.get("deepspeed"), paths.get("torch")
    version, prebuilt = _read_deepspeed(deepspeed)
    # Of the host's optimizers; older releases build them with nvcc (op_builder/).
    builders = () if deepspeed is None else deepspeed.glob("ops/op_builder/cpu_*.py")
    packages = {name: _package(path, folders) for name, path in paths.items()}
    if version is not None:
        packages["deepspeed"] = Package(present=True, version=version)
    return Installed(
        program=program,
        interpreter=interpreter,
        interpreter_exists=None if interpreter is None else Path(interpreter).exists(),
        own=is_own,
        packages=packages,
        torch=None if torch is None else _read_torch(torch),
        prebuilt=prebuilt,
        cuda_builders=frozenset(builder.stem for builder in builders),
    )


def _is_own(interpreter: str) -> bool:
    """Whether it is the Python of this process.

    Their folders must be the same too: the `python` of several virtual environments may link to the
    same file.
    """
    theirs, ours = Path(interpreter), Path(sys.executable)
    try:
        same_folder = theirs.parent.resolve() == ours.parent.resolve()
        return same_folder and theirs.resolve() == ours.resolve()
    except OSError:
        return False


def _list_folders(interpreter: str) -> list[str]:
    """The library folders of another Python, without those that its `.pth` files add."""
    prefix = Path(interpreter).parent.parent
    folders = [
        *prefix.glob("lib*/python3*/site-packages"),
        *prefix.glob("lib/python3/dist-packages"),
    ]
    return [str(folder) for folder in sorted(folders)]


def _find(name: str, folders: Sequence[str] | None) -> Path | None:
    """The folder of a library, or its file; None where it is not found."""
    try:
        spec = find_spec(name) if folders is None else PathFinder.find_spec(name, folders)
    except (ImportError, ValueError, AttributeError):
        return None
    if spec is None:
        return None
    locations = spec.submodule_search_locations
    location = next(iter(locations), None) if locations else spec.origin
    return None if location is None else Path(location)


def _package(path: Path | None, folders: Sequence[str] | None) -> Package:
    """A library; in another Python one that was not found may still be installed another way."""
    if path is not None:
        metadata = sorted(path.parent.glob(f"{path.name}-*.dist-info"))
        version = metadata[0].stem.removeprefix(f"{path.name}-") if metadata else None
        return Package(present=True, version=version)
    return Package(present=False if folders is None else None)


def _read_deepspeed(folder: Path | None) -> tuple[str | None, frozenset[str]]:
    """DeepSpeed's version and the ops that were compiled with it, which its setup.py writes."""
    text = "" if folder is None else _read(folder / "git_version_info_installed.py")
    values: dict[str, object] = {}
    for line in text.splitlines():
        name, _, value = line.partition("=")
        try:
            values[name.strip()] = ast.literal_eval(value.strip())
        except (ValueError, SyntaxError):
            continue
    version, ops = values.get("version"), values.get("installed_ops")
    built = ops.items() if isinstance(ops, dict) else ()
    names = frozenset(str(name) for name, is_built in built if is_built is True)
    return (version if isinstance(version, str) else None), names


def _read_torch(folder: Path) -> Torch | None:
    """The contents of torch's version.py, and the GPUs that its release has code for."""
    torch = parse_torch_version(_read(folder / "version.py"))
    if torch is None or torch.cuda_version is None or not _RELEASE.fullmatch(torch.version):
        return torch
    table = _read(folder / "cuda" / "__init__.py")
    capabilities = parse_capabilities(table, torch.cuda_version, platform.machine().lower())
    return Torch(version=torch.version, cuda_version=torch.cuda_version, capabilities=capabilities)


def parse_torch_version(text: str) -> Torch | None:
    """The contents of torch/version.py; None where torch did not write it like this."""
    values: dict[str, object] = {}
    for name, value in _ASSIGNMENT.findall(text):
        try:
            values[name] = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            return None
    version, cuda = values.get("__version__"), values.get("cuda")
    if not isinstance(version, str) or "cuda" not in values:
        return None
    match = _CUDA.match(cuda) if isinstance(cuda, str) else None
    return Torch(
        version=version,
        cuda_version=(int(match[1]), int(match[2])) if match else None,
        hip=values.get("hip") is not None,
    )


def parse_capabilities(
    text: str, cuda: tuple[int, int], architecture: str
) -> frozenset[tuple[int, int]] | None:
    """The compute capabilities that torch's release for this CUDA has code for.

    Args:
        text: The content of torch/cuda/__init__.py.
        cuda: CUDA's version.
        architecture: The host's, such as `x86_64`.

    Returns:
        None where torch has no such table.
    """
    match = _TABLE.search(text)
    try:
        table = ast.literal_eval(match[1]) if match else {}
    except (ValueError, SyntaxError):
        return None
    row = table.get(f"{cuda[0]}.{cuda[1]}") if isinstance(table, dict) else None
    codes = row.get(architecture) if isinstance(row, dict) else None
    if not isinstance(codes, set) or not all(isinstance(code, int) for code in codes):
        return None
    return frozenset(divmod(code, 10) for code in codes) or None


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


# Find the file of a module without importing it.


def find_module_file(name: str, environ: Mapping[str, str]) -> Path:
    """The file that `python -m NAME` runs: `pkg/train.py`, or `pkg/train/__main__.py`.

    Args:
        name: The module.
        environ: The environment; PYTHONPATH counts after the working folder.

    Raises:
        PreflightError: There is none.
    """
    is_path = name.endswith(".py") or "/" in name
    if is_path or not all(name.split(".")):
        as_script = f"to start it as a script: `zerowiz launch {shell.quote(name)}`"
        raise PreflightError(f"`{name}` is not a module name", *([as_script] if is_path else []))
    here = str(Path.cwd())
    folders = [here, *filter(None, environ.get("PYTHONPATH", "").split(":")), *sys.path]
    # That finds a part in the folders of the package above it, and imports none of them.
    for part in name.split("."):
        spec = PathFinder.find_spec(part, folders)
        folders = list((spec and spec.submodule_search_locations) or ())
    if folders and (spec := PathFinder.find_spec("__main__", folders)) is None:
        raise PreflightError(
            f"the module `{name}` is a package without `__main__.py`",
            (
                "name the module in it that starts the training: `zerowiz launch -m "
                f"{shell.quote(name)}.train`"
            ),
        )
    if spec is None or spec.origin is None:
        relative = name.replace(".", "/")
        raise PreflightError(
            (
                f"there is no module `{name}`: neither `{relative}.py` nor "
                f"`{relative}/__main__.py` exists here, in PYTHONPATH or in the installed "
                "packages"
            ),
            (
                "start zerowiz in the folder that contains the package, or add that folder to "
                "PYTHONPATH"
            ),
        )
    return Path(spec.origin.removeprefix(f"{here}/"))


# Find a free port, and check that network interfaces have the names that variables give.

# Below the ports of torchrun (29400), DeepSpeed (29500) and Kubernetes' NodePorts (30000).
_LOWEST, _HIGHEST = 10_000, 29_399
_EPHEMERAL_PORTS = Path("/proc/sys/net/ipv4/ip_local_port_range")


def find_free_port(ephemeral_ports: Path = _EPHEMERAL_PORTS) -> int:
    """A TCP port on which no process listens.

    It takes seconds until a job's first rank listens there. Meanwhile the kernel gives ephemeral
    ports to connections of other processes, so the port is outside of that range.

    Args:
        ephemeral_ports: The file with the range (ip(7), ip_local_port_range).
    """
    try:
        first, last = map(int, ephemeral_ports.read_text(encoding="ascii").split())
    except (OSError, ValueError):
        first, last = 0, 0
    for port in _from_random_start():
        if not first <= port <= last and is_taken(port) is False:
            return port
    with socket.socket() as listener:
        listener.bind(("", 0))
        return int(listener.getsockname()[1])


def _from_random_start() -> Iterator[int]:
    """Each port once, from a random one on, so that concurrent jobs try different ports."""
    count = _HIGHEST - _LOWEST + 1
    start = int.from_bytes(os.urandom(4), "big")
    return (_LOWEST + (start + offset) % count for offset in range(count))


def is_taken(port: int) -> bool | None:
    """Whether a job's first rank could not listen on a port; None where it cannot be tried.

    Source: torch's TCPStore listens with SO_REUSEADDR, so closed connections of an earlier job do
    not count.
    """
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("", port))
        except OSError as error:
            return True if error.errno == errno.EADDRINUSE else None
        except OverflowError:
            return None
    return False


def read_interfaces(environ: Mapping[str, str], files: Files) -> dict[str, bool | None]:
    """For each variable that is set: whether an interface has a name that it allows.

    Args:
        environ: The job's environment.
        files: The files of the host.
    """
    sockets, adapters = files.names("sys/class/net"), files.names("sys/class/infiniband")
    nccl, gloo = environ.get("NCCL_SOCKET_IFNAME", ""), environ.get("GLOO_SOCKET_IFNAME", "")
    allowed: dict[str, bool | None] = {}
    # NCCL, ncclFindInterfaces: it ignores a value of one character.
    if len(nccl) > 1 and sockets:
        rules = parse_name_list("NCCL_SOCKET_IFNAME", nccl)
        allowed["NCCL_SOCKET_IFNAME"] = any(rules.allows(name) for name in sockets)
    if gloo and sockets:
        # torch, ProcessGroupGloo: names separated by commas, one for each thread.
        allowed["GLOO_SOCKET_IFNAME"] = all(name in sockets for name in gloo.split(","))
    hcas = environ.get("NCCL_IB_HCA", "")
    if hcas and adapters:
        listed = parse_name_list("NCCL_IB_HCA", hcas)
        entries = [name for name, _ in listed.entries]
        exact = (
            name in adapters
            if listed.exact
            else any(adapter.startswith(name) for adapter in adapters)
            for name in entries
        )
        allowed["NCCL_IB_HCA"] = listed.excludes or not entries or any(exact)
    return allowed


# Find the programs and folders of a launch, and a free port.


def find_programs(environ: Mapping[str, str]) -> Programs:
    """What runs a job: `deepspeed` of this interpreter's folder, else the one on PATH.

    Args:
        environ: The caller's environment.

    Raises:
        PreflightError: There is no `deepspeed`.
    """
    bin_folder = Path(sys.executable).parent
    beside = bin_folder / "deepspeed"
    program = str(beside) if os.access(beside, os.X_OK) else None
    deepspeed = program or shutil.which("deepspeed", path=environ.get("PATH", ""))
    if deepspeed is None:
        raise PreflightError(
            f"no `deepspeed` in the environment of {sys.executable} or on PATH",
            '`pip install "zerowiz[train]"`',
        )
    virtual = sys.prefix != sys.base_prefix
    return Programs(
        deepspeed=deepspeed,
        bin_folder=str(bin_folder),
        master_port=find_free_port(),
        rank_program=str(Path(__file__).parents[2] / "worker" / "rank.py"),
        extensions_folder=str(Path(sys.prefix) / "torch_extensions") if virtual else None,
    )


# Check that the programs that start ranks on other nodes are installed here.

# What DeepSpeed looks for, and runs (multinode_runner.py, backend_exists, 0.19.8), each with the
# package of Debian that has it.
_STARTERS: Mapping[Launcher, Mapping[str, str]] = {
    Launcher.PDSH: {"pdsh": "pdsh", "ssh": "openssh-client"},
    Launcher.OPENMPI: {
        "ompi_info": "openmpi-bin",
        "mpirun": "openmpi-bin",
        "ssh": "openssh-client",
    },
    Launcher.MPICH: {"mpirun": "mpich", "ssh": "openssh-client"},
}


def check_launcher(launcher: Launcher, environ: Mapping[str, str]) -> None:
    """Refuse a launcher that would not start.

    Args:
        launcher: Which of DeepSpeed's launchers.
        environ: The environment, whose PATH is searched.

    Raises:
        PreflightError: It is not installed.
    """
    for program, package in _STARTERS[launcher].items():
        if shutil.which(program, path=environ.get("PATH", "")) is None:
            raise PreflightError(
                f"`--launcher {launcher}` needs `{program}`, which is not on PATH",
                (
                    f"install it: `apt-get install {package}`, or the package of that name "
                    "on your system"
                ),
            )
