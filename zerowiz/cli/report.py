"""`zerowiz report`: what a launched job was predicted to take, and what it took."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from zerowiz.app.report import read_run
from zerowiz.cli.usage import write_json
from zerowiz.core.job_end import encode_summary
from zerowiz.ui.job_end import run as show_run


def report(
    folder: Annotated[
        Path,
        typer.Argument(
            help="The `--output-dir` of the launch; default: this folder", show_default=False
        ),
    ] = Path(),
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout")] = False,
) -> None:
    """Compare the memory and step time of the last launch with its plan"""
    summary = read_run(folder)
    if as_json:
        write_json(encode_summary(summary))
    else:
        show_run(summary, sys.stdout)
