"""Which options of TrainingArguments a script still gives that transformers has removed."""

import importlib.metadata
from dataclasses import fields

import pytest
from probe.reading import HF_CALL

from zerowiz.core.script.arguments import REMOVED_FIELDS
from zerowiz.core.script.bindings import removed_words
from zerowiz.core.script.facts import ScriptFacts
from zerowiz.core.script.settings_file import SettingsFile
from zerowiz.core.structs import replace
from zerowiz.probe.package_data import parse_release
from zerowiz.probe.script.read import parse_script

PARSED = """from dataclasses import dataclass
from transformers import HfArgumentParser, Trainer, TrainingArguments
@dataclass
class Mine(TrainingArguments):
    length: int = 64
def main():
    (args,) = HfArgumentParser(Mine).parse_args_into_dataclasses()
    Trainer(args=args)
main()
"""
OWN = "    length: int = 64\n    evaluation_strategy: str = 'no'\n    no_cuda: bool = False\n"


def facts_of(text: str) -> ScriptFacts:
    return parse_script(text, "train.py")


def test_the_installed_transformers_lacks_what_its_release_removed() -> None:
    from transformers import TrainingArguments

    own = {each.name for each in fields(TrainingArguments)}
    release = parse_release(importlib.metadata.version("transformers"))
    assert release is not None
    for name, (since, instead) in REMOVED_FIELDS.items():
        assert (release < since) == (name in own), name
        assert not instead or instead in own, name


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ((), []),
        (("--eval_strategy", "steps", "--length", "8"), []),
        (("--evaluation_strategy", "steps"), ["evaluation_strategy"]),
        (("--evaluation-strategy=steps", "--do_eval"), ["evaluation_strategy"]),
        (("--no_cuda",), ["no_cuda"]),
        (("--no_save_safetensors", "--save-safetensors", "False"), ["save_safetensors"] * 2),
        (("--unknown", "no_cuda", "--", "--no_cuda"), []),
    ],
)
def test_the_parser_of_transformers_refuses_what_is_named(
    words: tuple[str, ...], expected: list[str]
) -> None:
    assert expected == [name for name, _ in removed_words(facts_of(PARSED), words)]
    known = [word for word in words if word != "--unknown"]
    if "--" in words:
        return
    from transformers import HfArgumentParser, TrainingArguments

    parser = HfArgumentParser(TrainingArguments)
    parser.add_argument("--length", type=int)
    rest = parser.parse_args_into_dataclasses(
        ["--output_dir", "x", *known], return_remaining_strings=True
    )
    assert bool(expected) == bool(rest[-1])


@pytest.mark.parametrize(
    "text",
    [
        PARSED.replace("    length: int = 64\n", OWN),
        PARSED.replace("dataclasses()", "dataclasses(return_remaining_strings=True)[:1]"),
        PARSED.replace("(Mine)", "((Mine, Theirs))").replace(
            "@data", "from x import Theirs\n@data", 1
        ),
        (
            "import argparse\nfrom transformers import TrainingArguments\n"
            "p = argparse.ArgumentParser()\nargs = p.parse_args()\nTrainingArguments('out')\n"
        ),
    ],
    ids=["its own", "lenient", "another module", "argparse"],
)
def test_a_word_that_the_script_may_know_is_not_named(text: str) -> None:
    words = ("--evaluation_strategy", "no", "--no_cuda")
    assert [] == [*removed_words(facts_of(text), words)]


def test_a_key_of_a_settings_file_is_named() -> None:
    values = {"no_cuda": True, "bf16": True}
    file = SettingsFile(path="a.json", values=values, is_whole=True)
    facts = replace(facts_of(PARSED), settings_file=file)
    # A script that takes all arguments from a file reads no words.
    found = [*removed_words(facts, ("a.json", "--adafactor"))]
    assert [("no_cuda", "`no_cuda` in a.json")] == found


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (HF_CALL + "TrainingArguments('out', eval_strategy='no')", []),
        (
            HF_CALL + "TrainingArguments('out', evaluation_strategy='no', no_cuda=True)",
            ["evaluation_strategy", "no_cuda"],
        ),
        (HF_CALL + "TrainingArguments(**{'output_dir': 'o', 'adafactor': True})", ["adafactor"]),
        ("from trl import SFTConfig\nSFTConfig('out', warmup_ratio=0.1)", ["warmup_ratio"]),
        ("from ours import OurTrainingArguments\nOurTrainingArguments('o', no_cuda=True)", []),
        (
            (
                "from sentence_transformers import SentenceTransformerTrainingArguments as A\n"
                "A('o', warmup_ratio=0.1)"
            ),
            [],
        ),
        (
            PARSED.replace("    length: int = 64\n", OWN) + "Mine('o', no_cuda=True)\n",
            [],
        ),
    ],
)
def test_an_argument_in_the_code_is_named(text: str, expected: list[str]) -> None:
    assert expected == [each.name for each in facts_of(text).removed_fields]
