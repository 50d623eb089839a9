"""Compare what zerowiz answers today with what it answered when the net was taken.

`make net` compares, and `make net-update` rewrites: `python run.py [--update] [PART...]`. NET_MIRROR
names a folder of git repositories called `owner+name`, to be asked in place of GitHub.
"""

import argparse
import difflib
import json
import os
import shlex
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

# Its siblings are `net.…`, as they are to mypy.
sys.path[0] = str(Path(__file__).parents[1])
sys.dont_write_bytecode = False

from net.digest import beyond, differences, render, shorten  # noqa: E402
from net.isolated import Command, Ran, in_forks, leave_this_machine, run  # noqa: E402
from net.jobs import JOBS, LAUNCHES, Job  # noqa: E402
from net.public import TREES, find_repositories, read_public  # noqa: E402
from paths import MODELS, ROOT, TEMPLATES  # noqa: E402
from probe.scripts import SCRIPTS  # noqa: E402
from recorded import described, names  # noqa: E402

HERE = Path(__file__).parent
CACHE = ROOT / ".cache" / "net"
WHOLE = CACHE / "whole"
REPOSITORIES = CACHE / "repositories"
PARTS = ("plans", "screens", "launches", "scripts", "configs")
LINKS = {
    **{path.name: path for path in SCRIPTS.glob("*.py")},
    "templates": TEMPLATES,
    "models": MODELS,
    "inputs": HERE / "inputs",
}
# What zerowiz reads the release of, or whether it is there.
LIBRARIES = (
    *("deepspeed", "torch", "transformers", "accelerate", "peft", "trl", "datasets"),
    *("bitsandbytes", "liger-kernel", "flash-attn", "pyyaml"),
)
SHOWN = 12
SHOWN_CHARACTERS = 240


def main() -> None:
    """Take the parts that are asked for, or all, and compare or keep them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", help=f"of {', '.join(PARTS)}; all, if none is named")
    parser.add_argument("--update", action="store_true", help="rewrite the files")
    words = parser.parse_args()
    if unknown := {*words.parts} - {*PARTS}:
        parser.error(f"no such part: {', '.join(sorted(unknown))}")
    asked = [part for part in PARTS if part in (words.parts or PARTS)]
    found: dict[str, Path] = {}
    missing: list[str] = []
    if {*asked} & {"scripts", "configs"}:
        found, missing = find_repositories(os.environ.get("NET_MIRROR"), REPOSITORIES)
    shutil.rmtree(WHOLE, ignore_errors=True)
    made = {"libraries.json": render(libraries())}
    with tempfile.TemporaryDirectory(prefix="net-") as home:
        LINKS["machines"] = Path(home) / "machines"
        for name in names():
            described(name, LINKS["machines"])
        leave_this_machine(Path(home))
        for part in asked:
            began = time.monotonic()
            made.update(take(part, found, Path(home) / TREES))
            say(f"{part}: taken in {time.monotonic() - began:.0f} s")
    left_out = {f"{part}/{_file(name)}" for part in ("scripts", "configs") for name in missing}
    kept = {name: text for name, text in read_kept(asked).items() if name not in left_out}
    if words.update:
        update(kept, made)
    else:
        compare(kept, made)
    if missing:
        say(
            f"NOT COMPARED: scripts and configs of {len(missing)} repositories, as neither GitHub nor"
            f" NET_MIRROR has them here: {', '.join(missing)}"
        )
    if not words.update and kept != made:
        sys.exit(1)


def take(part: str, found: dict[str, Path], folder: Path) -> dict[str, str]:
    """The files of one part, by their names below this folder."""
    if part == "plans":
        return take_plans()
    if part == "screens":
        screens = {job.name: f"plan {_with_host(job)}" for job in JOBS if job.screen}
        return take_texts(part, screens)
    if part == "launches":
        lines = {name: f"launch --dry-run {words}" for name, words in LAUNCHES.items()}
        return take_texts(part, lines)
    rows: dict[str, dict[str, Any]] = {}
    for name, result in read_public(part, found, folder):
        owner, repository, path = name.split("/", 2)
        rows.setdefault(f"{owner}/{repository}", {})[path] = result
    return {f"{part}/{_file(name)}": render(results) for name, results in rows.items()}


def take_plans() -> dict[str, str]:
    """The JSON of each job with an unknown host memory, and what a known one changes."""
    asked = [(job, line) for job in JOBS for line in dict.fromkeys([job.words, _with_host(job)])]
    plans: dict[str, dict[str, Any]] = {}
    lines = run_lines([f"plan --json {line}" for _, line in asked])
    for (job, line), ran in zip(asked, lines, strict=True):
        keep_whole(f"plans/{job.name}{'' if line == job.words else '-host'}.json", ran.stdout)
        plan = {"exit": ran.code, "says": ran.stderr.splitlines()}
        plan |= shorten(json.loads(ran.stdout)) if ran.stdout else {}
        kept = plans.setdefault(f"plans/{job.name}.json", {})
        kept[f"plan {line}"] = beyond(plan, *kept.values()) if kept else plan
    return {name: render(plan) for name, plan in plans.items()}


def take_texts(part: str, lines: dict[str, str]) -> dict[str, str]:
    """What a person sees of each command line at 80 columns, or in a file."""
    return {
        f"{part}/{name}.txt": f"$ zerowiz {line}\n{ran.stdout}--- stderr\n{ran.stderr}--- exit {ran.code}"
        for (name, line), ran in zip(lines.items(), run_lines([*lines.values()]), strict=True)
    }


def run_lines(lines: list[str]) -> Iterator[Ran]:
    """Run each line in a folder that has what jobs name."""
    return in_forks(run, [Command((*shlex.split(line),), LINKS) for line in lines])


def _with_host(job: Job) -> str:
    return f"--host-memory {job.host_memory} {job.words}" if job.host_memory else job.words


def _file(repository: str) -> str:
    return f"{repository.replace('/', '+')}.json"


def libraries() -> dict[str, str]:
    """The releases that are installed; a plan may go by them."""
    releases = {"python": ".".join(map(str, sys.version_info[:2]))}
    for name in LIBRARIES:
        try:
            releases[name] = version(name).partition("+")[0]
        except PackageNotFoundError:
            releases[name] = "none"
    return releases


def keep_whole(name: str, text: str) -> None:
    """Keep what is shortened beside the caches, for whoever looks for a difference."""
    path = WHOLE / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def read_kept(asked: list[str]) -> dict[str, str]:
    """The files of the net, of these parts."""
    paths = [HERE / "libraries.json", *(path for part in asked for path in (HERE / part).glob("*"))]
    return {
        path.relative_to(HERE).as_posix(): path.read_text(encoding="utf-8").removesuffix("\n")
        for path in paths
        if path.is_file()
    }


def update(kept: dict[str, str], made: dict[str, str]) -> None:
    """Write what is new, and remove what is no longer asked."""
    for name in kept.keys() - made.keys():
        (HERE / name).unlink()
    for name, text in made.items():
        (HERE / name).parent.mkdir(exist_ok=True)
        (HERE / name).write_text(text + "\n", encoding="utf-8")
    changed = sum(kept.get(name) != text for name, text in made.items())
    say(f"{len(made)} files, {changed} of them changed; {len(kept.keys() - made.keys())} removed")


def compare(kept: dict[str, str], made: dict[str, str]) -> None:
    """Print what differs: each file's differences, cut, and then how often each kind occurs."""
    kinds: Counter[str] = Counter()
    whole: list[str] = []
    names = [name for name in sorted(kept | made) if kept.get(name) != made.get(name)]
    for name in names:
        lines = list(explain(name, kept.get(name), made.get(name), kinds))
        whole += [name, *lines]
        more = [f"  … {len(lines) - SHOWN} more"] if len(lines) > SHOWN else []
        say("\n".join([name, *(line[:SHOWN_CHARACTERS] for line in lines[:SHOWN]), *more]))
    if not names:
        say(f"equal: {len(made)} files")
        return
    say(f"\n{len(names)} of {len(kept | made)} files differ:")
    for kind, count in kinds.most_common():
        say(f"  {count:5} {kind}")
    keep_whole("differences.txt", "\n".join(whole) + "\n")
    say(f"all of it: {WHOLE / 'differences.txt'}; plans whole: {WHOLE / 'plans'}")


def explain(name: str, old: str | None, new: str | None, kinds: Counter[str]) -> Iterator[str]:
    """The differences of one file, a line each; their kinds are counted."""
    part = name.partition("/")[0]
    if old is None or new is None:
        kinds[f"{part}: a file that is {'new' if old is None else 'gone'}"] += 1
        yield "  new" if old is None else "  gone"
    elif name.endswith(".json"):
        for *path, before, after in differences(json.loads(old), json.loads(new)):
            kinds[f"{part}: {' … '.join(dict.fromkeys([*path[1:2], *path[-1:]]))}"] += 1
            yield f"  {': '.join(path)}: {before} -> {after}"
    else:
        kinds[f"{part}: text"] += 1
        lines = difflib.unified_diff(old.splitlines(), new.splitlines(), lineterm="", n=0)
        yield from (f"  {line}" for line in lines if not line.startswith(("---", "+++", "@@")))


def say(text: str) -> None:
    """One line or more, at once."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
