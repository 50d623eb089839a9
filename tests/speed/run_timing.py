"""Time settings on this machine for so many seconds, and append a row for each.

Run with `python tests/speed/run_timing.py --prefix t1 --budget-seconds 500 --out rows.jsonl`. With
`--machine 2xH200 --host-memory 256GiB` it says what it would choose for another machine. Nothing
of a row is shown here: a third of them is set aside, and stays unseen until a fit stands.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

# Its siblings are `speed.…`, as they are to the tests.
if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).parents[1])

from accuracy.grid import deal_cases
from measured.measure import append_line
from measured.ranks import start_builds
from measured.trials import OPS, ops_of
from speed.sweep import by_engine, sweep
from speed.timing_cases import (
    AGAIN,
    MODELS,
    SETTINGS,
    TIMING_FILE,
    Candidate,
    choose,
    find_candidates,
    is_timed,
    plan_case,
    point_of,
    with_ids,
)

from zerowiz.app.machines.machine import find_machine
from zerowiz.app.options import Options
from zerowiz.core.launch.plan import launch_env
from zerowiz.core.machine.names import GpuModel
from zerowiz.core.machine.types import Accelerator, Machine, with_host_memory
from zerowiz.core.speed.costs import find_rates
from zerowiz.core.strategy_types import Offload
from zerowiz.core.structs import replace
from zerowiz.core.units import parse_host_memory
from zerowiz.probe.files import Files, read_gpu_table
from zerowiz.probe.machine.host import parse_list
from zerowiz.probe.preflight.read_facts import find_programs, try_core_binding

_MEASURED = Path(__file__).parents[1] / "measured" / "times"
# To choose the cases, and to load the libraries.
START_SECONDS = 30.0
MORE = 1.5


def read_timed(out: Path | None) -> list[dict[str, Any]]:
    """The rows of what was timed before, here and in the repository."""
    paths = {
        *_MEASURED.glob("*.jsonl"),
        *([out] if out is not None and out.exists() else []),
    }
    lines = (line for path in sorted(paths) for line in path.read_text("utf-8").splitlines())
    return [row for line in lines if is_timed(row := json.loads(line))]


def describe(cases: Sequence[dict[str, Any]], chosen: Sequence[Candidate]) -> str:
    """How many there are of each side, and with how many engines."""
    sides = Counter(side.value for side in deal_cases(cases, TIMING_FILE))
    again = sum(str(case["id"]).endswith(AGAIN) for case in cases)
    engines = len({each.engine for each in chosen}) + again
    dealt = ", ".join(f"{count} {side}" for side, count in sorted(sides.items()))
    return f"{len(cases)} cases by {engines} engines: {dealt}; {again} are repeats"


def machine_of(options: Options) -> Machine:
    """The machine, whose host has the memory that is said: what a container reads may be wrong.

    `zerowiz --host-memory` never raises what this host reads.
    """
    machine = find_machine(replace(options, host_memory=None), os.environ)
    if options.host_memory is None:
        return machine
    return with_host_memory(machine, parse_host_memory(options.host_memory))


def run(
    cases: Sequence[dict[str, Any]], until: float, machine: Machine, rates: GpuModel | None
) -> Iterator[dict[str, Any]]:
    """Time them by `sweep`, and yield a row for each that was begun as its engine ends."""
    planned = [plan_case(case, machine, rates) for case in cases]
    trials = [each.trial for each in planned]
    on_cpu = machine.accelerator is Accelerator.CPU
    os.environ.update(launch_env(machine, find_programs(os.environ), os.environ, {}))
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
    offloads = any(trial.offload is not Offload.NONE for trial in trials) and not on_cpu
    bound = try_core_binding(os.environ, machine.world_size, Files()).cores if offloads else None
    builds = start_builds(ops_of(trials, machine.accelerator))
    # What needs no op that is being compiled comes first.
    groups = sorted(by_engine(planned), key=lambda group: group[0].trial.kernel in OPS)
    with tempfile.TemporaryDirectory() as folder:
        cores = sorted(parse_list(bound or ""))
        yield from sweep(groups, Path(folder), until, cores, builds=builds, cpu=on_cpu)


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
    parser.add_argument("--host-memory", help="of its host, where less is read")
    parser.add_argument("--accelerator", choices=["cuda", "cpu"])
    parser.add_argument("--model", action="append", help="of tests/models, or a size; repeatable")
    parser.add_argument("--strategy", action="append", help="of STRATEGIES; repeatable")
    parser.add_argument("--limit", type=int, help="at most so many cases")
    asked = parser.parse_args()
    began = time.time()
    accelerator = None if asked.accelerator is None else Accelerator(asked.accelerator)
    options = Options(
        machine=asked.machine,
        host_memory=asked.host_memory,
        accelerator=accelerator,
        gpus_per_node=asked.gpus,
    )
    machine = machine_of(options)
    rates, timed = find_rates(machine, read_gpu_table()), read_timed(asked.out)
    found = find_candidates(asked.model or MODELS, machine, rates)
    wanted = asked.strategy or SETTINGS["strategy"]
    candidates = [each for each in found if each.point["strategy"] in wanted]
    here = [point_of(row) for row in timed if row["gpus"] == machine.world_size]
    # What runs took less than was thought leaves time for more.
    budget_seconds = MORE * (asked.budget_seconds - START_SECONDS)
    chosen = choose(candidates, here, budget_seconds)[: asked.limit]
    cases = with_ids(chosen, asked.prefix, asked.first)
    sys.stderr.write(f"{len(candidates)} candidates; {describe(cases, chosen)}\n")
    if asked.out is None or asked.machine is not None:
        sys.stdout.write(json.dumps(cases, indent=1) + "\n")
        return 0
    rows = []
    for row in run(cases, began + asked.budget_seconds, machine, rates):
        append_line(asked.out, json.dumps(row))
        rows.append(row)
    sys.stderr.write(f"{summary(rows, time.time() - began)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
