"""Find the file of a module without importing it."""

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from zerowiz.errors import PreflightError
from zerowiz.words import _


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
        as_script = _("to start it as a script: `zerowiz launch {name}`", name=name)
        raise PreflightError(
            _("`{name}` is not a module name", name=name), *([as_script] if is_path else [])
        )
    relative = Path(*name.split("."))
    for folder in _list_folders(environ):
        for path in (folder / relative.with_suffix(".py"), folder / relative / "__main__.py"):
            if path.is_file():
                return path
    raise PreflightError(
        _(
            "there is no module `{name}`: neither `{relative}.py` nor "
            "`{relative}/__main__.py` exists here, in PYTHONPATH or in the installed "
            "packages",
            name=name,
            relative=relative,
        ),
        _(
            "start zerowiz in the folder that contains the package, or add that folder to"
            " PYTHONPATH"
        ),
    )


def _list_folders(environ: Mapping[str, str]) -> Iterator[Path]:
    """Where Python looks, in its order; for `-m` the working folder is first."""
    yield Path()
    for entry in (*environ.get("PYTHONPATH", "").split(":"), *sys.path):
        if entry:
            yield Path(entry)
