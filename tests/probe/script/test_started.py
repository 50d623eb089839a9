"""Scripts that only call a function of their package: the module of that function is read."""

from pathlib import Path

import pytest

from zerowiz.core.script.facts import Convention, Obstacle, ScriptFacts
from zerowiz.core.script.settings import resolve_script
from zerowiz.core.workload import Attention
from zerowiz.probe.script.read import parse_script, read_script

SCRIPT = """from tools.patches import patch_attention
patch_attention()
from tools.fit import fit
if __name__ == "__main__":
    fit(attention="flash_attention_2")
"""
MODULE = """from transformers import AutoModelForCausalLM, HfArgumentParser, Trainer, TrainingArguments
def fit(attention=None):
    args = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()[0]
    model = AutoModelForCausalLM.from_pretrained("gpt2", attn_implementation=attention)
    Trainer(model=model, args=args).train()
if __name__ == "__main__":
    fit()
"""


def read(script: str, **modules: str) -> ScriptFacts:
    return parse_script(script, "train.py", lambda name: modules.get(name.replace(".", "_")))


def test_the_module_of_the_called_function_is_read() -> None:
    facts = read(SCRIPT, tools_fit=MODULE, tools_patches="def patch_attention(): pass")
    assert (Convention.HF_PARSER, "tools.fit") == (facts.convention, facts.starts)
    settings = resolve_script(facts, ("--bf16",))
    assert settings.attention is not None
    assert Attention.FLASH is settings.attention.value
    assert settings.model is not None
    assert "`AutoModelForCausalLM.from_pretrained('gpt2')` in tools.fit line 4" == (
        settings.model.source
    )


@pytest.mark.parametrize(
    ("script", "module"),
    [
        (SCRIPT, "def fit(): pass"),
        (SCRIPT, "this is not Python"),
        (SCRIPT, MODULE.replace("def fit", "def run")),
        ("from tools.fit import fit\n", MODULE),
        ("from .tools.fit import fit\nfit()\n", MODULE),
        # Both have a function of this name, and which one is meant is not looked up.
        (SCRIPT + "class fit: pass\n", MODULE),
    ],
)
def test_what_starts_no_training_shows_no_engine(script: str, module: str) -> None:
    facts = read(script, tools_fit=module)
    assert (Obstacle.NO_ENGINE, None) == (facts.obstacle, facts.starts)


def test_a_script_that_shows_its_engine_is_read_itself() -> None:
    script = "from accelerate import Accelerator\nAccelerator()\n" + SCRIPT
    facts = read(script, tools_fit=MODULE)
    assert (Convention.ACCELERATOR, None) == (facts.convention, facts.starts)


def test_a_script_in_a_package_imports_from_that_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "tools" / "start"
    folder.mkdir(parents=True)
    (folder / "train.py").write_text(SCRIPT, encoding="utf-8")
    (tmp_path / "tools" / "fit.py").write_text(MODULE, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    facts = read_script(Path("tools/start/train.py"))
    assert ("tools/fit.py", "tools/start/train.py") == (facts.starts, facts.path)
    monkeypatch.chdir(folder)
    assert str(tmp_path / "tools" / "fit.py") == read_script(Path("train.py")).starts
