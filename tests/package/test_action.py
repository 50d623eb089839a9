"""The GitHub Action: its step checks configs as GitHub's shell runs it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from paths import ROOT

ACTION = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))


def checked(folder: Path, **inputs: str) -> subprocess.CompletedProcess[str]:
    """Run the last step as GitHub does, with the defaults of what is not given."""
    step = ACTION["runs"]["steps"][-1]
    values = {name: row["default"] for name, row in ACTION["inputs"].items()} | inputs
    given = {
        name: values[text.removeprefix("${{ inputs.").removesuffix(" }}")]
        for name, text in step["env"].items()
    }
    environ = {
        **os.environ,
        **given,
        "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
        "PYTHONPATH": str(ROOT),
    }
    # docs.github.com, workflow syntax: `shell: bash` is this.
    shell = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]]
    return subprocess.run(
        shell, cwd=folder, env=environ, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize(
    ("config", "inputs", "code"),
    [
        ('{"zero_optimization": {"stage": 4}}', {}, 6),
        ('{"train_batch_size": 8, "bf16": {"enabled": true}}', {"files": "configs/*.json"}, 0),
        ('{"train_batch_size": 6}', {"options": "--world-size 4"}, 6),
    ],
)
def test_the_step_ends_as_the_check_does(
    config: str, inputs: dict[str, str], code: int, tmp_path: Path
) -> None:
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "ds_config.json").write_text(config, encoding="utf-8")
    done = checked(tmp_path, **inputs)
    assert code == done.returncode, done.stdout + done.stderr
    assert "DeepSpeed" in done.stdout or not code
