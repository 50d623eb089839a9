"""Read one of the scripts of `scripts/`, or the beginning and the end of one."""

import contextlib
import tempfile
from pathlib import Path

from probe.scripts import SCRIPTS

from zerowiz.core.script.facts import ScriptFacts
from zerowiz.core.script.settings import ScriptSettings
from zerowiz.probe.script.read_script import parse_script


def facts_of(name: str) -> ScriptFacts:
    """What is read of one of them."""
    return parse_script((SCRIPTS / f"{name}.py").read_text(encoding="utf-8"), "train.py")


def value_of(settings: ScriptSettings, name: str) -> object:
    """What a script has for a setting; None where that is not seen."""
    setting = settings.values.get(name)
    return None if setting is None else setting.value


HF_CALL = "from transformers import TrainingArguments\n"
RAW_HEAD = """import argparse, deepspeed
from torch.utils.data import DataLoader
p = deepspeed.add_config_arguments(argparse.ArgumentParser())
p.add_argument("--batch", type=int, default=4)
p.add_argument("--ckpt", action="store_true")
args = p.parse_args()
"""
# Models that DeepSpeed gets from a Trainer, from an Accelerator, and in a loop.
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
RAW_TAIL = "\ndeepspeed.initialize(args=args, model=model)\n"


def read_beside(script: str, modules: dict[str, str]) -> ScriptFacts:
    """The facts of a script beside which these modules lie, by their dotted names."""
    with tempfile.TemporaryDirectory() as name:
        for module, text in modules.items():
            path = Path(name, *module.split(".")).with_suffix(".py")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        with contextlib.chdir(name):
            return parse_script(script, "train.py", Path())
