"""The ranks agree on a number, and measure what the links between them carry."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from zerowiz.worker import loops  # noqa: E402
from zerowiz.worker.loops import agree_on_least  # noqa: E402

CPU = torch.device("cpu")
FAR = time.time() + 3600


# https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md: 2 (n - 1) / n, (n - 1) / n.
@pytest.mark.parametrize(
    ("collective", "ranks", "times"),
    [("all_reduce", 2, 1.0), ("all_reduce", 4, 1.5), ("all_gather", 4, 0.75)],
)
def test_a_byte_is_sent_as_often_as_nccl_tests_counts(
    collective: str, ranks: int, times: float
) -> None:
    assert times == loops.times_sent(collective, ranks)


@pytest.mark.usefixtures("alone")
def test_without_time_no_size_is_tried() -> None:
    assert [] == loops.measure_bus(CPU, time.time())


@pytest.mark.usefixtures("alone")
def test_without_memory_a_size_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    small, large = 2**20, 2**60
    monkeypatch.setattr(loops, "SIZES_BYTES", (small, large))
    readings = loops.measure_bus(CPU, FAR)
    assert {small} == {each["size_bytes"] for each in readings}
    assert {*loops.COLLECTIVES} == {each["collective"] for each in readings}


TWO_RANKS = """
import json, os, sys, time, torch
from torch import distributed
from zerowiz.worker.loops import agree_on_least, agree_on_most
from zerowiz.worker.loops import measure_bus
rank, store = int(sys.argv[1]), sys.argv[2]
distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
cpu = torch.device("cpu")
least, most = agree_on_least(5 + rank, cpu), agree_on_most(0.5 * rank, cpu)
began = time.time()
readings = measure_bus(cpu, began + 60)
print(json.dumps([least, most, readings, time.time() - began]))
sys.stdout.flush()
os._exit(0)
"""


def test_two_ranks_say_the_same_of_each_collective(tmp_path: Path) -> None:
    words = [sys.executable, "-c", TWO_RANKS]
    ranks = [
        subprocess.Popen([*words, str(rank), str(tmp_path / "store")], stdout=subprocess.PIPE)
        for rank in range(2)
    ]
    said = [json.loads(rank.communicate(timeout=120)[0]) for rank in ranks]
    (least, most, readings, _), (*others, _) = said
    assert [least, most, readings] == others
    assert (5, 0.5) == (least, most)
    assert {*loops.COLLECTIVES} == {each["collective"] for each in readings}
    assert all(0 < each["bus_bytes_per_s"] < 10**12 for each in readings)


@pytest.mark.usefixtures("alone")
def test_one_rank_agrees_with_itself() -> None:
    assert 7 == agree_on_least(7, CPU)
