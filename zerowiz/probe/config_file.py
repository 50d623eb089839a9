"""Read a person's own DeepSpeed config, or the YAML file that holds or names it."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from zerowiz.core import shell
from zerowiz.core.decision.job import Uncounted
from zerowiz.core.dsconfig.accelerate import NO_PRECISION, AccelerateFile
from zerowiz.core.dsconfig.hjson import Dialect, JsonTextError, Object, parse, plain
from zerowiz.core.dsconfig.own_config import UserConfig, read_own_config
from zerowiz.core.dsconfig.schema import may_hold_more, uncounted_keys
from zerowiz.core.lint.config import ConfigText
from zerowiz.core.script.programs import ProgramFile, read_program
from zerowiz.core.script.settings_file import YAML_SUFFIXES, SettingsFile
from zerowiz.core.structs import parse_json, replace
from zerowiz.core.workload import PRECISIONS, Integration, Precision
from zerowiz.errors import PreflightError, UsageError
from zerowiz.probe.config_text import (
    LARGEST_BYTES,
    decode_config,
    is_yaml,
    load_yaml,
    near_names,
    read_config,
)
from zerowiz.probe.files import read_beginning, require_text
from zerowiz.probe.package_data import read_ds_schema, read_version
from zerowiz.translation import _, listing

_HINT = _("a DeepSpeed config must be one JSON object, like those of `zerowiz init`")
_WITHOUT = _("remove `$config` to let zerowiz write the config")


def read_config_file(path: Path, integration: Integration | None = None) -> UserConfig:
    """The config in a file, parsed as the program that trains with it parses it.

    Args:
        path: The file.
        integration: What reads the config; DeepSpeed itself, where None.

    Raises:
        UsageError: The file cannot be read, or holds no JSON object.
    """
    text = read_config_text(path)
    lenient = (integration is None or integration.row.as_written) and not text.places
    try:
        if text.fault is not None:
            raise text.fault
        root = parse(text.text, Dialect.HJSON if lenient else Dialect.JSON)
    except JsonTextError as error:
        where = _(
            "{reason} at line {line} column {column}",
            reason=error.reason,
            line=error.line,
            column=error.column,
        )
        form = "YAML" if is_yaml(Path(text.path)) else "JSON"
        raise UsageError(
            _("config `{path}` is not {form}: {where}", path=text.path, form=form, where=where),
            _HINT,
        ) from None
    if not isinstance(root, Object):
        raise UsageError(_("config `{path}` holds no JSON object", path=text.path), _HINT)
    values = _values(root)
    if {"machine", "schema_version"} <= values.keys():
        raise UsageError(
            _("`{path}` is a machine, not a config", path=path),
            _("use `$machine {path}`", path=shell.quote(path)),
        )
    if "distributed_type" in values:
        raise UsageError(
            _(
                "`{path}` is a config of Accelerate in JSON, which zerowiz reads as YAML only",
                path=path,
            ),
            _(
                "rename it: `mv {path} {renamed}`",
                path=shell.quote(path),
                renamed=shell.quote(path.with_suffix(".yaml")),
            ),
        )
    config = read_own_config(values, fills_in=not lenient)
    of_schema = uncounted_keys(values, read_ds_schema(read_version("deepspeed")))
    uncounted = tuple(dict.fromkeys((*of_schema, *config.uncounted)))
    more = (Uncounted.CONFIG,) if may_hold_more(uncounted, values) else ()
    config = replace(config, uncounted=uncounted, besides=(*config.besides, *more))
    return config if text.accelerate is None else _with_accelerate(path, config, text.accelerate)


def _with_accelerate(path: Path, config: UserConfig, file: AccelerateFile) -> UserConfig:
    """The config of a file of Accelerate, as Accelerate takes it.

    Raises:
        UsageError: Accelerate refuses the file, or trains in a format that is not planned.
    """
    if file.config_file is not None and file.refused:
        # accelerate 1.15, utils/dataclasses.py, DeepSpeedPlugin._deepspeed_config_checks.
        raise UsageError(
            _(
                "`{path}` names `{config_file}` and also sets {code}, which Accelerate rejects",
                path=path,
                config_file=file.config_file,
                code=listing(f"`{key.name}`" for key in file.refused),
            ),
            _(
                "remove them from `{path}`: `{config_file}` sets them",
                path=path,
                config_file=file.config_file,
            ),
            _("or use `$config {config_file}`", config_file=shell.quote(file.config_file)),
        )
    if file.mixed_precision not in {row.mixed_precision for row in PRECISIONS.values()}:
        raise UsageError(
            _(
                "`{path}` has `mixed_precision: {mixed_precision}`, which zerowiz does not support",
                path=path,
                mixed_precision=file.mixed_precision,
            ),
            _("write `bf16`, `fp16` or `'no'`"),
        )
    if file.splits_sequences:
        raise UsageError(
            _(
                "`{path}` has `parallelism_config`: zerowiz does not support sequence or "
                "tensor parallelism",
                path=path,
            ),
            _("remove `parallelism_config` from `{path}`", path=path),
        )
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
        return decode_config(str(path), read_beginning(path, LARGEST_BYTES))
    except FileNotFoundError:
        near = near_names(path) or (_WITHOUT,)
        raise UsageError(_("config `{path}` does not exist", path=path), *near) from None
    except OSError as error:
        raise UsageError(
            _("config `{path}` cannot be read: {strerror}", path=path, strerror=error.strerror),
            _HINT,
        ) from None


def _values(root: Object) -> dict[str, object]:
    return {member.key.name: plain(member.value) for member in root.members}


# Read the file of a program that starts its own ranks.


def names_yaml(path: str) -> bool:
    """Whether a path is that of a YAML file, which is no script."""
    return path.endswith(YAML_SUFFIXES)


def read_program_file(path: str) -> ProgramFile:
    """What the file says of a job.

    Raises:
        PreflightError: It cannot be read.
        UsageError: It is no YAML, or of no program that zerowiz knows.
    """
    try:
        text = require_text(Path(path))
    except FileNotFoundError:
        raise PreflightError(_("there is no file `{path}`", path=path)) from None
    values = load_yaml(path, text)
    file = read_program(path, values) if isinstance(values, Mapping) else None
    if file is None:
        raise UsageError(
            _(
                "`{path}` is neither a training script nor a file of axolotl (`base_model`),"
                " LLaMA-Factory (`model_name_or_path` and `stage`) or ms-swift (`model` and"
                " `tuner_type`)",
                path=path,
            ),
            _("pass the script that trains: `zerowiz init train.py`"),
            *_of_trl(path, values),
            _("for a DeepSpeed config: `zerowiz check {path}`", path=shell.quote(path)),
        )
    return file


def _of_trl(path: str, values: object) -> Iterator[str]:
    """What to do with a file of TRL, whose scripts zerowiz launches."""
    if isinstance(values, Mapping) and "model_name_or_path" in values:
        yield _(
            "for a file of TRL: `zerowiz launch -m trl.scripts.sft --config {path}`",
            path=shell.quote(path),
        )


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
            _(
                "there is no file `{name}`, from which {script} reads its arguments",
                name=named,
                script=script,
            )
        ) from None
    content = (load_yaml if is_yaml else _parse_json)(named, text)
    if not isinstance(content, Mapping):
        raise UsageError(
            _(
                "`{named}` has no named values, but {script} reads its arguments from it",
                named=named,
                script=script,
            )
        )
    values = {str(key): value for key, value in content.items()}
    return SettingsFile(path=named, values=values, is_whole=is_whole)


def _parse_json(name: str, text: str) -> object:
    try:
        return parse_json(text)
    except ValueError as error:
        raise UsageError(_("`{name}` is not JSON: {error}", name=name, error=error)) from None
