"""A remedy that is pasted behind the command leads to what it says, in every figure.

Many jobs, drawn once and for all: machines, models, methods and settings of every kind.
"""

import json
import random
import re
import shlex
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from cli.harness import Run
from paths import TESTS

from zerowiz.ui.text import seconds, size_of

MIXTRAL = str(TESTS / "models" / "mixtral-8x7b")
MACHINES = (
    *("T4", "RTX4090", "2xRTX4090", "8xRTX4090", "4xA10", "A100-40GB", "4xA100-40GB", "4xL4"),
    *("8xA100-80GB", "H100-80GB-SXM", "8xH100-80GB-SXM", "2x8xA100-80GB", "2x8xV100-32GB"),
    *("8xV100-16GB", "8xH200", "p4d.24xlarge", "2xp5.48xlarge", "g5.12xlarge"),
)
MODELS = (
    *("1.5b", "7b", "13b", "70b", "405b", "meta-llama/Llama-3.1-8B", "Qwen/Qwen2.5-32B"),
    *("Qwen/Qwen2.5-0.5B", MIXTRAL),
)
# How many jobs in a hundred say so, and what they say.
SAID: tuple[tuple[int, Sequence[Sequence[str]]], ...] = (
    (40, [("--method", "lora"), ("--method", "qlora")]),
    (40, [("--micro-batch", each) for each in ("2", "4", "8", "12")]),
    (50, [("--seq-len", each) for each in ("512", "4096", "16384", "65536")]),
    (40, [("--gradient-checkpointing",)]),
    (25, [("--stage", each) for each in "0123"]),
    (20, [("--offload", each) for each in ("none", "optimizer", "auto")]),
    (15, [("--precision", each) for each in ("fp32", "fp16")]),
    (10, [("--trainer", each) for each in ("dpo", "reward", "grpo")]),
    (15, [("--host-memory", each) for each in ("64GiB", "256GiB", "1TiB")]),
    (10, [("--optimizer", each) for each in ("adafactor", "sgd")]),
    (10, [("--memory-budget", "0.5")]),
)
JOBS = 200


@cache
def job(number: int) -> tuple[str, ...]:
    """The options of one of the jobs."""
    draw = random.Random(number)  # noqa: S311 - the jobs are drawn once and for all
    words = ["--machine", draw.choice(MACHINES), "--model", draw.choice(MODELS)]
    for percent, choices in SAID:
        if draw.randrange(100) < percent:
            words += draw.choice(choices)
    return tuple(words)


def chosen(plan: Mapping[str, Any]) -> Mapping[str, Any]:
    return next(each for each in plan["strategies"] if each["name"] == plan["chosen"])


def figures(plan: Mapping[str, Any]) -> dict[str, Any]:
    """Of the chosen strategy, as a remedy has them."""
    strategy = chosen(plan)
    sizes = {name: strategy["gpu"][name] for name in ("device_bytes", "budget_bytes")}
    time = {"step_seconds": strategy["step_seconds"]}
    return {"strategy": plan["chosen"], "verdict": strategy["verdict"], **sizes, **time}


def tokens_per_s(plan: Mapping[str, Any]) -> float | None:
    """Of the job with its fastest strategy, if memory were no matter."""
    plain = [each for each in plan["strategies"] if each["offload"] == "none"]
    return None if None in {each["tokens_per_s"] for each in plain} else max(map(_roomy, plain))


def _roomy(strategy: Mapping[str, Any]) -> float:
    """Its tokens per second where the allocator flushes nothing."""
    parts = {each["part"]: each["seconds"] for each in strategy["step_terms"]}
    whole: float = strategy["step_seconds"]
    roomy: float = whole - parts.get("allocator", 0.0)
    return float(strategy["tokens_per_s"]) * whole / roomy


def said_speed(fraction: float) -> str:
    """How much longer, or shorter, a token takes, in words."""
    if 1 / 1.03 < fraction < 1.03:
        return "as fast"
    slower, times = fraction >= 1, max(fraction, 1 / fraction)
    if times < 2:
        return f"about {100 * (times - 1):.0f} % {'slower' if slower else 'faster'}"
    return f"about {times:.{0 if times >= 10 else 1}f} times {'as slow' if slower else 'as fast'}"


def dominates(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether the first gives as much for less, of what anybody can compare."""
    if {"--machine", "--interconnect"} & one["change"].keys():
        return False
    sure = ("fits", "tight")
    as_sure = one["verdict"] in sure or other["verdict"] not in sure
    if one["time_fraction"] is None or other["time_fraction"] is None:
        return one["change"].items() < other["change"].items() and as_sure
    faster = one["time_fraction"] < other["time_fraction"]
    return as_sure and faster and set(one["costs"]) <= set(other["costs"])


def holds(here: Run, words: Sequence[str]) -> int:
    """Paste each remedy of a job that does not fit; how many there are."""
    result = here("plan", *words, "--json")
    if result.code != 4:
        # It fits, or the options contradict each other.
        assert result.code in {0, 2}, result.stderr
        return 0
    assert result.hints, words
    plan = json.loads(result.stdout)
    remedies, hints = plan["remedies"], result.hints.splitlines()
    for remedy, hint in zip(remedies, hints, strict=True):
        assert not [other for other in remedies if dominates(other, remedy)], hint
        found = re.match(r"`([^`]+)`: ", hint)
        assert found is not None, hint
        pasted = here("plan", *words, *shlex.split(found[1]), "--json")
        assert 0 == pasted.code, (words, hint, pasted.stderr)
        again = json.loads(pasted.stdout)
        assert {name: remedy[name] for name in figures(again)} == figures(again), (words, hint)
        assert size_of(remedy["device_bytes"], remedy["budget_bytes"]) in hint
        if remedy["step_seconds"] is None:
            continue
        assert f"{seconds(chosen(again)['step_seconds'])} s a step" in hint
        own, now = tokens_per_s(plan), chosen(again)["tokens_per_s"]
        if own is not None and not {"--stage", "--offload"} & set(words):
            assert f", {said_speed(own / now)}" in hint, (words, hint)
    return len(remedies)


# One GPU; a slow link; many nodes; what blocks is a stage, an offload, the host, a budget.
FEW = (
    ("--machine", "RTX4090", "--model", "7b"),
    ("--machine", "2xRTX4090", "--model", "13b", "--seq-len", "16384", "--stage", "1"),
    ("--machine", "2x8xA100-80GB", "--model", "70b", "--micro-batch", "8"),
    ("--machine", "A100-40GB", "--model", MIXTRAL, "--offload", "none", "--memory-budget", "0.5"),
)


@pytest.mark.parametrize("words", FEW, ids=" ".join)
def test_a_pasted_remedy_leads_to_what_it_says(here: Run, words: Sequence[str]) -> None:
    assert holds(here, words) > 1


@pytest.mark.thorough
@pytest.mark.parametrize("number", range(JOBS))
def test_a_pasted_remedy_of_any_job_leads_to_what_it_says(here: Run, number: int) -> None:
    holds(here, job(number))


def test_what_nothing_helps_says_so(here: Run, folder: Path) -> None:
    huge = here("plan", "--machine", "T4", "--model", "405b", "--seq-len", "10000000", "-q")
    assert (4, 1) == (huge.code, huge.hints.count("\n") + 1)
    assert huge.hints.startswith(
        "no machine that zerowiz knows has enough memory, not even 16 nodes of 8"
    )
    loop = LOOP.replace("meta-llama/Llama-2-70b-hf", "meta-llama/Llama-2-13b-hf")
    (folder / "loop.py").write_text(loop)
    two = ("plan", "-q", "--accelerator", "cpu", "--gpus-per-node", "2", "--memory-budget", "2GiB")
    on_cpu = here(*two, "--micro-batch", "1", "loop.py")
    assert (4, 1) == (on_cpu.code, on_cpu.hints.count("\n") + 1)
    assert on_cpu.hints.startswith("no change is enough on CPU ranks")
    (folder / "own.json").write_text('{"zero_optimization": {"stage": 2}}')
    words = ("plan", "-q", "--machine", "4xA100-40GB", "--model", "7b")
    own = here(*words, "--config", "own.json")
    assert 4 == own.code
    assert "zerowiz does not change `own.json`; without `--config own.json`" in own.hints
    assert "--gradient-checkpointing" in here(*words).hints


LOOP = """\
import deepspeed
from transformers import AutoModelForCausalLM

model = AutoModelForCausalLM.from_pretrained("meta-llama/Llama-2-70b-hf")
engine, *_ = deepspeed.initialize(model=model, config="ds_config.json")
engine.backward(engine(None).loss)
engine.step()
"""


def test_what_a_script_fixes_itself_is_said_with_what_to_change(here: Run, folder: Path) -> None:
    (folder / "loop.py").write_text(LOOP)
    hints = here("plan", "-q", "--machine", "8xH100-80GB-SXM", "loop.py").hints.splitlines()
    first = "; first "
    edits = {hint.partition("`: ")[0][1:]: hint.partition(first)[2] for hint in hints}
    call = "call `model.gradient_checkpointing_enable()` in `loop.py`"
    assert (
        f"{call}; wrap the model with peft in `loop.py`"
        == edits["--gradient-checkpointing --method lora"]
    )
    smaller = "codellama/CodeLlama-34b-hf"
    assert (
        f"{call}; load `{smaller}` in `loop.py`"
        == edits[f"--gradient-checkpointing --model {smaller}"]
    )
    assert not edits["--machine 8xB300"]
