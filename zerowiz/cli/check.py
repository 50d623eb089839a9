"""`zerowiz check`: mistakes in DeepSpeed configs, with their places, reasons and fixes."""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer

from zerowiz import __version__
from zerowiz.app.check import (
    CheckedConfig,
    check_file,
    choose_version,
    find_configs,
    find_context,
)
from zerowiz.cli.completion import complete_machine
from zerowiz.cli.usage import PlainCommand
from zerowiz.core.dsconfig.lint.jsonschema import encode_json_schema
from zerowiz.core.dsconfig.lint.linter import RULES
from zerowiz.core.dsconfig.lint.report import encode_reports
from zerowiz.core.dsconfig.lint.sarif import encode_sarif
from zerowiz.core.dsconfig.schema import Schema
from zerowiz.core.workload import Integration
from zerowiz.errors import ExitCode, UsageError
from zerowiz.probe.config.config_text import STDIN
from zerowiz.probe.config.ds_schema import read_ds_schema
from zerowiz.ui import check as show_found
from zerowiz.ui import show


def check(
    files: Annotated[
        list[str] | None,
        typer.Argument(metavar="FILE...", help="Configs, folders of them, or - for stdin"),
    ] = None,
    fix: Annotated[bool, typer.Option("--fix", help="Apply the safe fixes")] = False,
    integration: Annotated[
        Integration | None,
        typer.Option("--integration", help="Which library passes the config to DeepSpeed"),
    ] = None,
    world_size: Annotated[
        int | None, typer.Option("--world-size", min=1, help="Ranks of the job")
    ] = None,
    script: Annotated[
        Path | None, typer.Option("--script", help="The training script that the config is for")
    ] = None,
    machine: Annotated[
        str | None,
        typer.Option(
            "--machine",
            help="Machine of the job: a saved file, or a spec (8xH100)",
            autocompletion=complete_machine,
        ),
    ] = None,
    deepspeed_version: Annotated[
        str | None,
        typer.Option(
            "--deepspeed-version",
            help="DeepSpeed version; default: the installed one, else the newest",
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object on stdout")
    ] = False,
    as_sarif: Annotated[
        bool, typer.Option("--sarif", help="Print SARIF 2.1.0 on stdout, for code annotations")
    ] = False,
    schema: Annotated[
        bool, typer.Option("--schema", help="Print the JSON Schema of a config, for editors")
    ] = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Show errors only, no warnings or advice")
    ] = False,
) -> None:
    """Find mistakes in DeepSpeed configs, and fix them"""
    words = tuple(dict.fromkeys(files or ()))
    _refuse(words, fix=fix, schema=schema, formats=as_json + as_sarif)
    known = _read_schema(deepspeed_version, quiet=quiet)
    if schema:
        _write(encode_json_schema(known))
        return
    configs = find_configs(words, known)
    context = find_context(integration, world_size, script, machine)
    reports = []
    for config in configs:
        checked = check_file(config, known, context, fix=fix)
        reports.append(checked.report)
        if not quiet:
            _note_fixes(checked)
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
    """Refuse options that set conflicting variables.

    Raises:
        UsageError: They do.
    """
    if schema and words:
        raise UsageError(
            "`--schema` takes no file argument", f"to check it: `zerowiz check {words[0]}`"
        )
    if not schema and not words:
        raise UsageError("no config to check", "`zerowiz check ds_config.json`")
    if formats > 1:
        raise UsageError("`--json` and `--sarif` both write to stdout", "remove one of them")
    if fix and STDIN in words:
        raise UsageError("`--fix` changes files, and `-` is stdin", "remove `--fix`")


def _read_schema(version: str | None, *, quiet: bool) -> Schema:
    """The schema of the given version of DeepSpeed, else of the installed one."""
    wanted = choose_version(version)
    schema = read_ds_schema(wanted)
    if not quiet and wanted is not None and wanted.partition("+")[0] != schema.version:
        show.note(
            f"zerowiz has no list of the keys of DeepSpeed {wanted}, and uses that of"
            f" {schema.version}",
            sys.stderr,
        )
    return schema


def _note_fixes(checked: CheckedConfig) -> None:
    if checked.not_fixable:
        show_found.not_fixed(checked.report.path, sys.stderr)
    if checked.fixed:
        show_found.fixed(checked.report.path, checked.fixed, sys.stderr)


def _write(content: Mapping[str, object]) -> None:
    sys.stdout.write(json.dumps(content, indent=2) + "\n")


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(name="check", cls=PlainCommand)(check)
