"""`zerowiz check`: mistakes in DeepSpeed configs, with their places, reasons and fixes."""

import json
import os
import re
import sys
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from zerowiz import __version__
from zerowiz.app.machines.machine import find_machine
from zerowiz.app.options import Options
from zerowiz.cli.usage import PlainCommand
from zerowiz.core.dsconfig.lint.context import Context, on_machine
from zerowiz.core.dsconfig.lint.fix import fix_text
from zerowiz.core.dsconfig.lint.jsonschema import encode_json_schema
from zerowiz.core.dsconfig.lint.linter import RULES, lint
from zerowiz.core.dsconfig.lint.report import FileReport, encode_reports
from zerowiz.core.dsconfig.lint.rules.structure import unreadable
from zerowiz.core.dsconfig.lint.sarif import encode_sarif
from zerowiz.core.dsconfig.lint.source import ConfigText, check_config
from zerowiz.core.dsconfig.schema import Schema
from zerowiz.core.script import settle
from zerowiz.core.values import replace
from zerowiz.core.workload import Integration
from zerowiz.emit.files import rewrite_file
from zerowiz.errors import ExitCode, UsageError
from zerowiz.probe.config.config_text import STDIN, read_configs
from zerowiz.probe.config.ds_schema import read_ds_schema
from zerowiz.probe.model.libraries import read_version
from zerowiz.probe.script import read_script
from zerowiz.ui import check as show_found
from zerowiz.ui import show

# `0.19.8`, `0.19.8+cu13`.
_VERSION = re.compile(r"\d+\.\d+.*")


def check(
    files: Annotated[
        list[str] | None,
        typer.Argument(metavar="FILE...", help="Configs, folders of them, or - for stdin"),
    ] = None,
    fix: Annotated[bool, typer.Option("--fix", help="Apply the mends that are safe")] = False,
    integration: Annotated[
        Integration | None,
        typer.Option("--integration", help="Who hands the config to DeepSpeed"),
    ] = None,
    world_size: Annotated[
        int | None, typer.Option("--world-size", min=1, help="Ranks of the job")
    ] = None,
    script: Annotated[
        Path | None, typer.Option("--script", help="The training script that the config is for")
    ] = None,
    machine: Annotated[
        str | None,
        typer.Option("--machine", help="What the job runs on: recorded file, or 4xA100-40GB"),
    ] = None,
    deepspeed_version: Annotated[
        str | None,
        typer.Option("--deepspeed-version", help="By default the installed one, else the newest"),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout")] = False,
    as_sarif: Annotated[
        bool, typer.Option("--sarif", help="SARIF 2.1.0 on stdout, for annotations")
    ] = False,
    schema: Annotated[
        bool, typer.Option("--schema", help="The JSON Schema of a config on stdout, for editors")
    ] = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Errors alone, without warnings and advice")
    ] = False,
) -> None:
    """Find mistakes in DeepSpeed configs, and mend them"""
    words = tuple(dict.fromkeys(files or ()))
    _refuse(words, fix=fix, schema=schema, formats=as_json + as_sarif)
    known = _read_schema(deepspeed_version, quiet=quiet)
    if schema:
        _write(encode_json_schema(known))
        return
    names = _names(known)
    configs = [config for word in words for config in read_configs(word, names)]
    context = _context(integration, world_size, script, machine)
    reports = [_check(config, known, context, fix=fix, quiet=quiet) for config in configs]
    if as_json:
        _write(encode_reports(reports))
    elif as_sarif:
        _write(encode_sarif(reports, RULES, __version__))
    elif quiet:
        show_found.errors(reports, sys.stdout)
    else:
        show_found.reports(reports, known.version, sys.stdout)
    if any(report.failed for report in reports):
        raise typer.Exit(ExitCode.CHECK_FOUND_ERRORS)


def _refuse(words: Sequence[str], *, fix: bool, schema: bool, formats: int) -> None:
    """Refuse options that contradict each other.

    Raises:
        UsageError: They do not.
    """
    if schema and words:
        raise UsageError("`--schema` takes no file", f"`zerowiz check {words[0]}` checks it")
    if not schema and not words:
        raise UsageError("there is nothing to check", "`zerowiz check ds_config.json`")
    if formats > 1:
        raise UsageError("`--json` and `--sarif` both write to stdout", "drop one of them")
    if fix and STDIN in words:
        raise UsageError("`--fix` changes files, and `-` is none", "drop `--fix`")


def _read_schema(version: str | None, *, quiet: bool) -> Schema:
    """The schema of the given version of DeepSpeed, else of the installed one."""
    if version is not None and not _VERSION.fullmatch(version):
        raise UsageError(f"`--deepspeed-version {version}` is no version", "such as `0.19.8`")
    wanted = version or read_version("deepspeed")
    schema = read_ds_schema(wanted)
    if not quiet and wanted is not None and wanted.partition("+")[0] != schema.version:
        show.note(f"DeepSpeed {wanted} is held against the keys of {schema.version}", sys.stderr)
    return schema


def _names(schema: Schema) -> Collection[str]:
    """What may stand at the top of a config."""
    return frozenset(name for key in schema.children("") for name in key.names)


def _context(
    integration: Integration | None,
    world_size: int | None,
    script: Path | None,
    machine: str | None,
) -> Context:
    """What is known of the run; options count more than what a script shows."""
    context = Context(integration=integration, world_size=world_size)
    if script is not None:
        facts = read_script(script)
        settings = settle(facts, ())
        context = replace(context, integration=integration or facts.integration, settings=settings)
    if machine is not None:
        context = on_machine(context, find_machine(Options(machine=machine), os.environ))
    return context


def _check(
    config: ConfigText, schema: Schema, context: Context, *, fix: bool, quiet: bool
) -> FileReport:
    """What is found in a config, after its fixes when they are wanted."""
    if config.fault is not None:
        return FileReport(path=config.path, findings=(unreadable(config.fault),))
    if context.integration is None:
        context = replace(context, integration=config.integration)
    find = partial(lint, schema=schema, context=context)
    if not fix or not config.is_fixable:
        findings = check_config(config, find)
        if fix and findings and not quiet:
            show_found.not_fixed(config.path, sys.stderr)
        return FileReport(path=config.path, findings=findings)
    fixed = fix_text(config.text, find)
    if fixed.fixed:
        rewrite_file(Path(config.path), fixed.text)
    if fixed.fixed and not quiet:
        show_found.fixed(config.path, len(fixed.fixed), sys.stderr)
    return FileReport(path=config.path, findings=fixed.findings)


def _write(content: Mapping[str, object]) -> None:
    sys.stdout.write(json.dumps(content, indent=2) + "\n")


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(name="check", cls=PlainCommand)(check)
