"""Which trainer a script builds, and what it says of its reference, its completions, its engine."""

from pathlib import Path

import pytest
from paths import ROOT, TEMPLATES
from probe.reading import ENGINE, PREPARED, TRAINED, facts_of, value_of
from probe.scripts import SCRIPTS

from zerowiz.core.script.facts import ScriptFacts, ScriptValue, State
from zerowiz.core.script.settings import ScriptRun, ScriptSettings
from zerowiz.core.workload import Method, Reference, Trainer, Uncounted
from zerowiz.probe.script.read_script import parse_script

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
    assert expected == values(ScriptRun(facts_of(name), words).settings)


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
    assert state is getattr(ScriptRun(facts_of(name), words).settings, field).state


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
    found = ScriptRun(facts, words).settings.words_for(field, value)
    assert expected == found
    if found is not None:
        assert value == getattr(ScriptRun(facts, (*words, *found)).settings, field).value


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
            # Of luyug/Dense.
            (
                "class Mine(Trainer):\n    def compute_loss(self, *a): ...\n"
                "kind = Mine if own else Trainer\nkind(model=model, args=TrainingArguments())"
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
    settings = ScriptRun(facts_in(text), ()).settings
    assert expected == [each.what for each in settings.not_counted]
    assert all("train.py" in each.text for each in settings.not_counted)
    assert trainer == (None if settings.trainer is None else settings.trainer.value)


def test_a_person_settles_by_name_what_a_class_of_theirs_trains() -> None:
    by_name = ScriptRun(facts_of("trl_own_loss"), ()).settings.not_counted
    beside = ScriptRun(facts_in("GKDTrainer(model, args=GKDConfig())"), ()).settings.not_counted
    assert ([True], [False]) == (
        [each.settled_by_name for each in by_name],
        [each.settled_by_name for each in beside],
    )


def test_a_reward_model_by_an_option_counts_where_somebody_names_one() -> None:
    facts = facts_of("trl_grpo_parser")
    named = ScriptRun(facts, ("--reward_model_name_or_path", "org/judge")).settings
    assert [Uncounted.JUDGE] == [each.what for each in named.not_counted]
    assert () == ScriptRun(facts, ()).settings.not_counted


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
    found = values(ScriptRun(facts_in(f"{trainer}Trainer(model, args={config})", trl), ()).settings)
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
    found = ScriptRun(parse_script(text, "train.py", trl_release=trl), ()).settings
    assert tokens == (found.sequence_tokens.value if found.sequence_tokens else None)
    assert checkpoints == value_of(found, "gradient_checkpointing")
    assert 2 == value_of(found, "micro_batch")


def test_the_reference_of_grpo_is_by_its_beta_of_the_release() -> None:
    text = "GRPOTrainer(model, args=GRPOConfig())"
    older, newer = (
        ScriptRun(facts_in(text, trl), ()).settings.reference for trl in ((0, 18), (0, 19))
    )
    assert older is not None
    assert newer is not None
    assert (Reference.MODEL, Reference.NONE) == (older.value, newer.value)


def test_a_reference_that_depends_on_what_is_not_seen_is_unseen() -> None:
    settings = ScriptRun(
        facts_in("GRPOTrainer(model, args=GRPOConfig(beta=cfg.beta))"), ()
    ).settings
    assert settings.reference is None
    assert "reference" in settings.unseen


def test_adapters_need_no_reference_unless_one_is_handed_over() -> None:
    base = "from peft import LoraConfig\nref = AutoModelForCausalLM.from_pretrained('gpt2')\n"
    call = "DPOTrainer(model, {}args=DPOConfig(), peft_config=LoraConfig())"
    for ref, expected in (("", Reference.NONE), ("ref, ", Reference.MODEL)):
        settings = ScriptRun(facts_in(base + call.format(ref)), ()).settings
        assert settings.method is not None
        assert settings.reference is not None
        assert (Method.LORA, expected) == (settings.method.value, settings.reference.value)


def test_a_fraction_of_vllm_that_is_not_seen_is_unseen() -> None:
    config = "GRPOConfig(use_vllm=True, vllm_gpu_memory_utilization=f())"
    settings = ScriptRun(facts_in(f"GRPOTrainer(model, args={config})"), ()).settings
    assert settings.vllm_memory_fraction is None
    assert "vllm_memory_fraction" in settings.unseen


# Where a script saves the model that it trains by itself, and whose optimizer its Trainer gets.

HF = """import torch
from accelerate import Accelerator
from peft import get_peft_model
from safetensors.torch import save_file, save_model
from transformers import AutoModelForCausalLM, AutoTokenizer, Trainer, TrainingArguments
from transformers.integrations import is_deepspeed_zero3_enabled
import deepspeed
tokenizer = AutoTokenizer.from_pretrained("gpt2")
"""
ALPACA = """def save(trainer, folder):
    state = trainer.model.state_dict()
    if trainer.args.should_save:
        kept = {key: value.cpu() for key, value in state.items()}
        trainer._save(folder, state_dict=kept)
"""


def saves(lines: str, head: str) -> list[int]:
    """The lines of what is found, counted after the head."""
    facts = parse_script(HF + head + lines, "train.py")
    return [each.line - (HF + head).count("\n") for each in facts.weight_saves]


@pytest.mark.parametrize(
    ("head", "lines"),
    [
        (TRAINED, "net.save_pretrained('o')"),
        (TRAINED, "trainer.model.save_pretrained('o')"),
        (TRAINED, "trainer.model.push_to_hub('o')"),
        (TRAINED, "net.save_pretrained('o') if args.process_index == 0 else None"),
        (TRAINED, "torch.save(net.state_dict(), 'x.pt')"),
        (TRAINED, "torch.save(net, 'x.pt')"),
        (TRAINED, "save_file(net.state_dict(), 'x')"),
        (TRAINED, "save_model(net, 'x')"),
        (TRAINED, "torch.save({'model': net.cpu().state_dict(), 'step': 1}, 'x.pt')"),
        (PREPARED, "acc.unwrap_model(net).save_pretrained('o')"),
        (PREPARED, "acc.save(acc.unwrap_model(net).state_dict(), 'x')"),
        (PREPARED, "net.save_pretrained('o', save_function=acc.save)"),
        (PREPARED, "net.save_pretrained('o', state_dict=net.state_dict())"),
        (ENGINE, "engine.module.save_pretrained('o')"),
        (ENGINE, "torch.save(engine.module.state_dict(), 'x')"),
        (ENGINE, "torch.save(net.state_dict(), 'x')"),
    ],
)
def test_a_model_that_deepspeed_has_is_found_where_it_is_saved(head: str, lines: str) -> None:
    assert [1] == saves(lines, head)


@pytest.mark.parametrize(
    ("head", "lines", "line"),
    [
        (PREPARED, "bare = acc.unwrap_model(net)\nbare.save_pretrained('o')", 2),
        (PREPARED, "bare = net.module if hasattr(net, 'module') else net\nacc.save(1)", None),
        (TRAINED, "bare = net.module if hasattr(net, 'x') else net\nbare.save_pretrained('o')", 2),
        (TRAINED, "state = net.state_dict()\ntorch.save(state, 'x')", 2),
        (TRAINED, f"{ALPACA}save(trainer, 'o')", 5),
        (TRAINED, f"{ALPACA}save(trainer=trainer, folder='o')", 5),
        (TRAINED, "def save(model):\n    model.save_pretrained('o')\nsave(net)\nsave(net)", 2),
        (TRAINED, f"{ALPACA}save(None, 'o')", None),
    ],
)
def test_a_model_is_followed_through_names_and_functions(
    head: str, lines: str, line: int | None
) -> None:
    assert ([] if line is None else [line]) == saves(lines, head)


@pytest.mark.parametrize(
    ("head", "lines"),
    [
        (TRAINED, "trainer.save_model('o')"),
        (TRAINED, "tokenizer.save_pretrained('o')\nnet.config.save_pretrained('o')"),
        (TRAINED, "torch.save(trainer.optimizer.state_dict(), 'x')\ntorch.save(args, 'x')"),
        (TRAINED, "def save(net):\n    torch.save(vars(args), 'x')\nsave(net)"),
        (TRAINED, "net.save_pretrained('o', **gathered)"),
        (
            TRAINED,
            "with deepspeed.zero.GatheredParameters(net.parameters()):\n    net.save_pretrained(1)",
        ),
        (
            TRAINED,
            (
                "def save(model):\n    model.save_pretrained('o')\n"
                "with deepspeed.zero.GatheredParameters(net.parameters()):\n    save(net)"
            ),
        ),
        (TRAINED, "if not is_deepspeed_zero3_enabled():\n    net.save_pretrained('o')"),
        (TRAINED, "all = net.state_dict()\nif not args.deepspeed:\n    torch.save(all, 'x')"),
        (
            TRAINED,
            "three = is_deepspeed_zero3_enabled()\nif not three:\n    net.save_pretrained(1)",
        ),
        (
            TRAINED,
            (
                "def save(model):\n    if is_deepspeed_zero3_enabled():\n        return\n"
                "    model.save_pretrained('o')\nsave(net)"
            ),
        ),
        (
            TRAINED,
            f"{ALPACA}".replace(":\n", ":\n    if trainer.deepspeed:\n        return\n", 1)
            + "save(trainer, 'o')",
        ),
        # LoRA of FastChat and LLaVA: what a function of theirs has gathered.
        (
            TRAINED,
            (
                "state = get_peft_state_maybe_zero_3(net.named_parameters(), 'none')\n"
                "net.save_pretrained('o', state_dict=state)\ntorch.save(state, 'x')"
            ),
        ),
        # Loaded again, from what was saved.
        (
            TRAINED,
            "net = AutoModelForCausalLM.from_pretrained('out')\nnet.save_pretrained('merged')",
        ),
        (TRAINED, "merged = load('out').merge_and_unload()\nmerged.save_pretrained('o')"),
        (TRAINED, "teacher.save_pretrained('o')\ntorch.save(teacher.state_dict(), 'x')"),
        (TRAINED.replace("trainer.train()\n", ""), "net.save_pretrained('o')\ntrainer.train()"),
        (
            TRAINED,
            (
                "class Mine(Trainer):\n    def _save(self, folder, state_dict=None):\n"
                "        self.model.save_pretrained(folder, state_dict=state_dict)"
            ),
        ),
        (
            PREPARED,
            (
                "acc.unwrap_model(net).save_pretrained('o', is_main_process=acc.is_main_process,"
                " state_dict=acc.get_state_dict(net))"
            ),
        ),
        (PREPARED, "acc.save_model(net, 'o')\nacc.save_state('o')"),
        (PREPARED, "torch.save(opt.state_dict(), 'x')\nacc.save(opt.state_dict(), 'x')"),
        (PREPARED, "torch.save({'opt': opt.state_dict(), 'data': loader.state_dict()}, 'x')"),
        (ENGINE, "engine.save_checkpoint('o')\nengine.save_16bit_model('o')"),
        (ENGINE, "engine.module.load_state_dict(net.state_dict())"),
        (
            ENGINE.replace("engine, opt", "first = net.state_dict()\nengine, opt"),
            "torch.save(first, 'x')",
        ),
    ],
)
def test_what_gathers_the_weights_or_is_no_trained_model_is_not_found(
    head: str, lines: str
) -> None:
    assert [] == saves(lines, head)


@pytest.mark.parametrize(
    ("trainer", "found"),
    [
        ("Trainer(net, args, optimizers=(torch.optim.SGD(net.parameters()), None))", True),
        ("Trainer(net, args, optimizers=(None, make()))", True),
        ("opt = make()\nMine(net, args, optimizers=(opt, None))", True),
        ("both = (make(), None)\nTrainer(net, args, optimizers=both)", True),
        ("Trainer(net, args, optimizers=(None, None))", False),
        ("opt = None\nTrainer(net, args, optimizers=(opt, None))", False),
        ("Trainer(net, args)", False),
        ("Trainer(net, args, optimizers=unknown)", False),
        ("optimize(net, optimizers=(make(), None))", False),
    ],
)
def test_the_optimizer_that_a_trainer_is_handed_is_found(trainer: str, found: bool) -> None:
    own = "class Mine(Trainer):\n    pass\n"
    text = f"{HF}{own}args = TrainingArguments('out')\n{trainer}\n"
    passed = parse_script(text, "train.py").optimizers_passed
    assert found == (text.count("\n") in [each.line for each in passed])
    makes = text.replace("    pass", "    def create_optimizer(self):\n        pass")
    assert () == parse_script(makes, "train.py").optimizers_passed


@pytest.mark.parametrize("folder", [SCRIPTS, TEMPLATES, ROOT / "tests" / "scripts"])
def test_no_script_of_ours_loses_its_weights_or_its_optimizer(folder: Path) -> None:
    for path in folder.glob("*.py"):
        facts = parse_script(path.read_text(encoding="utf-8"), path.name)
        assert ((), ()) == (facts.weight_saves, facts.optimizers_passed), path
