"""Find the Python that the ranks run with, and its libraries, without loading any of them."""

import ast
import platform
import re
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from importlib.machinery import PathFinder
from importlib.util import find_spec
from pathlib import Path

from zerowiz.core.launch.doctor.facts import Installed, Package, Torch

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
    own = None if interpreter is None else _is_own(interpreter)
    folders = None if own is not False else _list_folders(interpreter or "")
    found = {name: _find(name, folders) for name in names}
    deepspeed, torch = found.get("deepspeed"), found.get("torch")
    version, prebuilt = _read_deepspeed(deepspeed)
    packages = {name: _package(path, folders) for name, path in found.items()}
    if version is not None:
        packages["deepspeed"] = Package(present=True, version=version)
    return Installed(
        program=program,
        interpreter=interpreter,
        interpreter_exists=None if interpreter is None else Path(interpreter).exists(),
        own=own,
        packages=packages,
        torch=None if torch is None else _read_torch(torch),
        prebuilt=prebuilt,
        cuda_builders=_list_cuda_builders(deepspeed),
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
    found = [*prefix.glob("lib*/python3*/site-packages"), *prefix.glob("lib/python3/dist-packages")]
    return [str(folder) for folder in sorted(found)]


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


def _list_cuda_builders(folder: Path | None) -> frozenset[str]:
    """The ops of the host's optimizers; older releases build them with nvcc (op_builder/)."""
    builders = () if folder is None else folder.glob("ops/op_builder/cpu_*.py")
    return frozenset(path.stem for path in builders)


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
