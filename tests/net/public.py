"""Training scripts and DeepSpeed configs of public repositories: what zerowiz reads in them.

`sources.json` names each file with its commit and its hash. The files themselves are not kept.
"""

import hashlib
import json
import os
import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import msgspec
from net.digest import digest
from net.isolated import Command, in_forks, run
from repositories import find_repository

HERE = Path(__file__).parent
SOURCES = HERE / "sources.json"
# What a script is planned for: little is searched and no formula of memory counts, so that only what
# is read of the script differs.
JOB = ("--machine", "8xH200-141GB", "--stage", "2")
MODEL = ("--model", "meta-llama/Llama-3.1-8B")
LARGEST_MODULE_BYTES = 1_000_000
TREES = "public"
LARGEST_BESIDE_BYTES = 100_000
BESIDE = (".json", ".yaml", ".yml", ".args", ".toml")


class Asked(NamedTuple):
    """A file of a public repository, put into a folder."""

    name: str
    """`owner/name/path`."""
    path: Path
    sha256: str


def read_sources() -> dict[str, Any]:
    """Each repository's commit, and its files with their hashes, as `scripts` and `configs`."""
    sources: dict[str, Any] = json.loads(SOURCES.read_text(encoding="utf-8"))
    return sources


def find_repositories(mirror: str | None, cache: Path) -> tuple[dict[str, Path], list[str]]:
    """The repositories that are here or come from GitHub, and the names of the others."""
    found: dict[str, Path] = {}
    for name, source in read_sources().items():
        try:
            repository = find_repository(name, source["commit"], mirror=mirror, cache=cache)
            git = ["git", "-C", str(repository), "cat-file", "-e", f"{source['commit']}^{{commit}}"]
            subprocess.run(git, check=True, stderr=subprocess.DEVNULL)
        except (subprocess.CalledProcessError, OSError):
            continue
        found[name] = repository
    return found, [name for name in read_sources() if name not in found]


def read_public(
    kind: str, repositories: Mapping[str, Path], folder: Path
) -> Iterator[tuple[str, Any]]:
    """The claims about each script, or the findings in each config."""
    read = {"scripts": _claims, "configs": _findings}[kind]
    asked = list(put_files(kind, repositories, folder))
    for file, found in zip(asked, in_forks(read, asked), strict=True):
        yield file.name, found


def put_files(kind: str, repositories: Mapping[str, Path], folder: Path) -> Iterator[Asked]:
    for name, repository in repositories.items():
        source = read_sources()[name]
        tree = folder / name
        if not tree.exists():
            extract(repository, source["commit"], tree, _wanted(source))
        for path, sha256 in source[kind].items():
            yield Asked(f"{name}/{path}", tree / path, sha256)


def extract(
    repository: Path, commit: str, tree: Path, is_wanted: Callable[[str, int], bool]
) -> None:
    """Write the files of a commit, by path and size in bytes; without those that the copy lacks."""
    git = ["git", "-C", str(repository)]
    listed = subprocess.run(
        [*git, "ls-tree", "-r", "-l", "-z", commit], check=True, capture_output=True
    )
    paths: list[tuple[str, str]] = []
    for line in filter(None, listed.stdout.decode(errors="replace").split("\0")):
        about, _, path = line.partition("\t")
        mode, _kind, blob, size = about.split()
        is_file = mode.startswith("100") and size.isdigit()  # "BAD": a copy that lacks large files
        if is_file and is_wanted(path, int(size)):
            paths.append((blob, path))
    packed = subprocess.run(
        [*git, "cat-file", "--batch"],
        input="".join(f"{blob}\n" for blob, _ in paths).encode(),
        check=True,
        capture_output=True,
    ).stdout
    at = 0
    for _blob, path in paths:
        end = packed.index(b"\n", at)
        header = packed[at:end].split()
        if header[1] == b"missing":
            at = end + 1
            continue
        start, at = end + 1, end + 1 + int(header[2]) + 1
        (tree / path).parent.mkdir(parents=True, exist_ok=True)
        (tree / path).write_bytes(packed[start : at - 1])


def _wanted(source: Mapping[str, Any]) -> Callable[[str, int], bool]:
    """Every module of the repository, which scripts import, and what lies beside the files."""
    listed = {*source["scripts"], *source["configs"]}
    folders = {PurePosixPath(path).parent for path in listed}

    def is_wanted(path: str, size_bytes: int) -> bool:
        if path in listed:
            return True
        if path.endswith(".py"):
            return size_bytes <= LARGEST_MODULE_BYTES
        beside = path.endswith(BESIDE) and PurePosixPath(path).parent in folders
        return beside and size_bytes <= LARGEST_BESIDE_BYTES

    return is_wanted


def _claims(asked: Asked) -> dict[str, Any]:
    """What the reader of scripts finds, and what a plan makes of it. Ends this process's use."""
    if changed := _changed(asked):
        return changed
    facts = read_facts(asked.path.parent, Path(asked.path.name))
    named = facts.get("model", {})
    model = () if "value" in named and "flag" not in named else MODEL
    # The rule of thumb knows no adapters.
    accounting = "real" if facts.get("trains_adapters") else "textbook"
    words = ("plan", "--json", *JOB, *model, "--accounting", accounting, asked.path.name)
    ran = run(Command(words, {}, asked.path.parent))
    plan = json.loads(ran.stdout) if ran.stdout else {}
    planned = {
        "exit": ran.code,
        "workload": {k: v for k, v in plan.get("workload", {}).items() if v is not None},
        **{key: plan[key] for key in ("settled", "config_path") if plan.get(key)},
        "says": ran.stderr.splitlines(),
    }
    claims = {"facts": facts, "plan": {k: v for k, v in planned.items() if v not in ({}, [])}}
    # A module that is not below the script's folder has its whole path.
    trees = next(parent for parent in asked.path.parents if parent.name == TREES)
    found: dict[str, Any] = json.loads(json.dumps(claims).replace(f"{trees}/", ""))
    return found


def _findings(asked: Asked) -> dict[str, Any]:
    if changed := _changed(asked):
        return changed
    ran = run(Command(("check", "--json", asked.path.name), {}, asked.path.parent))
    told = json.loads(ran.stdout) if ran.stdout else {}
    findings = [
        f"{finding['code']} line {finding.get('line')}"
        for file in told.get("files", [])
        for finding in file["findings"]
    ]
    unread = told.get("unreadable", []) + ([] if ran.stdout else ran.stderr.splitlines())
    return {"exit": ran.code, "findings": findings, **({"unread": unread} if unread else {})}


def _changed(asked: Asked) -> dict[str, Any] | None:
    """What stands in place of a result where the file is not the one that was listed."""
    if not asked.path.is_file():
        return {"missing": asked.sha256}
    sha256 = hashlib.sha256(asked.path.read_bytes()).hexdigest()
    return None if sha256 == asked.sha256 else {"another file": sha256}


def read_facts(folder: Path, path: Path) -> Any:
    """What is read of a script from a folder, each fact that is not its default."""
    from zerowiz.errors import ZerowizError
    from zerowiz.probe.script.read_script import read_script

    os.chdir(folder)
    try:
        facts = _differing(read_script(path))
    except ZerowizError as error:
        return {"error": str(error)}
    facts |= facts.pop("sources", {})
    options = facts.get("parser", {}).pop("options", [])
    if options:
        facts["parser"]["options"] = f"{len(options)} {digest(options)}"
    return facts


def _differing(value: Any) -> Any:
    """A value in JSON's types, of a Struct the fields that are not their default."""
    if isinstance(value, msgspec.Struct):
        fields = ((f.name, getattr(value, f.name), f) for f in msgspec.structs.fields(value))
        parts = {name: _differing(part) for name, part, f in fields if not _is_default(part, f)}
        return {name: part for name, part in parts.items() if part not in (None, {}, [], False)}
    if isinstance(value, Mapping):
        return {str(key): _differing(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_differing(part) for part in value]
    if isinstance(value, set | frozenset):
        return sorted(str(_differing(part)) for part in value)
    return value if isinstance(value, int | float | str | None) else str(value)


def _is_default(value: object, field: msgspec.structs.FieldInfo) -> bool:
    if field.default is not msgspec.NODEFAULT:
        return bool(value == field.default)
    factory = field.default_factory
    return factory is not msgspec.NODEFAULT and bool(value == factory())
