"""`zerowiz launch` takes a script of adapters from its first step to a saved adapter."""

import json
import sys
from pathlib import Path

import pytest
from ranks.harness import rank_environ, read_reports, run
from safetensors.torch import load_file

TESTS = Path(__file__).parents[1]
SCRIPT = TESTS / "scripts" / "lora_trainer.py"
MODEL = TESTS.parent / "templates" / "model"

pytestmark = pytest.mark.deepspeed


@pytest.mark.thorough
def test_a_launched_script_trains_its_adapters_and_saves_nothing_else(tmp_path: Path) -> None:
    pytest.importorskip("peft")
    reports = tmp_path / "reports"

    done = run(
        [sys.executable, "-m", "zerowiz", "launch", "--yes", "--accelerator", "cpu"]
        + ["--gpus-per-node", "2", "--stage", "2", "--model", MODEL, SCRIPT],
        env=rank_environ(reports),
        cwd=tmp_path,
    )

    assert 0 == done.returncode, f"{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    (checkpoint,) = (tmp_path / "out").glob("checkpoint-*")
    logged = json.loads((checkpoint / "trainer_state.json").read_text())["log_history"]
    losses = [entry["loss"] for entry in logged if "loss" in entry]
    assert 8 == len(losses)
    assert losses[-1] < losses[0] - 0.5
    tensors = load_file(checkpoint / "adapter_model.safetensors")
    # In 6 layers, two matrices of rank 8 for each of q_proj, v_proj (384) and down_proj (1024).
    adapters = 6 * 8 * (2 * (384 + 384) + 1024 + 384)
    assert adapters == sum(tensor.numel() for tensor in tensors.values())
    assert all(tensor.any() for name, tensor in tensors.items() if "lora_B" in name)
    assert not list(checkpoint.glob("model*.safetensors"))
    # Both moments of every adapter weight, and of nothing else, shared out over the two ranks.
    for report in read_reports(reports):
        assert 2 == report["stage"]
        assert pytest.approx(adapters, rel=0.01) == report["state_elements"]
