"""Check DeepSpeed configs, and fix in their files what is safe to fix."""

import difflib
import os
import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from msgspec import Struct

from zerowiz.core.dsconfig.accelerate import AccelerateFile
from zerowiz.core.dsconfig.schema import Schema
from zerowiz.core.findings import Finding
from zerowiz.core.lint.config import ConfigText, Context, on_machine
from zerowiz.core.lint.keys import unreadable
from zerowiz.core.lint.linter import RULES, check_accelerate, check_config, fix_text, lint
from zerowiz.core.lint.report import FileReport, OutputFormat
from zerowiz.core.structs import decode, replace
from zerowiz.core.workload import Integration
from zerowiz.errors import UsageError, ZerowizError
from zerowiz.probe.config_text import read_configs
from zerowiz.probe.files import (
    CHECK,
    find_answers_files,
    read_answers,
    read_bad_releases,
    read_version,
)

# `0.19.8`, `0.19.8+cu13`.
_VERSION = re.compile(r"\d+\.\d+.*")


_ALL = "ALL"


class CheckSettings(Struct, frozen=True, kw_only=True, rename="kebab", forbid_unknown_fields=True):
    """What a project says once for all its checks: its keys are the long options."""

    select: tuple[str, ...] | None = None
    ignore: tuple[str, ...] | None = None
    strict: bool | None = None
    output_format: OutputFormat | None = None
    integration: Integration | None = None
    world_size: int | None = None
    deepspeed_version: str | None = None


def read_check_settings() -> CheckSettings:
    """What `zerowiz.toml` says in `[check]`, or `pyproject.toml` in `[tool.zerowiz.check]`.

    Raises:
        ZerowizError: A file cannot be read.
        UsageError: It holds something else.
    """
    for path in find_answers_files(None, None):
        content = read_answers(path, path.name)[1]
        if CHECK in content:
            return decode(CheckSettings, content[CHECK], f"{path.name}: [{CHECK}]")
    return CheckSettings()


def select_rules(
    context: Context, select: Sequence[str] | None, ignore: Sequence[str] | None
) -> Context:
    """The run, with the codes that are looked for.

    Args:
        context: What is known of the run.
        select: How the codes begin that are wanted, or ALL, with commas between them.
        ignore: How those begin that are not.

    Raises:
        UsageError: No code begins so.
    """
    selected, ignored = (
        [start.strip().removeprefix(_ALL) for word in words for start in word.split(",")]
        for words in (select or [_ALL], ignore or ())
    )
    for start in (*selected, *ignored):
        if not any(rule.code.startswith(start) for rule in RULES):
            raise UsageError(
                f"no code begins with `{start}`", "to list the codes: `zerowiz check --explain all`"
            )
    return replace(context, select=tuple(selected), ignore=tuple(ignored))


def choose_version(version: str | None) -> str | None:
    """The given version of DeepSpeed, else the installed one; None if there is none.

    Raises:
        UsageError: It is no version.
    """
    if version is not None and not _VERSION.fullmatch(version):
        raise UsageError(
            f"`--deepspeed-version {version}` is not a version", "use a version such as `0.19.8`"
        )
    return version or read_version("deepspeed")


def find_context(
    integration: Integration | None,
    world_size: int | None,
    script: Path | None,
    machine: str | None,
    version: str | None = None,
) -> Context:
    """What is known of the run.

    Args:
        integration: Who hands the config over; what is given here counts more than the script.
        world_size: Ranks of the job; it counts more than those of the machine.
        script: The training script that the config is for.
        machine: A recorded file or a spec.
        version: Of the DeepSpeed that will read the config, of `choose_version`.
    """
    known = read_bad_releases()
    context = Context(
        integration=integration,
        world_size=world_size,
        bad_releases=tuple(row for row in known if row.affects("deepspeed", version)),
    )
    # Most configs are checked for no script and no machine, and these load the whole planner.
    if script is not None:
        from zerowiz.core.script.settings import ScriptRun  # noqa: PLC0415 - see above
        from zerowiz.probe.script.read_script import read_script  # noqa: PLC0415 - see above

        run = ScriptRun(read_script(script))
        context = replace(
            context,
            integration=integration or run.facts.integration,
            settings=run.settings,
            passed=run.facts.passed,
        )
    if machine is not None:
        from zerowiz.app.machines.machine import find_machine  # noqa: PLC0415 - see above
        from zerowiz.app.options import Options  # noqa: PLC0415 - see above

        context = on_machine(context, find_machine(Options(machine=machine), os.environ))
    return context


class FoundConfigs(Struct, frozen=True, kw_only=True):
    """What the paths of a command line mean."""

    configs: tuple[ConfigText | AccelerateFile, ...]
    """Before a config that a file of Accelerate names, that file: it has mistakes of its own."""
    unreadable: tuple[ZerowizError, ...]
    """Why a path has no config; the others are checked all the same."""


def find_configs(paths: Sequence[str], schema: Schema, *at: Callable[[str], None]) -> FoundConfigs:
    """Every config that these paths name: files, folders of them, patterns, or `-` for stdin.

    Args:
        paths: As they stand on the command line.
        schema: What the DeepSpeed knows that will read the configs.
        at: Hears how many folders have been read.
    """
    files = [config for path in paths for config in read_configs(path, schema.top_names, *at)]
    configs: dict[str, ConfigText | AccelerateFile] = {}
    for config in files:
        # Where a file of Accelerate names a config, it is known who reads that.
        if not isinstance(config, ZerowizError) and (
            config.path not in configs or getattr(config, "integration", None)
        ):
            configs[config.path] = config
    return FoundConfigs(
        configs=tuple(configs.values()),
        unreadable=tuple(config for config in files if isinstance(config, ZerowizError)),
    )


def check_file(
    config: ConfigText | AccelerateFile,
    schema: Schema,
    context: Context,
    *,
    fix: bool = False,
    write: bool = True,
) -> FileReport:
    """Check one config, or one file of Accelerate that names one.

    Args:
        config: One of `find_configs`.
        schema: Of the DeepSpeed that will read it.
        context: What is known of the run.
        fix: Whether the fixes that are safe are made.
        write: Whether they are written to its file.
    """
    fixed: tuple[Finding, ...] = ()
    diff = ""
    if isinstance(config, AccelerateFile):
        findings = check_accelerate(config, context)
    elif config.fault is not None:
        findings = (unreadable(config.fault),)
        fix = False
    else:
        context = replace(context, integration=context.integration or config.integration)
        findings = check_config(config, schema, context)
    if fix and isinstance(config, ConfigText) and config.root is None:
        from zerowiz.emit.files import rewrite_file  # noqa: PLC0415 - takes long to load

        fix = False
        result = fix_text(config.text, partial(lint, schema=schema, context=context))
        findings, fixed = result.findings, result.fixed
        before, after = (text.splitlines(keepends=True) for text in (config.text, result.text))
        changes = difflib.unified_diff(before, after, config.path, config.path)
        # As diff does it.
        open_end = "\n\\ No newline at end of file\n"
        diff = "".join(line if line.endswith("\n") else line + open_end for line in changes)
        if fixed and write:
            rewrite_file(Path(config.path), result.text)
    not_fixable = fix and bool(findings)
    return FileReport(
        path=config.path, findings=findings, fixed=fixed, diff=diff, not_fixable=not_fixable
    )
