"""Measure settings: what has to fit in processes of its own, and all others by few engines."""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from measured import measure as measure_cases
from msgspec import Struct
from regret.workloads import seconds_of
from speed import run_timing

from zerowiz.app.options import Options
from zerowiz.core.speed.costs import find_rates
from zerowiz.probe.files import read_gpu_table

Case = dict[str, Any]

START_SECONDS = 2 * run_timing.START_SECONDS
"""To load the libraries, for the ones and for the others."""
# One case does not cost the others their time.
_CASE_DEADLINE_S = 120
# What is kept for each of them: without the choice a job has no figure.
_FRESH_SECONDS = 15


class Runs(Struct, frozen=True, kw_only=True):
    """Cases, as `measured/measure.py` takes them."""

    fresh: tuple[Case, ...]
    """In processes of their own: whether they fit says something."""
    swept: tuple[Case, ...]
    """Predicted to fit."""


def measure(runs: Runs, out: Path, until: float, options: Options) -> int:
    """Append a row for each run; the status of the last `measured/measure.py`.

    Args:
        runs: What is run; those that share engines come first, as they take least.
        out: Gets the rows.
        until: When all of it is ended, in seconds since 1970.
        options: Of the machine.
    """
    environ, left = dict(os.environ), {case["id"]: case for case in runs.swept}
    machine = run_timing.machine_of(options)
    rates = find_rates(machine, read_gpu_table())
    swept_until = until - _FRESH_SECONDS * len(runs.fresh)
    for row in run_timing.run(runs.swept, swept_until, machine, rates) if left else ():
        if seconds_of(row) is not None:
            measure_cases.append_line(out, json.dumps(row))
            del left[row["id"]]
    # What fits as predicted but did not beside others is run again, as a job would, if there is time.
    fresh = [*runs.fresh, *left.values()]
    return _measure_fresh(fresh, out, until, options, environ) if fresh else 0


def _measure_fresh(
    cases: Sequence[Case], out: Path, until: float, options: Options, environ: dict[str, str]
) -> int:
    """By `measured/measure.py`, which appends a row as each ends."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "cases.json"
        path.write_text(json.dumps(cases), encoding="utf-8")
        words = [str(path), "--output", str(out.resolve())]
        words += ["--deadline", str(max(1, int(until - time.time())))]
        words += ["--case-deadline", str(_CASE_DEADLINE_S)]
        words += [] if options.accelerator is None else ["--accelerator", options.accelerator.value]
        argv = [sys.executable, measure_cases.__file__, *words]
        done = subprocess.run(argv, env=environ, stdout=subprocess.DEVNULL, check=False)
        return done.returncode
