"""Copies of zerowiz on several nodes agree on a job by files, whoever is late, stale or gone."""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path

import pytest
from app.launch.node_of_many import lead as lead_to_the_end
from paths import ROOT

from zerowiz.app.launch import multi_node
from zerowiz.app.launch.multi_node import (
    Rendezvous,
    failing_all,
    follow,
    gather,
    introduce,
    publish,
    publish_end,
)
from zerowiz.app.options import Options
from zerowiz.app.reporter import SILENT
from zerowiz.core.launch.plan import (
    OPEN_FILE,
    AttemptSpec,
    EntryPoint,
    Join,
    LaunchSpec,
    NodeRank,
    attempt_name,
    job_folder,
    join_name,
)
from zerowiz.core.machine.types import Accelerator, Gpu, Machine, MachineSource
from zerowiz.core.structs import replace
from zerowiz.errors import NothingFitsError, ZerowizError

NODE = Path(__file__).with_name("node_of_many.py")


def node(node_rank: int) -> NodeRank:
    return NodeRank(
        node_rank=node_rank, nodes=2, hosts=("n1", "n2"), master_addr="n1", job_key="key"
    )


def machine(gpus: int = 2) -> Machine:
    ranks = tuple(Gpu(index=index, name="A") for index in range(gpus))
    return Machine(source=MachineSource.NVML, accelerator=Accelerator.CUDA, gpus=ranks)


def own(node_rank: int, gpus: int = 2) -> Join:
    return introduce(node(node_rank), machine(gpus))


def silent(_: object) -> None:
    """Nobody listens."""


def follow_again(job: Path, rendezvous: Rendezvous) -> AttemptSpec:
    """The second attempt."""
    heard = rendezvous.joins[1]
    return follow(job, node(1), heard, 2, rendezvous.folder, deadline_s=0.2)[1]


@contextmanager
def following(folder: Path, join: Join) -> Iterator[list[object]]:
    """Node 1, in a thread; what it ends with is in the list at the end."""
    attempts: list[object] = []

    def follow_along() -> None:
        try:
            attempts.append(follow(folder, node(1), join, deadline_s=20)[1])
        except ZerowizError as error:
            attempts.append(error)

    thread = threading.Thread(target=follow_along)
    thread.start()
    try:
        yield attempts
    finally:
        thread.join()


@pytest.mark.parametrize(
    ("nodes", "rounds"), [(4, 6), pytest.param(8, 50, marks=pytest.mark.thorough)]
)
def test_racing_copies_agree_in_a_folder_with_files_of_earlier_jobs(
    tmp_path: Path, nodes: int, rounds: int
) -> None:
    argv = [
        [sys.executable, str(NODE), str(tmp_path), str(r), str(nodes), str(rounds)]
        for r in range(nodes)
    ]
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    running = [subprocess.Popen(each, stdout=subprocess.PIPE, env=environ) for each in argv]
    outputs = [process.communicate()[0] for process in running]
    assert [0] * nodes == [process.returncode for process in running]
    # What each copy took in each round.
    first, *others = map(json.loads, outputs)
    assert rounds == len({spec for spec, _ in first})
    assert list(range(rounds)) == [end for _, end in first]
    assert [first] * (nodes - 1) == others


def test_node_0_hears_what_each_node_has(tmp_path: Path) -> None:
    other = introduce(node(1), replace(machine(), driver_version="580.1"))
    with following(tmp_path, other):
        rendezvous = gather(tmp_path, node(0), own(0), silent, deadline_s=20)
        publish_end(rendezvous, 0)
    assert [None, "580.1"] == [join.machine.driver_version for join in rendezvous.joins]
    assert ["n1", "n2"] == [join.host for join in rendezvous.joins]


def test_a_node_that_does_not_come_is_named(tmp_path: Path) -> None:
    missing: list[object] = []
    with pytest.raises(ZerowizError, match="`n2` wrote nothing to") as raised:
        gather(tmp_path, node(0), own(0), missing.append, deadline_s=0.2)
    assert [["n2"]] == missing[:1]
    assert "all nodes share" in raised.value.hints[-1]


def test_a_node_0_that_does_not_call_is_named(tmp_path: Path) -> None:
    with pytest.raises(ZerowizError, match="`n1` wrote nothing to") as raised:
        follow(tmp_path, node(1), own(1), deadline_s=0.2)
    assert "all nodes share" in raised.value.hints[-1]


@pytest.mark.parametrize(
    ("ask", "problem"),
    [
        pytest.param(
            lambda folder: gather(folder, node(0), own(0), silent, deadline_s=0.2),
            "`n2` wrote nothing to",
            id="an answer to an earlier call",
        ),
        pytest.param(
            lambda folder: follow(folder, node(1), own(1), deadline_s=0.2),
            "`n1` started, but sent no instructions",
            id="an attempt of an earlier job",
        ),
    ],
)
def test_what_an_earlier_job_left_is_not_taken(
    tmp_path: Path, ask: Callable[[Path], object], problem: str
) -> None:
    with following(tmp_path, own(1)):
        rendezvous = gather(tmp_path, node(0), own(0), silent, deadline_s=20)
        publish_end(rendezvous, 0)
    with pytest.raises(ZerowizError, match=problem):
        ask(tmp_path)


def test_files_of_another_version_are_passed_over(tmp_path: Path) -> None:
    for name in (OPEN_FILE, join_name(1), attempt_name(1)):
        (tmp_path / name).write_text('{"schema_version": 99}', encoding="utf-8")
    with following(tmp_path, own(1)) as attempts:
        publish_end(gather(tmp_path, node(0), own(0), silent, deadline_s=20), 7)
    assert [7] == [getattr(attempt, "end", None) for attempt in attempts]


def test_nodes_with_different_counts_of_gpus_end_together(tmp_path: Path) -> None:
    with (
        following(tmp_path, own(1, gpus=1)) as attempts,
        pytest.raises(ZerowizError, match="the number of devices is 2 on `n1`, 1 on `n2`"),
    ):
        gather(tmp_path, node(0), own(0), silent, deadline_s=20)
    assert [1] == [getattr(attempt, "end", None) for attempt in attempts]


def test_other_releases_end_together(tmp_path: Path) -> None:
    with (
        following(tmp_path, replace(own(1), zerowiz_version="0.0.1")),
        pytest.raises(ZerowizError, match=r"0\.0\.1 on `n2`"),
    ):
        gather(tmp_path, node(0), own(0), silent, deadline_s=20)


def test_what_ends_node_0_while_it_plans_ends_the_others_with_its_status(tmp_path: Path) -> None:
    with following(tmp_path, own(1)) as attempts:
        rendezvous = gather(tmp_path, node(0), own(0), silent, deadline_s=20)
        with pytest.raises(NothingFitsError), failing_all(rendezvous):
            raise NothingFitsError("nothing fits")
    assert [(4, "nothing fits")] == [
        (getattr(attempt, "end", None), getattr(attempt, "why", None)) for attempt in attempts
    ]


def test_a_good_end_comes_after_the_attempts_that_were_published(tmp_path: Path) -> None:
    with following(tmp_path, own(1)) as attempts:
        rendezvous = gather(tmp_path, node(0), own(0), silent, deadline_s=20)
        publish_end(rendezvous, 7)
        publish_end(rendezvous, 0)
    assert [7] == [getattr(attempt, "end", None) for attempt in attempts]
    assert 0 == follow_again(tmp_path, rendezvous).end


def test_a_node_that_is_asked_to_end_waits_no_longer_than_for_what_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert multi_node._HURRIED_S < 30
    monkeypatch.setattr(multi_node, "_HURRIED_S", 0.2)
    started = time.monotonic()
    with pytest.raises(ZerowizError):
        follow(tmp_path, node(1), own(1), 2, tmp_path, deadline_s=600, hurry=lambda: True)
    assert time.monotonic() - started < 30


def test_a_second_job_in_the_same_folder_is_noticed(tmp_path: Path) -> None:
    stolen: list[str] = []

    def steal(_: object) -> None:
        if not stolen:
            call = tmp_path / OPEN_FILE
            text = call.read_text(encoding="utf-8")
            stolen.append(json.loads(text)["word"])
            call.write_text(text.replace(stolen[0], "another"), encoding="utf-8")

    started = time.monotonic()
    with pytest.raises(ZerowizError, match="another job is using"):
        gather(tmp_path, node(0), own(0), steal, deadline_s=20)
    assert time.monotonic() - started < 10


def test_a_rank_that_fails_after_node_0_has_ended_well_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("require_address", "find_programs"):
        monkeypatch.setattr(multi_node, name, silent)
    monkeypatch.setattr(multi_node, "ignore_signals", lambda: None)
    monkeypatch.setattr(multi_node, "run_here", lambda *_: 3)
    job = Path(job_folder(str(tmp_path), node(0).job_key))
    node_0 = threading.Thread(target=lead_to_the_end, args=(job, node(0), own(0), 0))
    node_0.start()
    status = multi_node.follow_leader(Options(output_dir=tmp_path), node(1), machine(), 1, SILENT)
    node_0.join()
    assert 3 == status


def test_every_file_that_the_ranks_read_has_to_be_here(tmp_path: Path) -> None:
    texts = {tmp_path / "ds_config_zero2.json": b"{}", tmp_path / "args.json": b"[]"}
    spec = LaunchSpec(
        entry=EntryPoint(target="train.py"),
        script_args=("args.json",),
        env={},
        sha256_by_path={str(path): sha256(text).hexdigest() for path, text in texts.items()},
        master_addr="n1",
        master_port=29500,
        slots=((0, 1), (0, 1)),
        run_folder="run",
    )
    with following(tmp_path, own(1)):
        rendezvous = gather(tmp_path, node(0), own(0), silent, deadline_s=20)
        publish_end(rendezvous, 0)
    publish(rendezvous, 2, spec)
    for path, text in texts.items():
        with pytest.raises(ZerowizError) as refused:
            follow_again(tmp_path, rendezvous)
        assert f"`{path}` differs here from what `n1` wrote" == refused.value.message
        path.write_bytes(text)
    assert spec == follow_again(tmp_path, rendezvous).spec
