"""Random command lines, made of the options that the commands really have: one for each seed."""

import os
import random
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import typer
from faults.zoo import (
    BAD_MODELS,
    BAD_SCRIPTS,
    BAD_TEXTS,
    BROKEN_CONFIGS,
    DEVICES,
    GOOD_CONFIGS,
    GOOD_MODELS,
    MACHINES,
    ODD,
    SCRIPTS,
)

from zerowiz.cli.commands import COMMANDS, register

Values = tuple[Sequence[str], Sequence[str], Sequence[str]]
"""What an option takes, what is near that, and what is absurd."""

# How often a value is good, near, or absurd: most lines should come past the options.
_WEIGHTS = (88, 8, 4)
_OFTEN = (
    "plan",
    "plan",
    "plan",
    "init",
    "launch",
    "doctor",
    "check",
    "check",
    "machine",
    "measure",
)
# What would start ranks, or fetch a model.
_NEVER = frozenset({"--launch", "--trace"})
_DRY = frozenset({"launch", "measure"})
# They are answered without a file.
_PAGES = frozenset({"--schema", "--explain"})
_STARTED = frozenset({"launch", "doctor", "measure"})

_HUGE = ("9" * 30, "9" * 5000, "1000000000", "-1000000000")
_ODD_TEXT = (
    "",
    " ",
    "x",
    "-",
    "--",
    "\x1b[31m",
    "[/red]",
    "{}",
    "a" * 5000,
    "\N{SNOWMAN}",
    "..",
    "\udce9",
)
_WHOLE: Values = (
    ("1", "2", "8", "64", "2048"),
    ("0", "-1", "7", "8.0", "1e3", " 8"),
    (*_HUGE, "nan", ""),
)
_REAL: Values = (("0.5", "1", "3"), ("0", "-1", "1.5", "1e400"), ("nan", "inf", *_HUGE, ""))
_AMOUNT: Values = (
    ("30GiB", "0.5", "1TiB", "80GB"),
    ("0GiB", "12", "30 gib", "-1GiB", "1e30TiB", "0"),
    ("nan", "inf", "lots", *_ODD_TEXT, *_HUGE),
)
_CONFIGS = (*GOOD_CONFIGS, *BROKEN_CONFIGS)
_BAD_FILES = (*BAD_TEXTS, *ODD, "utf16.json", "odd-name.json", "train.py")
_MACHINE_FILES = tuple(name.rpartition("/")[2] for name in MACHINES)
_FILES: Values = (_CONFIGS, _BAD_FILES, (*DEVICES, *_ODD_TEXT))
_NEW_FILES: Values = (
    ("new", "out/new", "folder"),
    ("dangling", "loop", "fifo", "train.py/below", "folder/.."),
    ("", ".", "/proc/new", "/dev/full/new", "a" * 300, "\udce9", "new\nline"),
)
_MACHINE: Values = (
    ("4xA100-40GB", "8xH100-80GB", "2x8xH100-80GB", "1xRTX4090", "cpu", *_MACHINE_FILES),
    (
        "4xA100",
        "0xA100-40GB",
        "A100-40GB",
        "4xA100-41GB",
        "4x",
        "odd-name.json",
        "99999x8xH100-80GB",
    ),
    (*_BAD_FILES, *DEVICES, *_ODD_TEXT, "9999999999xH200", "1000000xH200"),
)
# By the name of an option; by what it takes; else by its type.
_OF_OPTION: Mapping[str, Values] = {
    "--hostfile": (("hosts",), ("bad_hosts", "many_hosts", "empty.json"), _FILES[2]),
    "--answers": (("answers.toml",), _BAD_FILES, _FILES[2]),
    "--gpus-per-node": (("1", "2", "8"), _WHOLE[1], _WHOLE[2]),
    "--nodes": (("1", "2", "16"), _WHOLE[1], _WHOLE[2]),
    "--output-dir": _NEW_FILES,
    "--output": _NEW_FILES,
    "--save": _NEW_FILES,
    "--html": _NEW_FILES,
    "--nvme-path": (("folder", "."), ODD, DEVICES),
    "--script": (tuple(SCRIPTS), tuple(BAD_SCRIPTS), (*ODD, *DEVICES)),
    "--from": (("0.16", "0.18"), ("0.1", "99", "0.18.x"), _ODD_TEXT),
    "--to": (("0.18", "0.19"), ("0.1", "99", "latest"), _ODD_TEXT),
}
_OF_METAVAR: Mapping[str, Values] = {
    "<model>": (
        ("7b", "10m", "70b", "1.3b", *GOOD_MODELS),
        ("0b", "-7b", "7", "7bb", "x/y", "no/such/model", *BAD_MODELS),
        (*ODD, *DEVICES, *_ODD_TEXT, "9" * 400 + "b", "1e300b"),
    ),
    "<machine>": _MACHINE,
    "<amount>": _AMOUNT,
    "<list>": (
        ("0", "0,1"),
        ("9", "0,0", "1-3", ",", "-1"),
        (*_ODD_TEXT, "0," * 3000, "0-999999999"),
    ),
    "<links>": (
        ("pcie", "ethernet", "nvlink,infiniband:400Gb/s"),
        ("nvlink:", "roce:0", "tcp"),
        _ODD_TEXT,
    ),
    "<seconds>": (("1", "60"), ("0", "-1", "1.5"), _HUGE),
    "<names>": (("all-linear", "q_proj,v_proj"), ("q_proj,,", "nobody"), _ODD_TEXT),
    "<way>": (("flag:deepspeed_config", "code"), ("flag:", "variable"), _ODD_TEXT),
    "<count>": (("2B", "52k", "100"), ("0", "-1", "2X", "1.5.5"), (*_ODD_TEXT, *_HUGE)),
    "<price>": (
        ("3", "H200=3"),
        ("3/gpu-hour", "-3", "prices.json"),
        (*_FILES[2], *_HUGE),
    ),
    "<options>...": (
        ("--model=13b", "--stage=3"),
        ("--nothing", "x.py"),
        ("'", "--help", *_ODD_TEXT),
    ),
    "[<strategy>]": (("zero2", "zero3"), ("zero4", "ddp"), _ODD_TEXT),
    "<version>": (("0.16", "0.19"), ("0.1", "99", "x"), _ODD_TEXT),
    "<code>": (("ZW101", "PF101"), ("zw1", "PF9999"), _ODD_TEXT),
    "<codes>": (("ZW1", "ZW301,ZW6"), ("zw1", "ZW999", "PF1"), _ODD_TEXT),
    "<int>": _WHOLE,
    "<int|auto>": (("auto", "2", "4"), _WHOLE[1], _WHOLE[2]),
}
_SCRIPTS: Values = (
    tuple(SCRIPTS),
    tuple(BAD_SCRIPTS),
    (*ODD, *DEVICES, *_ODD_TEXT[1:2], "\udce9", "caf\udce9.py"),
)
_ARGUMENTS = (
    *("--batch", "4", "--per_device_train_batch_size", "0", "--bf16", "--deepspeed", "half.json"),
    *("--output_dir", "out", "--max_steps", "9" * 400, "--", "", "--json=x", "\udce9"),
)


@cache
def _options(command: str) -> list[Any]:
    """The options of a command that may be tried, as typer knows them."""
    app = typer.Typer(add_completion=False)
    register(app, command)
    params = typer.main.get_command(app).params
    return [
        each for each in params if each.param_type_name == "option" and not _NEVER & {*each.opts}
    ]


def _values(option: Any) -> Values:
    """What an option is tried with."""
    metavar = option.metavar or ""
    choices = list(getattr(option.type, "choices", ()))
    if not choices and metavar.startswith("[") and "|" in metavar:
        choices = metavar.strip("[]").split("|")
    kind = option.type.name
    if choices:
        return (choices, [choices[0][:-1], choices[-1].upper(), f"{choices[0]},"], _ODD_TEXT)
    by_type = {"path": _FILES, "float": _REAL, "int": _WHOLE, "int range": _WHOLE}
    by_name = _OF_OPTION.get(option.opts[0]) or _OF_METAVAR.get(metavar)
    return by_name or by_type[kind]


def _pick(chance: random.Random, values: Values) -> str:
    (group,) = chance.choices(values, _WEIGHTS)
    return chance.choice(list(group))


def _said(chance: random.Random, option: Any) -> list[str]:
    """An option with its value, in one of the ways that people write it."""
    if option.is_flag:
        return [chance.choice([*option.opts, *option.secondary_opts])]
    name = chance.choice(option.opts)
    value = _pick(chance, _values(option))
    return [f"{name}={value}"] if chance.random() < 0.2 else [name, value]


def _job(chance: random.Random, command: str, known: Mapping[str, Any]) -> list[str]:
    """What most lines have, so that they come far."""
    words = []
    # Another machine is planned for: no job is started there.
    machine = 0.1 if command == "doctor" else 0.7
    for name, often in (("--yes", 0.5), ("--model", 0.8), ("--machine", machine)):
        if name in known and chance.random() < often:
            words += _said(chance, known[name])
    if command in _STARTED and not any(word.startswith("--machine") for word in words):
        words += ["--accelerator", "cpu", "--gpus-per-node", "2"]
    return words


def _behind(chance: random.Random, command: str, options: Sequence[str]) -> list[str]:
    """The words that follow the options."""
    if command == "check":
        count = 0 if _PAGES & {*options} else chance.choice([0, *[1, 2, 3] * 5])
        files = [_pick(chance, _FILES) for _ in range(count)]
        return ["--", *files] if chance.random() < 0.5 else files
    if command == "report":
        return [chance.choice([".", "folder", *ODD, *DEVICES[:1], "\udce9"])][
            : chance.randint(0, 1)
        ]
    if command == "template":
        return [_pick(chance, _NEW_FILES)]
    if command == "machine" or chance.random() < 0.3:
        return []
    return [_pick(chance, _SCRIPTS), *chance.sample(_ARGUMENTS, chance.choice([0, 0, 1, 2, 4]))]


def _broken(chance: random.Random, words: list[str]) -> list[str]:
    """A line with a mistake of typing in it."""
    at = chance.randrange(3, len(words) + 1)
    mistakes: list[Callable[[], list[str]]] = [
        lambda: words[:at],
        lambda: [*words[:at], "--no-such-option", *words[at:]],
        lambda: [*words[:at], *words[3:at], *words[at:]],
        lambda: [*words[:at], chance.choice(_ODD_TEXT), *words[at:]],
    ]
    return chance.choice(mistakes)()


def command_line(seed: int) -> list[str]:
    """The words after `zerowiz` of this seed; none of them starts a rank."""
    chance = random.Random(seed)  # noqa: S311 - the same line each time
    command = chance.choice([*_OFTEN, *COMMANDS])
    known = {option.opts[0]: option for option in _options(command)}
    options = _job(chance, command, known)
    names = [name for name in known if name not in {"--dry-run", "--json", "--machine", "--model"}]
    for name in chance.sample(names, min(len(names), chance.choice([0, 1, 1, 2, 3, 5]))):
        options += _said(chance, known[name])
    has_json = "--json" in known and chance.random() < 0.4
    is_dry = command in _DRY or (command == "init" and chance.random() < 0.7)
    # First, where no word before it can take it for its value.
    switches = [*(["--dry-run"] if is_dry else []), *(["--json"] if has_json else [])]
    words = [command, *switches, *options, *_behind(chance, command, options)]
    if len(words) > 3 and chance.random() < 0.06:
        words = _broken(chance, words)
    return [
        os.fsencode(word).replace(b"\0", b"").decode(errors="surrogateescape") for word in words
    ]
