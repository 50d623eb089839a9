"""Good machine files, configs, models and scripts with random damage; one for each seed."""

import json
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from faults.zoo import GOOD_CONFIGS, GOOD_MODELS, MACHINES, SCRIPTS

# What a JSON value becomes: of every type, and the ends of some.
_VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 2**63, 10**30, 0.5, -0.0, 1e308, float("nan"), float("inf")),
    *("", "x", "1", "\x1b[31m", "\udcff", "a" * 3000, [], {}, [[]], {"": None}, [1, "x"]),
)


def flip_bytes(text: bytes, chance: random.Random) -> bytes:
    """Some bytes are others."""
    damaged = bytearray(text)
    for _ in range(chance.choice([1, 1, 2, 8, 64])):
        damaged[chance.randrange(len(damaged))] = chance.randrange(256)
    return bytes(damaged)


def truncate(text: bytes, chance: random.Random) -> bytes:
    """The end is missing, as of a file that was copied while the disk was full."""
    return text[: chance.randrange(len(text))]


def repeat_a_part(text: bytes, chance: random.Random) -> bytes:
    """A part is there many times."""
    start = chance.randrange(len(text))
    end = min(len(text), start + chance.randrange(1, 40))
    return text[:start] + text[start:end] * chance.choice([2, 50, 1000]) + text[end:]


def change_a_value(text: bytes, chance: random.Random) -> bytes:
    """Some values of JSON have another type; of anything else, some bytes are others."""
    try:
        content = json.loads(text)
    except ValueError:
        return flip_bytes(text, chance)
    for _ in range(chance.choice([1, 1, 3])):
        content = _changed(content, chance)
    return json.dumps(content).encode()


def _changed(content: Any, chance: random.Random) -> Any:
    """The content with one value of it replaced, at any depth."""
    if isinstance(content, dict) and content and chance.random() < 0.9:
        key = chance.choice(list(content))
        if chance.random() < 0.1:
            return {each: value for each, value in content.items() if each != key}
        return {**content, key: _changed(content[key], chance)}
    if isinstance(content, list) and content and chance.random() < 0.9:
        at = chance.randrange(len(content))
        return [*content[:at], _changed(content[at], chance), *content[at + 1 :]]
    return chance.choice(_VALUES)


_DAMAGES: tuple[Callable[[bytes, random.Random], bytes], ...] = (
    flip_bytes,
    truncate,
    repeat_a_part,
    change_a_value,
    change_a_value,
)
_CPU = ("--machine", "cpu")
_FILES: Mapping[str, tuple[str, ...]] = {
    **{
        name.rpartition("/")[2]: ("plan", "--json", "--model", "1.3b", "--machine")
        for name in MACHINES
    },
    **dict.fromkeys(GOOD_CONFIGS, ("check", "--json")),
    **dict.fromkeys(SCRIPTS, ("plan", "--json", "--model", "10m", *_CPU)),
    **{f"{name}/config.json": ("plan", "--json", *_CPU, "--model") for name in GOOD_MODELS},
}


def damage(seed: int, folder: Path) -> list[str]:
    """Damage one file of a zoo; the command line that reads it."""
    chance = random.Random(seed)  # noqa: S311 - the same damage each time
    name = chance.choice(sorted(_FILES))
    path = folder / name
    path.write_bytes(chance.choice(_DAMAGES)(path.read_bytes(), chance))
    words = _FILES[name]
    if name in GOOD_CONFIGS and chance.random() < 0.3:
        words = ("plan", "--json", "--model", "10m", *_CPU, "--config")
    return [*words, name.removesuffix("/config.json")]
