"""Read what earlier runs have written into a folder, and the configs that a person has there."""

import os
import re
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

from zerowiz.core.dsconfig.merge import KeyEdit, find_edits
from zerowiz.core.launch.provenance import (
    is_plan_path,
    plan_path,
    read_earlier_plan,
    written_config,
)
from zerowiz.core.script.facts import ScriptFacts
from zerowiz.core.structs import parse_json
from zerowiz.probe.files import read_named


class EditedConfig(Struct, frozen=True, kw_only=True):
    """A config that zerowiz wrote, and a person edited."""

    path: str
    edits: tuple[KeyEdit, ...]
    content: bytes | None
    """Where it is the config that is to be written again."""


def read_plan_files(config_path: str) -> Iterator[tuple[str, bytes]]:
    """The plan files in the folder of a config, each with its content.

    That of the config itself comes first, then the newest of the others: on fewer GPUs another
    strategy may be chosen, whose config has another name. What cannot be read is left out.

    Args:
        config_path: The config; it need not be there.
    """
    own_file = Path(plan_path(config_path))
    try:
        files = [path for path in own_file.parent.iterdir() if is_plan_path(path.name)]
    except OSError:
        return
    for path in sorted(files, key=lambda file: (file == own_file, _written(file)), reverse=True):
        try:
            yield str(path), read_named(path)
        except (OSError, ValueError):
            continue


def read_edits(config_path: str, script: str | None) -> EditedConfig | None:
    """A person's edits of a config that zerowiz wrote for a script; None without any.

    Where the config is not there yet, those of the newest one of another strategy.

    Args:
        config_path: The config that is to be written.
        script: As it is named in the command; None for a config without a script.
    """
    is_there = Path(config_path).exists()
    for path, plan in read_plan_files(config_path):
        is_own = path == plan_path(config_path)
        if is_there and not is_own:
            return None
        wrote = written_config(plan)
        if wrote is None or (not is_own and read_earlier_plan(path, plan, script) is None):
            continue
        name, values = wrote
        edited = Path(path).with_name(name)
        try:
            content = read_named(edited)
            there = parse_json(content)
        except (OSError, ValueError):
            continue
        edits = find_edits(values, there) if isinstance(there, dict) else ()
        if edits or is_own:
            taken = content if is_own else None
            return EditedConfig(path=str(edited), edits=edits, content=taken) if edits else None
    return None


def _written(path: Path) -> int:
    """In nanoseconds; 0 where it is gone by now."""
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


# Find the configs that a person has for a script.

_CONFIG = r"(.*[^a-z])?(ds|deepspeed|zero(?!wiz)).*\.json|.*\.ya?ml"
_SHELL = frozenset({".sh", ".bash", ".sbatch", ".slurm"})
_PASSED = r"--(?:deepspeed|deepspeed_config|config_file)[\s=]+[\"']?([^\s\"']+\.(?:json|ya?ml))"
# DeepSpeed takes no config without a batch size; a Trainer fills it in. Accelerate's file has a
# section, unless all of it is the default.
_KEYS = (
    r"(?m)\"(train_batch_size|train_micro_batch_size_per_gpu|zero_optimization)\"\s*:"
    r"|^(deepspeed_config:|distributed_type:\s*DEEPSPEED)"
)


def find_persons_configs(facts: ScriptFacts) -> Iterator[Path]:
    """The configs for a script that zerowiz did not write.

    Those that it names, that a shell file beside it or here starts it with, then those that lie
    there.

    Args:
        facts: What the script shows.
    """
    script, ends = facts.module or Path(facts.path).name, (".json", ".yaml", ".yml")
    names = (facts.literal_config, *(option.default for option in facts.parser.options))
    paths = [Path(name) for name in names if isinstance(name, str) and name.endswith(ends)]
    folders = dict.fromkeys((Path(facts.text_path).parent, Path()))
    beside = [path for folder in folders for path in sorted(folder.glob("*"))]
    for path in (path for path in beside if path.suffix in _SHELL):
        text = _read_text(path)
        paths += [path.parent / name for name in re.findall(_PASSED, text) if script in text]
    paths += [path for path in beside if re.fullmatch(_CONFIG, path.name)]
    for path in {os.path.realpath(path): path for path in paths}.values():
        is_ours = is_plan_path(path.name) or Path(plan_path(str(path))).exists()
        if not is_ours and re.search(_KEYS, _read_text(path)):
            yield path


def _read_text(path: Path) -> str:
    """The text of a small file; none where it cannot be read."""
    try:
        return read_named(path).decode(errors="replace")
    except (OSError, ValueError):
        return ""
