"""Configs as they are written: golden files, claims, and what their readers make of each."""

import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from measured.rows import read_model
from paths import GOLDEN
from writer.matrix import FORMATS, HANDOVERS, Case, cases

from zerowiz.core.decision.evaluate import evaluate
from zerowiz.core.decision.job import Job
from zerowiz.core.dsconfig.write import AUTO, Handover, render_config, write_config
from zerowiz.core.lint.config import Context, on_machine
from zerowiz.core.lint.linter import lint
from zerowiz.core.machine.names import parse_spec
from zerowiz.core.machine.types import Host, Machine, Network, NetworkKind
from zerowiz.core.memory.activations import Activations
from zerowiz.core.memory.buffers import Buffers
from zerowiz.core.memory.host import HostPhase
from zerowiz.core.memory.micro_step import Traced, TracedRun, TracedTensor
from zerowiz.core.memory.rank_sizes import StrategyRow
from zerowiz.core.settings import Hyperparameters
from zerowiz.core.strategies import (
    DDP,
    STRATEGIES,
    ZERO1,
    ZERO2,
    ZERO2_OFFLOAD,
    ZERO3,
    ZERO3_OFFLOAD,
    ZERO3_OFFLOAD_OPTIMIZER,
)
from zerowiz.core.strategy_types import Offload
from zerowiz.core.structs import replace
from zerowiz.core.workload import (
    OPTIMIZERS,
    PRECISIONS,
    Integration,
    Optimizer,
    Precision,
    StateDtype,
    Workload,
)
from zerowiz.probe.files import read_ds_schema, read_gpu_table

TABLE = read_gpu_table()
GIB = 2**30
LITTLE_ROOM_BYTES = 89 * GIB // 2


def machine(spec: str, host_bytes: int = 1024 * GIB) -> Machine:
    """Idle GPUs in a host of this size."""
    return replace(parse_spec(spec, TABLE), host=Host(available_bytes=host_bytes))


# The templates are this job's configs.
JOB = Job(
    machine=machine("4xA100-80GB"),
    model=read_model("llama-3.1-8b"),
    workload=Workload(micro_batch=2, accumulation_steps=4, gradient_checkpointing=True),
)

CASES = cases(JOB)
each_case = pytest.mark.parametrize("case", CASES, ids=str)
each_strategy = pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda s: s.name)
RAW = HANDOVERS["deepspeed-no-optimizer"]
HF = HANDOVERS["hf-settled"]


def write(strategy: StrategyRow, handover: Handover = HF, job: Job = JOB) -> dict[str, Any]:
    return write_config(job, evaluate(job, strategy), handover)


def leaves(value: object) -> list[object]:
    """Every value of a config that is no section."""
    if isinstance(value, dict):
        return [leaf for inner in value.values() for leaf in leaves(inner)]
    return [value]


# The golden files: every strategy for every reader, and every feature once.


def golden_name(case: Case) -> str:
    """What a script settles by itself is the template; the other ways lie with the tests."""
    if case.to == "hf-settled":
        return f"../../templates/{case.strategy.config_name}"
    return f"configs/{case.strategy.name}-{case.to}.json"


IN_BF16 = [case for case in CASES if case.numbers == "bf16"]


@pytest.mark.parametrize("case", IN_BF16, ids=str)
def test_a_config_is_the_golden_one(case: Case, golden: Callable[[str, str], None]) -> None:
    golden(golden_name(case), render_config(case.config(JOB)))


@dataclass(frozen=True, kw_only=True, slots=True)
class Feature:
    """A config that holds what most do not."""

    strategy: StrategyRow
    job: Job
    handover: Handover = HF


def stepping(optimizer: Optimizer, strategy: StrategyRow = ZERO2) -> Feature:
    """A plain loop that leaves the optimizer to the config."""
    job = replace(JOB, workload=replace(JOB.workload, optimizer=optimizer))
    return Feature(strategy=strategy, job=job, handover=RAW)


ON_V100S = replace(FORMATS["fp16"].of(JOB), machine=machine("8xV100-32GB"))
HALF_STATES = FORMATS["bf16-states"].of(JOB)
ON_NVME = replace(JOB, nvme_path="/local/nvme")
TCP = Network(kind=NetworkKind.ETHERNET, bytes_per_s=1_250_000_000)
INFINIBAND = Network(kind=NetworkKind.INFINIBAND, bytes_per_s=50_000_000_000)
TWO_NODES = replace(JOB, machine=replace(machine("8xA100-80GB"), nodes=2, network=TCP))
EXPERTS = replace(JOB, model=read_model("mixtral-8x7b"), machine=machine("8xH200"))
SMALL_HOST = replace(JOB, machine=machine("4xA100-80GB", 20 * GIB))


def with_transformers(job: Job, *version: int) -> Job:
    release = (version[0], version[1])
    return replace(job, workload=replace(job.workload, transformers_version=release))


FEATURES: Mapping[str, Feature] = {
    "fp16-hf": Feature(strategy=ZERO3, job=ON_V100S),
    "fp16-accelerate": Feature(strategy=ZERO3, job=ON_V100S, handover=HANDOVERS["accelerate"]),
    "autocast": Feature(strategy=ZERO3, job=FORMATS["bf16-autocast"].of(JOB)),
    "half-states": Feature(strategy=ZERO2, job=HALF_STATES),
    "half-states-offload": Feature(strategy=ZERO2_OFFLOAD, job=HALF_STATES),
    "nvme-optimizer": Feature(strategy=ZERO3_OFFLOAD_OPTIMIZER, job=ON_NVME),
    "nvme-all": Feature(strategy=ZERO3_OFFLOAD, job=ON_NVME),
    "hpz": Feature(strategy=ZERO3, job=TWO_NODES),
    "quantized-weights": Feature(strategy=ZERO3, job=replace(JOB, quantized_weights=True)),
    "experts": Feature(strategy=ZERO3, job=with_transformers(EXPERTS, 4, 57)),
    "small-host": Feature(strategy=ZERO3, job=SMALL_HOST),
    "little-room": Feature(strategy=ZERO3, job=replace(JOB, budget_bytes=LITTLE_ROOM_BYTES)),
    **{
        f"optimizer-{optimizer}{suffix}": stepping(optimizer, strategy)
        for optimizer, row in OPTIMIZERS.items()
        if row.ds_type is not None
        for suffix, strategy in (("", ZERO2), ("-offload", ZERO2_OFFLOAD))
    },
}
each_feature = pytest.mark.parametrize("feature", FEATURES.values(), ids=FEATURES.keys())


@pytest.mark.parametrize("name", FEATURES)
def test_a_feature_is_the_golden_one(name: str, golden: Callable[[str, str], None]) -> None:
    feature = FEATURES[name]
    written = write(feature.strategy, feature.handover, feature.job)
    golden(f"features/{name}.json", render_config(written))


def test_there_is_no_golden_that_nothing_writes() -> None:
    expected = {golden_name(case) for case in IN_BF16 if case.to != "hf-settled"}
    expected |= {f"features/{name}.json" for name in FEATURES}
    folders = ("configs", "features")
    assert expected == {f"{f}/{path.name}" for f in folders for path in (GOLDEN / f).iterdir()}


# What is said of a whole config.


def test_auto_stands_only_where_the_trainer_fills_it() -> None:
    has_auto = {str(case): AUTO in leaves(case.config(JOB)) for case in CASES}
    filled = {str(case): case.handover.integration is Integration.HF for case in CASES}
    assert filled == has_auto


@given(
    micro_batch=st.integers(1, 2**40),
    accumulation_steps=st.integers(1, 2**40),
    precision=st.sampled_from(Precision),
    strategy=st.sampled_from(STRATEGIES),
    handover=st.sampled_from(tuple(HANDOVERS.values())),
)
def test_any_job_is_written_with_its_own_values(
    micro_batch: int,
    accumulation_steps: int,
    precision: Precision,
    strategy: StrategyRow,
    handover: Handover,
) -> None:
    workload = Workload(
        micro_batch=micro_batch, accumulation_steps=accumulation_steps, precision=precision
    )
    job = replace(JOB, workload=workload)
    config = write(strategy, replace(handover, settled=frozenset()), job)
    assert micro_batch == config["train_micro_batch_size_per_gpu"]
    assert accumulation_steps == config["gradient_accumulation_steps"]
    enabled = {p: config.get(p.value, {}).get("enabled", False) for p in Precision}
    assert {p: p is precision and PRECISIONS[p].enabled for p in Precision} == enabled


def said_by_check(config: Mapping[str, object], integration: Integration, on: Machine) -> set[str]:
    context = on_machine(Context(integration=integration), on)
    return {found.rule.name for found in lint(render_config(config), read_ds_schema(), context)}


def test_check_has_nothing_to_say_of_what_is_written() -> None:
    for case in CASES:
        precision, integration = case.format.precision, case.handover.integration
        on = ON_V100S.machine if precision is Precision.FP16 else JOB.machine
        assert set() == said_by_check(case.config(JOB), integration, on), case


@each_feature
def test_check_has_nothing_to_say_of_a_feature(feature: Feature) -> None:
    config = write(feature.strategy, feature.handover, feature.job)
    # Asked for, and slow: torch's own step on the host.
    slow = feature in [FEATURES[f"optimizer-{name}-offload"] for name in ("adafactor", "sgd")]
    expected = {"optimizer-under-offload"} if slow else set()
    assert expected == said_by_check(config, feature.handover.integration, feature.job.machine)


# What is said of single keys.


def test_only_what_the_script_settles_is_left_to_the_trainer() -> None:
    config = write(ZERO2, Handover(settled=frozenset({"micro_batch"})))
    assert AUTO == config["train_micro_batch_size_per_gpu"]
    assert 4 == config["gradient_accumulation_steps"]
    assert config["bf16"]["enabled"] is True


@each_strategy
def test_a_gpu_without_bf16_gets_fp16_and_its_loss_scale(strategy: StrategyRow) -> None:
    config = write(strategy, job=ON_V100S)
    assert {"fp16"} == {"bf16", "fp16", "torch_autocast"} & set(config)
    assert 0 == config["fp16"]["loss_scale"]
    assert 16 == config["fp16"]["initial_scale_power"]


@each_strategy
def test_bf16_states_are_switched_on_where_deepspeed_has_them(strategy: StrategyRow) -> None:
    section = write(strategy, Handover(), HALF_STATES)["bf16"]
    expected = {"enabled": True}
    if strategy != DDP:
        expected |= {"bf16_master_weights_and_grads": True, "bf16_optimizer_states": True}
    assert expected == section


SIZES = (
    "reduce_bucket_size",
    "sub_group_size",
    "stage3_prefetch_bucket_size",
    "stage3_param_persistence_threshold",
    "stage3_max_live_parameters",
)
OF_STAGE = {0: (), 1: SIZES[:1], 2: SIZES[:1], 3: SIZES}


def sizes(buffers: Buffers, strategy: StrategyRow) -> dict[str, int]:
    return {key: getattr(buffers, key) for key in OF_STAGE[strategy.stage]}


@each_strategy
@pytest.mark.parametrize("budget_bytes", [80 * GIB, LITTLE_ROOM_BYTES, 10 * GIB])
def test_the_buffers_that_are_written_are_those_that_were_weighed(
    strategy: StrategyRow, budget_bytes: int
) -> None:
    job = replace(JOB, budget_bytes=budget_bytes)
    buffers, zero = evaluate(job, strategy).buffers, write(strategy, job=job)["zero_optimization"]
    assert sizes(buffers, strategy) == {key: zero[key] for key in SIZES if key in zero}
    if strategy.stage in {1, 2}:
        assert buffers.overlap_comm is zero["overlap_comm"]
        assert buffers.contiguous_gradients is zero["contiguous_gradients"]


@pytest.mark.parametrize("strategy", [ZERO1, ZERO2, ZERO3], ids=lambda s: s.name)
def test_the_less_room_there_is_the_leaner_are_the_buffers(strategy: StrategyRow) -> None:
    budgets = [tenths * GIB // 10 for tenths in range(800, 400, -1)]
    jobs = [replace(JOB, budget_bytes=budget_bytes) for budget_bytes in budgets]
    assert [*JOB.buffers(strategy)] == [*dict.fromkeys(evaluate(j, strategy).buffers for j in jobs)]


def traced(family: str, *version: int) -> Job:
    """A job with a model that only a trace knows."""
    weight = TracedTensor(name="mlp.experts.*.fc1.weight", shape=(64, 64), copies=4, linear=True)
    nothing = Activations(
        saved_bytes=0,
        saved_formula="",
        head_bytes=0,
        head_formula="",
        loss_forward_bytes=0,
        loss_backward_bytes=0,
        block_bytes=0,
    )
    run = TracedRun(
        micro_batch=1,
        sequence_tokens=16,
        precision=Precision.BF16,
        gradient_checkpointing=True,
        activations=nothing,
    )
    trace = Traced(
        family=family,
        built="ForCausalLM",
        layers=1,
        hidden_size=64,
        embedding=(),
        tied_embeddings=False,
        tensors=(weight,),
        runs=(run,),
        took_milliseconds=1,
    )
    return with_transformers(replace(JOB, model=trace.model("traced"), traced=trace), *version)


WEIGHTS_BYTES = 2 * JOB.model.params
# The interpreters of the ranks, with their libraries.
RANKS_BYTES = evaluate(JOB, ZERO3).host.phase_bytes[HostPhase.TRAINING]
SAVED_WHOLE = "stage3_gather_16bit_weights_on_model_save"
COPIED, LEAF = "zero_hpz_partition_size", "leaf_module"


def with_host(available_bytes: int | None) -> Job:
    host = Host(available_bytes=available_bytes)
    return replace(JOB, machine=replace(JOB.machine, host=host))


ZERO_KEYS: Mapping[str, tuple[StrategyRow, Job, str, object]] = {
    # A node keeps a copy of the weights where that saves a slow link.
    "slow nodes": (ZERO3, TWO_NODES, COPIED, 8),
    "slow nodes, forbidden": (ZERO3, replace(TWO_NODES, hpz=False), COPIED, None),
    "fast nodes": (
        ZERO3,
        replace(TWO_NODES, machine=replace(TWO_NODES.machine, network=INFINIBAND)),
        *(COPIED, None),
    ),
    "one node": (ZERO3, JOB, COPIED, None),
    "one node, asked for": (ZERO3, replace(JOB, hpz=True), COPIED, 4),
    "no room": (ZERO3, replace(TWO_NODES, budget_bytes=21 * GIB), COPIED, None),
    # Experts that are modules are gathered together.
    **{
        name: (strategy, job, LEAF, None if block is None else {"classes": [block]})
        for name, strategy, job, block in (
            ("modules", ZERO3, with_transformers(EXPERTS, 4, 57), "MixtralSparseMoeBlock"),
            ("modules, below stage 3", ZERO2, with_transformers(EXPERTS, 4, 57), None),
            ("fused", ZERO3, with_transformers(EXPERTS, 5, 0), None),
            ("traced modules", ZERO3, traced("granitemoe", 4, 57), "GraniteMoeMoE"),
            ("traced and fused", ZERO3, traced("granitemoe", 5, 0), None),
            ("traced and apart", ZERO3, traced("nllb-moe", 5, 0), "NllbMoeSparseMLP"),
            ("no experts", ZERO3, with_transformers(JOB, 4, 57), None),
        )
    },
    # Whole weights are saved where the host can hold them.
    "room": (ZERO3, with_host(RANKS_BYTES + WEIGHTS_BYTES), SAVED_WHOLE, True),
    "a byte too few": (ZERO3, with_host(RANKS_BYTES + WEIGHTS_BYTES - 1), SAVED_WHOLE, False),
    "an unknown host": (ZERO3, with_host(None), SAVED_WHOLE, True),
    "offloaded, no room": (ZERO3_OFFLOAD, with_host(WEIGHTS_BYTES), SAVED_WHOLE, False),
    "offloaded, room": (ZERO3_OFFLOAD, with_host(1024 * GIB), SAVED_WHOLE, True),
}


@pytest.mark.parametrize(("strategy", "job", "key", "expected"), ZERO_KEYS.values(), ids=ZERO_KEYS)
def test_a_key_of_zero_is_written(
    strategy: StrategyRow, job: Job, key: str, expected: object
) -> None:
    assert expected == write(strategy, job=job)["zero_optimization"].get(key)


@pytest.mark.parametrize(
    ("to", "forced"),
    [
        ("hf-settled", None),
        ("deepspeed-own-optimizer", False),
        ("deepspeed-no-optimizer", None),
        ("accelerate", None),
    ],
)
def test_a_raw_scripts_own_optimizer_is_allowed_under_offload(to: str, forced: bool | None) -> None:
    assert forced is write(ZERO2_OFFLOAD, HANDOVERS[to]).get("zero_force_ds_cpu_optimizer")


@each_strategy
def test_an_optimizer_is_named_only_where_the_script_brings_none_that_fits(
    strategy: StrategyRow,
) -> None:
    for job, more in ((JOB, set()), (HALF_STATES, {"hf-settled", "hf-unsettled"})):
        names = {"deepspeed-no-optimizer"}
        names |= set() if strategy.offload is Offload.NONE else more
        assert names == {
            to for to, h in HANDOVERS.items() if "optimizer" in write(strategy, h, job)
        }


def test_offload_leaves_the_choice_of_cpu_adam_to_deepspeed() -> None:
    here, away = (write(s, RAW)["optimizer"]["params"] for s in (ZERO2, ZERO2_OFFLOAD))
    assert {"torch_adam", "fused"} == set(here) - set(away)


# DeepSpeed's own opinion.


@pytest.fixture(scope="module")
def third_parties() -> Iterator[SimpleNamespace]:
    """DeepSpeed's config class, and who fills or reads a config before it, on one CPU rank."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DS_ACCELERATOR", "cpu")
        patch.setenv("ACCELERATE_USE_DEEPSPEED", "true")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from accelerate import DeepSpeedPlugin
            from deepspeed.runtime.config import DeepSpeedConfig
            from transformers import TrainingArguments
            from transformers.integrations.deepspeed import HfTrainerDeepSpeedConfig
        yield SimpleNamespace(
            DeepSpeedConfig=DeepSpeedConfig,
            DeepSpeedPlugin=DeepSpeedPlugin,
            TrainingArguments=TrainingArguments,
            HfTrainerDeepSpeedConfig=HfTrainerDeepSpeedConfig,
        )


def as_the_trainer_fills_it(
    config: dict[str, Any], precision: Precision, third: SimpleNamespace
) -> dict[str, Any]:
    """What the Trainer makes of a config, its own arguments being those of the job."""
    arguments = third.TrainingArguments(
        output_dir="never-written",
        per_device_train_batch_size=JOB.workload.micro_batch,
        gradient_accumulation_steps=JOB.workload.accumulation_steps,
        bf16=precision is Precision.BF16,
        fp16=precision is Precision.FP16,
        use_cpu=True,
        report_to="none",
    )
    filled = third.HfTrainerDeepSpeedConfig(config)
    filled.trainer_config_process(arguments)
    filled.trainer_config_finalize(arguments, None, num_training_steps=10)
    values: dict[str, Any] = filled.config
    return values


def as_accelerate_reads_it(config: dict[str, Any], third: SimpleNamespace) -> dict[str, Any]:
    """What its plugin makes of a config before there is a model."""
    plugin = third.DeepSpeedPlugin(hf_ds_config=config)
    plugin.set_mixed_precision("no")
    values: dict[str, Any] = plugin.deepspeed_config
    return values


def accepted(case: Case, third: SimpleNamespace) -> Any:
    """The config as DeepSpeed's own class parses it."""
    config = case.config(JOB)
    if case.handover.integration is Integration.HF:
        config = as_the_trainer_fills_it(config, case.format.precision, third)
    if case.handover.integration is Integration.ACCELERATE:
        config = as_accelerate_reads_it(config, third)
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
# Of DeepSpeed's own class, where its name is another than the key's.
ATTRIBUTES = {key: key.removeprefix("stage3_") for key in SIZES}


@each_case
def test_deepspeed_reads_out_of_a_config_what_was_decided(
    case: Case, third_parties: SimpleNamespace
) -> None:
    config, strategy, numbers = accepted(case, third_parties), case.strategy, case.format
    zero, step = config.zero_config, JOB.workload
    assert strategy.stage == zero.stage
    assert DEVICES[strategy.offload] == devices(zero)
    assert step.micro_batch == config.train_micro_batch_size_per_gpu
    assert step.accumulation_steps == config.gradient_accumulation_steps
    trainers = case.handover.integration is Integration.HF
    assert (1.0 if trainers else 0.0) == config.gradient_clipping
    enabled = (config.bfloat16_config.enabled, config.float16_config.enabled)
    assert (numbers.precision is Precision.BF16, numbers.precision is Precision.FP16) == enabled
    half = numbers.states is StateDtype.BF16
    assert half is config.bfloat16_config.bf16_optimizer_states
    assert half is config.bfloat16_config.bf16_master_weights_and_grads
    assert (numbers.torch_autocast is not None) is config.torch_autocast_enabled
    if case.numbers == "bf16-autocast":
        assert "torch.bfloat16" == str(config.torch_autocast_dtype)
    expected = sizes(case.evaluated(JOB).buffers, strategy)
    assert expected == {key: getattr(zero, ATTRIBUTES[key]) for key in expected}


# What changes how a model learns.

ADAMW = {"betas": [0.9, 0.999], "eps": 1e-8}
LEARNING = Hyperparameters(lr=6e-4, weight_decay=0.1, warmup_steps=20, max_grad_norm=0.5)


@pytest.mark.parametrize("strategy", [ZERO2, ZERO2_OFFLOAD], ids=lambda row: row.name)
def test_what_is_said_of_learning_is_written_and_nothing_else(strategy: StrategyRow) -> None:
    fused = {} if strategy is ZERO2_OFFLOAD else {"torch_adam": True, "fused": True}
    config = write(strategy, replace(RAW, hyperparameters=LEARNING))
    params = {"lr": 6e-4, "weight_decay": 0.1, **ADAMW, **fused}
    assert {"type": "AdamW", "params": params} == config["optimizer"]
    warmup = {"warmup_min_lr": 0.0, "warmup_max_lr": 6e-4, "warmup_num_steps": 20}
    params = {**warmup, "warmup_type": "linear"}
    assert {"type": "WarmupLR", "params": params} == config["scheduler"]
    assert 0.5 == config["gradient_clipping"]
    config = write(strategy, replace(RAW, hyperparameters=Hyperparameters(lr=1e-5)))
    params = {"lr": 1e-5, "weight_decay": 0.0, **ADAMW, **fused}
    assert {"type": "AdamW", "params": params} == config["optimizer"]
    assert "scheduler" not in config
    assert 0.0 == config["gradient_clipping"]


def test_who_has_an_optimizer_gets_none_and_a_trainer_fills_in_its_own_clipping() -> None:
    for to in ("deepspeed-own-optimizer", "accelerate", "hf-settled"):
        config = write(ZERO2, replace(HANDOVERS[to], hyperparameters=LEARNING))
        clipping = AUTO if to == "hf-settled" else 0.5
        assert clipping == config["gradient_clipping"]
        assert config.keys().isdisjoint({"optimizer", "scheduler"})


# lightning 2.6.6, pytorch/strategies/deepspeed.py: it refuses the first
# (_format_batch_size_and_grad_accum_config), does not call `configure_optimizers` beside the next
# (_initialize_deepspeed_train), and drops `gradient_clip_val` of its Trainer beside the last.
NOT_FOR_LIGHTNING = frozenset(
    {"gradient_accumulation_steps", "optimizer", "scheduler", "gradient_clipping"}
)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("has_optimizer", [True, False])
def test_lightning_takes_what_is_written_and_keeps_what_its_script_says(
    strategy: StrategyRow, *, has_optimizer: bool
) -> None:
    handover = Handover(integration=Integration.LIGHTNING, script_has_optimizer=has_optimizer)
    for job in (JOB, replace(JOB, workload=replace(JOB.workload, precision=Precision.FP16))):
        config = write(strategy, handover, job)
        assert not NOT_FOR_LIGHTNING & config.keys()
        assert (strategy.stage > 0) == config.get("zero_allow_untested_optimizer", False)
