"""Run zerowiz in forks of this process, each in a folder of its own, and read what it says."""

import importlib
import multiprocessing
import os
import pkgutil
import re
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple, TypeVar

from paths import ROOT

AT_ONCE = 2
_NOT_EVERYWHERE = {"numactl", "pdsh", "mpirun", "srun", "sbatch", "scontrol", "nvidia-smi", "nvcc"}
_Asked = TypeVar("_Asked")
_Answer = TypeVar("_Answer")
# A port that is free when a launch looks for one.
_PORT = re.compile(r'(--master_port[ ",\n]+|MASTER_PORT[="]+)\d+')


class Ran(NamedTuple):
    """How a command ended; what stands for places of this machine is replaced."""

    code: int
    stdout: str
    stderr: str


class Command(NamedTuple):
    """The words of zerowiz, in a folder that has these entries of others."""

    words: tuple[str, ...]
    links: Mapping[str, Path]
    folder: Path | None = None
    """The folder itself, where it is not to be made."""


def leave_this_machine(home: Path) -> None:
    """Keep of the environment only what no answer comes from. Before zerowiz is loaded."""
    programs = os.pathsep.join([str(Path(sys.executable).parent), str(_link_programs(home))])
    os.environ.clear()
    os.environ.update(
        PATH=programs,
        HOME=str(home),
        XDG_CACHE_HOME=str(home / "cache"),
        LANG="C.UTF-8",
        LANGUAGE="en",
        COLUMNS="80",
        HF_HUB_OFFLINE="1",
    )
    sys.path.insert(0, str(ROOT))


def _link_programs(home: Path) -> Path:
    """A folder with the programs of this host, without those whose presence changes an answer."""
    folder = home / "programs"
    folder.mkdir()
    for place in (Path("/usr/bin"), Path("/bin")):
        for program in place.iterdir():
            link = folder / program.name
            if program.name not in _NOT_EVERYWHERE and not link.is_symlink():
                link.symlink_to(program)
    return folder


def in_forks(work: Callable[[_Asked], _Answer], asked: Iterable[_Asked]) -> Iterator[_Answer]:
    """The answers in order. Each is of a process that has nothing of another's caches."""
    load_zerowiz()
    with multiprocessing.get_context("fork").Pool(AT_ONCE, maxtasksperchild=1) as pool:
        yield from pool.imap(work, asked)


def load_zerowiz() -> None:
    """Load all of it once, for all forks."""
    import zerowiz

    for module in pkgutil.walk_packages(zerowiz.__path__, "zerowiz."):
        if not module.name.startswith("zerowiz.worker") and not module.name.endswith("__main__"):
            importlib.import_module(module.name)


def run(command: Command) -> Ran:
    """Run zerowiz in this process, which is given up for it."""
    from zerowiz.__main__ import main

    with tempfile.TemporaryDirectory(prefix="net-") as made, tempfile.TemporaryFile() as out:
        folder = command.folder or Path(made)
        for name, target in command.links.items():
            (folder / name).symlink_to(target)
        os.chdir(folder)
        with tempfile.TemporaryFile() as err, Path(os.devnull).open("rb") as nothing:
            for stream, number in ((nothing, 0), (out, 1), (err, 2)):
                os.dup2(stream.fileno(), number)
            sys.stdin = open(0, closefd=False)  # noqa: SIM115 - a number is no path
            sys.argv = ["zerowiz", *command.words]
            code = _ended(main)
            sys.stdout.flush()
            sys.stderr.flush()
            texts = [_read(stream.fileno(), folder) for stream in (out, err)]
        os.chdir("/")
    return Ran(code, *texts)


def _ended(main: Callable[[], None]) -> int:
    try:
        main()
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except Exception:  # noqa: BLE001 - a traceback is an answer too
        traceback.print_exc()
        return -1
    return 0


def _read(number: int, folder: Path) -> str:
    size = os.fstat(number).st_size
    text = os.pread(number, size, 0).decode(errors="replace")
    places = {folder: "FOLDER", Path(sys.prefix): "VENV", ROOT: "PROJECT"}
    for place, name in places.items():
        text = text.replace(str(place), name)
    return _PORT.sub(r"\g<1>PORT", text)
