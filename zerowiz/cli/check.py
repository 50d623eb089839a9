"""`zerowiz check`: mistakes in DeepSpeed configs, with their places, reasons and fixes."""

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer

from zerowiz import __version__
from zerowiz.app.check import (
    CheckSettings,
    check_file,
    choose_version,
    find_configs,
    find_context,
    read_check_settings,
    select_rules,
)
from zerowiz.cli.completion import complete_machine
from zerowiz.cli.usage import Explain, write_json
from zerowiz.core import shell
from zerowiz.core.dsconfig.schema import Schema
from zerowiz.core.lint.linter import RULES
from zerowiz.core.lint.report import (
    FileReport,
    OutputFormat,
    encode_github,
    encode_json_schema,
    encode_reports,
    encode_sarif,
)
from zerowiz.core.workload import Integration
from zerowiz.errors import ExitCode, UsageError, ZerowizError
from zerowiz.probe.config_text import STDIN
from zerowiz.probe.files import read_ds_schema
from zerowiz.ui import check as check_text
from zerowiz.ui.progress import TerminalWait
from zerowiz.ui.text import error, note


def check(
    files: Annotated[
        list[str] | None,
        typer.Argument(metavar="FILE...", help="Configs, folders, patterns, or - for stdin"),
    ] = None,
    fix: Annotated[bool, typer.Option("--fix", help="Apply the safe fixes")] = False,
    diff: Annotated[
        bool, typer.Option("--diff", help="Show what `--fix` would change, and write nothing")
    ] = False,
    select: Annotated[
        list[str] | None,
        typer.Option(
            "--select", metavar="<codes>", help="Codes to look for (ZW3,ZW101); default: ALL"
        ),
    ] = None,
    ignore: Annotated[
        list[str] | None,
        typer.Option("--ignore", metavar="<codes>", help="Codes to leave out (ZW6,ZW806)"),
    ] = None,
    strict: Annotated[
        bool | None, typer.Option("--strict", help="Fail on warnings, too", show_default=False)
    ] = None,
    integration: Annotated[
        Integration | None,
        typer.Option("--integration", help="Which library passes the config to DeepSpeed"),
    ] = None,
    world_size: Annotated[
        int | None,
        typer.Option("--world-size", min=1, metavar="<ranks>", help="Ranks of the job"),
    ] = None,
    script: Annotated[
        Path | None, typer.Option("--script", help="The training script that the config is for")
    ] = None,
    machine: Annotated[
        str | None,
        typer.Option(
            "--machine",
            metavar="<machine>",
            help="Machine of the job: a saved file, or a spec (8xH100)",
            autocompletion=complete_machine,
        ),
    ] = None,
    deepspeed_version: Annotated[
        str | None,
        typer.Option(
            "--deepspeed-version",
            metavar="<version>",
            help="DeepSpeed version; default: the installed one, else the newest",
        ),
    ] = None,
    output_format: Annotated[
        OutputFormat | None,
        typer.Option(
            "--output-format",
            help="How to print findings; default: text, or github under GitHub Actions",
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
    isolated: Annotated[
        bool,
        typer.Option("--isolated", help="Ignore zerowiz.toml and pyproject.toml"),
    ] = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Show errors only, no warnings or advice")
    ] = False,
    explain: Explain = None,
) -> None:
    """Find mistakes in DeepSpeed configs, and fix them"""
    del explain
    words = tuple(dict.fromkeys(files or ()))
    formats = (OutputFormat.JSON, as_json), (OutputFormat.SARIF, as_sarif), (output_format, True)
    given = [output for output, is_said in formats if output is not None and is_said]
    _refuse(words, fix=fix or diff, schema=schema, formats=len(given) + int(diff))
    settings = CheckSettings() if isolated else read_check_settings()
    version = choose_version(deepspeed_version or settings.deepspeed_version)
    known = _read_schema(version, quiet=quiet)
    if schema:
        write_json(encode_json_schema(known))
        return
    context = find_context(
        integration or settings.integration,
        world_size or settings.world_size,
        script,
        machine,
        version,
    )
    context = select_rules(context, select or settings.select, ignore or settings.ignore)
    by_github = os.environ.get("GITHUB_ACTIONS") == "true" and not diff
    usual = OutputFormat.GITHUB if by_github else OutputFormat.TEXT
    output = next(iter(given), settings.output_format or usual)
    is_text = output is OutputFormat.TEXT and not quiet
    with TerminalWait("looking for configs", sys.stderr if is_text else None) as wait:
        configs = find_configs(words, known, wait.at)
    reports = [
        check_file(config, known, context, fix=fix or diff, write=not diff)
        for config in configs.configs
    ]
    if is_text and not diff:
        _tell(reports)
    if diff:
        sys.stdout.writelines(report.diff for report in reports)
    elif output in _ENCODERS:
        _ENCODERS[output](reports, configs.unreadable)
    elif quiet:
        check_text.errors(reports, sys.stdout)
    elif reports:
        check_text.reports(reports, known.version, sys.stdout)
    for failure in configs.unreadable:
        error(failure.message, failure.hints, sys.stderr)
    is_strict = bool(settings.strict if strict is None else strict)
    if any((diff and report.diff) or report.fails(strict=is_strict) for report in reports):
        raise typer.Exit(ExitCode.CHECK_FOUND_ERRORS)
    if configs.unreadable:
        raise typer.Exit(ExitCode.FAILED)


Reports = Sequence[FileReport]
Errors = Sequence[ZerowizError]

_ENCODERS: Mapping[OutputFormat, Callable[[Reports, Errors], None]] = {
    OutputFormat.JSON: lambda reports, errors: write_json(encode_reports(reports, errors)),
    OutputFormat.SARIF: lambda reports, errors: write_json(
        encode_sarif(reports, RULES, __version__, errors)
    ),
    OutputFormat.GITHUB: lambda reports, errors: check_text.commands(
        encode_github(reports, errors), sys.stdout
    ),
}


def _tell(reports: Reports) -> None:
    """What was fixed, and what could not be."""
    for report in reports:
        if report.not_fixable:
            path = report.path
            note(f"`--fix` changes JSON only: fix {path} by hand, at the lines below", sys.stderr)
        if report.fixed:
            check_text.fixed(report.path, report.fixed, sys.stderr)


def _refuse(words: Sequence[str], *, fix: bool, schema: bool, formats: int) -> None:
    """Refuse options that set conflicting variables.

    Raises:
        UsageError: They do.
    """
    if schema and words:
        raise UsageError(
            "`--schema` takes no file argument",
            f"to check it: `zerowiz check {shell.quote(words[0])}`",
        )
    if not schema and not words:
        raise UsageError("no config to check", "`zerowiz check ds_config.json`")
    if formats > 1:
        raise UsageError(
            "`--json`, `--sarif`, `--output-format` and `--diff` all say what is printed",
            "keep one of them",
        )
    if fix and STDIN in words:
        raise UsageError("`--fix` changes files, and `-` is stdin", "remove `--fix`")


def _read_schema(version: str | None, *, quiet: bool) -> Schema:
    """The schema of this version of DeepSpeed, else the newest."""
    schema = read_ds_schema(version)
    plain = (version or "").partition("+")[0]
    if not quiet and version is not None and not f"{schema.version}.".startswith(f"{plain}."):
        note(
            (
                f"zerowiz has no list of the keys of DeepSpeed {version}, and uses that of "
                f"{schema.version}"
            ),
            sys.stderr,
        )
    return schema
