"""The pages have what the blocks in their comments make of the code."""

import json
import os
import re
import shlex
import shutil
import tomllib
from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import jsonschema
import msgspec
import pytest
from cli.harness import Result, Run, enter
from cogapp import Cog
from docs.json_tables import PLAN
from docs.tables import SCHEMAS, plan_file_schema, plan_schema, spec_name
from paths import ROOT
from recorded import described

from zerowiz.cli import usage
from zerowiz.core.lint.linter import RULES as CHECK_RULES
from zerowiz.core.machine.names import parse_spec
from zerowiz.core.model.from_name import find_known
from zerowiz.core.preflight.examine import RULES as PREFLIGHT_RULES
from zerowiz.errors import DOCUMENTATION, HAS_SITE, ExitCode, page_of
from zerowiz.probe.files import (
    read_explanation,
    read_gpu_table,
    read_instances,
    read_known_models,
)

PAGES = [
    path.relative_to(ROOT).as_posix()
    for path in sorted((ROOT / "docs").rglob("*.md"))
    if "[[[cog" in path.read_text(encoding="utf-8")
]


@pytest.fixture
def check_blocks(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[[str], None]:
    """Let cog make the blocks of a file, and compare."""
    enter(ROOT, monkeypatch)

    def check(page: str) -> None:
        code = Cog().main(["cog", "--check", "--diff", "-I", "tests", page])
        assert 0 == code, f"{page}: `make golden` rewrites it\n{capsys.readouterr().out}"

    return check


def test_the_options_of_a_step_are_made_of_its_rows(check_blocks: Callable[[str], None]) -> None:
    check_blocks("zerowiz/app/options.py")


@pytest.mark.parametrize("page", PAGES)
def test_a_page_has_what_its_blocks_make(page: str, check_blocks: Callable[[str], None]) -> None:
    check_blocks(page)


def test_pages_with_blocks_were_found() -> None:
    assert len(PAGES) >= 8


# The names on the page of GPUs, instances and models mean their rows.

PAGE = ROOT / "docs" / "reference" / "tables.md"


def test_the_name_of_a_gpu_means_its_row() -> None:
    rows = read_gpu_table()
    meant = [parse_spec(f"1x{spec_name(row)}", rows).gpus[0].name for row in rows]
    assert [row.name for row in rows] == meant


def test_the_name_of_a_model_means_its_row() -> None:
    rows = read_known_models()
    assert all(find_known(row.id, rows) == row for row in rows)


def test_each_row_links_to_a_source() -> None:
    rows = re.findall(r"^\| `.*$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(rows) == sum(map(len, (read_gpu_table(), read_instances(), read_known_models())))
    assert [] == [row for row in rows if "](http" not in row]


# The page of errors has a place for each code, and explains it at a terminal too.

ERRORS_PAGE = ROOT / "docs" / "reference" / "errors.md"


@pytest.mark.parametrize(
    "words", [("check", "--explain", "zw204"), ("doctor", "--explain", "PF402")]
)
def test_a_code_is_explained_as_the_page_does(words: tuple[str, ...], here: Run) -> None:
    result = here(*words).good
    code = words[-1].upper()
    section = (
        ERRORS_PAGE.read_text(encoding="utf-8").partition(f"### {code}\n")[2].partition("\n### ")[0]
    )
    assert f"{code}\n\n{section.strip()}\n" == result.stdout


def test_the_address_of_a_code_is_printed_once_there_is_a_site(
    here: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert HAS_SITE is (urlsplit(DOCUMENTATION).hostname != "zerowiz.example")
    for has_site in (True, False):
        monkeypatch.setattr(usage, "HAS_SITE", has_site)
        shown = here("check", "--explain", "ZW204").stdout
        assert has_site is shown.endswith(f"\n\n{page_of('zw204')}\n")


@pytest.mark.parametrize("code", list(ExitCode))
def test_what_follows_the_sign_in_the_url_of_an_error_is_explained(
    here: Run, code: ExitCode
) -> None:
    anchor = page_of(f"exit-{int(code)}").partition("#")[2]
    shown = here("check", "--explain", anchor)
    assert (0, f"Exit {int(code)}") == (shown.code, shown.stdout.splitlines()[0])
    assert not re.search(r"<!--|-->|\[\[\[|\]\]\]", shown.stdout)


def test_no_explanation_has_a_mark_of_the_page() -> None:
    explained = {
        rule.code: read_explanation(rule.code) for rule in (*CHECK_RULES, *PREFLIGHT_RULES)
    }
    assert [] == [c for c, text in explained.items() if re.search(r"<!--|-->|\[\[\[|\]\]\]", text)]


@pytest.mark.parametrize(("code", "meant"), [("ZW1010", "ZW101"), ("Exit4", "exit-4")])
def test_a_code_that_is_none_is_a_usage_error(code: str, meant: str, here: Run) -> None:
    result = here("check", "--explain", code)
    assert (2, f"there is no code `{code}`") == (result.code, result.problem)
    assert result.hints.startswith(f"did you mean `{meant}`?")
    assert "`zerowiz check --explain all`" in result.hints


@pytest.mark.parametrize("command", ["check", "doctor"])
def test_all_codes_are_listed_with_what_each_is_about(command: str, here: Run) -> None:
    lines = here(command, "--explain", "all").stdout.splitlines()
    rules = [*CHECK_RULES, *PREFLIGHT_RULES]
    begins = [f"{rule.code} {rule.name} ({rule.severity})" for rule in rules]
    assert begins == [line.partition(": ")[0] for line in lines]
    assert all(line.partition(": ")[2] for line in lines)


def test_the_address_of_the_site_is_the_same_everywhere() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    site = re.search(r"^site_url: (\S+)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    assert site is not None
    assert {DOCUMENTATION} == {project["urls"]["Documentation"], site[1]}


def test_each_exit_code_has_a_place_on_the_page() -> None:
    page = ERRORS_PAGE.read_text(encoding="utf-8")
    assert [f"{int(end)}" for end in ExitCode] == re.findall(
        r"^### Exit (\d+)$", page, re.MULTILINE
    )


# The schemas of JSON objects are those of the values that are encoded.

Golden = Callable[[str, str], None]


def unknown_keys(value: object, part: Mapping[str, Any], defs: Mapping[str, Any]) -> list[str]:
    """The keys of a value that its schema does not name."""
    if value is not None and "anyOf" in part:
        return unknown_keys(value, part["anyOf"][0], defs)
    if "$ref" in part:
        return unknown_keys(value, defs[part["$ref"].rpartition("/")[2]], defs)
    if isinstance(value, list):
        items = part.get("items") or {}  # false: a pair, whose two items are numbers
        return [key for each in value for key in unknown_keys(each, items, defs)]
    known = part.get("properties")
    if not isinstance(value, dict) or known is None:
        return []
    inside = (unknown_keys(each, known[key], defs) for key, each in value.items() if key in known)
    return [*(key for key in value if key not in known), *chain.from_iterable(inside)]


def holds(schema: Mapping[str, Any], value: object) -> None:
    """The value is as the schema says, and the schema names each of its keys."""
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(value, schema)
    roots = schema.get("allOf", [schema])
    unknown = [set(unknown_keys(value, root, schema["$defs"])) for root in roots]
    assert set() == set.intersection(*unknown)


@pytest.mark.parametrize("name", SCHEMAS)
def test_each_object_has_its_schema_beside_the_page(name: str, golden: Golden) -> None:
    text = json.dumps(SCHEMAS[name](), indent=1)
    golden(f"../../docs/reference/{name}.schema.json", f"{text}\n")


def test_what_is_printed_keeps_its_schema(here: Run) -> None:
    printed = {
        "machine": [
            ("machine", "--machine", "4xA100-40GB", "--json"),
            ("machine", "--accelerator", "cpu", "--gpus-per-node", "2", "--json"),
        ],
        "error": [
            ("plan", "--machine", "4xA100-40GB", "--model", "7b", "--micro-batch", "0", "--json"),
            ("plan", "--machine", "nothing", "--model", "7b", "--json"),
            ("report", "--json"),
        ],
    }
    for name, commands in printed.items():
        for words in commands:
            holds(SCHEMAS[name](), json.loads(here(*words).stdout))


@pytest.mark.parametrize(
    "words",
    [
        ("--machine", "8xH100-80GB", "--model", "1b", "--objective", "fastest", "--limits"),
        ("--machine", "2xRTX4090", "--model", "7b", "--method", "lora"),
        ("--machine", "4xA100-40GB", "--model", "7b", "--accounting", "textbook"),
        ("--machine", "2xRTX4090", "--model", "70b"),
    ],
    ids=["fastest", "lora", "textbook", "nothing fits"],
)
def test_a_plan_keeps_its_schema(here: Run, words: tuple[str, ...]) -> None:
    holds(plan_schema(), json.loads(here("plan", *words, "--json").stdout))


def test_a_plan_file_keeps_its_schema(here: Run, folder: Path) -> None:
    job = ("--machine", "4xA100-40GB", "--model", "7b", "--gradient-checkpointing")
    assert 0 == here("init", "--yes", "--no-script", *job).code
    [file] = folder.glob("*.plan.json")
    plan, schema = json.loads(file.read_text(encoding="utf-8")), plan_file_schema()
    holds(schema, plan)
    keys = {*PLAN["Plan"], *PLAN["PlanFile"]}
    assert keys == {*plan}


# Every command of the README, the guides and the concepts runs, and prints what the page shows.

FOLDERS = ("guides", "concepts", "ja")
COMMANDS_PAGES = [
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
    r".*--trace": "tests/probe/model/trace traces with torch",
    r"zerowiz report": "tests/worker/measured_script launches, and reports",
    r"zerowiz template": "tests/cli/test_report.py copies",
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


ALL = [each for page in COMMANDS_PAGES for each in shown_in(page)]
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
    shutil.move(described("h200-x4", folder), folder / "node.json")
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
