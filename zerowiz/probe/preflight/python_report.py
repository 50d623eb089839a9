"""Report what the Python that runs this file has: libraries, torch's build, and where ops go.

The ranks may have another Python than zerowiz. zerowiz then runs this file with it. So it needs the
standard library alone, and it imports none of the libraries that it looks for: torch takes seconds.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any


def report(names: Sequence[str], environ: Mapping[str, str]) -> dict[str, Any]:
    """What this Python has, in values that JSON has too.

    Args:
        names: The top-level modules to look for.
        environ: The environment of the ranks.

    Example:
        >>> report(["json", "no_such_library"], {})["modules"]
        {'json': None}
    """
    places = {name: _find(name) for name in names}
    torch = _read_torch(places.get("torch"))
    headers = (Path(sysconfig.get_path(name)) / "Python.h" for name in ("include", "platinclude"))
    return {
        "modules": {name: _version(name) for name, place in places.items() if place is not None},
        "torch": torch,
        "prebuilt": _list_prebuilt(places.get("deepspeed")),
        "has_headers": any(header.is_file() for header in headers),
        "extensions_folder": _find_extensions(torch, environ),
    }


def _find(name: str) -> Path | None:
    """The folder of a module, or its file."""
    with suppress(ImportError, ValueError):
        spec = find_spec(name)
        if spec is not None:
            return Path(next(iter(spec.submodule_search_locations or ()), spec.origin or ""))
    return None


def _version(name: str) -> str | None:
    """By the name of its metadata's folder: `importlib.metadata` takes as long as all the rest."""
    for folder in sys.path:
        for metadata in sorted(Path(folder).glob(f"{name}-*.dist-info")):
            return metadata.stem.removeprefix(f"{name}-")
    return None


def _read_torch(folder: Path | None) -> dict[str, Any] | None:
    """What torch was built with; None where there is none, or where it does not say so."""
    with suppress(Exception):
        values = runpy.run_path(f"{folder}/version.py")
        version, cuda = str(values["__version__"]), values["cuda"]
        return {
            "version": version,
            "cuda_version": [int(part) for part in cuda.split(".")[:2]] if cuda else None,
        }
    return None


def _list_prebuilt(folder: Path | None) -> list[str]:
    """The ops that were compiled when DeepSpeed was installed; its setup.py writes them."""
    with suppress(Exception):
        values = runpy.run_path(f"{folder}/git_version_info_installed.py")
        return [op for op, is_built in values["installed_ops"].items() if is_built is True]
    return []


def _find_extensions(torch: Mapping[str, Any] | None, environ: Mapping[str, str]) -> str | None:
    """Where torch builds ops; None where that is not known.

    Source: torch/utils/cpp_extension.py, _get_build_directory (2.13).
    """
    said = environ.get("TORCH_EXTENSIONS_DIR")
    if said or torch is None:
        return said or None
    cuda = torch["cuda_version"]
    kind = "cpu" if cuda is None else "cu" + "".join(map(str, cuda))
    python = f"py{sys.version_info.major}{sys.version_info.minor}{sys.abiflags}_{kind}"
    cache = environ.get("XDG_CACHE_HOME") or f"{environ.get('HOME', '~')}/.cache"
    return str(Path(cache).expanduser() / "torch_extensions" / python)


if __name__ == "__main__":
    # Python looks in the folder of its script first, where modules of zerowiz have common names.
    del sys.path[0]
    sys.stdout.write(json.dumps(report(sys.argv[1:], os.environ)))
