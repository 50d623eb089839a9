"""Whether what starts ranks on other nodes is installed."""

from pathlib import Path

import pytest

from zerowiz.core.launch.plan import Launcher
from zerowiz.errors import PreflightError
from zerowiz.probe.preflight.interpreter import check_launcher


def install(folder: Path, *names: str, says: str = "") -> dict[str, str]:
    for name in names:
        program = folder / name
        program.write_text(f"#!/bin/sh\necho '{says}'\n", encoding="utf-8")
        program.chmod(0o755)
    return {"PATH": str(folder)}


def test_what_is_installed_passes(tmp_path: Path) -> None:
    check_launcher(Launcher.PDSH, install(tmp_path, "pdsh", "ssh"))
    check_launcher(Launcher.OPENMPI, install(tmp_path, "ompi_info", "mpirun", says="Open MPI 4"))
    check_launcher(Launcher.MPICH, install(tmp_path, "mpirun", says="HYDRA build details"))


@pytest.mark.parametrize(
    ("launcher", "package"),
    [(Launcher.PDSH, "pdsh"), (Launcher.OPENMPI, "openmpi-bin"), (Launcher.MPICH, "mpich")],
)
def test_what_is_missing_is_named_with_its_package(
    launcher: Launcher, package: str, tmp_path: Path
) -> None:
    with pytest.raises(PreflightError) as caught:
        check_launcher(launcher, install(tmp_path, "ssh"))
    assert f"`apt-get install {package}`" in caught.value.hints[0]


def test_the_mpirun_of_another_mpi_is_refused(tmp_path: Path) -> None:
    environ = install(tmp_path, "mpirun", "ssh", says="mpirun (Open MPI) 4.1")
    with pytest.raises(PreflightError, match=f"`{tmp_path}/mpirun` belongs to another MPI"):
        check_launcher(Launcher.MPICH, environ)


def test_an_mpirun_that_prints_no_utf_8_is_told_by_the_rest(tmp_path: Path) -> None:
    environ = install(tmp_path, "ompi_info", "mpirun", "ssh", says="Open MPI")
    (tmp_path / "mpirun").write_bytes(b"#!/bin/sh\necho 'Open MPI \xff'\n")
    check_launcher(Launcher.OPENMPI, environ)
