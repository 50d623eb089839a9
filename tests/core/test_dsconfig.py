"""Configs as they are rendered: golden files, and DeepSpeed's own opinion of each."""

import json
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from measured.rows import read_model

from zerowiz.core.dsconfig import AUTO, Handover, config_sections, config_values, render_config
from zerowiz.core.spec import parse_spec
from zerowiz.core.strategy import DDP, STRATEGIES, ZERO2, ZERO2_OFFLOAD, ZERO3, Offload, Strategy
from zerowiz.core.weigh import Job
from zerowiz.core.workload import Integration, Precision, StateDtype, Workload
from zerowiz.errors import UsageError
from zerowiz.probe.gpu_table import read_gpu_table
from zerowiz.probe.templates import read_template

FIELDS = frozenset({"micro_batch", "accumulation_steps", "precision"})
CASES: Mapping[str, Handover] = {
    "hf-settled": Handover(settled=FIELDS),
    "hf-unsettled": Handover(),
    "deepspeed-own-optimizer": Handover(integration=Integration.DEEPSPEED, settled=FIELDS),
    "deepspeed-no-optimizer": Handover(
        integration=Integration.DEEPSPEED, settled=FIELDS, script_has_optimizer=False
    ),
    "accelerate": Handover(integration=Integration.ACCELERATE, settled=FIELDS),
}
JOB = Job(
    machine=parse_spec("4xA100-80GB", read_gpu_table()),
    model=read_model("llama-3.1-8b"),
    workload=Workload(micro_batch=2, accumulation_steps=4, gradient_checkpointing=True),
)
WORLD = 4
GOLDENS = Path(__file__).parents[1] / "golden" / "configs"
EVERY_CONFIG = [(strategy, case) for strategy in STRATEGIES for case in CASES]
each_config = pytest.mark.parametrize(
    ("strategy", "case"), EVERY_CONFIG, ids=[f"{s.name}-{case}" for s, case in EVERY_CONFIG]
)


def render(strategy: Strategy, handover: Handover, job: Job = JOB) -> str:
    return render_config(
        read_template(strategy.template),
        config_values(job, strategy, handover),
        config_sections(job, strategy, handover),
    )


def parsed(strategy: Strategy, handover: Handover, job: Job = JOB) -> dict[str, Any]:
    config: dict[str, Any] = json.loads(render(strategy, handover, job))
    return config


def leaves(value: object) -> list[object]:
    """Every value of a config that is no section."""
    if isinstance(value, dict):
        return [leaf for inner in value.values() for leaf in leaves(inner)]
    return [value]


@each_config
def test_a_config_is_the_golden_one(
    strategy: Strategy, case: str, golden: Callable[[str, str], None]
) -> None:
    golden(f"configs/{strategy.name}-{case}.json", render(strategy, CASES[case]))


def test_there_is_no_golden_that_nothing_renders() -> None:
    expected = {f"{strategy.name}-{case}.json" for strategy, case in EVERY_CONFIG}
    assert expected == {path.name for path in GOLDENS.iterdir()}


@each_config
def test_auto_stands_only_where_the_trainer_fills_it(strategy: Strategy, case: str) -> None:
    handover = CASES[case]
    has_auto = AUTO in leaves(parsed(strategy, handover))
    assert (handover.integration is Integration.HF) is has_auto


@each_config
def test_rendering_is_deterministic_and_ends_in_a_newline(strategy: Strategy, case: str) -> None:
    first, second = (render(strategy, CASES[case]) for _ in range(2))
    assert first == second
    assert "}\n" == first[-2:]


@given(
    micro_batch=st.integers(1, 2**40),
    accumulation_steps=st.integers(1, 2**40),
    precision=st.sampled_from(Precision),
    strategy=st.sampled_from(STRATEGIES),
    handover=st.sampled_from(tuple(CASES.values())),
)
def test_any_job_renders_to_the_same_json_with_its_own_values(
    micro_batch: int,
    accumulation_steps: int,
    precision: Precision,
    strategy: Strategy,
    handover: Handover,
) -> None:
    workload = Workload(
        micro_batch=micro_batch, accumulation_steps=accumulation_steps, precision=precision
    )
    job = replace(JOB, workload=workload)
    text = render(strategy, replace(handover, settled=frozenset()), job)
    config = json.loads(text)
    assert text == json.dumps(config, indent=2) + "\n"
    assert micro_batch == config["train_micro_batch_size_per_gpu"]
    assert accumulation_steps == config["gradient_accumulation_steps"]
    enabled = {p: config.get(p.value, {}).get("enabled", False) for p in Precision}
    assert {p: p is precision and p is not Precision.FP32 for p in Precision} == enabled


def test_only_what_the_script_settles_is_left_to_the_trainer() -> None:
    config = parsed(ZERO2, Handover(settled=frozenset({"micro_batch"})))
    assert AUTO == config["train_micro_batch_size_per_gpu"]
    assert 4 == config["gradient_accumulation_steps"]
    assert config["bf16"]["enabled"] is True


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda s: s.name)
def test_bf16_states_are_switched_on_where_deepspeed_has_them(strategy: Strategy) -> None:
    job = replace(JOB, state_dtype=StateDtype.BF16)
    section = parsed(strategy, Handover(), job)["bf16"]
    expected = {"enabled": True}
    if strategy != DDP:
        expected |= {"bf16_master_weights_and_grads": True, "bf16_optimizer_states": True}
    assert expected == section


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda s: s.name)
def test_the_config_runs_with_the_buffers_that_were_weighed(strategy: Strategy) -> None:
    zero, buffers = parsed(strategy, Handover())["zero_optimization"], JOB.buffers
    for key in (
        "reduce_bucket_size",
        "sub_group_size",
        "stage3_prefetch_bucket_size",
        "stage3_param_persistence_threshold",
        "stage3_max_live_parameters",
    ):
        assert zero.get(key, getattr(buffers, key)) == getattr(buffers, key)
    assert (strategy.stage > 0) is ("reduce_bucket_size" in zero)


@pytest.mark.parametrize(
    ("case", "forced"),
    [
        ("hf-settled", True),
        ("deepspeed-own-optimizer", False),
        ("deepspeed-no-optimizer", True),
        ("accelerate", True),
    ],
)
def test_a_raw_scripts_own_optimizer_is_allowed_under_offload(case: str, forced: bool) -> None:
    assert forced is parsed(ZERO2_OFFLOAD, CASES[case])["zero_force_ds_cpu_optimizer"]


@pytest.mark.parametrize("strategy", [ZERO3, ZERO2_OFFLOAD])
def test_an_optimizer_is_named_only_when_the_script_has_none(strategy: Strategy) -> None:
    with_section = {c for c, handover in CASES.items() if "optimizer" in parsed(strategy, handover)}
    assert {"deepspeed-no-optimizer"} == with_section


def test_offload_leaves_the_choice_of_cpu_adam_to_deepspeed() -> None:
    plain, offloaded = (
        config_sections(JOB, s, CASES["deepspeed-no-optimizer"])["optimizer"]
        for s in (ZERO2, ZERO2_OFFLOAD)
    )
    assert isinstance(plain, dict)
    assert isinstance(offloaded, dict)
    assert {"torch_adam", "fused"} == set(plain["params"]) - set(offloaded["params"])


@pytest.mark.parametrize("key", ["zero_optimization.staeg", "flops.profile", "bf16.enabled.really"])
def test_a_key_that_the_template_lacks_is_refused(key: str) -> None:
    with pytest.raises(UsageError, match=f"no key `{key}`"):
        render_config(read_template(ZERO2.template), {key: 1})


def test_a_section_that_the_template_holds_is_refused() -> None:
    with pytest.raises(UsageError, match="a section `bf16` already"):
        render_config(read_template(ZERO2.template), {}, {"bf16": {}})


@pytest.fixture(scope="module")
def third_parties() -> Iterator[SimpleNamespace]:
    """DeepSpeed's config class and the Trainer's filling, on one CPU rank."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DS_ACCELERATOR", "cpu")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from deepspeed.runtime.config import DeepSpeedConfig
            from transformers import TrainingArguments
            from transformers.integrations.deepspeed import HfTrainerDeepSpeedConfig
        yield SimpleNamespace(
            DeepSpeedConfig=DeepSpeedConfig,
            TrainingArguments=TrainingArguments,
            HfTrainerDeepSpeedConfig=HfTrainerDeepSpeedConfig,
        )


def as_the_trainer_fills_it(config: dict[str, Any], third: SimpleNamespace) -> dict[str, Any]:
    """What the Trainer makes of a config, its own arguments being those of the job."""
    arguments = third.TrainingArguments(
        output_dir="never-written",
        per_device_train_batch_size=JOB.workload.micro_batch,
        gradient_accumulation_steps=JOB.workload.accumulation_steps,
        bf16=True,
        use_cpu=True,
        report_to="none",
    )
    filled = third.HfTrainerDeepSpeedConfig(config)
    filled.trainer_config_process(arguments)
    filled.trainer_config_finalize(arguments, None, num_training_steps=10)
    values: dict[str, Any] = filled.config
    return values


def accepted(strategy: Strategy, handover: Handover, job: Job, third: SimpleNamespace) -> Any:
    """The config as DeepSpeed's own class parses it."""
    config = parsed(strategy, handover, job)
    if handover.integration is Integration.HF:
        config = as_the_trainer_fills_it(config, third)
    assert AUTO not in leaves(config)
    return third.DeepSpeedConfig(config)


def devices(zero: Any) -> tuple[str | None, str | None]:
    """Where DeepSpeed will keep the optimizer and the parameters, None on the GPU."""
    sections = (zero.offload_optimizer, zero.offload_param)
    optimizer, params = (None if s is None else str(s.device) for s in sections)
    return optimizer, params


DEVICES = {
    Offload.NONE: (None, None),
    Offload.OPTIMIZER: ("cpu", None),
    Offload.ALL: ("cpu", "cpu"),
}


@each_config
def test_deepspeed_reads_out_of_a_golden_what_was_decided(
    strategy: Strategy, case: str, third_parties: SimpleNamespace
) -> None:
    config = accepted(strategy, CASES[case], JOB, third_parties)
    zero, workload = config.zero_config, JOB.workload
    assert strategy.stage == zero.stage
    assert DEVICES[strategy.offload] == devices(zero)
    assert workload.micro_batch == config.train_micro_batch_size_per_gpu
    assert workload.accumulation_steps == config.gradient_accumulation_steps
    assert (True, False) == (config.bfloat16_config.enabled, config.float16_config.enabled)
    assert 1.0 == config.gradient_clipping
    if strategy.stage > 0:
        assert JOB.buffers.reduce_bucket_size == zero.reduce_bucket_size


@each_config
def test_deepspeed_takes_bf16_states_at_every_stage_that_shards_them(
    strategy: Strategy, case: str, third_parties: SimpleNamespace
) -> None:
    job = replace(JOB, state_dtype=StateDtype.BF16)
    section = accepted(strategy, CASES[case], job, third_parties).bfloat16_config
    expected = strategy.stage > 0
    assert expected is section.bf16_optimizer_states
    assert expected is section.bf16_master_weights_and_grads
