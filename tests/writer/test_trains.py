"""The configs that zerowiz writes, trained: one optimizer step on 2 CPU ranks with each."""

from collections.abc import Mapping
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from ranks.harness import ask_ranks
from writer.matrix import Case, cases, pairwise

from zerowiz.core.decision.job import Job
from zerowiz.core.dsconfig.write import render_config
from zerowiz.core.machine.types import Host
from zerowiz.core.model.hf_config import model_from_config
from zerowiz.core.strategy_types import Offload
from zerowiz.core.workload import Integration, Precision, StateDtype, Workload
from zerowiz.probe.machine.host import cpu_machine

TINY: Mapping[str, object] = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 64,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "tie_word_embeddings": False,
}
JOB = Job(
    machine=cpu_machine(2, Host(total_bytes=64 * 2**30, available_bytes=64 * 2**30)),
    model=model_from_config("tiny", TINY),
    workload=Workload(micro_batch=2, accumulation_steps=2, sequence_tokens=16),
)
CASES = cases(JOB)
SAMPLE = tuple(pairwise(CASES))
EVERY_CASE = [
    pytest.param(case, id=str(case), marks=() if case in SAMPLE else pytest.mark.thorough)
    for case in CASES
]


def test_every_pair_of_values_that_occurs_is_in_the_sample() -> None:
    for first, second in combinations(range(3), 2):
        every, sampled = (
            {(case.values[first], case.values[second]) for case in some} for some in (CASES, SAMPLE)
        )
        assert every == sampled


def test_the_sample_is_small_and_always_the_same() -> None:
    assert tuple(pairwise(cases(JOB))) == SAMPLE
    assert len(SAMPLE) < len(CASES) / 4


TORCH_NAMES = {
    Precision.BF16: "bfloat16",
    Precision.FP16: "float16",
    Precision.FP32: "float32",
    StateDtype.BF16: "bfloat16",
    StateDtype.FP32: "float32",
}


def question(case: Case, folder: Path) -> dict[str, Any]:
    """The case, as train.py reads it, and its config in a file."""
    config, precision = folder / f"{case}.json", case.format.precision
    config.write_text(render_config(case.config(JOB)), encoding="utf-8")
    step = JOB.workload
    return {
        "ranks": 2,
        "by": case.handover.integration,
        "config": str(config),
        "own_optimizer": case.handover.script_has_optimizer,
        "model": TINY,
        "shape": [step.micro_batch, step.sequence_tokens],
        "arguments": {
            "per_device_train_batch_size": step.micro_batch,
            "gradient_accumulation_steps": step.accumulation_steps,
            "bf16": precision is Precision.BF16,
            "fp16": precision is Precision.FP16,
        },
    }


def expected(case: Case) -> dict[str, object]:
    """What a rank has to find."""
    strategy, numbers = case.strategy, case.format
    states = [TORCH_NAMES[numbers.states]]
    return {
        "raised": None,
        "changed": True,
        "world_size": 2,
        "stage": strategy.stage,
        "offload_optimizer": None if strategy.offload is Offload.NONE else "cpu",
        "offload_param": "cpu" if strategy.offload is Offload.ALL else None,
        "micro_batch": JOB.workload.micro_batch,
        "accumulation_steps": JOB.workload.accumulation_steps,
        "bf16_enabled": numbers.precision is Precision.BF16,
        "fp16_enabled": numbers.precision is Precision.FP16,
        "autocast": TORCH_NAMES.get(numbers.torch_autocast) if numbers.torch_autocast else None,
        "parameter_dtypes": [TORCH_NAMES[numbers.precision]],
        "master_dtypes": states,
        "state_dtypes": states,
        "steps_with": steps_with(case),
    }


def steps_with(case: Case) -> str:
    """The Trainer and Accelerate swap the optimizer for DeepSpeed's where it is offloaded."""
    handover, here = case.handover, case.strategy.offload is Offload.NONE
    raw = handover.integration is Integration.DEEPSPEED
    own = raw and handover.script_has_optimizer
    return "AdamW" if here or own else "DeepSpeedCPUAdam"


@pytest.fixture(scope="module")
def answers(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Mapping[Case, list[dict[str, Any]]]:
    """Every case that is asked about, trained in one go."""
    folder = tmp_path_factory.mktemp("writer")
    here = [item for item in request.session.items if item.path == request.path]
    calls = [item.callspec for item in here if hasattr(item, "callspec")]
    asked: list[Case] = [call.params["case"] for call in calls if "case" in call.params]
    program = Path(__file__).with_name("train.py")
    answered = ask_ranks(program, [question(case, folder) for case in asked], folder)
    return dict(zip(asked, answered, strict=True))


@pytest.mark.slow
@pytest.mark.deepspeed
@pytest.mark.parametrize("case", EVERY_CASE)
def test_both_ranks_train_what_was_decided(
    case: Case, answers: Mapping[Case, list[dict[str, Any]]]
) -> None:
    wanted = expected(case)
    for answer in answers[case]:
        assert answer["raised"] is None, f"{answer['raised']}\n{answer['log']}"
    found = [{key: answer[key] for key in wanted} for answer in answers[case]]
    assert [wanted, wanted] == found
