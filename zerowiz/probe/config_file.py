"""Read a person's own DeepSpeed config, or the YAML file that holds or names it."""

from collections.abc import Mapping
from pathlib import Path

from zerowiz.core import shell
from zerowiz.core.decision.job import Uncounted
from zerowiz.core.dsconfig.accelerate import NO_PRECISION, AccelerateFile
from zerowiz.core.dsconfig.accelerate import PARALLEL_KEYS as PARALLEL_KEYS_OF_FILE
from zerowiz.core.dsconfig.hjson import Dialect, JsonTextError, parse, plain
from zerowiz.core.dsconfig.merge import ZERO
from zerowiz.core.dsconfig.own_config import UserConfig, read_base, read_own_config
from zerowiz.core.dsconfig.schema import (
    PARALLEL_KEYS,
    may_hold_more,
    shares_work,
    uncounted_keys,
)
from zerowiz.core.lint.config import ConfigText
from zerowiz.core.script.programs import ProgramFile, read_program
from zerowiz.core.script.settings_file import YAML_SUFFIXES, SettingsFile
from zerowiz.core.settings import not_planned
from zerowiz.core.structs import parse_json, replace
from zerowiz.core.workload import PRECISIONS, Integration, Precision
from zerowiz.errors import PreflightError, UsageError
from zerowiz.probe.config_text import (
    is_yaml,
    load_yaml,
    read_config,
)
from zerowiz.probe.files import read_ds_schema, read_version, require_text

_HINT = "a DeepSpeed config must be one JSON object, like those of `zerowiz init`"
_WITHOUT = "remove `$config` to let zerowiz write the config"


def read_config_file(
    path: Path, integration: Integration | None = None, *, is_base: bool = False
) -> UserConfig:
    """The config in a file, parsed as the program that trains with it parses it.

    Args:
        path: The file.
        integration: What reads the config; DeepSpeed itself, where None.
        is_base: Whether another config is built on it, which that program reads instead.

    Raises:
        UsageError: The file cannot be read, or holds no JSON object.
    """
    text = read_config_text(path)
    as_written = integration in {None, Integration.DEEPSPEED} and not text.places
    lenient = as_written or (is_base and not text.places)
    try:
        if text.fault is not None:
            raise text.fault
        values = plain(parse(text.text, Dialect.HJSON if lenient else Dialect.JSON))
    except JsonTextError as error:
        where = f"{error.reason} at line {error.line} column {error.column}"
        form = "YAML" if is_yaml(Path(text.path)) else "JSON"
        raise UsageError(
            f"config `{text.path}` is not {form}: {where}",
            _HINT,
        ) from None
    if not isinstance(values, dict):
        raise UsageError(f"config `{text.path}` holds no JSON object", _HINT)
    if {"machine", "schema_version"} <= values.keys():
        raise UsageError(
            f"`{path}` is a machine, not a config",
            f"use `$machine {shell.quote(path)}`",
        )
    if "distributed_type" in values:
        raise UsageError(
            f"`{path}` is a config of Accelerate in JSON, which zerowiz reads as YAML only",
            f"rename it: `mv {shell.quote(path)} {shell.quote(path.with_suffix('.yaml'))}`",
        )
    for key, kind in PARALLEL_KEYS.items():
        if shares_work(values, key):
            raise not_planned(f"`{path}` has `{key}`", kind)
    config = (read_base if is_base else read_own_config)(values, fills_in=not as_written)
    if is_base:
        values = {key: value for key, value in values.items() if key != ZERO}
    of_schema = uncounted_keys(values, read_ds_schema(read_version("deepspeed")))
    uncounted = tuple(dict.fromkeys((*of_schema, *config.uncounted)))
    more = (Uncounted.CONFIG,) if may_hold_more(uncounted, values) else ()
    config = replace(config, uncounted=uncounted, besides=(*config.besides, *more))
    return config if text.accelerate is None else _with_accelerate(path, config, text.accelerate)


def _with_accelerate(path: Path, config: UserConfig, file: AccelerateFile) -> UserConfig:
    """The config of a file of Accelerate, as Accelerate takes it.

    Raises:
        UsageError: It trains in a format that is not planned.
    """
    if file.mixed_precision not in {row.mixed_precision for row in PRECISIONS.values()}:
        raise UsageError(
            (
                f"`{path}` has `mixed_precision: {file.mixed_precision}`, which zerowiz does "
                "not support"
            ),
            "write `bf16`, `fp16` or `'no'`",
        )
    for member in file.parallel:
        said = f"`{path}` has `{member.key.name}: {plain(member.value)}`"
        raise not_planned(said, PARALLEL_KEYS_OF_FILE[member.key.name])
    config = replace(config, sequence_parallel=file.sequence_parallel)
    if file.config_file is not None or file.mixed_precision != NO_PRECISION:
        return config
    return replace(config, precision=None, fallback_precision=Precision.FP32)


def read_config_values(path: Path) -> dict[str, object]:
    """The values of a config as DeepSpeed itself parses it; empty where it is no JSON object.

    Those of a YAML file are of the config that it holds or names.

    Raises:
        UsageError: The file cannot be read.
    """
    try:
        values = plain(parse(read_config_text(path).text, Dialect.HJSON))
    except JsonTextError:
        return {}
    return values if isinstance(values, dict) else {}


def read_config_text(path: Path) -> ConfigText:
    """The text of a config, or why its bytes are no text.

    A config in YAML is written as JSON, and one that a YAML file names is read in its place.

    Raises:
        UsageError: The file cannot be read, or is YAML without a config.
    """
    return read_config(path, read_ds_schema(read_version("deepspeed")).top_names, _WITHOUT)


# Read the file of a program that starts its own ranks.


def names_yaml(path: str) -> bool:
    """Whether a path is that of a YAML file, which is no script."""
    return path.endswith(YAML_SUFFIXES)


def read_program_file(path: str) -> ProgramFile:
    """What the file says of a job.

    Raises:
        PreflightError: It cannot be read.
        UsageError: It is no YAML, or of no program that zerowiz plans for.
    """
    try:
        text = require_text(Path(path))
    except FileNotFoundError:
        raise PreflightError(
            f"there is no file `{path}`", "its path counts from the current folder"
        ) from None
    values = load_yaml(path, text)
    file = read_program(path, values) if isinstance(values, Mapping) else None
    if file is None:
        of_trl = (
            f"for a file of TRL: `zerowiz launch -m trl.scripts.sft --config {shell.quote(path)}`"
        )
        is_of_trl = isinstance(values, Mapping) and "model_name_or_path" in values
        raise UsageError(
            f"`{path}` is neither a training script nor a file of axolotl (`base_model`),"
            " LLaMA-Factory (`model_name_or_path` and `stage`) or ms-swift (`model` and"
            " `tuner_type`)",
            "pass the script that trains: `zerowiz init train.py`",
            *((of_trl,) if is_of_trl else ()),
            f"for a DeepSpeed config: `zerowiz check {shell.quote(path)}`",
        )
    return file


# Read the file of values that a script takes its arguments from.


def read_settings_file(named: str, script: str, *, is_whole: bool) -> SettingsFile:
    """The values in a settings file, as the script gets them.

    Args:
        named: The file.
        script: What takes its arguments from it, for messages.
        is_whole: Whether it holds all arguments, instead of defaults for the words.

    Raises:
        PreflightError: The file does not exist, or cannot be read.
        UsageError: It holds no values by their names.
        ZerowizError: It is YAML, and PyYAML is not installed.
    """
    # A parser's defaults are YAML, whatever the file is called.
    is_yaml = not is_whole or named.endswith(YAML_SUFFIXES)
    try:
        text = require_text(Path(named))
    except FileNotFoundError:
        raise PreflightError(
            f"there is no file `{named}`, from which {script} reads its arguments",
            "its path counts from the current folder",
        ) from None
    content = (load_yaml if is_yaml else _parse_json)(named, text)
    if not isinstance(content, Mapping):
        raise UsageError(
            f"`{named}` has no named values, but {script} reads its arguments from it",
            "write a line for each: `learning_rate: 1e-5`",
        )
    values = {str(key): value for key, value in content.items()}
    return SettingsFile(path=named, values=values, is_whole=is_whole)


def _parse_json(name: str, text: str) -> object:
    try:
        return parse_json(text)
    except ValueError as error:
        raise UsageError(f"`{name}` is not JSON: {error}") from None
