"""What `launch` starts in each rank: a script whose parser knows no `--local_rank`, or a module."""

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from paths import TESTS
from ranks.harness import rank_environ, run

pytestmark = pytest.mark.deepspeed

SCRIPT = TESTS / "scripts" / "strict_loop.py"
# A launcher around zerowiz, such as `srun --mpi=pmi2`, leaves this to everything below it.
AROUND = {"PMI_RANK": "0", "SLURM_PROCID": "0", "OMPI_COMM_WORLD_RANK": "0"}


def told(folder: Path, *words: str, **env: str) -> list[Mapping[str, Any]]:
    """Launch on two CPU ranks, see that the job ended well, and what each rank told."""
    done = run(
        [sys.executable, "-m", "zerowiz", "launch", "--yes", "--accelerator", "cpu", "--stage", "1"]
        + ["--model", "1m", "--seq-len", "16", "--precision", "fp32", *words],
        env={**rank_environ(folder / "reports"), **env},
        cwd=folder,
    )
    assert 0 == done.returncode, f"{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return [json.loads((folder / f"told-{rank}.json").read_text()) for rank in range(2)]


def _watched(folder: Path) -> Iterator[int]:
    for path in sorted(folder.glob(".zerowiz/runs/*/attempt-1/rank-*.end.json")):
        yield json.loads(path.read_text())["rank"]


@pytest.mark.parametrize(
    "supervised",
    [True, pytest.param(False, marks=pytest.mark.slow)],
    ids=["supervised", "alone"],
)
def test_a_parser_without_local_rank_trains_and_each_rank_is_itself(
    supervised: bool, tmp_path: Path
) -> None:
    watch = "--supervise" if supervised else "--no-supervise"
    ranks = told(tmp_path, "--gpus-per-node", "2", watch, str(SCRIPT), "--batch", "4", **AROUND)
    words = ["--batch", "4", "--ds_config", "ds_config_zero1.json"]
    for number, rank in enumerate(ranks):
        assert {
            "rank": number,
            "local_rank": number,
            "ranks": 2,
            "stage": 1,
            "micro_batch": 4,
            "words": words,
            "name": None,
        } == rank
    assert ([0, 1] if supervised else []) == [*_watched(tmp_path)]


@pytest.mark.slow
@pytest.mark.parametrize(
    "supervised",
    [pytest.param(True, marks=pytest.mark.thorough), False],
    ids=["supervised", "alone"],
)
def test_a_module_behind_another_launcher_trains(supervised: bool, tmp_path: Path) -> None:
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "train.py").write_bytes(SCRIPT.read_bytes())
    watch = "--supervise" if supervised else "--no-supervise"
    torchrun = ("torchrun", "--nproc_per_node", "2", "--standalone", "-m")
    ranks = told(tmp_path, watch, *torchrun, "pkg.train", "--batch", "4")
    assert [(0, 2, "pkg.train"), (1, 2, "pkg.train")] == [
        (rank["rank"], rank["ranks"], rank["name"]) for rank in ranks
    ]
    assert ([0, 1] if supervised else []) == [*_watched(tmp_path)]
