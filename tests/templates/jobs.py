"""Start the shipped training scripts on two real ranks, and read what they say."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from paths import TEMPLATES
from ranks.harness import BIN, CompletedRun, rank_environ, read_reports, run_loaded

from zerowiz.probe.preflight.read_facts import find_free_port

RAW = TEMPLATES / "train_deepspeed.py"
TRAINER = TEMPLATES / "train_hf.py"


def write_config(folder: Path, stage: int, **changes: object) -> Path:
    config = {
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": 2,
        "gradient_clipping": 1.0,
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": stage, "reduce_bucket_size": 25_000_000},
        **changes,
    }
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"ds_config_zero{stage}.json"
    path.write_text(json.dumps(config))
    return path


def launch(
    folder: Path, *argv: str | Path, env: Mapping[str, str] | None = None, ends_well: bool = True
) -> tuple[CompletedRun, list[dict[str, Any]]]:
    """Train on two ranks, and see that the job ended as meant; what it said, what its ranks were."""
    reports = folder / "reports"
    done = run_loaded(
        [BIN / "deepspeed", "--num_gpus", "2", "--master_port", str(find_free_port()), *argv],
        env={**rank_environ(reports), **(env or {})},
        cwd=folder,
    )
    assert ends_well is (done.returncode == 0), f"{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return done, read_reports(reports)


def by_environment(config: Path) -> dict[str, str]:
    return {
        "ACCELERATE_USE_DEEPSPEED": "true",
        "ACCELERATE_DEEPSPEED_CONFIG_FILE": str(config),
    }


def losses(stdout: str) -> dict[int, float]:
    lines = re.findall(r"^step (\d+)  loss ([\d.]+)$", stdout, flags=re.MULTILINE)
    return {int(step): float(loss) for step, loss in lines}


def eval_loss(stdout: str) -> float:
    found = re.findall(r"^eval_loss ([\d.]+)$", stdout, flags=re.MULTILINE)
    assert 1 == len(found), stdout[-4000:]
    return float(found[0])
