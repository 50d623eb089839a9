"""On the CPU accelerator the precision is what the CPU computes; a bf16 that was asked for warns."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from cli.harness import CONFIG_ARGUMENTS, HF_IN_CODE, HF_PARSER, Result, Run

CPU = ("--accelerator", "cpu", "--gpus-per-node", "2", "--model", "10m", "--seq-len", "64")
COMMANDS: dict[str, tuple[str, ...]] = {
    "plan": ("plan", *CPU),
    "init": ("init", "--yes", *CPU),
    "launch": ("launch", "--dry-run", *CPU),
    "doctor": ("doctor", *CPU),
    "measure": ("measure", "--dry-run", *CPU),
}
ON_SCRIPTS = ("init", "launch", "doctor")

WHY = "fp32, as this CPU has no bf16 instructions (`--precision`)"
WARNING = "torch emulates bf16"


@pytest.fixture
def avx2(here: Run, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run on a CPU whose oneDNN is held to AVX2, as on a CPU that has no more."""
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")
    return here


def said(result: Result) -> str:
    """All that was said, folded lines joined."""
    assert result.code == 0, result.stderr
    return " ".join((result.stdout + result.stderr).split())


def written(folder: Path, script: str) -> tuple[str, ...]:
    """The words that name this script, once it is there."""
    (folder / "train.py").write_text(script)
    return ("train.py",)


def words_of(command: str, folder: Path) -> tuple[str, ...]:
    """A loop whose precision the config decides, for the commands that read a script."""
    if command not in ON_SCRIPTS:
        return ()
    return ("--micro-batch", "2", *written(folder, CONFIG_ARGUMENTS))


@pytest.mark.parametrize("command", COMMANDS)
def test_where_nobody_names_it_the_precision_is_fp32_and_one_line_says_why(
    avx2: Run, folder: Path, command: str
) -> None:
    text = said(avx2(*COMMANDS[command], *words_of(command, folder)))
    assert 1 == text.count(WHY)
    assert WARNING not in text


def test_the_config_that_is_written_computes_in_fp32(avx2: Run, folder: Path) -> None:
    assert 0 == avx2(*COMMANDS["init"], *words_of("init", folder)).code
    [config] = (json.loads(path.read_text()) for path in folder.glob("ds_config_zero?.json"))
    enabled = [config.get(section, {}).get("enabled", False) for section in ("bf16", "fp16")]
    assert [False, False] == enabled


@pytest.mark.parametrize("command", COMMANDS)
def test_a_bf16_that_an_option_asks_for_is_taken_and_warned_of_once(
    avx2: Run, folder: Path, command: str
) -> None:
    asked = ("--precision", "bf16", *words_of(command, folder))
    text = said(avx2(*COMMANDS[command], *asked))
    assert 1 == text.count(WARNING)
    assert WHY not in text


@pytest.mark.parametrize(
    ("command", "script", "script_args"),
    [
        ("init", HF_IN_CODE, ()),
        ("launch", HF_IN_CODE, ()),
        ("doctor", HF_IN_CODE, ()),
        ("launch", HF_PARSER, ("--bf16",)),
        ("doctor", HF_PARSER, ("--bf16",)),
    ],
)
def test_a_bf16_that_the_script_asks_for_is_warned_of_once(
    avx2: Run, folder: Path, command: str, script: str, script_args: tuple[str, ...]
) -> None:
    words = (*written(folder, script), *script_args)
    assert 1 == said(avx2(*COMMANDS[command], *words)).count(WARNING)


def test_autocast_to_bf16_is_warned_of(avx2: Run) -> None:
    text = said(avx2(*COMMANDS["plan"], "--torch-autocast", "bf16"))
    assert 1 == text.count(WARNING)
    assert WHY not in text


def test_a_quiet_plan_says_nothing_of_it(avx2: Run) -> None:
    assert "" == avx2(*COMMANDS["plan"], "--precision", "bf16", "--quiet").stderr


def test_doctor_gives_the_warning_as_a_finding_with_its_remedy(avx2: Run) -> None:
    result = avx2(*COMMANDS["doctor"], "--json", "--precision", "bf16")
    [finding] = [each for each in json.loads(result.stdout)["findings"] if "bf16" in each["what"]]
    assert ("PF604", "warning") == (finding["code"], finding["severity"])
    assert any("--precision fp32" in mend for mend in finding["mends"])


def test_fp16_that_deepspeed_would_refuse_ends_the_launch_before_it_starts(
    avx2: Run, folder: Path
) -> None:
    result = avx2(*COMMANDS["launch"], "--precision", "fp16", *words_of("launch", folder))
    assert 5 == result.code
    assert "the job uses fp16, and this CPU has no fp16 instructions" in result.problem


def planned(result: Result) -> dict[str, Any]:
    assert result.code == 0, result.stderr
    content: dict[str, Any] = json.loads(result.stdout)
    return content


@pytest.mark.parametrize(
    ("computes", "expected"), [(True, "bf16"), (False, "fp32"), (None, "bf16")]
)
def test_a_saved_cpu_machine_is_planned_with_what_it_computes(
    here: Run, folder: Path, computes: bool | None, expected: str
) -> None:
    assert 0 == here("machine", "--accelerator", "cpu", "--save", "cpu.json").code
    content = json.loads((folder / "cpu.json").read_text())
    content["machine"]["host"]["computes_bf16"] = computes
    (folder / "cpu.json").write_text(json.dumps(content))
    plan = planned(here("plan", "--json", "--machine", "cpu.json", "--model", "10m"))
    assert expected == plan["workload"]["precision"]
    assert computes is plan["machine"]["host"]["computes_bf16"]


def test_a_machine_file_from_before_this_was_read_is_planned_as_before(
    here: Run, folder: Path
) -> None:
    assert 0 == here("machine", "--accelerator", "cpu", "--save", "cpu.json").code
    content = json.loads((folder / "cpu.json").read_text())
    for key in ("computes_bf16", "computes_fp16"):
        del content["machine"]["host"][key]
    (folder / "cpu.json").write_text(json.dumps(content))
    plan = planned(here("plan", "--json", "--machine", "cpu.json", "--model", "10m"))
    assert "bf16" == plan["workload"]["precision"]


def test_the_machine_says_what_its_cpu_does(avx2: Run) -> None:
    assert "; emulates bf16" in said(avx2("machine", "--accelerator", "cpu"))


AUTOCAST = ("plan", "--machine", "4xA100-40GB", "--model", "10m", "--torch-autocast", "bf16")
BF16 = '{"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": true}}'


@pytest.mark.parametrize(
    ("words", "problem", "hint"),
    [
        (
            ("--optimizer-state-dtype", "bf16"),
            "keeps fp32 weights, `--optimizer-state-dtype bf16` needs bf16",
            "remove one of the two",
        ),
        (("--config", "mine.json"), "`--precision bf16`", "`--precision` is set by `mine.json`"),
        (("--precision", "bf16"), "`--precision bf16`", "remove one of the two: `--precision`"),
    ],
)
def test_autocast_is_refused_with_what_else_was_said(
    here: Run, folder: Path, words: tuple[str, ...], problem: str, hint: str
) -> None:
    (folder / "mine.json").write_text(BF16)
    result = here(*AUTOCAST, *words)
    assert 2 == result.code
    assert result.problem.startswith("`--torch-autocast")
    assert problem in result.problem
    assert hint in result.hints
    assert ("is set by" in result.hints) == ("--config" in words)


def test_autocast_is_refused_with_the_line_of_the_script(here: Run, folder: Path) -> None:
    words = written(folder, HF_IN_CODE)
    result = here("launch", "--dry-run", *AUTOCAST[1:], *words)
    assert 2 == result.code
    assert re.search(r"`--precision` is set by .*bf16=True.* in train.py line \d+", result.hints)
