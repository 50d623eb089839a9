"""Which trainer a script builds, and what it says of its reference, its completions, its engine."""

import pytest
from probe.reading import facts_of

from zerowiz.core.decision.plan_input import Uncounted
from zerowiz.core.script.bindings import ScriptValue, State
from zerowiz.core.script.facts import ScriptFacts
from zerowiz.core.script.settings import ScriptSettings, resolve_script
from zerowiz.core.workload import Method, Reference, Trainer
from zerowiz.probe.script.read import parse_script

OF_TRAINER = (
    *("trainer", "reference", "sequence_tokens", "completion_tokens", "steps_per_generation"),
    *("whole_generation", "vllm_memory_fraction", "vllm_sleeps"),
)


def values(settings: ScriptSettings) -> dict[str, object]:
    found = {name: getattr(settings, name) for name in OF_TRAINER}
    return {name: each.value for name, each in found.items() if isinstance(each, ScriptValue)}


@pytest.mark.parametrize(
    ("name", "words", "expected"),
    [
        (
            "trl_dpo_parser",
            (),
            {"trainer": Trainer.DPO, "reference": Reference.MODEL, "sequence_tokens": 1024},
        ),
        (
            "trl_dpo_parser",
            ("--precompute_ref_log_probs", "--max_length", "4096"),
            {"trainer": Trainer.DPO, "reference": Reference.PRECOMPUTED, "sequence_tokens": 4096},
        ),
        (
            "trl_dpo_parser",
            ("--use_peft",),
            {"trainer": Trainer.DPO, "reference": Reference.NONE, "sequence_tokens": 1024},
        ),
        (
            "trl_dpo_in_code",
            (),
            {"trainer": Trainer.DPO, "reference": Reference.MODEL, "sequence_tokens": 2048},
        ),
        (
            "trl_grpo_vllm",
            (),
            {
                "trainer": Trainer.GRPO,
                "reference": Reference.MODEL,
                "sequence_tokens": 1536,
                "completion_tokens": 1024,
                "steps_per_generation": 4,
                "vllm_memory_fraction": 0.4,
                "vllm_sleeps": False,
            },
        ),
        (
            "trl_grpo_parser",
            (),
            {"trainer": Trainer.GRPO, "reference": Reference.NONE, "completion_tokens": 512},
        ),
        (
            "trl_grpo_parser",
            (
                *("--beta", "0.04", "--use_vllm", "--vllm_enable_sleep_mode", "true"),
                *("--max_completion_length", "64", "--generation_batch_size", "128"),
            ),
            {
                "trainer": Trainer.GRPO,
                "reference": Reference.MODEL,
                "completion_tokens": 64,
                "whole_generation": 128,
                "vllm_memory_fraction": 0.3,
                "vllm_sleeps": True,
            },
        ),
        (
            "trl_grpo_parser",
            ("--use_vllm", "--vllm_mode", "server"),
            {
                "trainer": Trainer.GRPO,
                "reference": Reference.NONE,
                "completion_tokens": 512,
                "vllm_memory_fraction": 0.0,
                "vllm_sleeps": False,
            },
        ),
        ("trl_reward", (), {"trainer": Trainer.REWARD, "sequence_tokens": 1024}),
        (
            "trl_kto_optional_reference",
            (),
            {"trainer": Trainer.KTO, "reference": Reference.MODEL, "sequence_tokens": 1024},
        ),
        (
            "trl_kto_optional_reference",
            ("--use_lora", "true"),
            {"trainer": Trainer.KTO, "reference": Reference.NONE, "sequence_tokens": 1024},
        ),
        ("trl_own_loss", (), {}),
    ],
)
def test_a_trainer_is_read(name: str, words: tuple[str, ...], expected: dict[str, object]) -> None:
    assert expected == values(resolve_script(facts_of(name), words))


@pytest.mark.parametrize(
    ("name", "words", "field", "state"),
    [
        ("trl_dpo_parser", (), "trainer", State.FIXED),
        ("trl_dpo_parser", (), "reference", State.OPEN),
        ("trl_dpo_parser", ("--precompute_ref_log_probs",), "reference", State.SAID),
        ("trl_grpo_vllm", (), "reference", State.FIXED),
        ("trl_grpo_vllm", (), "vllm_memory_fraction", State.FIXED),
        ("trl_grpo_vllm", (), "vllm_sleeps", State.OPEN),
        ("trl_grpo_vllm", (), "sequence_tokens", State.FIXED),
        ("trl_grpo_parser", (), "completion_tokens", State.OPEN),
        ("trl_grpo_parser", ("--max_completion_length=8",), "completion_tokens", State.SAID),
        ("trl_grpo_parser", ("--beta", "0.1"), "reference", State.SAID),
    ],
)
def test_it_is_known_who_decides(
    name: str, words: tuple[str, ...], field: str, state: State
) -> None:
    assert state is getattr(resolve_script(facts_of(name), words), field).state


@pytest.mark.parametrize(
    ("name", "words", "field", "value", "expected"),
    [
        (
            *("trl_dpo_parser", (), "reference", Reference.PRECOMPUTED),
            ("--precompute_ref_log_probs", "True"),
        ),
        ("trl_dpo_parser", (), "reference", Reference.NONE, None),
        (
            *("trl_dpo_parser", ("--precompute_ref_log_probs",), "reference", Reference.MODEL),
            None,
        ),
        ("trl_dpo_in_code", (), "reference", Reference.PRECOMPUTED, None),
        (
            *("trl_grpo_parser", (), "completion_tokens", 64),
            ("--max_completion_length", "64"),
        ),
        (
            *("trl_grpo_parser", (), "vllm_memory_fraction", 0.5),
            ("--use_vllm", "True", "--vllm_gpu_memory_utilization", "0.5"),
        ),
        (
            *("trl_grpo_parser", ("--use_vllm",), "vllm_memory_fraction", 0.5),
            ("--vllm_gpu_memory_utilization", "0.5"),
        ),
        (
            *("trl_grpo_parser", ("--use_vllm", "false"), "vllm_memory_fraction", 0.5),
            None,
        ),
        (
            *("trl_grpo_parser", ("--use_vllm",), "vllm_sleeps", True),
            ("--vllm_enable_sleep_mode", "True"),
        ),
        ("trl_grpo_vllm", (), "vllm_memory_fraction", 0.5, None),
    ],
)
def test_words_give_what_the_parser_leaves_open(
    name: str, words: tuple[str, ...], field: str, value: object, expected: tuple[str, ...] | None
) -> None:
    facts = facts_of(name)
    found = resolve_script(facts, words).words_for(field, value)
    assert expected == found
    if found is not None:
        assert value == getattr(resolve_script(facts, (*words, *found)), field).value


HEAD = """from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, Trainer
from transformers import TrainingArguments
from trl import DPOConfig, DPOTrainer, GRPOConfig, GRPOTrainer, SFTTrainer
from trl.experimental.gkd import GKDConfig, GKDTrainer
from ours import PairTrainer
model = AutoModelForCausalLM.from_pretrained("gpt2")
"""


def facts_in(text: str, trl: tuple[int, int] = (1, 16)) -> ScriptFacts:
    return parse_script(f"{HEAD}{text}\n", "train.py", trl_release=trl)


@pytest.mark.parametrize(
    ("text", "expected", "trainer"),
    [
        ("GKDTrainer(model, args=GKDConfig())", [Uncounted.TRAINER], Trainer.SFT),
        ("PairTrainer(model=model, args=TrainingArguments())", [Uncounted.TRAINER], None),
        (
            (
                "class Mine(Trainer):\n    def compute_loss(self, *a): ...\n"
                "Mine(model=model, args=TrainingArguments())"
            ),
            [Uncounted.OWN_LOSS],
            None,
        ),
        (
            (
                "class Base(DPOTrainer):\n    def dpo_loss(self, *a): ...\nclass Mine(Base): ...\n"
                "Mine(model=model, args=DPOConfig())"
            ),
            [Uncounted.OWN_LOSS],
            Trainer.DPO,
        ),
        (
            (
                "class Mine(Trainer):\n    def log(self, *a): ...\n"
                "Mine(model=model, args=TrainingArguments())"
            ),
            [],
            Trainer.SFT,
        ),
        (
            "DPOTrainer(model, args=DPOConfig())\nSFTTrainer(model, args=TrainingArguments())",
            [Uncounted.TRAINER],
            None,
        ),
        (
            "GRPOTrainer(model, reward_funcs='org/judge', args=GRPOConfig())",
            [Uncounted.JUDGE],
            Trainer.GRPO,
        ),
        (
            (
                "judge = AutoModelForSequenceClassification.from_pretrained('org/judge')\n"
                "GRPOTrainer(model, [judge], args=GRPOConfig())"
            ),
            [Uncounted.JUDGE],
            Trainer.GRPO,
        ),
        (
            "def score(): ...\nGRPOTrainer(model, reward_funcs=[score], args=GRPOConfig())",
            [],
            Trainer.GRPO,
        ),
        (
            "GRPOTrainer(model, args=GRPOConfig(use_vllm=cfg.vllm))",
            [Uncounted.ENGINE],
            Trainer.GRPO,
        ),
    ],
)
def test_what_no_formula_counts_is_named_with_its_line(
    text: str, expected: list[Uncounted], trainer: Trainer | None
) -> None:
    settings = resolve_script(facts_in(text), ())
    assert expected == [each.what for each in settings.not_counted]
    assert all("train.py" in each.text for each in settings.not_counted)
    assert trainer == (None if settings.trainer is None else settings.trainer.value)


def test_a_person_settles_by_name_what_a_class_of_theirs_trains() -> None:
    by_name = resolve_script(facts_of("trl_own_loss"), ()).not_counted
    beside = resolve_script(facts_in("GKDTrainer(model, args=GKDConfig())"), ()).not_counted
    assert ([True], [False]) == (
        [each.settled_by_name for each in by_name],
        [each.settled_by_name for each in beside],
    )


def test_a_reward_model_by_an_option_counts_where_somebody_names_one() -> None:
    facts = facts_of("trl_grpo_parser")
    named = resolve_script(facts, ("--reward_model_name_or_path", "org/judge"))
    assert [Uncounted.JUDGE] == [each.what for each in named.not_counted]
    assert () == resolve_script(facts, ()).not_counted


@pytest.mark.parametrize(
    ("config", "trl", "expected"),
    [
        ("DPOConfig()", (0, 12), {}),
        ("DPOConfig()", (0, 14), {"sequence_tokens": 1024}),
        ("GRPOConfig()", (0, 18), {"sequence_tokens": 768, "completion_tokens": 256}),
        ("GRPOConfig()", (1, 9), {"completion_tokens": 256}),
        ("GRPOConfig()", (1, 10), {"completion_tokens": 512}),
        (
            "GRPOConfig(use_vllm=True)",
            (0, 29),
            {"completion_tokens": 256, "vllm_memory_fraction": 0.0, "vllm_sleeps": False},
        ),
        (
            "GRPOConfig(use_vllm=True)",
            (1, 0),
            {"completion_tokens": 256, "vllm_memory_fraction": 0.3, "vllm_sleeps": False},
        ),
    ],
)
def test_defaults_are_those_of_the_release(
    config: str, trl: tuple[int, int], expected: dict[str, object]
) -> None:
    trainer = config.partition("Config")[0]
    found = values(resolve_script(facts_in(f"{trainer}Trainer(model, args={config})", trl), ()))
    assert expected == {n: v for n, v in found.items() if n not in {"trainer", "reference"}}


@pytest.mark.parametrize(
    ("name", "trl", "tokens", "checkpoints"),
    [
        ("PRM", (1, 13), 1024, True),
        ("PRM", (0, 21), 1024, False),
        ("TPO", (1, 16), 1024, True),
        ("GKD", (1, 16), 1024, True),
        ("GOLD", (1, 16), 1024, True),
        ("OnlineDPO", (1, 16), 512, True),
        ("OnlineDPO", (0, 13), None, False),
        # Nothing is cut to the `max_length` of these.
        ("NashMD", (1, 13), None, True),
        ("XPO", (1, 13), None, True),
    ],
)
def test_trainers_outside_of_trls_main_module_have_its_defaults(
    name: str, trl: tuple[int, int], tokens: int | None, *, checkpoints: bool
) -> None:
    text = (
        f"from trl.experimental.new import {name}Config, {name}Trainer\n"
        f"{name}Trainer(model, args={name}Config('out', per_device_train_batch_size=2))\n"
    )
    found = resolve_script(parse_script(text, "train.py", trl_release=trl), ())
    assert tokens == (found.sequence_tokens.value if found.sequence_tokens else None)
    assert found.gradient_checkpointing is not None
    assert checkpoints == found.gradient_checkpointing.value
    assert found.micro_batch is not None
    assert 2 == found.micro_batch.value


def test_the_reference_of_grpo_is_by_its_beta_of_the_release() -> None:
    text = "GRPOTrainer(model, args=GRPOConfig())"
    older, newer = (resolve_script(facts_in(text, trl), ()).reference for trl in ((0, 18), (0, 19)))
    assert older is not None
    assert newer is not None
    assert (Reference.MODEL, Reference.NONE) == (older.value, newer.value)


def test_a_reference_that_depends_on_what_is_not_seen_is_unseen() -> None:
    settings = resolve_script(facts_in("GRPOTrainer(model, args=GRPOConfig(beta=cfg.beta))"), ())
    assert settings.reference is None
    assert "reference" in settings.unseen


def test_adapters_need_no_reference_unless_one_is_handed_over() -> None:
    base = "from peft import LoraConfig\nref = AutoModelForCausalLM.from_pretrained('gpt2')\n"
    call = "DPOTrainer(model, {}args=DPOConfig(), peft_config=LoraConfig())"
    for ref, expected in (("", Reference.NONE), ("ref, ", Reference.MODEL)):
        settings = resolve_script(facts_in(base + call.format(ref)), ())
        assert settings.method is not None
        assert settings.reference is not None
        assert (Method.LORA, expected) == (settings.method.value, settings.reference.value)


def test_a_fraction_of_vllm_that_is_not_seen_is_unseen() -> None:
    config = "GRPOConfig(use_vllm=True, vllm_gpu_memory_utilization=f())"
    settings = resolve_script(facts_in(f"GRPOTrainer(model, args={config})"), ())
    assert settings.vllm_memory_fraction is None
    assert "vllm_memory_fraction" in settings.unseen
