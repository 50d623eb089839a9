"""Really train public scripts on two CPU ranks, and hold what the ranks say against the plan.

`make test-real` runs it: `python run.py [CASE...]`; `--write` rewrites the table of the page.
REAL_SCRIPTS_MIRROR names a folder of git repositories called `owner+name`, to be asked in place of
GitHub.
"""

import argparse
import json
import math
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

# Its siblings are `real.…`, as they are to mypy.
sys.path[0] = str(Path(__file__).parents[1])

from real.cases import CASES, Case, Source  # noqa: E402
from repositories import find_repository  # noqa: E402

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
CACHE = ROOT / ".cache" / "real-scripts"
PAGE = ROOT / "docs" / "real-scripts.md"
MIRROR = os.environ.get("REAL_SCRIPTS_MIRROR")
LAUNCH = "zerowiz launch --yes --accelerator cpu --gpus-per-node 2"
RANKS = 2
BEGIN, END = "<!-- tables -->", "<!-- /tables -->"
LIMIT_S = 600

# What is held against the plan: keys of a rank's file, and but for the stage of the plan's workload.
COMPARED = (
    *("stage", "micro_batch", "accumulation_steps", "precision"),
    *("gradient_checkpointing", "method"),
)
# What is held against what the launch says of it, where it does: its own line has no key.
SAID = {"lr": re.compile(r"\blr ([\d.e-]+)"), "clipping": re.compile(r"\bclipping ([\d.e-]+)")}

# No case may reach for the network; one thread for each rank is what two cores have.
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "WANDB_MODE": "offline",
    "TOKENIZERS_PARALLELISM": "false",
    "OMP_NUM_THREADS": "1",
}


class Outcome(NamedTuple):
    """What came of a case: the table's cells, and what is wrong."""

    case: Case
    planned: Mapping[str, Any]
    seen: Mapping[str, Any]
    wrong: tuple[str, ...]
    seconds: float


def main() -> None:
    """Run the named cases, or all; fail where a rank differs from its plan."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="cases to run; all, if none is named")
    parser.add_argument(
        "--write", action="store_true", help="rewrite the tables of the page, if all cases ran"
    )
    words = parser.parse_args()
    if unknown := {*words.names} - {case.name for case in CASES}:
        parser.error(f"no such case: {', '.join(sorted(unknown))}")
    cases = [case for case in CASES if not words.names or case.name in words.names]
    inputs = make_inputs()
    outcomes = []
    for case in cases:
        outcomes.append(run(case, inputs))
        report(outcomes[-1])
    sys.stdout.write("\n" + render(outcomes) + "\n")
    if words.write and not words.names:
        write_page(render(outcomes))
    if any(outcome.wrong for outcome in outcomes):
        sys.exit(1)


def make_inputs() -> Path:
    """The models and the data, made anew."""
    folder = CACHE / "inputs"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    command = [sys.executable, str(HERE / "inputs.py"), str(folder)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return folder


def run(case: Case, inputs: Path) -> Outcome:
    """Launch one case in a folder of its own, as a person would from the script's folder."""
    folder = CACHE / "runs" / case.name
    shutil.rmtree(folder, ignore_errors=True)
    put_script(case.source, folder)
    for path in inputs.iterdir():
        (folder / path.name).symlink_to(path)
    for name, text in case.files.items():
        (folder / name).write_text(text)
    seen_folder = folder / "seen"
    seen_folder.mkdir()
    env = {
        **os.environ,
        **ENVIRONMENT,
        "PYTHONPATH": str(HERE / "inside"),
        "REAL_SCRIPTS_SEEN": str(seen_folder),
    }
    if case.old:
        env["REAL_SCRIPTS_OLD_LIBRARIES"] = "1"
    began = time.monotonic()
    with (folder / "output.txt").open("w") as output:
        done = subprocess.run(
            shlex.split(typed(case)),
            cwd=folder,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            timeout=LIMIT_S,
            check=False,
        )
    seconds = time.monotonic() - began
    planned, seen = read_plan(folder), read_seen(seen_folder)
    wrong = tuple(find_wrong(case, done.returncode, planned, seen))
    return Outcome(case, planned, seen.get(0, {}), wrong, seconds)


def typed(case: Case) -> str:
    """The whole line that is typed."""
    return f"{LAUNCH} {case.options} {case.script}"


def put_script(source: Source, folder: Path) -> None:
    """Put the folder that holds the script into the folder of the run."""
    if not source.commit:
        found = subprocess.run(
            [sys.executable, "-c", f"import {source.name}; print({source.name}.__path__[0])"],
            check=True,
            capture_output=True,
            text=True,
        )
        shutil.copytree(Path(found.stdout.strip().splitlines()[-1]) / source.folder, folder)
        return
    folder.mkdir(parents=True)
    repository = find_repository(
        source.name, source.commit, mirror=MIRROR, cache=CACHE / "repositories"
    )
    tree = f"{source.commit}:{source.folder}" if source.folder else source.commit
    archive = ["git", "-C", str(repository), "archive", tree, *source.part.split()]
    packed = subprocess.run(archive, check=True, capture_output=True)
    subprocess.run(["tar", "-x", "-C", str(folder)], input=packed.stdout, check=True)


def read_plan(folder: Path) -> dict[str, Any]:
    """What was planned, of what is compared, from the plan file that the launch wrote."""
    said = partial(re.search, string=(folder / "output.txt").read_text())
    for path in folder.glob("*.plan.json"):
        plan = json.loads(path.read_text())
        step = plan["workload"]
        return {
            "strategy": plan["chosen"],
            "stage": json.loads((folder / plan["config"]["name"]).read_text())["zero_optimization"][
                "stage"
            ],
            **{key: step[key] for key in COMPARED[1:]},
            **{key: float(found[1]) for key, pattern in SAID.items() if (found := said(pattern))},
            "length": step["sequence_tokens"],
        }
    return {}


def read_seen(folder: Path) -> dict[int, dict[str, Any]]:
    """What each rank wrote."""
    return {
        int(path.stem.removeprefix("rank")): json.loads(path.read_text())
        for path in folder.glob("rank*.json")
    }


def find_wrong(
    case: Case, status: int, planned: Mapping[str, Any], seen: Mapping[int, Mapping[str, Any]]
) -> list[str]:
    """Each way in which the run is not what it should be."""
    wrong = [] if status == 0 else [f"exit status {status}"]
    if not planned:
        return [*wrong, "no plan file"]
    if sorted(seen) != list(range(RANKS)):
        return [*wrong, f"ranks that trained: {sorted(seen)}"]
    for rank, facts in seen.items():
        wrong += [
            f"rank {rank}: {key} is {facts[key]}, planned {planned[key]}"
            for key in COMPARED
            if facts[key] != planned[key]
        ]
        wrong += [
            f"rank {rank}: {key} is {facts[key]}, said to be {planned[key]}"
            for key in SAID
            if key in planned and not math.isclose(facts[key], planned[key], rel_tol=1e-6)
        ]
        if facts["rows"] != planned["micro_batch"] * case.rows_per_sample:
            wrong.append(f"rank {rank}: {facts['rows']} rows in a batch")
        if facts["length"] > planned["length"]:
            wrong.append(f"rank {rank}: {facts['length']} tokens, planned {planned['length']}")
        if not facts["steps"]:
            wrong.append(f"rank {rank}: no step")
    return wrong


def report(outcome: Outcome) -> None:
    """One line as soon as a case has ended."""
    state = "; ".join(outcome.wrong) or "equal to the plan"
    line = f"{outcome.case.name}: {outcome.seconds:.0f} s: {state} | {outcome.planned} | {outcome.seen}\n"
    sys.stdout.write(line)
    sys.stdout.flush()


def render(outcomes: list[Outcome]) -> str:
    """The tables of the page."""
    rows = [
        (
            f"`{script_of(outcome.case)}`",
            f"`{outcome.case.options} {outcome.case.script}`",
            f"`{outcome.case.added}`" if outcome.case.added else "none",
            inside(outcome.seen),
            "; ".join(outcome.wrong) or "equal",
        )
        for outcome in outcomes
    ]
    header = ("script", "typed", "words to add", "from inside each rank", "the plan")
    sources = sorted({outcome.case.source for outcome in outcomes})
    origins = [
        (source.name, source.commit or pinned(source.name), f"`{source.folder or source.part}`")
        for source in sources
    ]
    return f"{table(header, rows)}\n{table(('from', 'commit or release', 'folder'), origins)}"


def table(header: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    """A table in Markdown."""
    lines = [header, ("---",) * len(header), *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def script_of(case: Case) -> str:
    """Where the script is, after the name of its repository."""
    words = case.script.split()
    name = " ".join(words[:2]) if words[0] == "-m" else words[0]
    return f"{case.source.name.rpartition('/')[2]}: {name}"


def pinned(package: str) -> str:
    """The release of a package that the constraints name."""
    lines = (HERE / "constraints.txt").read_text().splitlines()
    return next(line.partition("==")[2] for line in lines if line.startswith(f"{package}=="))


def inside(seen: Mapping[str, Any]) -> str:
    """What a rank says, in words."""
    if not seen:
        return "nothing"
    trained = "all parameters" if seen["method"] == "full" else "adapters"
    checkpointing = "checkpointing" if seen["gradient_checkpointing"] else "no checkpointing"
    return (
        f"ZeRO-{seen['stage']}, {seen['micro_batch']} x {seen['accumulation_steps']} x"
        f" {seen['world']} ranks, {seen['precision']}, {checkpointing}; lr {seen['lr']:g},"
        f" clipping {seen['clipping']:g}; {seen['rows']} rows of"
        f" {seen['length']} tokens, {trained} trained, {seen['steps']} steps"
    )


def write_page(tables: str) -> None:
    """Replace the tables of the page."""
    before, _, rest = PAGE.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{BEGIN}\n{tables}{END}{after}")


if __name__ == "__main__":
    main()
