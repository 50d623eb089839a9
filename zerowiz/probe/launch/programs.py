"""Find what a launch runs with: programs, folders, a port."""

import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

from zerowiz.core.launch.plan import Programs
from zerowiz.errors import PreflightError
from zerowiz.probe.launch.ports import find_free_port


def find_programs(environ: Mapping[str, str]) -> Programs:
    """`deepspeed` beside this interpreter, else the one on PATH.

    Raises:
        PreflightError: There is no `deepspeed` at all.
    """
    bin_folder = Path(sys.executable).parent
    beside = bin_folder / "deepspeed"
    found = str(beside) if os.access(beside, os.X_OK) else None
    deepspeed = found or shutil.which("deepspeed", path=environ.get("PATH", ""))
    if deepspeed is None:
        raise PreflightError(
            f"no `deepspeed` beside {sys.executable} nor on PATH",
            'install it in this environment: pip install "zerowiz[train]"',
        )
    virtual = sys.prefix != sys.base_prefix
    return Programs(
        deepspeed=deepspeed,
        bin_folder=str(bin_folder),
        master_port=find_free_port(),
        rank_program=str(Path(__file__).parents[2] / "worker" / "rank.py"),
        extensions_folder=str(Path(sys.prefix) / "torch_extensions") if virtual else None,
    )
