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
