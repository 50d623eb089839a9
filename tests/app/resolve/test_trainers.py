"""A script's trainer is planned with, and what of it nobody counts is never said to fit."""

import json
import shutil
from pathlib import Path
from typing import Any

from cli.harness import Result, Run
from probe.reading import SCRIPTS

H100 = ("--machine", "p5.48xlarge", "--model", "8b", "--precision", "bf16")


def planned(here: Run, name: str, folder: Path, *words: str) -> tuple[Result, dict[str, Any]]:
    """What `plan --json` says of one of the scripts of tests/probe."""
    shutil.copy(SCRIPTS / f"{name}.py", folder / "train.py")
    result = here("plan", "--json", *H100, *words)
    assert 0 == result.code, result.stderr
    return result, json.loads(result.stdout)


def verdicts(plan: dict[str, Any]) -> set[str]:
    return {each["verdict"] for each in plan["strategies"]}


def test_the_step_is_that_of_the_trainer(here: Run, folder: Path) -> None:
    _, plan = planned(here, "trl_dpo_parser", folder, "train.py")
    step = plan["workload"]
    assert ("dpo", "model", 1024) == (step["trainer"], step["reference"], step["sequence_tokens"])


def test_a_reference_costs_what_the_model_weighs_below_stage_3(here: Run, folder: Path) -> None:
    def held(reference: str) -> set[int]:
        words = ("--reference", reference, "train.py")
        _, plan = planned(here, "trl_dpo_parser", folder, *words)
        zero2 = next(each for each in plan["strategies"] if each["name"] == "zero2")
        lines = zero2["gpu"]["lines"]
        return {each["bytes"] for each in lines if each["part"] == "reference model"}

    assert ({2 * 8_000_000_000}, set()) == (held("model"), held("precomputed"))


def test_adapters_that_an_option_asks_for_need_no_reference(here: Run, folder: Path) -> None:
    _, plan = planned(here, "trl_dpo_parser", folder, "--method", "lora", "train.py")
    assert "none" == plan["workload"]["reference"]


def test_a_prompt_that_nothing_cuts_is_assumed(here: Run, folder: Path) -> None:
    result, plan = planned(
        here, "trl_grpo_parser", folder, "train.py", "--max_completion_length", "4096"
    )
    assert (4096 + 512, 4096) == (
        plan["workload"]["sequence_tokens"],
        plan["workload"]["completion_tokens"],
    )
    assert "4608 tokens per sequence" in result.stderr


def test_what_is_generated_at_a_time_is_as_the_script_says(here: Run, folder: Path) -> None:
    _, by_steps = planned(here, "trl_grpo_vllm", folder, "train.py")
    words = ("train.py", "--generation_batch_size", "128")
    _, by_all = planned(here, "trl_grpo_parser", folder, *words)
    assert (4 * 4, 128 // 8) == (
        by_steps["workload"]["generation_batch"],
        by_all["workload"]["generation_batch"],
    )


def test_completions_of_a_prompt_that_are_not_generated_at_once_are_noted(
    here: Run, folder: Path
) -> None:
    whole, _ = planned(here, "trl_grpo_parser", folder, "train.py")
    words = ("--micro-batch", "3", "train.py", "--num_generations", "16")
    cut, _ = planned(here, "trl_grpo_parser", folder, *words)
    assert "TRL will refuse" not in whole.stderr
    said = "24 completions are generated at once by all GPUs, but `--num_generations 16`"
    assert said in " ".join(cut.stderr.split())


def test_vllm_in_the_same_gpus_never_fits(here: Run, folder: Path) -> None:
    _, plan = planned(here, "trl_grpo_vllm", folder, "train.py")
    assert not verdicts(plan) & {"fits", "tight"}
    total_bytes = plan["machine"]["gpus"][0]["total_bytes"]
    assert {int(0.4 * total_bytes)} == {each["gpu"]["vllm_bytes"] for each in plan["strategies"]}


def test_a_server_takes_nothing_here_and_is_named(here: Run, folder: Path) -> None:
    words = ("train.py", "--use_vllm", "--vllm_mode", "server")
    result, plan = planned(here, "trl_grpo_parser", folder, *words)
    assert "fits" in verdicts(plan)
    assert "`--vllm_mode server` after the script: vLLM runs as a server" in result.stderr


def test_a_loss_of_the_script_is_uncertain_until_it_is_named(here: Run, folder: Path) -> None:
    result, plan = planned(here, "trl_own_loss", folder, "train.py")
    assert not verdicts(plan) & {"fits", "tight"}
    assert "train.py line 7: `ContrastiveTrainer.compute_loss`" in result.stderr
    named, plan = planned(here, "trl_own_loss", folder, "--trainer", "dpo", "train.py")
    assert "ContrastiveTrainer" not in named.stderr
    assert not [each for each in plan["strategies"] if each["gpu"]["interval"]["uncounted"]]
    assert "dpo" == plan["workload"]["trainer"]


def test_a_trainer_that_a_script_builds_is_no_other(here: Run, folder: Path) -> None:
    shutil.copy(SCRIPTS / "trl_dpo_parser.py", folder / "train.py")
    result = here("plan", *H100, "--trainer", "grpo", "train.py")
    assert 2 == result.code
    assert "`--trainer grpo` conflicts with the script: `DPOTrainer(...)`" in result.stderr


def test_a_sleeping_vllm_is_launched_without_segments_that_expand(here: Run, folder: Path) -> None:
    shutil.copy(SCRIPTS / "trl_grpo_parser.py", folder / "train.py")
    words = ("--completion-tokens", "64", "train.py", "--use_vllm")
    commands = [
        here("launch", "--dry-run", "--json", "--yes", *H100, *more, *words)
        for more in ((), ("--vllm-sleeps",))
    ]
    settings = [json.loads(each.stdout)["env"]["PYTORCH_CUDA_ALLOC_CONF"] for each in commands]
    assert ["expandable_segments:True", "expandable_segments:False"] == settings
