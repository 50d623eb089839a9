"""Ranks get cores of their own where a trial shows that they can."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from zerowiz.core.launch.plan import CoreBinding
from zerowiz.probe.preflight.toolchain import try_core_binding

# What DeepSpeed's launcher starts it as; the program behind the words is run as numactl would.
_ALLOWS = '#!/bin/sh\necho "$@" >> "$TRIED"\nexec true\n'
_REFUSES = "#!/bin/sh\necho 'set_mempolicy: Operation not permitted' >&2\nexit 1\n"

Install = Callable[[str], dict[str, str]]


@pytest.fixture
def install(tmp_path: Path) -> Install:
    def put(text: str) -> dict[str, str]:
        program = tmp_path / "numactl"
        program.write_text(text)
        program.chmod(0o755)
        return {"PATH": f"{tmp_path}:/usr/bin:/bin", "TRIED": str(tmp_path / "tried")}

    return put


def system(folder: Path, nodes: dict[int, str], siblings: dict[int, str]) -> Path:
    """The lists of a kernel."""
    for node, cores in nodes.items():
        (folder / f"node/node{node}").mkdir(parents=True)
        (folder / f"node/node{node}/cpulist").write_text(cores + "\n")
    for core, threads in siblings.items():
        topology = folder / f"cpu/cpu{core}/topology"
        topology.mkdir(parents=True)
        (topology / "thread_siblings_list").write_text(threads + "\n")
    return folder


def test_nothing_is_bound_without_numactl(tmp_path: Path) -> None:
    found = try_core_binding({"PATH": str(tmp_path)}, 1)
    assert found.cores is None
    assert "`numactl` is not installed" in found.notes[0]


def test_each_rank_is_tried_with_its_own_cores_and_its_nodes_memory(
    install: Install, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environ = install(_ALLOWS)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3, 8, 9, 10, 11})
    pairs = {n: f"{n % 8},{n % 8 + 8}" for n in (0, 1, 2, 3, 8, 9, 10, 11)}
    kernel = system(tmp_path / "system", {0: "0-1,8-9", 1: "2-3,10-11"}, pairs)
    assert try_core_binding(environ, 2, kernel) == CoreBinding(cores="0-3")
    tried = Path(environ["TRIED"]).read_text().splitlines()
    assert tried == ["-m 0 -C 0-1 true", "-m 1 -C 2-3 true"]


def test_a_rank_whose_cores_are_of_two_nodes_takes_memory_of_both(
    install: Install, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environ = install(_ALLOWS)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 2, 3, 5})
    kernel = system(tmp_path / "system", {0: "0-2", 1: "3-5"}, {})
    assert try_core_binding(environ, 1, kernel) == CoreBinding(cores="0,2-3,5")
    assert Path(environ["TRIED"]).read_text() == "-C 0,2-3,5 true\n"


@pytest.mark.parametrize(
    ("text", "beside", "ranks", "why"),
    [
        (_REFUSES, {}, 1, "is not allowed to bind"),
        (_ALLOWS, {"KMP_AFFINITY": "compact"}, 1, "`KMP_AFFINITY` is set"),
        (_ALLOWS, {}, 100_000, "fewer cores than ranks"),
    ],
    ids=["a container that forbids it", "another binding", "too few cores"],
)
def test_what_keeps_ranks_from_being_bound_is_said(
    install: Install, text: str, beside: dict[str, str], ranks: int, why: str
) -> None:
    found = try_core_binding({**install(text), **beside}, ranks)
    assert found.cores is None
    assert why in found.notes[0]
