"""Find the answers file of a job, `zerowiz.toml`, and read it."""

from pathlib import Path

from zerowiz.errors import UsageError, ZerowizError
from zerowiz.probe.named_file import read_named_text
from zerowiz.words import _

FILE_NAME = "zerowiz.toml"
# Every key that there is takes a few kB.
_MOST_BYTES = 64 * 2**10


def find_answers_file(script: str | None, output_dir: Path | None) -> Path | None:
    """The file that a run in the working folder reads; None where there is none.

    First in the folder of the configs, where that is said. Then in the folder of the script, where
    that lies below the working folder, else in the working folder, and from there upwards: to the
    root of the repository, and outside of one no further than the working folder. So a stray file
    far up changes no job.

    Args:
        script: Its path, where it is named.
        output_dir: The folder of the configs, where it is said.
    """
    here = Path.cwd()
    folders = () if output_dir is None else (here / output_dir,)
    paths = (folder / FILE_NAME for folder in (*folders, *_from(here, script)))
    return next((path for path in paths if path.is_file()), None)


def _from(here: Path, script: str | None) -> tuple[Path, ...]:
    """The folders in which a file counts, the nearest first."""
    root = next((each for each in (here, *here.parents) if (each / ".git").exists()), here)
    start = here if script is None else Path(script).absolute().parent
    if ".." in start.parts or not start.is_relative_to(here) or not start.is_dir():
        start = here
    folders = (start, *start.parents)
    return folders[: folders.index(root) + 1]


def read_answers_text(path: Path, name: str) -> str:
    """The content of an answers file.

    Args:
        path: Where it lies.
        name: What errors call it.

    Raises:
        ZerowizError: It cannot be read.
    """
    try:
        return read_named_text(path, "utf-8-sig", _MOST_BYTES)
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise ZerowizError(
            _("`{name}` cannot be read: {why}", name=name, why=why), _("ignore it: `$isolated`")
        ) from None
    except UnicodeDecodeError:
        raise UsageError(
            _("`{name}` is not UTF-8", name=name), _("ignore it: `$isolated`")
        ) from None
