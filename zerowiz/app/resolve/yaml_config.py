"""Run a job with a config that stands in YAML, which DeepSpeed itself does not read."""

import json
from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct, field

from zerowiz.app.options import Options
from zerowiz.core.dsconfig.accelerate import fill
from zerowiz.core.dsconfig.write import render_config
from zerowiz.core.launch.plan import PlannedFile
from zerowiz.core.workload.choices import Integration
from zerowiz.core.workload.workload import Workload
from zerowiz.probe.config.config_file import read_config_text, read_config_values
from zerowiz.probe.config.config_text import is_yaml

# Each setting that Accelerate leaves open in a config, and the options that say it.
_SAID_BY = {
    "micro_batch": ("micro_batch",),
    "accumulation_steps": ("accumulation_steps", "global_batch"),
    "precision": ("precision",),
}


class YamlConfig(Struct, frozen=True, kw_only=True):
    """What a job runs with when a YAML file is its config."""

    path: str
    """The JSON file: the person's own, the one that YAML names, or the one to be written of it."""
    is_written: bool
    env: Mapping[str, str] = field(default_factory=dict)
    """What Accelerate hands to the ranks beside it."""


def read_yaml_config(path: Path, output_dir: Path | None) -> YamlConfig:
    """What a job runs with.

    Args:
        path: A config of a person.
        output_dir: Where zerowiz writes.

    Raises:
        UsageError: It cannot be read, or holds no config.
    """
    if not is_yaml(path):
        return YamlConfig(path=str(path), is_written=False)
    read = read_config_text(path)
    env = {} if read.accelerate is None else read.accelerate.env
    if not read.places:
        return YamlConfig(path=read.path, is_written=False, env=env)
    written = (output_dir or Path()) / f"{path.stem}.ds_config.json"
    return YamlConfig(path=str(written), is_written=True, env=env)


def ready_values(
    path: Path, options: Options, workload: Workload, integration: Integration
) -> dict[str, object]:
    """The config as its reader gets it.

    Args:
        path: A config of a person.
        options: What was said.
        workload: The step that is planned.
        integration: Who reads it.
    """
    read = read_config_text(path)
    if not read.places:
        return read_config_values(path)
    values: dict[str, object] = json.loads(read.text)
    if read.accelerate is None:
        return values
    names = [
        name
        for name, fields in _SAID_BY.items()
        if any(getattr(options, field) is not None for field in fields)
    ]
    return fill(values, workload, integration, names)


def plan_yaml_config(
    path: Path, options: Options, workload: Workload, integration: Integration
) -> tuple[PlannedFile, ...]:
    """The file to write; none where the YAML file names one.

    Args:
        path: A config of a person.
        options: What was said.
        workload: The step that is planned.
        integration: Who reads it.
    """
    config = read_yaml_config(path, options.output_dir)
    if not config.is_written:
        return ()
    text = render_config(ready_values(path, options, workload, integration))
    return (PlannedFile(path=config.path, text=text),)
