"""The tables of other launchers' options are held to the parsers of the installed libraries."""

import argparse
import re
import subprocess
import sys
from collections.abc import Callable

import pytest

from zerowiz.core.launch.other_launchers import LAUNCHERS, MODULES, PYTHON, OtherLauncher


def torchrun() -> argparse.ArgumentParser:
    run = pytest.importorskip("torch.distributed.run")
    parser: argparse.ArgumentParser = run.get_args_parser()
    return parser


def accelerate() -> argparse.ArgumentParser:
    launch = pytest.importorskip("accelerate.commands.launch")
    parser: argparse.ArgumentParser = launch.launch_command_parser()
    return parser


def built_by(parse: Callable[[], object]) -> argparse.ArgumentParser:
    """The parser that a function builds and parses with."""
    seen: list[argparse.ArgumentParser] = []

    def note(parser: argparse.ArgumentParser, *_: object, **__: object) -> None:
        seen.append(parser)
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(argparse.ArgumentParser, "parse_args", note)
        with pytest.raises(KeyboardInterrupt):
            parse()
    return seen[0]


def deepspeed() -> argparse.ArgumentParser:
    runner = pytest.importorskip("deepspeed.launcher.runner")
    return built_by(lambda: runner.parse_args([]))


def torch_launch() -> argparse.ArgumentParser:
    launch = pytest.importorskip("torch.distributed.launch")
    return built_by(lambda: launch.parse_args([]))


PARSERS = {
    "torchrun": (LAUNCHERS["torchrun",], torchrun),
    "torch.distributed.launch": (MODULES["torch.distributed.launch"], torch_launch),
    "accelerate": (LAUNCHERS["accelerate", "launch"], accelerate),
    "deepspeed": (LAUNCHERS["deepspeed",], deepspeed),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", PARSERS)
def test_every_option_of_the_real_parser_is_known_and_takes_as_many_words(name: str) -> None:
    launcher, build = PARSERS[name]
    wrong, seen = [], set()
    for action in build()._actions:
        for flag in action.option_strings:
            if flag in {"-h", "--help"} or launcher.of_family(flag):
                continue
            found = launcher.find(flag)
            seen |= {*found}
            takes = [launcher.options[each].takes_word for each in found]
            if takes != [action.nargs != 0]:
                wrong.append((flag, action.nargs, found))
    assert [] == wrong
    assert {*launcher.options} == seen


def test_every_option_of_python_is_known_and_takes_as_many_words() -> None:
    text = subprocess.run([sys.executable, "--help"], capture_output=True, text=True, check=True)
    rows = re.findall(r"^(--?[\w-]+)( [\w|]+)? *:?", text.stdout, re.MULTILINE)
    assert rows
    # `-m mod` ends the options, so here the module is what is launched.
    rows = [(flag, word) for flag, word in rows if not flag.startswith("--help") and flag != "-m"]
    wrong = [
        (flag, word)
        for flag, word in rows
        if [PYTHON.options[each].takes_word for each in PYTHON.find(flag)] != [bool(word)]
    ]
    assert [] == wrong


_TORCHRUN_WITH_R = (
    *("--rdzv_backend", "--rdzv_endpoint", "--rdzv_id", "--rdzv_conf"),
    *("--role", "--redirects", "--run_path"),
)


@pytest.mark.parametrize(
    ("launcher", "word", "expected"),
    [
        (LAUNCHERS["torchrun",], "--nproc-per-node", ("--nproc_per_node",)),
        (LAUNCHERS["torchrun",], "--nproc", ("--nproc_per_node",)),
        (LAUNCHERS["torchrun",], "--ro", ("--role",)),
        (LAUNCHERS["torchrun",], "--r", _TORCHRUN_WITH_R),
        (PYTHON, "--chec", ()),
    ],
)
def test_an_option_is_found_as_argparse_finds_it(
    launcher: OtherLauncher, word: str, expected: tuple[str, ...]
) -> None:
    assert {*expected} == {*launcher.find(word)}
