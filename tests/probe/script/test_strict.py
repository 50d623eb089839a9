"""Whether the word that DeepSpeed's launcher adds would end a script; seen, or left alone."""

import sys
import textwrap

import pytest
from probe.reading import HF_CALL, facts_of

from zerowiz.probe.script.read import parse_script

ARGPARSE = "import argparse\n"
HF = "from transformers import HfArgumentParser, TrainingArguments\n"
TRL = "from trl import ModelConfig, ScriptArguments, SFTConfig, TrlParser\n"
MADE = "p = argparse.ArgumentParser()\np.add_argument('--lr', type=float)\n"

REFUSES = {
    "a parser": ARGPARSE + MADE + "a = p.parse_args()",
    "a parser of another name": "from argparse import ArgumentParser as A\np = A()\np.parse_args()",
    "in a function": """\
        import argparse
        def parse_args():
            p = argparse.ArgumentParser(description='x'.strip())
            g = p.add_argument_group('g')
            g.add_argument('--lr', type=float)
            return p.parse_args()
        args = parse_args()
        train(args)""",
    "in a function that nobody gives words": """\
        import argparse
        def parse_args(input_args=None):
            parser = argparse.ArgumentParser()
            if input_args is not None:
                args = parser.parse_args(input_args)
            else:
                args = parser.parse_args()
            return args
        args = parse_args()""",
    "made in a function": """\
        import argparse
        def make():
            p = argparse.ArgumentParser()
            return p
        p = make()
        args = p.parse_args()""",
    "of the name that its values get": """\
        import argparse
        def make():
            p = argparse.ArgumentParser('MAE', add_help=False)
            return p
        args = make()
        args = args.parse_args()""",
    "filled in a function": """\
        import argparse
        def fill(parser):
            parser.add_argument('--lr')
            return parser
        parser = argparse.ArgumentParser()
        parser = fill(parser)
        args = parser.parse_args(sys.argv[1:])""",
    "with DeepSpeed's own options": (
        "import argparse, deepspeed\n" + MADE + "deepspeed.add_config_arguments(p).parse_args()"
    ),
    "dataclasses of the script": HF
    + "class M:\n    lr: float = 1.0\n(m,) = HfArgumentParser(M).parse_args_into_dataclasses()",
    "dataclasses of trl": TRL + "TrlParser((ScriptArguments, ModelConfig)).parse_args_and_config()",
    "the rest of the words": ARGPARSE
    + MADE
    + "p.add_argument('rest', nargs=argparse.REMAINDER)\np.parse_args()",
    "hydra": "import hydra\n@hydra.main(version_base=None)\ndef main(cfg): ...\nmain()",
    "fire": "import fire\ndef train(lr: float = 1.0): ...\nfire.Fire(train)",
}
TAKES = {
    "the word itself": ARGPARSE + MADE + "p.add_argument('--local_rank')\np.parse_args()",
    "an abbreviation of it": ARGPARSE + MADE + "p.add_argument('--local_rank_id')\np.parse_args()",
    "TrainingArguments": HF
    + "(a,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()",
    "SFTConfig": TRL + "TrlParser((ScriptArguments, SFTConfig)).parse_args_and_config()",
    "words that are left over": ARGPARSE + MADE + "a, _ = p.parse_known_args()",
    "strings that are left over": HF
    + "class M:\n    lr: float = 1.0\n"
    + "HfArgumentParser(M).parse_args_into_dataclasses(return_remaining_strings=True)",
    "any keyword for fire": "import fire\ndef train(**words): ...\nfire.Fire(train)",
}
UNSEEN = {
    "no parser": HF_CALL + "TrainingArguments('out')",
    "a parser that was imported": "from mine import parser\nparser.parse_args()",
    "a function that was imported": "from mine import parse_args\nargs = parse_args()",
    "a parser with parents": (
        "import argparse\nfrom mine import base\n"
        "p = argparse.ArgumentParser(parents=[base])\np.parse_args()"
    ),
    "a parser that was handed over": (
        ARGPARSE + "from mine import add\n" + MADE + "add(p)\na = p.parse_args()"
    ),
    "a parser that somebody extended": (
        ARGPARSE + "from mine import add\n" + MADE + "p = add(p)\na = p.parse_args()"
    ),
    "a parameter": ARGPARSE + MADE + "def main(p):\n    return p.parse_args()\nmain(p)",
    "options that are computed": (
        ARGPARSE + MADE + "for n in NAMES:\n    p.add_argument('--' + n)\np.parse_args()"
    ),
    "a subclass": (
        "import argparse\nclass P(argparse.ArgumentParser): ...\np = P()\np.parse_args()"
    ),
    "another library": "from jsonargparse import ArgumentParser\nArgumentParser().parse_args()",
    "a function that is given words": """\
        import argparse
        def parse_args(input_args=None):
            parser = argparse.ArgumentParser()
            return parser.parse_args(input_args)
        args = parse_args(words())""",
    "words from elsewhere": ARGPARSE + MADE + "p.parse_args(words())",
    "dataclasses from elsewhere": (
        "from transformers import HfArgumentParser\nfrom mine import M\n"
        "HfArgumentParser(M).parse_args_into_dataclasses()"
    ),
    "a script that takes the word out": (
        ARGPARSE + MADE + "sys.argv = [w for w in sys.argv if w[:5] != '--loc']\np.parse_args()"
    ),
    "a script that looks for the word": (
        ARGPARSE + MADE + "x = any(w.startswith('--local_rank=') for w in sys.argv)\np.parse_args()"
    ),
    "a class for fire": "import fire\nclass Train: ...\nfire.Fire(Train)",
}


def refuses(text: str, *words: str) -> bool:
    parser = parse_script(textwrap.dedent(text), "train.py").parser
    return parser.refuses_local_rank(words)


@pytest.mark.parametrize("text", REFUSES.values(), ids=REFUSES)
def test_a_parser_that_is_seen_to_lack_the_word_gets_none(text: str) -> None:
    assert refuses(text, "--lr", "1")


@pytest.mark.parametrize("text", [*TAKES.values(), *UNSEEN.values()], ids=[*TAKES, *UNSEEN])
def test_any_other_script_is_started_as_by_deepspeed(text: str) -> None:
    assert not refuses(text, "--lr", "1")


@pytest.mark.parametrize(
    "text", [t for t in (*REFUSES.values(), *TAKES.values()) if "p = arg" in t]
)
def test_argparse_agrees(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    text = textwrap.dedent(text)
    if "deepspeed" in text:
        pytest.importorskip("deepspeed")
    monkeypatch.setattr(sys, "argv", ["train.py", "--local_rank=0"])
    ended = False
    try:
        exec(compile(text, "train.py", "exec"), {"sys": sys, "train": print})  # noqa: S102
    except SystemExit:
        ended = True
    assert ended is refuses(text)


def test_a_file_of_all_arguments_has_to_be_the_only_word() -> None:
    text = HF + (
        "p = HfArgumentParser(TrainingArguments)\n"
        "if sys.argv[1].endswith('.json'): (a,) = p.parse_json_file(sys.argv[1])\n"
        "else: (a,) = p.parse_args_into_dataclasses()"
    )
    assert (True, False) == (refuses(text, "args.json"), refuses(text, "--lr", "1"))


def test_a_file_of_defaults_is_read_without_the_word() -> None:
    text = TRL + "TrlParser((ScriptArguments, SFTConfig)).parse_args_and_config()"
    assert (True, False) == (refuses(text, "--config", "x.yaml"), refuses(text, "--lr", "1"))


@pytest.mark.parametrize(
    ("name", "expected"),
    [("accelerate_bare", True), ("lora_fire", True), ("raw_own_flag", True), ("hf_parser", False)],
)
def test_scripts_that_look_real(name: str, expected: bool) -> None:
    assert expected is facts_of(name).parser.refuses_local_rank(())
