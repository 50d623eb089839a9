"""Read a person's own DeepSpeed config, or the YAML file that holds or names it."""

from pathlib import Path

from zerowiz.core.dsconfig.accelerate import NO_PRECISION, AccelerateFile
from zerowiz.core.dsconfig.hjson import Object, parse, plain
from zerowiz.core.dsconfig.hjson_tokens import Dialect, JsonTextError
from zerowiz.core.dsconfig.lint.source import ConfigText
from zerowiz.core.dsconfig.user_config import UserConfig, read_own_config
from zerowiz.core.values import replace
from zerowiz.core.workload import Integration, Precision
from zerowiz.errors import UsageError
from zerowiz.probe.config.config_text import decode_config, is_yaml, near_names, read_config
from zerowiz.probe.config.ds_schema import read_ds_schema
from zerowiz.probe.model.libraries import read_version

_HINT = "a DeepSpeed config must be one JSON object, like those of `zerowiz init`"
_WITHOUT = "remove `$config` to let zerowiz write the config"


def read_config_file(path: Path, integration: Integration | None = None) -> UserConfig:
    """The config in a file, parsed as the program that trains with it parses it.

    Args:
        path: The file.
        integration: What reads the config; DeepSpeed itself, where None.

    Raises:
        UsageError: The file cannot be read, or holds no JSON object.
    """
    text = read_config_text(path)
    lenient = integration in {None, Integration.DEEPSPEED} and not text.places
    try:
        if text.fault is not None:
            raise text.fault
        root = parse(text.text, Dialect.HJSON if lenient else Dialect.JSON)
    except JsonTextError as error:
        where = f"{error.reason} at line {error.line} column {error.column}"
        form = "YAML" if is_yaml(Path(text.path)) else "JSON"
        raise UsageError(f"config `{text.path}` is not {form}: {where}", _HINT) from None
    if not isinstance(root, Object):
        raise UsageError(f"config `{text.path}` holds no JSON object", _HINT)
    values = _values(root)
    if {"machine", "schema_version"} <= values.keys():
        raise UsageError(f"`{path}` is a machine, not a config", f"use `$machine {path}`")
    if "distributed_type" in values:
        raise UsageError(
            f"`{path}` is a config of Accelerate in JSON, which zerowiz reads as YAML only",
            f"rename it: `mv {path} {path.with_suffix('.yaml')}`",
        )
    own = read_own_config(values)
    return own if text.accelerate is None else _with_accelerate(path, own, text.accelerate)


# What zerowiz plans of the formats that Accelerate trains in.
_PRECISIONS = frozenset({NO_PRECISION, Precision.BF16, Precision.FP16})


def _with_accelerate(path: Path, own: UserConfig, file: AccelerateFile) -> UserConfig:
    """The config of a file of Accelerate, as Accelerate takes it.

    Raises:
        UsageError: Accelerate refuses the file, or trains in a format that is not planned.
    """
    if file.refused:
        # accelerate 1.15, utils/dataclasses.py, DeepSpeedPlugin._deepspeed_config_checks.
        raise UsageError(
            f"`{path}` names `{file.config_file}` and also sets"
            f" {', '.join(map(_code, file.refused))}, which Accelerate rejects",
            f"remove them from `{path}`: `{file.config_file}` sets them",
            f"or use `$config {file.config_file}`",
        )
    if file.mixed_precision not in _PRECISIONS:
        raise UsageError(
            f"`{path}` has `mixed_precision: {file.mixed_precision}`, which zerowiz does not"
            " support",
            "write `bf16`, `fp16` or `'no'`",
        )
    if file.splits_sequences:
        raise UsageError(
            f"`{path}` has `parallelism_config`: zerowiz does not support sequence or tensor"
            " parallelism",
            f"remove `parallelism_config` from `{path}`",
        )
    if file.config_file is not None or file.mixed_precision != NO_PRECISION:
        return own
    return replace(own, precision=None, fallback_precision=Precision.FP32)


def _code(word: str) -> str:
    return f"`{word}`"


def read_config_values(path: Path) -> dict[str, object]:
    """The values of a config as DeepSpeed itself parses it; empty where it is no JSON object.

    Those of a YAML file are of the config that it holds or names.

    Raises:
        UsageError: The file cannot be read.
    """
    try:
        root = parse(read_config_text(path).text, Dialect.HJSON)
    except JsonTextError:
        return {}
    return _values(root) if isinstance(root, Object) else {}


def read_config_text(path: Path) -> ConfigText:
    """The text of a config, or why its bytes are no text.

    A config in YAML is written as JSON, and one that a YAML file names is read in its place.

    Raises:
        UsageError: The file cannot be read, or is YAML without a config.
    """
    if is_yaml(path):
        return read_config(path, read_ds_schema(read_version("deepspeed")).top_names, _WITHOUT)
    try:
        return decode_config(str(path), path.read_bytes())
    except FileNotFoundError:
        near = near_names(path) or (_WITHOUT,)
        raise UsageError(f"config `{path}` does not exist", *near) from None
    except OSError as error:
        raise UsageError(f"config `{path}` cannot be read: {error.strerror}", _HINT) from None


def _values(root: Object) -> dict[str, object]:
    return {member.key.name: plain(member.value) for member in root.members}
