"""One SLURM of two nodes for all tests of this folder."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from slurm.one_host import Slurm, running_slurm

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "unshare")


@pytest.fixture(scope="package")
def slurm() -> Iterator[Slurm]:
    """In a folder with a short path: that of a socket may have 107 characters."""
    path = f"{os.environ['PATH']}:/usr/sbin:/sbin"
    missing = [name for name in PROGRAMS if shutil.which(name, path=path) is None]
    if os.geteuid() != 0 or missing:
        pytest.skip(f"needs root, and {', '.join(missing) or 'nothing else'}")
    trial = subprocess.run(
        ["unshare", "--pid", "--fork", "--mount-proc", "--uts", "true"],
        capture_output=True,
        text=True,
        check=False,
    )
    if trial.returncode != 0:
        pytest.skip(f"no namespaces can be made here: {trial.stderr.strip()}")
    with (
        tempfile.TemporaryDirectory(prefix="zw", dir="/tmp") as folder,
        running_slurm(Path(folder)) as running,
    ):
        yield running
