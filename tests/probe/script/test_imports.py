"""Scripts of several files: what is read of the modules that they use, and what is not."""

import os
import subprocess
import sys
from pathlib import Path
from textwrap import indent

import pytest
from paths import ROOT
from probe.reading import read_beside, value_of

from zerowiz.core.script.config_delivery import deliver
from zerowiz.core.script.facts import Convention, Obstacle, ScriptFacts
from zerowiz.core.script.settings import ScriptRun
from zerowiz.core.workload import Integration, Precision, Trainer
from zerowiz.errors import PreflightError
from zerowiz.probe.script.read_script import read_script

# What trains, in a module of its own.
WORK = """
import argparse
import deepspeed
from torch.utils.data import DataLoader


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=6)
    return deepspeed.add_config_arguments(parser).parse_args()


def main():
    args = parse()
    loader = DataLoader(read(), batch_size=args.batch)
    engine, *_ = deepspeed.initialize(args=args, model=build())
"""


def write(folder: Path, files: dict[str, str]) -> None:
    """Write files, by their paths."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


@pytest.mark.parametrize(
    ("script", "name"),
    [
        ("from work import main\nmain()\n", "work"),
        ("from work import main as go\ngo()\n", "work"),
        ("import work\nwork.main()\n", "work"),
        ("import work as w\nif __name__ == '__main__':\n    w.main()\n", "work"),
        ("from work import *\nmain()\n", "work"),
        ("def run():\n    from work import main\n    main()\nrun()\n", "work"),
        ("from lib import work\nwork.main()\n", "lib.work"),
        ("import lib.work\nlib.work.main()\n", "lib.work"),
        ("import lib.work as w\nw.main()\n", "lib.work"),
        ("from lib.work import main\nmain()\n", "lib.work"),
        (
            "try:\n    from x import main\nexcept ImportError:\n    from work import main\nmain()",
            "work",
        ),
        ("import work\nstart(work.main)\n", "work"),
    ],
)
def test_a_function_of_a_module_is_found_however_it_is_imported(script: str, name: str) -> None:
    facts = read_beside(script, {name: WORK})
    path = f"{name.replace('.', '/')}.py"
    assert (Convention.ADD_CONFIG_ARGUMENTS, path) == (facts.convention, facts.starts)
    setting = ScriptRun(facts, ()).settings.micro_batch
    assert setting is not None
    assert (6, f"the default of `--batch` in {path} line 9") == (setting.value, setting.source)


@pytest.mark.parametrize(
    ("script", "modules"),
    [
        # Nothing of it is used.
        ("import work\n", {"work": WORK}),
        ("from work import main\n", {"work": WORK}),
        ("from work import *\n", {"work": WORK}),
        ("import work\nwork.log()\n", {"work": WORK + "\ndef log(): print('deepspeed')\n"}),
        # A name of the script's own, and one of a library.
        ("import work\ndef main(): pass\nmain()\n", {"work": WORK}),
        (
            "from work import main\ndef run(main):\n    main()\nrun(print)\n",
            {"work": WORK.replace("def main", "def x")},
        ),
        ("import logging\nlogging.main()\n", {"logging": WORK}),
        # Which one is imported, the script decides when it runs.
        (
            "if FAST:\n    from work import main\nelse:\n    from slow import main\nmain()\n",
            {"work": WORK, "slow": WORK},
        ),
        # Only what is run as a script itself.
        (
            "import work\nwork.log()\n",
            {
                "work": "def log(): pass\nif __name__ == '__main__':\n"
                "    import deepspeed; deepspeed.initialize()\n"
            },
        ),
    ],
)
def test_what_is_not_used_shows_nothing(script: str, modules: dict[str, str]) -> None:
    facts = read_beside(script, modules)
    assert (Obstacle.NO_ENGINE, None) == (facts.obstacle, facts.starts)
    assert () == facts.parser.options


def test_what_a_module_uses_of_others_is_found_too() -> None:
    modules = {
        "lib.run": "from . import options\nfrom .engine import build as make\n"
        "def go():\n    args = options.PARSER.parse_args()\n    make(args)\n",
        "lib.options": "import argparse\nfrom .common import add\nPARSER = argparse.ArgumentParser()\n"
        "PARSER.add_argument('--micro_batch', type=int, default=3)\nadd(PARSER)\n",
        "lib.common": "import deepspeed as ds\ndef add(parser):\n    ds.add_config_arguments(parser)\n",
        "lib.engine": "import deepspeed\nimport lib.run\n"
        "def build(args):\n    return deepspeed.initialize(args=args, model=args.model)\n",
    }
    facts = read_beside("import lib.run\nlib.run.go()\n", modules)
    assert (Convention.ADD_CONFIG_ARGUMENTS, "lib/engine.py") == (facts.convention, facts.starts)
    assert "lib/engine.py line 4" == facts.where(facts.config_line)
    assert 3 == value_of(ScriptRun(facts, ()).settings, "micro_batch")


def test_a_package_passes_on_what_its_modules_define() -> None:
    modules = {"lib.__init__": "from .work import main\n", "lib.work": WORK}
    for script in ("from lib import main\nmain()\n", "import lib\nlib.main()\n"):
        assert "lib/work.py" == read_beside(script, modules).starts


def test_two_modules_may_define_the_same_name() -> None:
    script = """import deepspeed
from options import parse
import work
def main():
    args = parse()
    work.main(args)
main()
"""
    modules = {
        "options": "import argparse, deepspeed\ndef parse():\n    p = argparse.ArgumentParser()\n"
        "    p.add_argument('--batch_size', type=int, default=main())\n"
        "    return deepspeed.add_config_arguments(p).parse_args()\ndef main():\n    return 5\n",
        "work": "import deepspeed\ndef main(args):\n    deepspeed.initialize(args=args)\n",
    }
    facts = read_beside(script, modules)
    assert (Convention.ADD_CONFIG_ARGUMENTS, "work.py") == (facts.convention, facts.starts)


@pytest.mark.parametrize(
    "module",
    [
        "x = = 1\n" + WORK,
        WORK + "x = " + "(" * 300 + ")" * 300,
        "x = '\0'\n" + WORK,
    ],
    ids=["no Python", "too deep", "a zero byte"],
)
def test_a_module_that_cannot_be_read_is_not_seen(module: str) -> None:
    assert (
        Obstacle.NO_ENGINE is read_beside("import work\nwork.main()\n", {"work": module}).obstacle
    )


def test_a_text_in_a_module_may_look_like_a_definition() -> None:
    text = 'USAGE = """\ndef main():\n    pass\nsee deepspeed(\n"""\n'
    facts = read_beside("import work\nwork.main()\n", {"work": text + WORK})
    assert "work.py line 21" == facts.where(facts.config_line)


@pytest.mark.parametrize(
    "method",
    [
        "    def show(\n        self,\n        kind='a:',  # one: any\n    ):  # yet\n        pass\n",
        "    def show(self): print(self)\n",
        # The text ends the definition that is left out.
        '    def show(self):\n        return """\n    def\n""" + "x"\n',
    ],
)
def test_a_method_that_shows_nothing_is_left_out_and_lines_stay(method: str) -> None:
    head, _, body = WORK.partition("def main():\n")
    work = f"{head}class Work:\n{method}    def main(self):\n{indent(body, '    ')}"
    facts = read_beside("from work import Work\nWork().main()\n", {"work": work})
    line = next(n for n, text in enumerate(work.splitlines(), 1) if "deepspeed.initialize" in text)
    assert f"work.py line {line}" == facts.where(facts.config_line)


def test_modules_that_import_each_other_end() -> None:
    modules = {
        "a": "from b import f\nfrom b import g as main\ndef g(): f()\n",
        "b": "from a import main as f, g\nimport a\n",
    }
    assert Obstacle.NO_ENGINE is read_beside("from a import main\nmain()\n", modules).obstacle


@pytest.mark.parametrize(
    "line",
    [
        "sys.path.append('src')",
        "sys.path.insert(0, os.path.join(os.path.dirname(__file__), '..', 'src'))",
        (
            "sys.path.append(os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + '/x')\n"
            "sys.path.append(str(Path(__file__).resolve().parent.parent / 'src'))"
        ),
        (
            "ROOT = Path(__file__).absolute().parents[1]\nsys.path.append(f'{ROOT}')\n"
            "sys.path.append(os.fspath(ROOT / 'src')) if 0 else sys.path.append(str(ROOT / 'src'))"
        ),
    ],
)
def test_a_folder_that_the_script_adds_is_looked_into(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = f"import os, sys\nfrom pathlib import Path\n{line}\nimport work\nwork.main()\n"
    write(tmp_path, {"jobs/train.py": script, "src/work.py": WORK})
    monkeypatch.chdir(tmp_path)
    assert "src/work.py" == read_script(Path("jobs/train.py")).starts
    (tmp_path / "src" / "work.py").unlink()
    assert Obstacle.NO_ENGINE is read_script(Path("jobs/train.py")).obstacle


def test_a_package_of_the_repository_is_found_and_no_folder_with_the_name_of_a_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = "from ours.work import main\nimport datasets\nmain()\ndatasets.main()\n"
    shadow = "import deepspeed\ndef main():\n    deepspeed.initialize()\n"
    write(tmp_path, {"tools/train.py": script, "ours/work.py": WORK, "ours/__init__.py": ""})
    write(tmp_path, {"datasets/__init__.py": shadow})
    monkeypatch.chdir(tmp_path)
    assert Obstacle.NO_ENGINE is read_script(Path("tools/train.py")).obstacle
    (tmp_path / "pyproject.toml").touch()
    facts = read_script(Path("tools/train.py"))
    assert (Convention.ADD_CONFIG_ARGUMENTS, "ours/work.py") == (facts.convention, facts.starts)


def test_a_module_is_started_from_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = "from ..work import main\nimport tools\nmain()\n"
    write(tmp_path, {"ours/cli/train.py": script, "ours/work.py": WORK})
    monkeypatch.chdir(tmp_path)
    assert "ours/work.py" == read_script(Path("ours/cli/train.py"), (), Path()).starts


# As in repositories of diffusion models: all of the parser, the accelerator and the loop lie in a
# module that many scripts share, and one script extends the class of another.
SHARED = '''"""Shared by all scripts."""
import argparse

from accelerate import Accelerator, DeepSpeedPlugin


class Data:
    """Reads images.
Lines of a text may begin here (
    """

    def __getitem__(self, index):
        return self.images[index]


def add_arguments(parser: argparse.ArgumentParser):
    parser.add_argument("--train_batch_size", type=int, default=2)
    parser.add_argument("--mixed_precision", default="no", choices=["no", "fp16", "bf16"])
    parser.add_argument("--zero_stage", type=int)


def make_accelerator(args):
    plugin = make_plugin(args)
    accelerator = Accelerator(
        mixed_precision=args.mixed_precision,
        deepspeed_plugin=plugin,
    )
    return accelerator


def make_plugin(args):
    if not args.zero_stage:
        return None
    return DeepSpeedPlugin(zero_stage=args.zero_stage)
'''
BASE = """import argparse
from library import shared

class NetworkTrainer:
    def load(self, args):
        return None

    def train(self, args):
        accelerator = shared.make_accelerator(args)
        loader = torch.utils.data.DataLoader(shared.Data(args), batch_size=1)
        network = accelerator.prepare(self.load(args))

def setup_parser():
    parser = argparse.ArgumentParser()
    shared.add_arguments(parser)
    return parser

if __name__ == "__main__":
    NetworkTrainer().train(setup_parser().parse_args())
"""
EXTENDED = """import train_network

class LargeTrainer(train_network.NetworkTrainer):
    def load(self, args):
        return build(args)

def setup_parser():
    parser = train_network.setup_parser()
    parser.add_argument("--large", action="store_true")
    return parser

if __name__ == "__main__":
    args = setup_parser().parse_args()
    LargeTrainer().train(args)
"""


def test_a_script_that_extends_another_has_the_parser_and_the_accelerator_of_their_module() -> None:
    facts = read_beside(EXTENDED, {"train_network": BASE, "library.shared": SHARED})
    assert (Integration.ACCELERATE, Obstacle.BUILT_ACCELERATE) == (
        facts.integration,
        facts.obstacle,
    )
    assert "library/shared.py line 24" == facts.where(facts.config_line)
    with pytest.raises(PreflightError) as refused:
        deliver(facts, (), "ds_config_zero2.json")
    assert (
        "zerowiz cannot pass a config to library/shared.py: the DeepSpeed plugin in line 24 is "
        "built by the script"
    ) == refused.value.message
    flags = {option.flag for option in facts.parser.options}
    assert {"--train_batch_size", "--mixed_precision", "--zero_stage", "--large"} == flags
    settings = ScriptRun(facts, ("--mixed_precision", "bf16")).settings
    assert Precision.BF16 is value_of(settings, "precision")
    # Its dataset makes the batches.
    assert settings.micro_batch is None
    without = SHARED.replace("        deepspeed_plugin=plugin,\n", "")
    facts = read_beside(EXTENDED, {"train_network": BASE, "library.shared": without})
    assert (Convention.ACCELERATOR, None) == (facts.convention, facts.obstacle)


# As in repositories of chat models that see: a script patches the attention and starts another.
PATCHED = """from chat.train.patch import replace_attention
replace_attention()
from chat.train.train import train
if __name__ == "__main__":
    train(attn="flash_attention_2")
"""
CHAT = {
    "chat.train.patch": "import transformers\ndef replace_attention():\n    transformers.x = None\n",
    "chat.train.arguments": """from dataclasses import dataclass, field
import transformers

@dataclass
class TrainingArguments(transformers.TrainingArguments):
    optim: str = field(default="adamw_torch")
    model_max_length: int = field(default=512)
    lora_enable: bool = field(default=False)
    lora_r: int = field(default=64)

@dataclass
class ModelArguments:
    model_name_or_path: str = field(default="gpt2")
""",
    "chat.train.chat_trainer": """from transformers import Trainer

class ChatTrainer(Trainer):
    def _get_train_sampler(self):
        return None
""",
    "chat.train.adapters": """def add_adapters(model, rank):
    from peft import LoraConfig, get_peft_model
    return get_peft_model(model, LoraConfig(r=rank, target_modules=["q_proj", "v_proj"]))
""",
    "chat.train.train": """import transformers
from chat.train import adapters
from chat.train.arguments import *
from chat.train.chat_trainer import ChatTrainer

def train(attn=None):
    parser = transformers.HfArgumentParser((ModelArguments, TrainingArguments))
    model_args, training_args = parser.parse_args_into_dataclasses()
    model = transformers.AutoModelForCausalLM.from_pretrained(
        model_args.model_name_or_path, attn_implementation=attn
    )
    if training_args.lora_enable:
        model = adapters.add_adapters(model, training_args.lora_r)
    tokenizer = transformers.AutoTokenizer.from_pretrained(
        model_args.model_name_or_path, model_max_length=training_args.model_max_length
    )
    ChatTrainer(model=model, args=training_args, processing_class=tokenizer).train()
""",
}


def read_chat() -> ScriptFacts:
    return read_beside(PATCHED, CHAT)


def test_a_script_that_starts_a_module_trains_as_all_its_modules_say() -> None:
    facts = read_chat()
    assert (Convention.HF_PARSER, "chat/train/train.py") == (facts.convention, facts.starts)
    settings = ScriptRun(facts, ("--lora_enable", "True")).settings
    assert value_of(settings, "trainer") is Trainer.SFT
    assert settings.model is not None
    assert "the default of `--model_name_or_path` in chat/train/arguments.py line 13" == (
        settings.model.source
    )
    assert 512 == value_of(settings, "sequence_tokens")
    assert settings.attention is not None
    assert settings.lora_rank is not None
    assert (64, "q_proj,v_proj") == (settings.lora_rank.value, facts.lora_target_modules.value)
    assert "chat/train/adapters.py line 3" == facts.where(facts.lora_target_modules.line)
    assert not settings.not_counted


def test_adapters_of_a_module_are_trained_where_the_script_says_so() -> None:
    facts = read_chat()
    assert (facts.trains_adapters, "--lora_enable") == (True, facts.adapters.flag)


def test_an_engine_in_a_trainer_is_that_of_a_model_beside() -> None:
    module = """import deepspeed
from trl import DPOTrainer
class PairTrainer(DPOTrainer):
    def _prepare_deepspeed(self, model):
        model, *_ = deepspeed.initialize(model=model, config={"train_batch_size": 8})
        return model
"""
    script = """from pairs import PairTrainer
from trl import DPOConfig, TrlParser
(args,) = TrlParser(DPOConfig).parse_args_and_config()
PairTrainer(model=model, args=args).train()
"""
    facts = read_beside(script, {"pairs": module})
    assert (Convention.HF_PARSER, Integration.HF) == (facts.convention, facts.integration)
    assert [("DPOTrainer", 4)] == [(use.name, use.line) for use in facts.trainer.uses]


def test_a_condition_in_a_method_that_shows_nothing_itself_still_counts() -> None:
    module = """from peft import LoraConfig, get_peft_model
class Actor:
    def __init__(self, args):
        if args.wraps:
            self.wrap()
    def wrap(self):
        self.model = get_peft_model(self.model, LoraConfig(r=4))
"""
    script = """from actor import Actor
from transformers import HfArgumentParser, Trainer, TrainingArguments
from dataclasses import dataclass
@dataclass
class Own:
    wraps: bool = False
args, own = HfArgumentParser((TrainingArguments, Own)).parse_args_into_dataclasses()
Trainer(model=Actor(own).model, args=args).train()
"""
    facts = read_beside(script, {"actor": module})
    assert "--wraps" == facts.adapters.flag


def test_a_module_with_too_many_files_behind_it_is_read_to_the_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chain = {
        f"lib/m{i}.py": f"import deepspeed\nfrom lib.m{i + 1} import f as g\ndef f():\n    g()\n"
        for i in range(400)
    }
    write(tmp_path, {"train.py": "from lib.m0 import f\nf()\n", **chain})
    monkeypatch.chdir(tmp_path)
    facts = read_script(Path("train.py"))
    assert len(facts.files) <= 200  # as many as are opened


# What modules say beside what the script trains by.
BESIDE = """from peft import LoraConfig, get_peft_model
from transformers import AutoModel


class Wrapper:
    def __init__(self, model, args):
        self.model = model
        self.config = LoraConfig.from_pretrained(args.lora_name_or_path)

    def gradient_checkpointing_enable(self, **words):
        self.model.gradient_checkpointing_enable(**words)


def see(model, args, tokenizer):
    tokenizer("a picture of", max_length=40, truncation=True)
    if args.rank == 0:
        return model
    return get_peft_model(model, LoraConfig(r=4))
"""
SEEING = """from dataclasses import dataclass
from transformers import AutoModel, HfArgumentParser, Trainer, TrainingArguments
import beside
@dataclass
class Own:
    model_name_or_path: str = "gpt2"
    lora_name_or_path: str = "adapters"
    max_seq_length: int = 256
    rank: int = 0
args, own = HfArgumentParser((TrainingArguments, Own)).parse_args_into_dataclasses()
model = beside.Wrapper(AutoModel.from_pretrained(own.model_name_or_path), own)
model = beside.see(model, own, tokenizer)
tokenizer.model_max_length = own.max_seq_length
Trainer(model=model, args=args).train()
"""


def test_what_a_module_does_for_something_else_is_no_setting_of_the_training() -> None:
    facts = read_beside(SEEING, {"beside": BESIDE})
    settings = ScriptRun(facts, ()).settings
    assert False is value_of(settings, "gradient_checkpointing")
    assert settings.model is not None
    assert "gpt2" == settings.model.value
    assert 256 == value_of(settings, "sequence_tokens")
    # Whether it returns before is not worked out.
    assert not facts.adapters.seen
    without = BESIDE.replace("    if args.rank == 0:\n        return model\n", "")
    assert True is read_beside(SEEING, {"beside": without}).adapters.value


REFERENCE = """
import deepspeed


def prepare(model):
    return deepspeed.initialize(model=model, config={"zero_optimization": {"stage": 3}})
"""


def test_the_engine_of_a_model_beside_is_not_that_of_a_script_which_has_its_own(
    tmp_path: Path,
) -> None:
    loop = "from accelerate import Accelerator\nfrom beside import prepare\nprepare(reward)\n"
    loop += "accelerator = Accelerator()\nmodel = accelerator.prepare(model)\n"
    write(tmp_path, {"train.py": loop, "beside.py": REFERENCE})
    facts = read_script(tmp_path / "train.py")
    assert (Convention.ACCELERATOR, None) == (facts.convention, facts.obstacle)


@pytest.mark.parametrize(("library", "reads"), [("trl", False), ("mine", True)])
def test_a_script_of_a_library_is_read_without_the_library(
    tmp_path: Path, library: str, *, reads: bool
) -> None:
    """Such as `-m trl.scripts.dpo`: what its trainers do by themselves is known."""
    script = f"from {library} import prepare\nprepare(model)\n"
    path = f"{library}/scripts/train.py"
    write(tmp_path, {path: script, f"{library}/__init__.py": REFERENCE})
    assert reads is (read_script(tmp_path / path).integration is Integration.DEEPSPEED)


@pytest.mark.parametrize(
    ("module", "expected"),
    [
        # Its own config, and what its class does while it trains.
        ("config.per_device_train_batch_size = 9", 2),
        ("class Mine(Trainer):\n    def step(self, args):\n        {line}", 2),
        ("def change(args):\n    {line}", None),
    ],
)
def test_what_a_module_assigns_changes_the_arguments_or_something_else(
    tmp_path: Path, module: str, expected: int | None
) -> None:
    line = "args.per_device_train_batch_size = 9"
    own = module.format(line=line)
    names = "Mine" if "class" in own else "change"
    own += "" if names in own else f"\ndef {names}(args):\n    Trainer(args=args)"
    script = f"from own import {names}\nfrom transformers import HfArgumentParser, Trainer\n"
    script += "from transformers import TrainingArguments\n"
    script += "(args,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()\n"
    script += f"{names}(args)\nTrainer(args=args)\n"
    write(tmp_path, {"train.py": script, "own.py": f"from transformers import Trainer\n{own}\n"})
    words = ("--per_device_train_batch_size", "2")
    settings = ScriptRun(read_script(tmp_path / "train.py"), words).settings
    assert expected == value_of(settings, "micro_batch")


def test_modules_are_read_in_one_order_whatever_the_seed_of_hashes_is(tmp_path: Path) -> None:
    names = [f"part{number}" for number in range(8)]
    for name in names:
        write(tmp_path, {f"{name}.py": f"def {name}():\n    return LoraConfig()\n"})
    imports = "".join(f"from {name} import {name}\n" for name in names)
    uses = "".join(f"    {name}()\n" for name in names)
    work = f"{imports}def main():\n{uses}"
    write(tmp_path, {"work.py": work, "train.py": "from work import main\nmain()\n"})
    code = "from pathlib import Path\nfrom zerowiz.probe.script.read_script import read_script\n"
    code += "print(read_script(Path('train.py')).files)"
    orders = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)},
            cwd=tmp_path,
            capture_output=True,
            check=True,
        ).stdout
        for seed in "1234"
    }
    assert 1 == len(orders)
    assert all(name.encode() in next(iter(orders)) for name in names)
