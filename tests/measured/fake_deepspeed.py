"""Stand in for `deepspeed`: real ranks of `ranks.py`, whose cases only act their part.

A case's `config.do` says what each rank does: `run`, `fail`, `run_out` of memory, `hang` or `die`.
As the launcher it takes the batch and starts the ranks; with RANK set it is one of them.
"""

import json
import os
import subprocess
import sys
import time
import types
from pathlib import Path
from typing import Any, NoReturn

from measured.ranks import WorkerBatch, report_file, serve, write_json


def hang(_: dict[str, Any]) -> NoReturn:
    while True:
        time.sleep(60)


def die(_: dict[str, Any]) -> NoReturn:
    os.abort()


def run(report: dict[str, Any]) -> int:
    report["ok"] = True
    return 0


def fail(report: dict[str, Any]) -> int:
    report["error"] = "ValueError in init: acted"
    os.write(1, b"what the log says\n")
    return 1


def run_out(report: dict[str, Any]) -> int:
    report["oom_phase"] = "step"
    return 3


PARTS = {each.__name__: each for each in (run, fail, run_out, hang, die)}


def run_case(case: dict[str, Any], rank: int, folder: Path, _until: float) -> int:
    """Act, and report as a real case does."""
    report: dict[str, Any] = {
        "rank": rank,
        "ok": False,
        "oom_phase": None,
        "error": None,
        "phases": {},
    }
    report |= {"pid": os.getpid(), "world": os.environ["WORLD_SIZE"]}
    report |= {"port": os.environ["MASTER_PORT"]}
    report["cores"] = sorted(os.sched_getaffinity(0))
    write_json(report_file(folder, rank), report)
    seen = Path(case["config"]["seen"])
    (seen / f"{case['id']}-{rank}").write_text(str(os.getpid()))
    code = PARTS[case["config"]["do"][rank]](report)
    write_json(report_file(folder, rank), report)
    return code


def be_a_rank(batch: WorkerBatch) -> None:
    acted = types.ModuleType("measured.case")
    acted.__dict__.update(run_case=run_case, preload=list, can_fork=lambda: True)
    sys.modules[acted.__name__] = acted
    serve(batch, int(os.environ["RANK"]))


def be_the_launcher(batch: WorkerBatch) -> int:
    ranks = max(case["gpus"] for case in batch["cases"])
    environs = [{**os.environ, "RANK": str(rank)} for rank in range(ranks)]
    processes = [subprocess.Popen([sys.executable, *sys.argv], env=env) for env in environs]
    return max(process.wait() for process in processes)


if __name__ == "__main__":
    content = json.loads(Path(sys.argv[-1]).read_text())
    if "RANK" in os.environ:
        be_a_rank(content)
    else:
        sys.exit(be_the_launcher(content))
