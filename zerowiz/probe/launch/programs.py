"""Find the programs and folders of a launch, and a free port."""

import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

from zerowiz.core.launch.plan import Programs
from zerowiz.errors import PreflightError
from zerowiz.probe.launch.ports import find_free_port
from zerowiz.words import _


def find_programs(environ: Mapping[str, str]) -> Programs:
    """What runs a job: `deepspeed` of this interpreter's folder, else the one on PATH.

    Args:
        environ: The caller's environment.

    Raises:
        PreflightError: There is no `deepspeed`.
    """
    bin_folder = Path(sys.executable).parent
    own = bin_folder / "deepspeed"
    found = str(own) if os.access(own, os.X_OK) else None
    deepspeed = found or shutil.which("deepspeed", path=environ.get("PATH", ""))
    if deepspeed is None:
        raise PreflightError(
            _(
                "no `deepspeed` in the environment of {executable} or on PATH",
                executable=sys.executable,
            ),
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
