"""What a script's parser surely requires, against the parser itself: no refusal is false."""

import argparse
import contextlib
import io
import sys
import textwrap

import pytest
from hypothesis import given
from hypothesis import strategies as st
from probe.reading import HF_CALL, facts_of

from zerowiz.core.script.arguments import Option, ScriptParser, Takes
from zerowiz.core.script.facts import ScriptFacts, unsaid_arguments
from zerowiz.core.structs import replace
from zerowiz.probe.script.read_script import parse_script

HEAD = "import argparse, os, sys\n"
NEEDED = 'parser.add_argument("--data_path", "-d", required=True)\n'
MADE = f"{HEAD}parser = argparse.ArgumentParser()\n"
DATACLASSES = """
import os, sys
from dataclasses import dataclass, field
from typing import ClassVar, List, Optional
import dataclasses, transformers
from transformers import HfArgumentParser, TrainingArguments
@dataclass
class Model:
    model_name: str = field(metadata={"help": "which"})
    width: Optional[int]
    names: List[str]
    trains: bool
    kept: ClassVar[int]
    other: str = None
    listed: List[str] = field(default_factory=list)
    made: str = dataclasses.field(default="x", metadata={})
    hidden: str = field(init=False)
"""
HF = ["--model_name", "--width", "--names"]
FILE = """
if len(sys.argv) == 2 and sys.argv[1].endswith(".json"):
    model, = parser.parse_json_file(json_file=os.path.abspath(sys.argv[1]))
else:
    model, = parser.parse_args_into_dataclasses()
"""

# Scripts as people write them, with what is seen that their parsers require.
SEEN: dict[str, tuple[str, list[str]]] = {
    "plain": (f"{MADE}{NEEDED}parser.parse_args()", ["--data_path"]),
    "known": (f"{MADE}{NEEDED}args, rest = parser.parse_known_args()", ["--data_path"]),
    "group": (
        (
            f'{MADE}group = parser.add_argument_group("data")\ngroup.add_argument("--x", required=True)'
            "\nparser.parse_args()"
        ),
        ["--x"],
    ),
    "dataclasses": (
        (
            f"{DATACLASSES}parser = HfArgumentParser((Model, TrainingArguments))\n"
            "parser.parse_args_into_dataclasses(return_remaining_strings=True)"
        ),
        HF,
    ),
    "a file or words": (f"{DATACLASSES}parser = transformers.HfArgumentParser(Model){FILE}", HF),
    "own options too": (
        (
            f"{DATACLASSES}parser = HfArgumentParser([Model])\n{NEEDED}"
            "parser.parse_args_into_dataclasses()"
        ),
        [*HF, "--data_path"],
    ),
}
# Scripts that do not end, or of which something is not understood.
UNSEEN: dict[str, str] = {
    "nothing required": f'{MADE}parser.add_argument("--x")\nparser.parse_args()',
    "conditional": f"{MADE}if os.environ.get('NEED'):\n    {NEEDED}parser.parse_args()",
    "other value": f'{MADE}parser.add_argument("--x", required="X" in os.environ)\n'
    "parser.parse_args()",
    "group of one": f"{MADE}g = parser.add_mutually_exclusive_group()\ng.add_argument('--x')\n"
    "parser.parse_args()",
    "made optional": f"{MADE}{NEEDED}for a in parser._actions:\n    a.required = False\n"
    "parser.parse_args()",
    "attribute": f'{MADE}a = parser.add_argument("--x", required=True)\na.required = False\n'
    "parser.parse_args()",
    "other words": f"{MADE}{NEEDED}parser.parse_args(['-d', 'x'])",
    "own words": f"{MADE}{NEEDED}words = ['-d', 'x']\nparser.parse_args(words)",
    "changed words": f"{MADE}{NEEDED}sys.argv += ['-d', 'x']\nparser.parse_args()",
    "set words": f"{MADE}{NEEDED}sys.argv[1:] = ['-d', 'x']\nparser.parse_args()",
    "appended words": f"{MADE}{NEEDED}sys.argv.extend(['-d', 'x'])\nparser.parse_args()",
    "no words": f"{MADE}{NEEDED}if len(sys.argv) > 1:\n    parser.parse_args()",
    "returns first": f"{HEAD}def main():\n    if 'RANK' not in os.environ:\n        return\n"
    f"    parser = argparse.ArgumentParser()\n    {NEEDED}    parser.parse_args()\nmain()",
    "never called": f"{HEAD}def main():\n    parser = argparse.ArgumentParser()\n    {NEEDED}"
    "    parser.parse_args()\n",
    "own class": f"{HEAD}class P(argparse.ArgumentParser):\n    def error(self, message): pass\n"
    f"parser = P()\n{NEEDED}parser.parse_args()",
    "own error": f"{MADE}{NEEDED}parser.error = print\nparser.parse_args()",
    "two parsers": f"{MADE}{NEEDED}other = argparse.ArgumentParser()\nother.parse_args()",
    "subcommands": f"{HEAD}parser = argparse.ArgumentParser()\n"
    f"subs = parser.add_subparsers()\nparser = subs.add_parser('x')\n{NEEDED}",
    "inherited": "import dataclasses\n@dataclasses.dataclass\nclass Base:\n    x: str = 'a'\n"
    "@dataclasses.dataclass\nclass Own(Base):\n    x: str\n"
    "from transformers import HfArgumentParser\n"
    "HfArgumentParser(Own).parse_args_into_dataclasses()",
    "only a file": f"{DATACLASSES}parser = HfArgumentParser(Model)\n"
    "if os.path.exists('args.json'):\n    parser.parse_json_file('args.json')",
}


def run(text: str, *words: str) -> tuple[int | None, str]:
    """How a script ends, and what it says."""
    said, before = io.StringIO(), sys.argv
    sys.argv = ["train.py", *words]
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
            exec(compile(text, "train.py", "exec"), {"__name__": "__main__"})  # noqa: S102 - it is the test's own
    except SystemExit as end:
        return int(end.code or 0), said.getvalue()
    finally:
        sys.argv = before
    return None, said.getvalue()


def names_of(text: str) -> list[str]:
    options = parse_script(text, "train.py").parser.options
    return [option.flag for option in options if option.required]


@pytest.mark.parametrize("name", SEEN)
def test_a_parser_requires_what_is_seen(name: str) -> None:
    text, expected = SEEN[name]
    assert {*expected} == {*names_of(text)}
    code, said = run(text)
    assert 2 == code
    assert all(each.lstrip("-") in said.partition("required: ")[2] for each in expected), said


@pytest.mark.parametrize("name", UNSEEN)
def test_a_script_that_goes_on_is_not_refused(name: str) -> None:
    assert [] == names_of(UNSEEN[name])
    assert run(UNSEEN[name])[0] in {None, 0}


OPTIONS = (
    Option(flags=("--lr",), dest="lr", takes=Takes.VALUE),
    Option(flags=("--loud", "-l"), dest="loud", takes=Takes.STORE_TRUE),
)
FLAGGED = Option(flags=("--data_path", "-d"), dest="data_path", required=True)
WORDS = st.sampled_from(
    ("--data_path", "--data_path=x", "--data", "-d", "-dx", "-ld", "-d=x", "--da=", "--", "-1")
    + (
        "--lr",
        "--lr=1",
        "--l",
        "--loud",
        "-l",
        "a",
        "b",
        "--other",
        "-x",
        "-",
        "",
        "--help",
        "-h",
        "-z y",
        "-3",
    )
)


@given(words=st.lists(WORDS, max_size=5), known=st.booleans())
def test_words_that_lack_an_argument_are_refused_by_argparse(
    words: list[str], *, known: bool
) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument(*FLAGGED.flags, required=True)
    parser.add_argument("--lr")
    parser.add_argument("--loud", "-l", action="store_true")
    facts = parse_script("", "train.py")
    seen = ScriptParser(options=(*(OPTIONS if known else ()), FLAGGED))
    missing = unsaid_arguments(replace(facts, parser=seen), tuple(words))
    if not missing:
        return
    with pytest.raises(SystemExit) as end, contextlib.redirect_stderr(io.StringIO()):
        parser.parse_args(words)
    assert 2 == end.value.code


@pytest.mark.parametrize(
    ("words", "missing"),
    [
        ((), ["--data_path"]),
        (("--data_path", "x"), []),
        (("--lr", "1", "-d", "x"), []),
        (("--lr=1",), ["--data_path"]),
        # A word that belongs to no option may be a file of settings.
        (("--lr=1", "a"), []),
        (("--help",), []),
    ],
)
def test_words_lack_what_they_do_not_say(words: tuple[str, ...], missing: list[str]) -> None:
    parser = ScriptParser(options=(*OPTIONS, FLAGGED))
    facts = replace(parse_script("", "train.py"), parser=parser)
    assert missing == [option.flag for option in unsaid_arguments(facts, words)]


@pytest.mark.parametrize(
    ("text", "words", "missing"),
    [
        (SEEN["dataclasses"][0], ("--model-name", "x", "--width", "2", "--nam", "a", "b"), []),
        (SEEN["a file or words"][0], ("args.json",), []),
        (SEEN["a file or words"][0], ("args.yaml",), []),
        (SEEN["a file or words"][0], ("--width", "1"), ["--model_name", "--names"]),
        (SEEN["plain"][0].replace("--data_path", "--local_rank"), (), []),
        (SEEN["plain"][0].replace("--data_path", "--deepspeed_config"), (), []),
    ],
)
def test_what_a_file_or_zerowiz_gives_is_not_missing(
    text: str, words: tuple[str, ...], missing: list[str]
) -> None:
    facts: ScriptFacts = parse_script(text, "train.py")
    assert missing == [option.flag for option in unsaid_arguments(facts, words)]


# Whether the word that DeepSpeed's launcher adds would end a script; seen, or left alone.

ARGPARSE = "import argparse\n"
STRICT_HF = "from transformers import HfArgumentParser, TrainingArguments\n"
TRL = "from trl import ModelConfig, ScriptArguments, SFTConfig, TrlParser\n"
STRICT_MADE = "p = argparse.ArgumentParser()\np.add_argument('--lr', type=float)\n"

REFUSES = {
    "a parser": ARGPARSE + STRICT_MADE + "a = p.parse_args()",
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
        "import argparse, deepspeed\n"
        + STRICT_MADE
        + "deepspeed.add_config_arguments(p).parse_args()"
    ),
    "dataclasses of the script": STRICT_HF
    + "class M:\n    lr: float = 1.0\n(m,) = HfArgumentParser(M).parse_args_into_dataclasses()",
    "dataclasses of trl": TRL + "TrlParser((ScriptArguments, ModelConfig)).parse_args_and_config()",
    "the rest of the words": ARGPARSE
    + STRICT_MADE
    + "p.add_argument('rest', nargs=argparse.REMAINDER)\np.parse_args()",
    "fire": "import fire\ndef train(lr: float = 1.0): ...\nfire.Fire(train)",
}
TAKES = {
    "the word itself": ARGPARSE + STRICT_MADE + "p.add_argument('--local_rank')\np.parse_args()",
    "an abbreviation of it": ARGPARSE
    + STRICT_MADE
    + "p.add_argument('--local_rank_id')\np.parse_args()",
    "TrainingArguments": STRICT_HF
    + "(a,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()",
    "SFTConfig": TRL + "TrlParser((ScriptArguments, SFTConfig)).parse_args_and_config()",
    "words that are left over": ARGPARSE + STRICT_MADE + "a, _ = p.parse_known_args()",
    "strings that are left over": STRICT_HF
    + "class M:\n    lr: float = 1.0\n"
    + "HfArgumentParser(M).parse_args_into_dataclasses(return_remaining_strings=True)",
    "any keyword for fire": "import fire\ndef train(**words): ...\nfire.Fire(train)",
}
STRICT_UNSEEN = {
    "no parser": HF_CALL + "TrainingArguments('out')",
    "a parser that was imported": "from mine import parser\nparser.parse_args()",
    "a function that was imported": "from mine import parse_args\nargs = parse_args()",
    "a parser with parents": (
        "import argparse\nfrom mine import base\n"
        "p = argparse.ArgumentParser(parents=[base])\np.parse_args()"
    ),
    "a parser that was handed over": (
        ARGPARSE + "from mine import add\n" + STRICT_MADE + "add(p)\na = p.parse_args()"
    ),
    "a parser that somebody extended": (
        ARGPARSE + "from mine import add\n" + STRICT_MADE + "p = add(p)\na = p.parse_args()"
    ),
    "a parameter": ARGPARSE + STRICT_MADE + "def main(p):\n    return p.parse_args()\nmain(p)",
    "options that are computed": (
        ARGPARSE + STRICT_MADE + "for n in NAMES:\n    p.add_argument('--' + n)\np.parse_args()"
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
    "words from elsewhere": ARGPARSE + STRICT_MADE + "p.parse_args(words())",
    "dataclasses from elsewhere": (
        "from transformers import HfArgumentParser\nfrom mine import M\n"
        "HfArgumentParser(M).parse_args_into_dataclasses()"
    ),
    "a script that takes the word out": (
        ARGPARSE
        + STRICT_MADE
        + "sys.argv = [w for w in sys.argv if w[:5] != '--loc']\np.parse_args()"
    ),
    "a script that looks for the word": (
        ARGPARSE
        + STRICT_MADE
        + "x = any(w.startswith('--local_rank=') for w in sys.argv)\np.parse_args()"
    ),
    "a class for fire": "import fire\nclass Train: ...\nfire.Fire(Train)",
}


def refuses(text: str, *words: str) -> bool:
    parser = parse_script(textwrap.dedent(text), "train.py").parser
    return parser.refuses_local_rank(words)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        *((text, True) for text in REFUSES.values()),
        *((text, False) for text in (*TAKES.values(), *STRICT_UNSEEN.values())),
    ],
    ids=[*REFUSES, *TAKES, *STRICT_UNSEEN],
)
def test_a_parser_that_is_seen_to_lack_the_word_gets_none(text: str, *, expected: bool) -> None:
    assert expected is refuses(text, "--lr", "1")


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


@pytest.mark.parametrize(
    ("text", "words"),
    [
        pytest.param(
            STRICT_HF
            + "p = HfArgumentParser(TrainingArguments)\n"
            + "if sys.argv[1].endswith('.json'): (a,) = p.parse_json_file(sys.argv[1])\n"
            + "else: (a,) = p.parse_args_into_dataclasses()",
            ("args.json",),
            id="a file of all arguments has to be the only word",
        ),
        pytest.param(
            TRL + "TrlParser((ScriptArguments, SFTConfig)).parse_args_and_config()",
            ("--config", "x.yaml"),
            id="a file of defaults is read without the word",
        ),
    ],
)
def test_a_file_is_read_without_the_word(text: str, words: tuple[str, ...]) -> None:
    assert (True, False) == (refuses(text, *words), refuses(text, "--lr", "1"))


@pytest.mark.parametrize(
    ("name", "expected"),
    [("accelerate_bare", True), ("lora_fire", True), ("raw_own_flag", True), ("hf_parser", False)],
)
def test_scripts_that_look_real(name: str, expected: bool) -> None:
    assert expected is facts_of(name).parser.refuses_local_rank(())
