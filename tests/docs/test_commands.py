"""Every command of the README, the guides and the concepts runs, and prints what the page shows."""

import os
import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from cli.harness import Result, Run
from paths import ROOT
from recorded import MACHINES

FOLDERS = ("guides", "concepts", "ja")
PAGES = [
    *sorted(ROOT.glob("README*.md")),
    *(page for name in FOLDERS for page in sorted((ROOT / "docs" / name).rglob("*.md"))),
]

# What is not run here, and where it is.
NOT_RUN = {
    r"make ": "CI runs the targets",
    r"pip install ": "tests/package installs the wheel into clean environments",
    r"zerowiz init(?!.* --yes)": "it asks: tests/cli/test_wizard.py answers",
    r".*--hostfile": "tests/nodes asks and launches on nodes",
    r"zerowiz machine(?! --machine)": "it reads a driver: tests/cli/test_machine.py replays one",
    r".*--cases": "tests/worker runs cases",
    r".*--trace": "tests/probe/model/trace traces with torch",
    r"zerowiz report": "tests/worker/measured_script launches, and reports",
    r"zerowiz template": "tests/cli/test_template.py copies",
    r"jupyter ": "another program",
    r"(sbatch|srun) ": "tests/slurm starts jobs under a real SLURM",
    r"(cat|cd|source|git|jq|python) ": "a program of the system",
    r".* meta-llama/": "a model of the hub, which the tests do not ask",
}

# What a command needs besides, so that it starts nothing and finds a machine.
ELSEWHERE = ["--machine", "8xH100-80GB-SXM"]
ON_CPU = ["--accelerator", "cpu", "--gpus-per-node", "2"]
ADDED = {
    "launch": ["--dry-run", *ELSEWHERE],
    "doctor": ON_CPU,
    "measure": ["--dry-run", *ON_CPU],
    "init": ELSEWHERE,
}


class PageCommand(msgspec.Struct, frozen=True, kw_only=True):
    """A command of a page, and the lines below it."""

    page: str
    command: str
    output: str
    files: dict[str, str]


# Readers of these pages see zerowiz in their language.
IN_JAPANESE = re.compile(r"^docs/ja/|\.ja\.md$")

# A block that begins with the name of a file is that file.
_FILE = re.compile(r"^```\w+\n((?:#|//) (\w\S*\.\w+)\n.*?)^```", re.MULTILINE | re.DOTALL)


def shown_in(page: Path) -> Iterator[PageCommand]:
    """The commands of the console blocks of a page."""
    text = page.read_text(encoding="utf-8")
    files = {name: content for content, name in _FILE.findall(text)}
    for block in re.findall(r"^```console\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, output = part.replace("\\\n", " ").partition("\n")
            name = page.relative_to(ROOT).as_posix()
            yield PageCommand(page=name, command=command, output=output, files=files)


ALL = [each for page in PAGES for each in shown_in(page)]
RUN = [each for each in ALL if not any(re.match(shape, each.command) for shape in NOT_RUN)]


@pytest.fixture
def desk(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with what a reader has: a script, a model, a config, a saved machine."""
    templates = ROOT / "templates"
    shutil.copytree(templates, folder, dirs_exist_ok=True)
    for config in folder.glob("ds_config_*.json"):
        config.unlink()
    (folder / "templates").symlink_to(templates)
    shutil.copy(templates / "train_hf.py", folder / "train.py")
    (folder / "my-model").symlink_to(templates / "model")
    shutil.copy(MACHINES / "h200-x4.json", folder / "node.json")
    (folder / "ds_config.json").write_text('{"train_micro_batch_size_per_gpu": 4}')
    (folder / "pkg").mkdir()
    (folder / "configs").mkdir()
    shutil.copy(templates / "ds_config_zero2.json", folder / "configs")
    shutil.copy(templates / "train_hf.py", folder / "pkg" / "train.py")
    monkeypatch.setenv("COLUMNS", "100")
    return folder


def words_of(command: str, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The words behind `zerowiz`, with what the command needs here; its variables are set."""
    words = shlex.split(command)
    while "=" in words[0]:
        monkeypatch.setenv(*words.pop(0).split("=", 1))
    _, name, *rest = words
    options = ADDED.get(name, [])
    if {"--machine", "--accelerator"} & {*rest}:
        options = [word for word in options if word == "--dry-run"]
    asks = name in ADDED or any(word.endswith(".py") for word in rest)
    if asks and "--model" not in rest and not Path("zerowiz.toml").exists():
        monkeypatch.setenv("ZEROWIZ_MODEL", "my-model")
    return [name, *(word for word in options if word not in rest or word != "--dry-run"), *rest]


def has(result: Result, output: str) -> bool:
    """Whether the lines were printed, whatever their breaks; `...` stands for what is left out."""
    printed = " ".join((result.stdout + result.stderr).split())
    parts = (
        re.escape(" ".join(part.split()))
        for part in re.split(r"^\.\.\.$", output, flags=re.MULTILINE)
    )
    return all(re.search(part, printed) for part in parts)


@pytest.mark.parametrize("shown", RUN, ids=lambda shown: f"{shown.page}: {shown.command}")
def test_a_command_of_the_pages_runs(
    shown: PageCommand, desk: Path, here: Run, process: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, content in shown.files.items():
        (desk / name).write_text(content, encoding="utf-8")
    words = words_of(shown.command, monkeypatch)
    if IN_JAPANESE.search(shown.page):
        # A process speaks one language, which it chooses as its modules load.
        settings = {name: os.environ[name] for name in ("ZEROWIZ_MODEL",) if name in os.environ}
        result = process(*words, ZEROWIZ_LANG="ja", **settings)
    else:
        result = here(*words)
    fails = re.search(
        r"^(?:error|エラー): |:\d+ error ZW|^error PF|^\d+ errors?\b", shown.output, re.MULTILINE
    )
    assert bool(fails) == bool(result.code), result.stdout + result.stderr
    assert has(result, shown.output), result.stdout + result.stderr


def test_commands_were_found() -> None:
    assert len(RUN) >= 30
