"""What TRL's trainers hold beside the model that trains, and in place of a loss over all logits."""

from collections.abc import Mapping

import pytest
from measured.rows import read_model

from zerowiz.core.decision.evaluate import evaluate
from zerowiz.core.decision.plan_input import PlanInput, Uncounted
from zerowiz.core.decision.uncertainty import Assumption
from zerowiz.core.machine.spec import parse_spec
from zerowiz.core.memory.activations import activations
from zerowiz.core.memory.allocations import AllocationKind, MemoryKind, Phase
from zerowiz.core.memory.buffers import DEEPSPEED_DEFAULTS
from zerowiz.core.memory.estimate import Estimate, estimate
from zerowiz.core.memory.losses import loss_bytes
from zerowiz.core.memory.rank_sizes import StrategyRow, rank_sizes, trainable_params
from zerowiz.core.model.types import Model
from zerowiz.core.strategies import DDP, STRATEGIES, ZERO2, ZERO3
from zerowiz.core.strategy import Offload, Part
from zerowiz.core.structs import replace
from zerowiz.core.workload import Method, Reference, Trainer, Workload
from zerowiz.errors import UsageError
from zerowiz.probe.package_data import read_gpu_table

LLAMA = read_model("llama-3.2-1b")
PHI = read_model("phi-3-mini")
SFT = Workload(micro_batch=2, sequence_tokens=1024)
COMPARING = [trainer for trainer in Trainer if trainer.compares]
GENERATING = [trainer for trainer in Trainer if trainer.generates]


def training(trainer: Trainer, **said: object) -> Workload:
    return replace(SFT, trainer=trainer, completion_tokens=256, **said)  # type: ignore[arg-type]


def predict(workload: Workload, strategy: StrategyRow = ZERO2, ranks: int = 2) -> Estimate:
    sizes = rank_sizes(LLAMA, workload, ranks, strategy, DEEPSPEED_DEFAULTS)
    return estimate(LLAMA, sizes)


def held(predicted: Estimate, phase: Phase) -> Mapping[AllocationKind, int]:
    return {each.kind: each.size_bytes for each in predicted.peaks()[phase]}


@pytest.mark.parametrize("trainer", [Trainer.DPO, Trainer.REWARD])
def test_a_pair_is_two_sequences(trainer: Trainer) -> None:
    pairs = activations(LLAMA.architecture, training(trainer))
    assert activations(LLAMA.architecture, replace(SFT, micro_batch=4)).saved_bytes == (
        pairs.saved_bytes
    )
    assert 4 * 1024 == training(trainer).tokens


@pytest.mark.parametrize("trainer", [Trainer.KTO, *GENERATING])
def test_others_have_one_sequence(trainer: Trainer) -> None:
    assert SFT.tokens == training(trainer).tokens


@pytest.mark.parametrize("strategy", [s for s in STRATEGIES if Part.PARAMETERS not in s.sharded])
@pytest.mark.parametrize("trainer", [Trainer.DPO, Trainer.KTO, Trainer.RLOO])
def test_below_stage_3_the_reference_is_whole_on_every_gpu(
    trainer: Trainer, strategy: StrategyRow
) -> None:
    for phase in (Phase.INIT, Phase.FORWARD, Phase.BACKWARD, Phase.STEP):
        copy = held(predict(training(trainer), strategy, 8), phase)[AllocationKind.REFERENCE]
        assert 2 * LLAMA.params == copy


@pytest.mark.parametrize("strategy", [s for s in STRATEGIES if Part.PARAMETERS in s.sharded])
def test_at_stage_3_it_is_in_shards_on_the_host_where_parameters_are(strategy: StrategyRow) -> None:
    predicted = predict(training(Trainer.DPO), strategy, 8)
    on_gpu = held(predicted, Phase.STEP).get(AllocationKind.REFERENCE_SHARDED, 0)
    host = {each.kind: each.size_bytes for each in predicted.peaks(MemoryKind.HOST)[Phase.STEP]}
    on_host = host.get(AllocationKind.REFERENCE_PINNED, 0)
    moved = predicted.strategy.offload is Offload.ALL
    share = 2 * LLAMA.params // 8
    assert ((0, share) if moved else (share, 0)) == (on_gpu, on_host)


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda s: s.name)
@pytest.mark.parametrize("trainer", COMPARING)
def test_a_copy_never_lowers_a_phase_and_what_was_computed_before_never_raises_one(
    trainer: Trainer, strategy: StrategyRow
) -> None:
    computed = () if trainer.generates else (Reference.PRECOMPUTED,)
    held = [
        predict(training(trainer, reference=each), strategy).phase_bytes()
        for each in (*computed, Reference.NONE, Reference.MODEL)
    ]
    for phase in held[-1]:
        sizes = [each[phase] for each in held]
        assert sizes == sorted(sizes)


@pytest.mark.parametrize(
    ("trainer", "method", "expected"),
    [
        (Trainer.SFT, Method.FULL, Reference.NONE),
        (Trainer.REWARD, Method.FULL, Reference.NONE),
        (Trainer.DPO, Method.FULL, Reference.MODEL),
        (Trainer.KTO, Method.FULL, Reference.MODEL),
        (Trainer.RLOO, Method.FULL, Reference.MODEL),
        (Trainer.PPO, Method.FULL, Reference.MODEL),
        (Trainer.GRPO, Method.FULL, Reference.NONE),
        (Trainer.DPO, Method.LORA, Reference.NONE),
        (Trainer.KTO, Method.QLORA, Reference.NONE),
    ],
)
def test_the_reference_is_the_trainers_own_by_default(
    trainer: Trainer, method: Method, expected: Reference
) -> None:
    assert expected is training(trainer, method=method).resolved_reference


@pytest.mark.parametrize("trainer", [Trainer.SFT, Trainer.REWARD])
def test_a_reference_is_refused_where_nothing_is_compared(trainer: Trainer) -> None:
    assert Reference.NONE is training(trainer, reference=Reference.NONE).resolved_reference
    with pytest.raises(UsageError, match="has no reference"):
        training(trainer, reference=Reference.MODEL)


@pytest.mark.parametrize("trainer", [Trainer.GRPO, Trainer.RLOO, Trainer.PPO])
def test_no_reference_is_computed_before_what_it_judges_is_generated(trainer: Trainer) -> None:
    with pytest.raises(UsageError, match="cannot precompute its reference"):
        training(trainer, reference=Reference.PRECOMPUTED)


@pytest.mark.parametrize("trainer", [Trainer.DPO, Trainer.KTO])
def test_a_pass_for_the_reference_is_held_where_one_runs(trainer: Trainer) -> None:
    """A loss without a reference, asked for with `reference none`, runs none."""
    architecture = read_model("llama-2-7b").architecture

    def held_bytes(**said: object) -> int:
        return activations(architecture, training(trainer, **said)).loss_forward_bytes

    compared = held_bytes(reference=Reference.MODEL)
    assert compared == held_bytes(method=Method.LORA)
    assert compared > held_bytes(reference=Reference.NONE)
    assert compared > held_bytes(reference=Reference.PRECOMPUTED)


def test_sleep_mode_needs_a_vllm_that_sleeps() -> None:
    with pytest.raises(UsageError, match="needs a vLLM"):
        training(Trainer.GRPO, vllm_sleeps=True)


@pytest.mark.parametrize("trainer", [t for t in Trainer if t not in {Trainer.GRPO, Trainer.RLOO}])
def test_vllm_is_refused_where_it_generates_nothing(trainer: Trainer) -> None:
    with pytest.raises(UsageError, match="vLLM"):
        training(trainer, vllm_memory_fraction=0.3)


@pytest.mark.parametrize("fraction", [-0.1, 1.5])
def test_a_fraction_is_a_part_of_the_memory(fraction: float) -> None:
    with pytest.raises(UsageError, match="is not a fraction"):
        training(Trainer.GRPO, vllm_memory_fraction=fraction)


def test_since_1_15_no_logits_are_kept_and_before_the_log_softmax_was() -> None:
    a, tokens = LLAMA.architecture, 4 * 1024
    old, new = (
        loss_bytes(a, training(Trainer.DPO, trl_version=release), tokens)
        for release in ((1, 14), (1, 15))
    )
    assert 2 * a.vocab_size * tokens == old.kept_bytes
    assert (2 * a.hidden_size + 32) * tokens == new.kept_bytes
    # A tile of 4096 x 32768, and both gradients in fp32 beside their copies in bf16.
    tile, summed = 2 * 4096 * 32768, 6 * a.hidden_size * (a.vocab_size + tokens)
    assert tile + summed == new.backward_bytes


def test_of_what_is_generated_only_completions_are_scored() -> None:
    half = loss_bytes(LLAMA.architecture, training(Trainer.GRPO, trl_version=(1, 14)), 2048)
    assert 2 * LLAMA.architecture.vocab_size * 2048 * 256 // 1024 == half.kept_bytes


@pytest.mark.parametrize(("model", "heads"), [(LLAMA, 0), (PHI, 32064 * 3072)])
def test_a_reward_model_has_one_value_for_a_head(model: Model, heads: int) -> None:
    params = trainable_params(model, training(Trainer.REWARD))
    whole = trainable_params(model, SFT)
    assert whole - heads + model.architecture.hidden_size == params


def test_ppo_trains_a_value_model_and_holds_two_copies() -> None:
    ppo = predict(training(Trainer.PPO), DDP)
    assert 2 * LLAMA.params == ppo.rank.trainable
    assert 2 * 2 * LLAMA.params == held(ppo, Phase.STEP)[AllocationKind.REFERENCE]


@pytest.mark.parametrize("trainer", Trainer)
def test_only_those_that_sample_have_a_phase_for_it(trainer: Trainer) -> None:
    assert trainer.generates is (Phase.GENERATE in predict(training(trainer)).phase_bytes())


def test_keys_and_values_of_all_sequences_are_held_at_the_end_of_generation() -> None:
    a = LLAMA.architecture
    workload = replace(training(Trainer.GRPO, generation_batch=64), completion_tokens=1000)
    generating = held(predict(workload), Phase.GENERATE)
    cached = 2 * 2 * a.kv_size * a.layers * 64 * 1024
    assert cached == generating[AllocationKind.KV_CACHE]


def test_to_generate_stage_3_gathers_the_whole_model() -> None:
    workload = training(Trainer.GRPO, generation_batch=64)
    for ranks, gathered in ((1, None), (8, 2 * LLAMA.params)):
        generating = held(predict(workload, ZERO3, ranks), Phase.GENERATE)
        assert gathered == generating.get(AllocationKind.GATHERED_PARAMETERS)


def test_with_vllm_no_keys_are_kept_by_torch() -> None:
    workload = training(Trainer.GRPO, generation_batch=64, vllm_memory_fraction=0.3)
    assert AllocationKind.KV_CACHE not in held(predict(workload), Phase.GENERATE)


def test_adapters_of_trl_have_the_models_format_at_stage_3() -> None:
    adapters = replace(SFT, method=Method.LORA)
    assert 4 == predict(adapters, ZERO3).rank.trained_bytes
    assert 2 == predict(replace(adapters, trainer=Trainer.DPO), ZERO3).rank.trained_bytes


@pytest.mark.parametrize(
    ("name", "trainer", "uncounted"),
    [
        ("llama-3.2-1b", Trainer.DPO, ()),
        ("llama-3.2-1b", Trainer.PPO, (Uncounted.PPO_ROLLOUT,)),
        ("bert-base", Trainer.REWARD, (Uncounted.TRAINER_OF_ANOTHER_MODEL,)),
        ("bert-base", Trainer.SFT, ()),
    ],
)
def test_what_no_formula_counts_is_named(
    name: str, trainer: Trainer, uncounted: tuple[Uncounted, ...]
) -> None:
    machine = parse_spec("2xH200", read_gpu_table())
    workload = replace(training(trainer), sequence_tokens=512)
    evaluated = evaluate(PlanInput(machine=machine, model=read_model(name), workload=workload), DDP)
    assert evaluated.interval is not None
    assert uncounted == evaluated.interval.uncounted
    named = Assumption.OTHER_TRAINER in evaluated.interval.assumptions
    assert named is (trainer is not Trainer.SFT)
    never = Assumption.NEW_TRAINER in evaluated.interval.assumptions
    assert never is (trainer is Trainer.PPO)
