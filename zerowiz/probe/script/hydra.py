"""Read what Hydra gives a script: its YAML files, composed, and the words that choose them.

hydra 1.3, _internal/defaults_list.py: a file lists in `defaults` the files that it is made of, each
an option of a group, which is a folder; what the file says itself counts last, but for `_self_`.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, pairwise
from pathlib import Path
from typing import cast

from zerowiz.core.script.arguments import Option, Reads, Scalar, ScriptParser
from zerowiz.core.structs import replace
from zerowiz.errors import ZerowizError
from zerowiz.probe.files import require_text
from zerowiz.probe.script.commandline import CommandLine
from zerowiz.probe.script.source import Source

_DEEPEST = 8
_SELF = "_self_"
# What puts keys of one file into another place, or changes what another file chose.
_PLACED = re.compile(r"@package|^ *- *override (?!/?hydra/)", re.MULTILINE)
_READS = {bool: Reads.TRUTH, int: Reads.INT, float: Reads.FLOAT, str: Reads.STR}
# A number to OmegaConf, and a text to PyYAML.
_NUMBER = re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+")


def with_hydra(
    line: CommandLine, source: Source, folder: Path, words: Sequence[str]
) -> CommandLine:
    """Add the keys of Hydra's files, as options that are written `key=value`.

    Args:
        line: The command line without them, which is left as it is where a file cannot be read, or
            says where its keys go.
        source: The script; what its function is called with becomes a namespace.
        folder: That of the script, from which Hydra's path counts.
        words: The words after the script.
    """
    for function in source.functions.values():
        for decorator in function.decorator_list:
            if source.imported(getattr(decorator, "func", decorator)) != ("hydra", "main"):
                continue
            # Its parser ends the job at a word such as `--local_rank=0`.
            line = replace(line, parser=replace(line.parser, strict=True))
            named = {word.arg: word.value for word in getattr(decorator, "keywords", ())}
            parts = chain.from_iterable(
                word.split("=", 1) if word.startswith("-") else [word] for word in words
            )
            typed = dict(pairwise(parts))
            path, name = (
                typed.get(f"--{key}".replace("_", "-"))
                or typed.get(short)
                or getattr(named.get(key), "value", None)
                for key, short in (("config_path", "-cp"), ("config_name", "-cn"))
            )
            if not isinstance(name, str):
                continue
            try:
                root = folder / str(path or "")
                keys = dict(_compose(root, name, "", _chosen(words, root), _DEEPEST))
            except (OSError, ValueError, ZerowizError):
                continue
            source.namespaces.update(argument.arg for argument in function.args.args[:1])
            options = tuple(_option(key, value) for key, value in keys.items())
            parser = ScriptParser(options=options, abbreviates=False, strict=True)
            return replace(line, parser=parser, reads_words=True)
    return line


def _chosen(words: Sequence[str], root: Path) -> Mapping[str, str]:
    """What is typed as `key=value`; a group among the keys chooses its file.

    Raises:
        ValueError: A group is added or taken away.
    """
    pairs = [word.partition("=") for word in words if not word.startswith("-")]
    for key, _, _ in pairs:
        name = key.lstrip("+~")
        if "@" in key or (name != key and (root / name).is_dir()):
            raise ValueError(key)
    return {key: value for key, _, value in pairs}


def _compose(
    root: Path, name: str, package: str, chosen: Mapping[str, str], depth: int
) -> Iterator[tuple[str, object]]:
    """The keys of a file with dots between them, and their values; a later one counts.

    Raises:
        OSError: A file is not there.
        ValueError: It is of a shape that is not followed.
        ZerowizError: It is not YAML.
    """
    from zerowiz.probe.config_text import load_yaml  # noqa: PLC0415 - takes long to load

    path = root / f"{name.removesuffix('.yaml')}.yaml"
    text = require_text(path)
    content = load_yaml(str(path), text)
    if not isinstance(content, dict) or _PLACED.search(text) or not depth:
        raise ValueError(str(path))
    parts = content.pop("defaults", None) or []
    for part in parts if _SELF in parts else [*parts, _SELF]:
        if part == _SELF:
            yield from _leaves(content, package)
            continue
        (group, option), *_ = part.items() if isinstance(part, dict) else [("", part)]
        needed = str(group).removeprefix("optional ")
        if "hydra/" in needed:
            continue
        is_absolute = f"{needed}{option}".startswith("/")
        inner = needed if is_absolute else f"{name.rpartition('/')[0]}/{needed}"
        option = chosen.get(inner.strip("/"), str(option))
        target = f"{inner}/{option}".strip("/").removesuffix(".yaml")
        is_there = needed == group or (root / f"{target}.yaml").is_file()
        if option not in {"None", "null"} and is_there:
            below = f"{package}.{needed.strip('/').replace('/', '.')}".strip(".")
            yield from _compose(root, target, below, chosen, depth - 1)


def _leaves(content: Mapping[str, object], package: str) -> Iterator[tuple[str, object]]:
    for key, value in content.items():
        name = f"{package}.{key}".lstrip(".")
        if isinstance(value, dict):
            yield from _leaves(value, name)
        else:
            yield name, value


def _option(key: str, value: object) -> Option:
    """A key as an option; a value that is made of others is not known."""
    if isinstance(value, str) and _NUMBER.fullmatch(value):
        value = float(value)
    is_known = type(value) in _READS and "${" not in str(value)
    default = cast("Scalar", value) if is_known else None
    reads = _READS.get(type(value), Reads.STR)
    return Option(flags=(f"{key}=",), dest=key, default=default, reads=reads)
