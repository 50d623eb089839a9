"""`zerowiz launch --sequence-parallel` trains on real ranks that share each sequence."""

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from paths import TESTS
from ranks.harness import BIN, rank_environ, read_reports, run_loaded
from templates.jobs import RAW, TRAINER, eval_loss, losses, write_config

from zerowiz.probe.preflight.read_facts import find_free_port

SCRIPT = TESTS / "scripts" / "sequence_parallel.py"
MICRO_STEPS, STEPS, TOKENS = 2, 3, 32


def trained(folder: Path, shared: int) -> list[dict[str, Any]]:
    """What both ranks report of a run; the global batch of the script is 4 sequences."""
    folder.mkdir()
    done = run_loaded(
        [sys.executable, "-m", "zerowiz", "launch", "--yes", "--accelerator", "cpu"]
        + ["--gpus-per-node", "2", "--model", "1m", "--seq-len", str(TOKENS), "--stage", "2"]
        + ["--sequence-parallel", str(shared), "--precision", "fp32", str(SCRIPT)]
        + ["--output_dir", "o", "--max_steps", str(STEPS), "--use_cpu", "True"]
        + ["--per_device_train_batch_size", "1", "--lr_scheduler_type", "constant"]
        + ["--gradient_accumulation_steps", str(MICRO_STEPS * shared)]
        + ["--logging_steps", "1", "--report_to", "none", "--save_strategy", "no"]
        + ["--eval_strategy", "steps", "--eval_steps", str(STEPS), "--prediction_loss_only", "True"]
        + ["--per_device_eval_batch_size", "1"],
        env=rank_environ(folder / "reports"),
        cwd=folder,
    )
    assert 0 == done.returncode, f"{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in (0, 1)]


@pytest.mark.deepspeed
@pytest.mark.slow
def test_the_template_of_the_trainer_shares_sequences_as_it_is(tmp_path: Path) -> None:
    seen = []
    for shared in (1, 2):
        folder = tmp_path / str(shared)
        folder.mkdir()
        done = run_loaded(
            [sys.executable, "-m", "zerowiz", "launch", "--yes", "--accelerator", "cpu"]
            + ["--gpus-per-node", "2", "--stage", "2", "--sequence-parallel", str(shared)]
            + ["--model", "1m", "--seq-len", "64"]
            + ["--precision", "fp32", str(TRAINER), "--use_cpu", "--max_steps", "4", "--do_eval"]
            + ["--per_device_train_batch_size", "1", "--output_dir", "o"]
            + ["--gradient_accumulation_steps", str(2 * shared)],
            env=rank_environ(folder / "reports"),
            cwd=folder,
        ).good
        reports = read_reports(folder / "reports")
        assert [4, 4] == [report["train_batch_size"] for report in reports]
        seen.append((losses(done.stdout), eval_loss(done.stdout)))
    assert seen[0][0] == pytest.approx(seen[1][0], abs=2e-3)
    assert seen[0][1] == pytest.approx(seen[1][1], abs=2e-3)


@pytest.mark.deepspeed
def test_two_ranks_that_share_sequences_learn_what_two_that_do_not_learn(tmp_path: Path) -> None:
    alone, both = (trained(tmp_path / f"by-{n}", n) for n in (1, 2))
    for one, other in zip(alone, both, strict=True):
        assert ([TOKENS] * MICRO_STEPS * STEPS, 1) == (one["tokens"], one["shared_by"])
        # Half of each sequence, in twice as many micro-steps.
        assert [TOKENS // 2] * 2 * MICRO_STEPS * STEPS == other["tokens"]
        assert 2 == other["shared_by"]
        assert 4 == one["train_batch_size"] == other["train_batch_size"]
        assert one["losses"] == pytest.approx(other["losses"], rel=1e-5)
        # Whole sequences of different lengths, as without sharing; ranks that share weight the
        # losses of theirs by tokens.
        assert one["evaluated"] == other["evaluated"]
        assert len(set(one["evaluated"])) > 1
        assert one["eval_losses"] == pytest.approx(other["eval_losses"], rel=1e-3)
        # What a plan notes of clipping: the norm is as many times as large.
        assert [2 * norm for norm in one["norms"]] == pytest.approx(other["norms"], rel=1e-3)


def loop(
    folder: Path, ranks: int, stage: int, shared: int, *more: str
) -> tuple[dict[str, Any], str]:
    """Adam's first moments, of gradients that were not clipped, and the loss of an evaluation."""
    from safetensors.torch import load_file

    steps = {"gradient_accumulation_steps": 2 * shared, "gradient_clipping": 0.0}
    config = write_config(folder, stage, bf16={"enabled": False}, **steps)
    words = ("--sequence_parallel", str(shared), "--steps", "3", "--seq_len", "64")
    done = run_loaded(
        (BIN / "deepspeed", "--num_gpus", str(ranks), "--master_port", str(find_free_port()), RAW)
        + (*words, "--deepspeed", "--deepspeed_config", config, *more),
        env=rank_environ(folder / "reports"),
        cwd=folder,
    ).good
    (lost,) = re.findall(r"^eval_loss ([\d.]+)$", done.stdout, re.MULTILINE)
    (saved,) = (folder / "out").glob(f"checkpoint-{1 if more == FIRST else 3}")
    return load_file(saved / "exp_avg.safetensors"), lost


FIRST = ("--steps", "1")


def gap(one: dict[str, Any], other: dict[str, Any]) -> float:
    """How far two runs are apart, as a fraction of the largest moment of a tensor."""
    apart = (
        (moments - other[name]).abs().max() / moments.abs().max() for name, moments in one.items()
    )
    return float(max(apart))


@pytest.mark.deepspeed
@pytest.mark.slow
@pytest.mark.parametrize(
    ("ranks", "stage"),
    [(2, 3), *(pytest.param(n, 2, marks=pytest.mark.thorough) for n in (2, 4))],
)
def test_a_plain_loop_that_shares_sequences_has_the_gradients_of_one_that_does_not(
    tmp_path: Path, ranks: int, stage: int
) -> None:
    """Four ranks are two groups of two."""
    (alone, one), (both, other) = (loop(tmp_path / str(n), ranks, stage, n) for n in (1, 2))
    assert one == other
    assert gap(alone, both) < 1e-4


@pytest.mark.deepspeed
@pytest.mark.slow
@pytest.mark.parametrize("shared", [2, pytest.param(1, marks=pytest.mark.thorough)])
def test_a_plain_loop_goes_on_where_other_ranks_share(tmp_path: Path, shared: int) -> None:
    """After one step alone, as one that never stopped; its micro-steps are others."""
    unbroken, lost = loop(tmp_path / "unbroken", 2, 2, shared)
    loop(tmp_path / "broken", 2, 2, 3 - shared, *FIRST)
    went_on, then = loop(tmp_path / "broken", 2, 2, shared, "--resume")
    assert lost == then
    assert gap(unbroken, went_on) < 1e-4
