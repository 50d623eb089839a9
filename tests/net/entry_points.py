"""What zerowiz says of entry points of public repositories, started as their READMEs start them.

`entry_points.json` names each repository's commit, and its entry points: the folder that the command is
typed in, the file that gives it, and the command itself, its variables filled in for one node of eight
GPUs. Of each repository it has three, those whose sha256 of `owner/name/path` is the lowest. A run draws
by the same hash from all of them. `python tests/net/entry_points.py [--drawn N] [WORD...]` prints a line
for each that has the word in its name, or for all, and keeps the whole answers in `.cache/net`. NET_MIRROR
is what it is in run.py.

`entry_verdicts.json` is what a reader of the sources found in those answers: what zerowiz states and the
script does not do (`wrong`), what it does not see and a reader does (`unseen`), why it refuses, and why
a job that it would start dies (`dies`; "accepted, and dies" where no claim is wrong).
`--verdicts` counts them.
"""

import argparse
import hashlib
import json
import os
import re
import shlex
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

# Its siblings are `net.…`, as they are to mypy.
sys.path[0] = str(Path(__file__).parents[1])

from net.isolated import Command, Ran, in_forks, leave_this_machine, run  # noqa: E402
from net.public import extract, read_facts  # noqa: E402
from paths import MODELS, ROOT  # noqa: E402
from repositories import find_repository  # noqa: E402

LISTED = Path(__file__).with_name("entry_points.json")
VERDICTS = Path(__file__).with_name("entry_verdicts.json")
PLAN, LAUNCH = ("plan", "--json"), ("launch", "--dry-run")
KEPT = ROOT / ".cache" / "net" / "entry_points"
DRAWN = 124
TRIES = 5
MACHINE = ("--machine", "8xA100-80GB")
# No model can be fetched here: one that a command names is a folder of that name with this config.json,
# and what asks for one gets this name.
CONFIG = MODELS / "qwen2.5-0.5b" / "config.json"
ADDED: Mapping[str, tuple[str, ...]] = {
    "model": ("--model", "qwen2.5-0.5b"),
    "micro-batch": ("--micro-batch", "1"),
}
NAMED = re.compile(r"`([^`]+)` (?:is not in the local|is not a folder|on this machine)")
# Of a command that starts ranks of its own: what to type instead, and the config that it names.
STARTED = re.compile(r"start the script itself: `zerowiz launch (.*)`")
CONFIG_WORD = re.compile(r"--(?:deepspeed_)?config_file[ =](\S+)")
TEXT = (".py", ".json", ".yaml", ".yml", ".toml", ".args", ".sh", ".cfg", ".hjson")
LARGEST_BYTES = 1_000_000


class Asked(NamedTuple):
    """An entry point, and the tree of its repository."""

    name: str
    """`owner/name/path`."""
    tree: Path
    folder: str
    command: str


def main() -> None:
    """Ask all that are drawn, and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("words", nargs="*", metavar="WORD")
    parser.add_argument("--drawn", type=int, default=DRAWN, metavar="N")
    parser.add_argument("--verdicts", action="store_true", help="only count what was found")
    typed = parser.parse_args()
    if typed.verdicts:
        count_verdicts()
        return
    listed = json.loads(LISTED.read_text(encoding="utf-8"))
    names = [
        name
        for name in draw(listed)[: typed.drawn]
        if not typed.words or any(word in name for word in typed.words)
    ]
    mirror = os.environ.get("NET_MIRROR")
    KEPT.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="entries-") as home:
        asked = [put(name, listed, Path(home) / "trees", mirror) for name in names]
        leave_this_machine(Path(home))
        exits = {int(code): count for code, count in Counter(answer(asked)).items()}
    repositories = {"/".join(name.split("/")[:2]) for name in names}
    sys.stdout.write(f"{len(names)} of {len(repositories)} repositories; by exit status {exits}\n")


def count_verdicts() -> None:
    """Print how many entry points each verdict, wrong claim, refusal and miss has."""
    found = json.loads(VERDICTS.read_text(encoding="utf-8")).values()
    counts = {
        "verdict": Counter(entry["verdict"] for entry in found),
        "wrong": Counter(kind for entry in found for kind in _kinds(entry, "wrong", "kind")),
        "refusal": Counter(entry["refusal"] for entry in found if "refusal" in entry),
        "unseen": Counter(kind for entry in found for kind in _kinds(entry, "unseen", "stands in")),
    }
    for heading, counted in counts.items():
        sys.stdout.write(f"{heading}:\n")
        for kind, count in counted.most_common():
            sys.stdout.write(f"{count:5} {kind}\n")


def _kinds(entry: Mapping[str, Any], of: str, key: str) -> set[str]:
    return {each[key] for each in entry.get(of, ())}


def answer(asked: list[Asked]) -> Iterator[int]:
    """The exit status of each plan; what zerowiz says is printed in short and kept whole."""
    added: list[tuple[str, ...]] = [()] * len(asked)
    plans = [*in_forks(run, map(partial(_command, PLAN), asked, added))]
    for _ in range(TRIES):
        again = [at for at, ran in enumerate(plans) if ran.code and _help(ran, at, asked, added)]
        rerun = in_forks(run, [_command(PLAN, asked[at], added[at]) for at in again])
        for at, ran in zip(again, rerun, strict=True):
            plans[at] = ran
    launches = [*in_forks(run, map(partial(_command, LAUNCH), asked, added))]
    facts = in_forks(_facts, asked)
    for entry, options, plan, launch, fact in zip(
        asked, added, plans, launches, facts, strict=True
    ):
        said = {
            "command": entry.command,
            "added": options,
            "exit": plan.code,
            "plan": json.loads(plan.stdout) if plan.stdout else {},
            "says": plan.stderr.splitlines(),
            "launch": launch,
            "facts": fact,
        }
        kept = KEPT / f"{entry.name.replace('/', '+')}.json"
        kept.write_text(json.dumps(said, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        sys.stdout.write(f"{plan.code} {entry.name} {' '.join(options)} {_refusal(plan)}\n")
        yield plan.code


def _help(ran: Ran, at: int, asked: list[Asked], added: list[tuple[str, ...]]) -> bool:
    """Whether there is now what a plan asks for."""
    refusal = _refusal(ran)
    if started := STARTED.search(ran.stderr):
        config = CONFIG_WORD.search(asked[at].command.removesuffix(started[1]))
        added[at] += ("--config", config[1]) if config else ()
        asked[at] = asked[at]._replace(command=started[1])
        return True
    if named := NAMED.search(refusal):
        # What is not below the folder has another name there.
        name = named[1].removeprefix("./")
        local = name.replace("/", "+") if name.startswith(("/", "..")) else name
        folder = asked[at].tree / asked[at].folder / local
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(CONFIG, folder)
        asked[at] = asked[at]._replace(command=asked[at].command.replace(named[1], local))
        return True
    missing = [options for word, options in ADDED.items() if word in refusal]
    if not missing or missing[0][0] in added[at]:
        return False
    added[at] += missing[0]
    return True


def _command(verb: tuple[str, str], asked: Asked, added: tuple[str, ...]) -> Command:
    words = (*verb, *MACHINE, *added, *shlex.split(asked.command))
    return Command(words, {}, asked.tree / asked.folder)


def _refusal(ran: Ran) -> str:
    return json.loads(ran.stdout).get("error", {}).get("message", "") if ran.stdout else ""


def _facts(asked: Asked) -> Any:
    folder = asked.tree / asked.folder
    path = asked.tree / asked.name.split("/", 2)[2]
    return read_facts(folder, Path(os.path.relpath(path, folder)))


def draw(listed: Mapping[str, Any]) -> list[str]:
    """All names, in the order in which they are drawn."""
    names = [f"{owned}/{path}" for owned, source in listed.items() for path in source["entries"]]
    return sorted(names, key=lambda name: hashlib.sha256(name.encode()).hexdigest())


def put(name: str, listed: Mapping[str, Any], trees: Path, mirror: str | None) -> Asked:
    """Extract the repository of an entry point, unless it is there."""
    owner, repository, path = name.split("/", 2)
    owned = f"{owner}/{repository}"
    source = listed[owned]
    tree = trees / f"{owner}+{repository}"
    if not tree.exists():
        found = find_repository(
            owned, source["commit"], mirror=mirror, cache=KEPT.parent / "repositories"
        )
        extract(
            found,
            source["commit"],
            tree,
            lambda at, size: at.endswith(TEXT) and size <= LARGEST_BYTES,
        )
    entry = source["entries"][path]
    return Asked(name, tree, entry["folder"], entry["command"])


if __name__ == "__main__":
    main()
