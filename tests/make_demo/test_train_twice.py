"""What `make demo` says and requires; the trainings themselves are the demo."""

import subprocess
import sys
import threading
from pathlib import Path

import pytest
from make_demo import train_twice
from make_demo.train_twice import Outcome

OUTPUT = """\
> ZeRO-2        50.3
# writes demo/ds_config_zero2.plan.json
# writes demo/ds_config_zero2.json
step 1  loss 5.500
not a step 3  loss 9.0
step 20  loss 2.900
eval_loss 3.000
"""


def test_an_outcome_is_read_from_the_output_of_a_launch() -> None:
    outcome = train_twice.read_outcome(OUTPUT)
    assert Outcome("zero2", "demo/ds_config_zero2.json", (5.5, 2.9)) == outcome
    assert (
        "loss 5.500 -> 2.900, strategy zero2: config demo/ds_config_zero2.json" == outcome.summary
    )
    train_twice.require(outcome, "zero2")


@pytest.mark.parametrize(
    ("outcome", "strategy", "said"),
    [
        (Outcome("zero1", "c", (2.0, 1.0)), "zero2", "is to show zero2, and zero1 was chosen"),
        (Outcome(None, None, ()), "zero2", "None was chosen"),
        (Outcome("zero2", "c", (2.0, 2.0)), "zero2", "the loss did not fall"),
        (Outcome("zero2", "c", (2.0,)), "zero2", "the loss did not fall"),
    ],
)
def test_a_run_that_does_not_ends_the_demo_with_a_reason(
    outcome: Outcome, strategy: str, said: str
) -> None:
    with pytest.raises(SystemExit, match=said):
        train_twice.require(outcome, strategy)


@pytest.mark.parametrize(
    ("ddp", "zero1", "high", "expected"),
    [(600, 560, 600, 550), (560, 600, 570, 550), (600, 600, 600, 570), (600, 600, 550, 575)],
)
def test_the_budget_lies_between_zero2_and_what_needs_more(
    ddp: int, zero1: int, high: int, expected: int
) -> None:
    """Above the most that ZeRO-2 may take, where that is less than what needs more."""
    device_bytes = {"ddp": ddp, "zero1": zero1, "zero2": 540}
    assert expected == train_twice.choose_budget(device_bytes, high)


@pytest.mark.parametrize(("ddp", "zero1"), [(540, 600), (600, 540), (500, 600)])
def test_where_zero2_needs_no_less_than_others_no_budget_is_made_up(ddp: int, zero1: int) -> None:
    with pytest.raises(SystemExit, match="no budget takes ZeRO-2"):
        train_twice.choose_budget({"ddp": ddp, "zero1": zero1, "zero2": 540}, 540)


@pytest.mark.parametrize("precision", ["bf16", "fp32"])
def test_the_budget_of_the_demo_takes_zero2_in_either_precision(
    precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The demo's own words, planned for two ranks of a CPU."""
    monkeypatch.chdir(train_twice.ROOT)
    words = train_twice.tight_words(precision, train_twice.CPU)
    lean = train_twice.plan("--memory-budget", "1MB", *words)
    budget_bytes = train_twice.choose_budget(train_twice.needs(lean), train_twice.high_bytes(lean))
    planned = train_twice.plan("--memory-budget", str(budget_bytes), *words)
    assert (precision, "zero2") == (planned["workload"]["precision"], planned["chosen"])


@pytest.mark.parametrize("gpus", [None, 0, 1, 3])
def test_the_gpus_are_those_that_the_driver_lists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gpus: int | None
) -> None:
    lines = (f"echo 'GPU {n}: NVIDIA A100 (UUID: GPU-{n})'\n" for n in range(gpus or 0))
    if gpus is not None:
        smi = tmp_path / "nvidia-smi"
        smi.write_text(f"#!/bin/sh\n{''.join(lines)}echo '  MIG 1g.5gb Device 0:'\n")
        smi.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert (gpus or 0) == train_twice.count_gpus()


def test_a_silent_job_gets_signs_of_life(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that is silent until a sign of life came."""
    monkeypatch.setattr(train_twice, "SILENT_S", 0.2)
    code = "import sys; print('begins', flush=True); sys.stdin.readline(); sys.stdout.write('ends')"
    said: list[str] = []
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as job:
        goes_on = job.stdin
        assert goes_on is not None

        def hear(text: str) -> None:
            said.append(text)
            goes_on.close()

        monkeypatch.setattr(train_twice, "say", hear)
        limit = threading.Timer(60, job.kill)
        limit.start()
        heard = [*train_twice.follow(job)]
        limit.cancel()
    assert ["begins\n", "ends\n"] == heard
    assert "still running" in said[0]
