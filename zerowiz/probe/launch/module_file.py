"""Find the file of a module without importing it."""

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from zerowiz.core import shell
from zerowiz.errors import PreflightError
from zerowiz.words import _

_MAIN = "__main__.py"


def find_module_file(name: str, environ: Mapping[str, str]) -> Path:
    """The file that `python -m NAME` runs: `pkg/train.py`, or `pkg/train/__main__.py`.

    Python prefers a package to a file beside it, and both to a folder without `__init__.py`.

    Args:
        name: The module.
        environ: The environment; PYTHONPATH counts after the working folder.

    Raises:
        PreflightError: There is none.
    """
    is_path = name.endswith(".py") or "/" in name
    if is_path or not all(name.split(".")):
        as_script = _("to start it as a script: `zerowiz launch {name}`", name=shell.quote(name))
        raise PreflightError(
            _("`{name}` is not a module name", name=name), *([as_script] if is_path else [])
        )
    relative = Path(*name.split("."))
    places = [folder / relative for folder in _list_folders(environ)]
    for place in places:
        if (place / "__init__.py").is_file():
            return _main_of(place, name)
        if place.with_suffix(".py").is_file():
            return place.with_suffix(".py")
    for place in places:
        if (place / _MAIN).is_file():
            return place / _MAIN
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


def _main_of(package: Path, name: str) -> Path:
    if (package / _MAIN).is_file():
        return package / _MAIN
    raise PreflightError(
        _("the module `{name}` is a package without `{main}`", name=name, main=_MAIN),
        _(
            "name the module in it that starts the training: `zerowiz launch -m {name}.train`",
            name=shell.quote(name),
        ),
    )


def _list_folders(environ: Mapping[str, str]) -> Iterator[Path]:
    """Where Python looks, in its order; for `-m` the working folder is first."""
    yield Path()
    for entry in (*environ.get("PYTHONPATH", "").split(":"), *sys.path):
        if entry:
            yield Path(entry)
