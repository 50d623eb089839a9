"""`zerowiz doctor`: what a launch would end of, its exit codes and its JSON."""

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from cli.harness import HF_IN_CODE, HF_PARSER, UNREACHABLE, Result, Run
from paths import ROOT

from zerowiz.core.preflight.examine import RULES

CPU = ("--accelerator", "cpu", "--gpus-per-node", "2")
MODEL = ("--model", "10m", "--seq-len", "64")


def report(result: Result) -> list[dict[str, Any]]:
    content = json.loads(result.stdout)
    assert {"schema_version", "zerowiz_version", "findings"} == set(content)
    findings: list[dict[str, Any]] = content["findings"]
    return findings


def found_by(run: Run, *words: str) -> dict[str, str]:
    """Severity by name, once the exit code is seen to agree."""
    result = run("doctor", "--json", *words)
    severities = {each["name"]: each["severity"] for each in report(result)}
    assert (5 if "error" in severities.values() else 0) == result.code, result.stderr
    return severities


NO_LIBRARY = f"import no_such_library\n{HF_PARSER}"
ON_GPUS = HF_IN_CODE.replace("use_cpu=True", "use_cpu=False")
SHELL = "set -e\npython train.py\n"


@pytest.mark.parametrize(
    ("text", "words", "errors", "others"),
    [
        (HF_PARSER, (*MODEL, "train.py", "--seed", "1"), set(), set()),
        # Without a script the machine is looked at alone; a model alone makes a plan.
        (None, (), set(), {"no-plan"}),
        ("def", MODEL, set(), set()),
        (HF_PARSER, ("train.py",), {"plan-refused"}, set()),
        (NO_LIBRARY, ("train.py",), {"import-missing", "plan-refused"}, set()),
        (NO_LIBRARY, (*MODEL, "train.py"), {"import-missing"}, set()),
        (SHELL, (*MODEL, "train.py"), {"script-refused"}, set()),
        (UNREACHABLE, (*MODEL, "train.py"), {"script-refused"}, set()),
        (None, (*MODEL, "none.py"), {"script-refused"}, set()),
        (ON_GPUS, (*MODEL, "train.py"), {"plan-refused"}, set()),
        (None, ("--model", "900b"), {"plan-refused"}, set()),
        (HF_PARSER, (*MODEL, "--config", "own.json", "train.py"), {"plan-refused"}, set()),
    ],
)
def test_what_a_launch_would_end_of_is_an_error(
    here: Run,
    folder: Path,
    text: str | None,
    words: tuple[str, ...],
    errors: set[str],
    others: set[str],
) -> None:
    if text is not None:
        (folder / "train.py").write_text(text)
    (folder / "own.json").write_text('{"zero_optimization": {"stage": 2, "stagee": 1}}')
    severities = found_by(here, *CPU, *words)
    assert errors == {name for name, severity in severities.items() if severity == "error"}
    assert others == severities.keys() & {"no-plan", "script-refused", "plan-refused"} - errors


def test_the_step_that_is_chosen_is_said_in_a_line(here: Run, folder: Path) -> None:
    (folder / "train.py").write_text(HF_PARSER)
    words = (*CPU, "--memory-budget", "4GiB", "--model", "10m", "--seq-len", "2048")
    result = here("doctor", *words, "train.py")
    said = " ".join(result.stderr.split())
    assert re.search(r"note: micro-batch \d+ x \d+, as the script's 8 x 1", said)
    assert "`--per_device_train_batch_size " in said
    kept = here("doctor", *words, "--micro-batch", "8", "train.py")
    assert "as the script's 8 x 1" not in kept.stderr


def test_without_a_script_it_is_the_one_that_launch_would_take(here: Run, folder: Path) -> None:
    (folder / "train.py").write_text("def")
    assert "error" == found_by(here, *CPU)["script-refused"]
    (folder / "other.py").write_text(HF_PARSER)
    assert 0 == here("init", "--yes", *CPU, *MODEL, "other.py").code
    severities = found_by(here, *CPU)
    assert not {"script-refused", "no-plan"} & severities.keys()


def test_the_ops_of_an_own_config_are_looked_at(
    here: Run, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "own.json").write_text(
        '{"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}}'
    )
    (folder / "file").touch()
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(folder / "file" / "ops"))

    result = here("doctor", "--json", *CPU, *MODEL, "--config", "own.json")

    (finding,) = [each for each in report(result) if each["name"] == "extensions-folder"]
    assert (5, "error") == (result.code, finding["severity"])
    assert "`cpu_adam`" in finding["what"]


def test_the_op_of_an_optimizer_that_the_script_takes_under_offload_alone_is_looked_at(
    here: Run, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "file").touch()
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(folder / "file" / "ops"))
    loop = ("--micro-batch", "2", str(ROOT / "templates/train_deepspeed.py"))
    model = ("--model", str(ROOT / "templates/model"))

    for offload, named in (("optimizer", True), ("none", False)):
        result = here("doctor", "--json", *CPU, "--stage", "2", "--offload", offload, *model, *loop)
        (finding,) = [each for each in report(result) if each["name"] == "extensions-folder"]
        assert named == ("`cpu_adam`" in finding["what"])


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("--machine", "4xA100-40GB"), "names another machine"),
        (("--accounting", "textbook"), "textbook"),
        (("--stage", "7"), "must be one of auto, 0, 1, 2, 3, not '7'"),
        ((*CPU, *MODEL, "train.py", "--deepspeed", "x.json"), "two configs"),
    ],
)
def test_a_command_line_without_sense_is_refused(
    here: Run, folder: Path, words: tuple[str, ...], problem: str
) -> None:
    (folder / "train.py").write_text(HF_PARSER)
    result = here("doctor", *words)
    assert 2 == result.code
    assert problem in result.problem


def test_a_job_script_may_ask_before_srun(here: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    batch = {"SLURM_JOB_ID": "42", "SLURM_JOB_NUM_NODES": "2", "SLURM_JOB_NODELIST": "n[1-2]"}
    for name, value in batch.items():
        monkeypatch.setenv(name, value)
    assert "error" not in found_by(here, *CPU, *MODEL).values()


def test_variables_that_launch_would_refuse_are_refused(
    here: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"NNODES": "2", "NODE_RANK": "5", "MASTER_ADDR": "h"}.items():
        monkeypatch.setenv(name, value)
    result = here("doctor", *CPU, *MODEL)
    assert 2 == result.code
    assert "set conflicting variables" in result.hints


def test_an_environment_without_deepspeed_is_an_error(
    here: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    python = tmp_path / "python"
    python.touch(mode=0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "error" == found_by(here, *CPU)["no-deepspeed"]


def test_findings_have_their_whys_and_fixes_on_lines_of_their_own_and_quiet_shows_errors_alone(
    here: Run,
) -> None:
    result = here("doctor", *CPU, *MODEL, "none.py")
    lines = result.stdout.splitlines()
    assert lines[0].startswith("error PF101 script-refused: ")
    assert "    why: `launch` refuses the script" == lines[1]
    assert lines[-2].startswith("1 error")
    assert "" == here("doctor", "--quiet", *CPU).stdout
    assert "PF101" in here("doctor", "--quiet", *CPU, *MODEL, "none.py").stdout


def test_every_rule_says_when_it_is_found() -> None:
    assert [] == [rule.code for rule in RULES if not rule.when]


BUILDS = HF_IN_CODE.replace(
    "TrainingArguments(", "TrainingArguments(deepspeed=make_config(), fsdp='full_shard', "
)


def test_what_is_one_line_is_shown_and_written_only_if_asked(here: Run, folder: Path) -> None:
    script = folder / "train.py"
    script.write_text(BUILDS)
    script.chmod(0o640)
    shown = here("doctor", *CPU, *MODEL, "train.py")
    assert (5, BUILDS) == (shown.code, script.read_text())
    assert "+++ train.py (by zerowiz)" in shown.stdout
    assert "`zerowiz doctor --fix`, with the same words, writes that" in shown.stdout
    launched = here("launch", *CPU, *MODEL, "train.py")
    assert "`zerowiz doctor --fix`, with the same words, writes that" in launched.stderr
    # What comes to light after the first line is written as well.
    fixed = here("doctor", "--fix", *CPU, *MODEL, "train.py")
    assert (0, HF_IN_CODE) == (fixed.code, script.read_text())
    assert 2 == fixed.stderr.count("+++ train.py (by zerowiz)")
    assert 0o640 == script.stat().st_mode & 0o777
    again = here("doctor", "--fix", *CPU, *MODEL, "train.py")
    assert "+++" not in again.stdout + again.stderr


def test_a_save_of_shards_is_written_as_the_trainers(here: Run, folder: Path) -> None:
    script = folder / "train.py"
    named = HF_IN_CODE.replace(
        "Trainer(model=None, args=args).train()", "trainer = Trainer(None, args)"
    )
    script.write_text(f"{named}trainer.train()\ntrainer.model.save_pretrained('final')\n")
    assert 5 == here("doctor", *CPU, *MODEL, "--stage", "3", "train.py").code
    fixed = here("doctor", "--fix", *CPU, *MODEL, "--stage", "3", "train.py")
    assert (0, "trainer.save_model('final')") == (fixed.code, script.read_text().split("\n")[-2])
