"""`zerowiz doctor`: what would end a job here, before it starts."""

import sys
from functools import partial
from typing import Annotated

import typer

from zerowiz import __version__
from zerowiz.app.doctor import find_line_edits, find_preflight_findings, write_line_edits
from zerowiz.app.options import FileUse, Options, TakesScript
from zerowiz.cli.options import takes_options
from zerowiz.cli.usage import Explain, write_json
from zerowiz.core.findings import errors_of
from zerowiz.core.preflight.examine import encode_findings
from zerowiz.errors import ExitCode
from zerowiz.ui import check as check_text
from zerowiz.ui import show
from zerowiz.ui.reporter import TerminalReporter
from zerowiz.ui.text import say

# Of `--fix`: a refusal hides what else there is to write.
_ROUNDS = 4


@takes_options(FileUse(takes_script=TakesScript.WITHOUT_MODEL, starts_here=True))
def doctor(
    options: Options,
    script: Annotated[
        str | None,
        typer.Argument(help="Training script; default without --model: as for launch"),
    ] = None,
    args: Annotated[
        list[str] | None, typer.Argument(help="Arguments of the script, passed on unchanged")
    ] = None,
    fix: Annotated[
        bool, typer.Option("--fix", help="Write into the script what is exactly one line")
    ] = False,
    explain: Explain = None,
) -> None:
    """Find what would make a job fail on this machine, before it starts"""
    del explain
    reporter = TerminalReporter(quiet=options.quiet, with_waits=not options.as_json)
    find = partial(find_preflight_findings, script, tuple(args or ()), options)
    findings = find(reporter)
    edits = find_line_edits(edit for finding in findings for edit in finding.line_edits)
    for _round in range(_ROUNDS if fix else 0):
        if not edits:
            break
        write_line_edits(edits)
        show.losses(edits, sys.stderr)
        findings = find(TerminalReporter(quiet=True, with_waits=not options.as_json))
        edits = find_line_edits(edit for finding in findings for edit in finding.line_edits)
    if options.as_json:
        write_json(encode_findings(findings, __version__))
    elif options.quiet:
        check_text.findings(errors_of(findings), sys.stdout)
    else:
        check_text.findings(findings, sys.stdout)
        if edits:
            say(sys.stdout, "", "`--fix` writes this:")
            show.losses(edits, sys.stdout)
            say(sys.stdout, "")
        check_text.summary(findings, sys.stdout)
    if errors_of(findings):
        raise typer.Exit(ExitCode.PREFLIGHT)
