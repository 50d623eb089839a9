"""`zerowiz check` of a file of `accelerate config` speaks of the keys that stand in the file."""

import json
from pathlib import Path
from typing import Any

import pytest
from cli.harness import HF_IN_CODE, Run

HEAD = "distributed_type: DEEPSPEED\ndeepspeed_config:\n"


def findings(here: Run, folder: Path, text: str, *options: str) -> list[dict[str, Any]]:
    """What is found in a file of Accelerate itself."""
    (folder / "acc.yaml").write_text(HEAD + text)
    files = json.loads(here("check", "--json", *options, "acc.yaml").stdout)["files"]
    return [each for file in files if file["path"] == "acc.yaml" for each in file["findings"]]


@pytest.mark.parametrize(
    ("text", "options", "key", "line", "says"),
    [
        (
            "  zero_stage: 7\n",
            (),
            "deepspeed_config.zero_stage",
            3,
            ("`zero_stage` must be one of 0, 1, 2, 3, not `7`", "write one of 0, 1, 2, 3"),
        ),
        (
            "  zero_stage: 2\n  offload_optimizer_device: gpu\n",
            (),
            "deepspeed_config.offload_optimizer_device",
            4,
            ("`offload_optimizer_device` must be one of", "write one of"),
        ),
        (
            "  zero_stage: 0\n  offload_optimizer_device: cpu\n",
            (),
            "deepspeed_config.offload_optimizer_device",
            4,
            ("`offload_optimizer_device` needs stage 1, 2 or 3", "write stage 1, 2 or 3"),
        ),
        (
            "  offload_param_device: cpu\n  zero_stage: 2\n",
            (),
            "deepspeed_config.offload_param_device",
            3,
            ("`offload_param_device` has no effect at stage 2", "write stage 3"),
        ),
        (
            "  offload_param_device: nvme\n  zero_stage: 3\n",
            (),
            "deepspeed_config.offload_param_device",
            3,
            (
                "`offload_param_device` has no `offload_param_nvme_path`",
                "write `offload_param_nvme_path`",
            ),
        ),
        (
            "  zero3_save_16bit_model: true\n  zero_stage: 2\n",
            (),
            "deepspeed_config.zero3_save_16bit_model",
            3,
            ("`zero3_save_16bit_model` has no effect at stage 2", "remove it"),
        ),
        (
            "  gradient_accumulation_steps: 0\n",
            (),
            "deepspeed_config.gradient_accumulation_steps",
            3,
            ("`gradient_accumulation_steps` must be more than 0", "write more than 0"),
        ),
        (
            "  zero_stage: 2\nmixed_precision: bf16\n",
            ("--machine", "2xV100"),
            "mixed_precision",
            4,
            ("7.0, which does not support bf16", "write `mixed_precision: fp16` instead"),
        ),
        (
            "  zero_stage: 2\nfp16: true\n",
            ("--machine", "2xH100"),
            "fp16",
            4,
            ("9.0, which supports bf16", "write `mixed_precision: bf16` instead"),
        ),
        (
            "  zero_stage: 2\nmixed_precision: fp16\n",
            ("--script", "train.py", "--integration", "hf"),
            "mixed_precision",
            4,
            ("`mixed_precision` is fp16 here and bf16 in", "set both to the same value"),
        ),
        (
            "  zero_stage: 2\nmixed_precision: bf16\n",
            ("--from", "0.18", "--to", "0.19.8"),
            "bf16.check_grad_overflow",
            4,
            ("was false in", "in a file that `deepspeed_config_file` names"),
        ),
    ],
)
def test_a_finding_names_the_key_of_the_file_at_its_line(
    here: Run,
    folder: Path,
    text: str,
    options: tuple[str, ...],
    key: str,
    line: int,
    says: tuple[str, str],
) -> None:
    (folder / "train.py").write_text(HF_IN_CODE)
    (found,) = (each for each in findings(here, folder, text, *options) if each["line"] == line)
    column = 3 if key.startswith("deepspeed_config") else 1
    assert (key, column) == (found["key"], found["column"])
    assert says[0] in found["message"]
    assert says[1] in found["fix"]


def test_a_path_that_accelerate_loses_is_found_and_a_launch_that_writes_it_is_silent(
    here: Run, folder: Path
) -> None:
    text = "  zero_stage: 3\n  offload_param_device: nvme\n  offload_param_nvme_path: nvme\n"
    (found,) = findings(here, folder, text)
    assert ("warning", "deepspeed_config.offload_param_nvme_path", 5) == (
        found["severity"],
        found["key"],
        found["line"],
    )
    assert "does not pass `offload_param_nvme_path` to the ranks" in found["message"]
    assert "set `ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_NVME_PATH`" in found["fix"]
    (folder / "nvme").mkdir()
    (folder / "train.py").write_text(HF_IN_CODE)
    words = ("--accelerator", "cpu", "--model", "10m", "--config", "acc.yaml", "train.py")
    launched = here("launch", "--dry-run", "--force", *words)
    assert '"nvme_path": "nvme"' in launched.stdout
    assert "does not pass" not in launched.stderr


def test_a_key_of_the_file_itself_that_accelerate_rejects_is_found_and_a_launch_goes_on(
    here: Run, folder: Path
) -> None:
    text = "  zero_stage: 2\nmixed_precision: bf16\nnum_machine: 1\nfoo: 1\ndynamo_backend: 'NO'\n"
    found = findings(here, folder, text)
    assert [("error", "num_machine", 5), ("warning", "foo", 6)] == [
        (each["severity"], each["key"], each["line"]) for each in found
    ]
    assert ["rename it to `num_machines`", "remove it"] == [each["fix"] for each in found]
    (folder / "train.py").write_text(HF_IN_CODE)
    words = ("--accelerator", "cpu", "--model", "10m", "--config", "acc.yaml", "train.py")
    launched = here("launch", "--dry-run", *words)
    assert (0, False) == (launched.code, "does not know" in launched.stderr)


NAMING = (
    "  deepspeed_config_file: my z.json\n  zero_stage: 2\n  gradient_clipping:\n"
    "  zero3_init_flag: tru\nmixed_precision: bf16\n"
)


def test_what_accelerate_rejects_beside_a_named_config_is_found_in_the_file(
    here: Run, folder: Path
) -> None:
    (folder / "my z.json").write_text('{"zero_optimization": {"stage": 2}}')
    found = findings(here, folder, NAMING)
    assert [
        ("ZW521", "deepspeed_config.zero_stage", 4),
        ("ZW521", "deepspeed_config.gradient_clipping", 5),
        ("ZW201", "deepspeed_config.zero3_init_flag", 6),
        ("ZW521", "mixed_precision", 7),
    ] == [(each["code"], each["key"], each["line"]) for each in found]
    assert "Accelerate rejects `zero_stage` beside `deepspeed_config_file`" == found[0]["message"]
    assert "remove it, and set it in `my z.json`" == found[0]["fix"]
    assert "`zero3_init_flag` must be true or false, not `tru`" == found[2]["message"]
    assert "Accelerate cannot read the value, and fails" == found[2]["why"]
    assert {"error"} == {each["severity"] for each in found}
    assert 6 == here("check", "acc.yaml").code


def test_two_files_that_name_one_config_are_both_checked(here: Run, folder: Path) -> None:
    (folder / "z.json").write_text('{"zero_optimization": {"stage": 2}}')
    for name in ("a.yaml", "b.yaml"):
        (folder / name).write_text(HEAD + "  deepspeed_config_file: z.json\n  zero_stage: 2\n")
    result = here("check", "--json", "a.yaml", "b.yaml")
    paths = [file["path"] for file in json.loads(result.stdout)["files"] if file["findings"]]
    assert ["a.yaml", "b.yaml"] == [path for path in paths if path != "z.json"]


def test_fix_says_that_it_leaves_a_naming_file_as_it_is(here: Run, folder: Path) -> None:
    (folder / "my z.json").write_text('{"zero_optimization": {"stage": 2}}')
    (folder / "acc.yaml").write_text(HEAD + NAMING)
    result = here("check", "--fix", "acc.yaml")
    assert "fix acc.yaml by hand" in result.stderr
    assert HEAD + NAMING == (folder / "acc.yaml").read_text()


def test_a_value_is_found_once_where_deepspeed_would_reject_it_too(here: Run, folder: Path) -> None:
    found = findings(here, folder, "  zero_stage: two\n")
    assert [("ZW201", "deepspeed_config.zero_stage")] == [
        (each["code"], each["key"]) for each in found
    ]


def test_a_number_that_python_cannot_write_is_a_finding(here: Run, folder: Path) -> None:
    (found,) = findings(here, folder, f"  zero3_init_flag: 0x{'f' * 9000}\n")
    assert ("ZW001", 3, 20) == (found["code"], found["line"], found["column"])


def test_a_no_without_quotes_is_found(here: Run, folder: Path) -> None:
    (found,) = findings(here, folder, "  zero_stage: 2\nmixed_precision: no\n")
    assert "not `false`" in found["message"]
    assert "write `bf16`, `fp16`, `fp8` or `'no'`" == found["fix"]


@pytest.mark.parametrize(
    ("text", "code", "keys"),
    [
        ("  zero_stage: 2\n", 6, ["deepspeed_config.zero_stage"]),
        ("other: 1\n", 1, ["other"]),
        ("", 1, []),
    ],
)
def test_a_file_that_names_a_missing_config_is_checked_itself(
    here: Run, folder: Path, text: str, code: int, keys: list[str]
) -> None:
    names = "  deepspeed_config_file: missing.json\n"
    assert keys == [each["key"] for each in findings(here, folder, names + text)]
    result = here("check", "acc.yaml")
    assert (code, "config `missing.json` does not exist") == (result.code, result.problem)
    assert "`acc.yaml` names it" in result.hints
