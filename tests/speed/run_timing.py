"""Time settings on this machine for so many seconds, and append a row for each.

Run with `python tests/speed/run_timing.py --prefix t1 --budget-seconds 500 --out rows.jsonl`. With
`--machine 2xH200 --host-memory 256GiB` it says what it would choose for another machine. Nothing
of a row is shown here: a third of them is set aside, and stays unseen until a fit stands.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

# Its siblings are `speed.…`, as they are to the tests.
if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).parents[1])

from accuracy.grid import deal_cases
from speed.timing_cases import (
    AGAIN,
    MODELS,
    TIMING_FILE,
    Candidate,
    choose,
    find_candidates,
    is_timed,
    point_of,
    scale_costs,
    with_ids,
)

from zerowiz.app.machines.machine import find_machine
from zerowiz.app.options import Options
from zerowiz.core.machine.types import Accelerator
from zerowiz.core.speed.rates import find_rates
from zerowiz.probe.machine.gpu_table import read_gpu_table

_MEASURED = Path(__file__).parents[1] / "measured"
# To choose the cases, load the libraries in every rank, and compile CPU Adam beside it.
START_SECONDS = 75.0
# One case does not cost the others their time.
_CASE_DEADLINE_S = 120


def read_timed(out: Path | None) -> list[dict[str, Any]]:
    """The rows of what was timed before, here and in the repository."""
    paths = {
        *_MEASURED.glob("*-timing.jsonl"),
        *([out] if out is not None and out.exists() else []),
    }
    lines = (line for path in sorted(paths) for line in path.read_text("utf-8").splitlines())
    return [row for line in lines if is_timed(row := json.loads(line))]


def describe(cases: Sequence[dict[str, Any]], chosen: Sequence[Candidate], scale: float) -> str:
    """How many there are of each side, and what they take."""
    sides = Counter(side.value for side in deal_cases(cases, TIMING_FILE))
    again = sum(str(case["id"]).endswith(AGAIN) for case in cases)
    seconds = scale * sum(each.cost_seconds for each in chosen)
    dealt = ", ".join(f"{count} {side}" for side, count in sorted(sides.items()))
    return f"{len(cases)} cases of about {seconds:.0f} s: {dealt}; {again} are repeats"


def run(cases: Sequence[dict[str, Any]], out: Path, deadline_s: float, *, cpu: bool) -> int:
    """Measure them; the status of `zerowiz measure`, which appends a row as each ends."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "cases.json"
        path.write_text(json.dumps(cases), encoding="utf-8")
        words = ["--cases", str(path), "--output", str(out.resolve()), "--json", "--yes"]
        words += ["--deadline", str(int(deadline_s)), "--case-deadline", str(_CASE_DEADLINE_S)]
        words += ["--accelerator", "cpu"] if cpu else []
        argv = [sys.executable, "-m", "zerowiz", "measure", *words]
        # Later plans here must not rest on these runs: some are set aside.
        environ = {**os.environ, "XDG_CACHE_HOME": folder}
        done = subprocess.run(argv, env=environ, stdout=subprocess.DEVNULL, check=False)
        return done.returncode


def summary(rows: Sequence[dict[str, Any]], seconds: float) -> str:
    """How many rows there are now, of which kind; no time of a step."""
    ends = Counter(
        "timed" if is_timed(row) else "out of memory" if row["oom_phase"] else "not timed"
        for row in rows
    )
    told = ", ".join(f"{count} {end}" for end, count in ends.items()) or "no rows"
    lines = [f"{told} in {seconds:.0f} s"]
    lines += [f"{row['id']}: {row['error']}" for row in rows if row["error"]]
    return "\n".join(lines)


def main() -> int:
    """Choose, and run unless another machine is named."""
    parser = argparse.ArgumentParser(description="Time settings for so many seconds")
    parser.add_argument("--prefix", required=True, help="of the ids of the rows")
    parser.add_argument("--first", type=int, default=0, help="the number of the first of them")
    parser.add_argument("--budget-seconds", type=float, required=True, help="with the start")
    parser.add_argument("--out", type=Path, help="gets a row for each case; none: print the cases")
    parser.add_argument("--gpus", type=int, help="so many of the machine; all by default")
    parser.add_argument("--machine", help="choose for this one, and run nothing")
    parser.add_argument("--host-memory", help="of that one")
    parser.add_argument("--accelerator", choices=["cuda", "cpu"])
    parser.add_argument("--model", action="append", help="of tests/models, or a size; repeatable")
    parser.add_argument("--limit", type=int, help="at most so many cases")
    asked = parser.parse_args()
    began = time.monotonic()
    accelerator = None if asked.accelerator is None else Accelerator(asked.accelerator)
    options = Options(
        machine=asked.machine,
        host_memory=asked.host_memory,
        accelerator=accelerator,
        gpus_per_node=asked.gpus,
    )
    machine = find_machine(options, os.environ)
    rates, timed = find_rates(machine, read_gpu_table()), read_timed(asked.out)
    scale = scale_costs(timed, machine, rates)
    candidates = list(find_candidates(asked.model or MODELS, machine, rates))
    here = [point_of(row) for row in timed if row["gpus"] == machine.world_size]
    budget_seconds = asked.budget_seconds - START_SECONDS
    chosen = choose(candidates, here, budget_seconds, scale)[: asked.limit]
    cases = with_ids(chosen, asked.prefix, asked.first)
    sys.stderr.write(f"{len(candidates)} candidates; {describe(cases, chosen, scale)}\n")
    if asked.out is None or asked.machine is not None:
        sys.stdout.write(json.dumps(cases, indent=1) + "\n")
        return 0
    before = len(asked.out.read_text("utf-8").splitlines()) if asked.out.exists() else 0
    left_s = asked.budget_seconds - (time.monotonic() - began)
    status = run(cases, asked.out, left_s, cpu=accelerator is Accelerator.CPU)
    lines = asked.out.read_text("utf-8").splitlines()[before:] if asked.out.exists() else []
    rows = [json.loads(line) for line in lines]
    sys.stderr.write(f"{summary(rows, time.monotonic() - began)}\n")
    return status


if __name__ == "__main__":
    sys.exit(main())
