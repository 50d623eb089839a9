"""Where a script saves the model that it trains by itself, and whose optimizer its Trainer gets."""

from pathlib import Path

import pytest
from paths import ROOT, TEMPLATES
from probe.reading import SCRIPTS

from zerowiz.probe.script.read import parse_script

HF = """import torch
from accelerate import Accelerator
from peft import get_peft_model
from safetensors.torch import save_file, save_model
from transformers import AutoModelForCausalLM, AutoTokenizer, Trainer, TrainingArguments
from transformers.integrations import is_deepspeed_zero3_enabled
import deepspeed
tokenizer = AutoTokenizer.from_pretrained("gpt2")
"""
TRAINED = """args = TrainingArguments("out")
net = AutoModelForCausalLM.from_pretrained("gpt2")
trainer = Trainer(model=net, args=args)
trainer.train()
"""
PREPARED = """acc = Accelerator()
net = AutoModelForCausalLM.from_pretrained("gpt2")
opt = torch.optim.AdamW(net.parameters())
net, opt, loader = acc.prepare(net, opt, loader)
"""
ENGINE = """parser = deepspeed.add_config_arguments(parser)
args = parser.parse_args()
net = build()
engine, opt, _, _ = deepspeed.initialize(args=args, model=net)
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
