"""Read the files of environment variables that DeepSpeed's runner sends to the nodes."""

from collections.abc import Mapping
from pathlib import Path

from zerowiz.core.launch.env import EnvText
from zerowiz.errors import UsageError
from zerowiz.probe.named_file import read_named_text
from zerowiz.words import _

# deepspeed/launcher/runner.py, DEEPSPEED_ENVIRONMENT_NAME (0.19.8).
_NAME = ".deepspeed_env"


def read_env_files(environ: Mapping[str, str], folder: Path = Path()) -> tuple[EnvText, ...]:
    """The file in the home folder, then the one in the working folder, which takes precedence.

    Args:
        environ: The caller's environment; its DS_ENV_FILE renames both files.
        folder: The working folder.

    Raises:
        UsageError: A file exists and cannot be read.
    """
    name = environ.get("DS_ENV_FILE", _NAME)
    paths = (Path("~").expanduser() / name, folder / name)
    found = (path for path in dict.fromkeys(paths) if path.is_file())
    return tuple(EnvText(name=str(path), text=_read(path)) for path in found)


def _read(path: Path) -> str:
    try:
        return read_named_text(path)
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or _("it is not text")
        raise UsageError(
            _(
                "`{path}`, whose variables DeepSpeed sends, cannot be read: {reason}",
                path=path,
                reason=reason,
            )
        ) from None
