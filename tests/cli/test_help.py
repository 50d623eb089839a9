"""What `--help` says: the options that a command heeds, in the order of use, with their defaults."""

import json
import re
import shlex
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import typer
from cli.harness import COLUMNS, HF_IN_CODE_WITH_WORDS, HF_PARSER, Run, Terminal
from paths import ROOT
from shells.typed import PRINT_LINE, TYPED, completed, make_place, script_of

from zerowiz.app.options import Options, rows
from zerowiz.cli.commands import COMMANDS, register
from zerowiz.cli.completion import complete_machine
from zerowiz.cli.help_options import EXAMPLES, UNHEEDED, default_of
from zerowiz.core.machine.names import parse_machine
from zerowiz.probe.files import read_gpu_table, read_instances

# Completion, asked of a real bash as a person asks it; of other shells in `tests/shells`.


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with scripts and a model, and the program on PATH."""
    return make_place(tmp_path)


def test_bash_completes(place: Path) -> None:
    first = f"source {script_of('bash', place)}; {PRINT_LINE}; echo REA''DY"
    lines = completed(place, ["bash", "--norc", "--noprofile", "-i"], first, list(TYPED))
    assert list(TYPED.values()) == [f"{line} " if line[-1:] != " " else line for line in lines]


@pytest.mark.parametrize("begun", ["h1", "8xH", "2x8xA100", "P5", "dgx", "rtx", "4xl4", ""])
def test_each_machine_that_is_offered_is_taken(begun: str) -> None:
    offered = complete_machine(begun)
    assert offered
    for name in {*offered} - {"all", "cpu"}:
        assert name.startswith(begun)
        assert parse_machine(name, read_gpu_table(), read_instances()).gpus


# The examples of every `--help`, run as they stand beside a script `train.py`.

# Its model and its settings stand in it, as in most scripts that people have.
SCRIPT = HF_PARSER.replace(
    "model=None", 'model=AutoModelForCausalLM.from_pretrained("gpt2")'
).replace("import HfArg", "import AutoModelForCausalLM, HfArg")
LINES = [line for lines in EXAMPLES.values() for line, _ in lines]
# What starts ranks, asks a person, or writes: these are tried without doing it.
TRIED_BY = {"launch": ["--dry-run"], "init": ["--dry-run", "--yes"]}
# On a computer without a GPU; `report` has no launch to report of here.
WITHOUT_GPU = {"zerowiz machine": 5, "zerowiz machine --save node.json": 5, "zerowiz report": 1}


def test_every_command_has_examples_in_its_help(here: Run) -> None:
    assert COMMANDS.keys() == EXAMPLES.keys()
    for command, lines in EXAMPLES.items():
        shown = here(command, "-h")
        assert (0, here(command, "--help").stdout) == (shown.code, shown.stdout)
        for line, what in lines:
            assert f"  {line}\n      {what}\n" in shown.stdout
            assert ["zerowiz", command] == line.split()[:2]


@pytest.mark.parametrize("line", [line for line in LINES if " measure" not in line])
def test_an_example_runs_as_it_stands(
    here: Run, folder: Path, monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    if "machine" not in line:
        monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    (folder / "train.py").write_text(SCRIPT)
    shutil.copy(ROOT / "templates" / "ds_config_zero2.json", folder / "ds_config.json")
    _, command, *words = shlex.split(line)
    result = here(command, *TRIED_BY.get(command, []), *words)
    assert WITHOUT_GPU.get(line, 0) == result.code, result.stderr
    assert "Traceback" not in result.stderr


# `plan --explain` and the times of a plan, as people see them.

JOB = ("plan", "--machine", "2xH200", "--model", "7b", "--gradient-checkpointing", "--stage", "3")


def table_of(text: str, heading: str) -> list[list[str]]:
    """The rows below a heading, less the headings of its columns."""
    lines = text.partition(heading)[2].splitlines()[2:]
    ends = (place for place, line in enumerate(lines) if not line or line.startswith("next: "))
    end = next(ends, len(lines))
    return [re.split(r"\s{2,}", line) for line in lines[:end]]


def strategies_of(text: str) -> list[list[str]]:
    """The rows of the table of strategies."""
    table = text[text.index("\nstrategy ") :].partition("\n\n")[0]
    return [re.split(r"\s{2,}", line) for line in table.splitlines()[2:]]


def test_a_plan_shows_the_time_of_each_strategy_and_the_tokens_of_the_chosen_one(here: Run) -> None:
    shown = here(*JOB, "-v").stdout
    rows = strategies_of(shown)
    assert len(rows) == 7
    assert all(re.fullmatch(r"\d+\.?\d*", row[7]) for row in rows)
    assert re.search(
        r"^Time +[\d.]+ s per optimizer step expected, [\d.]+ to [\d.]+(, [\d.]+ on a slow host)?;"
        r" [\d,]+ tokens/s on all GPUs together$",
        shown,
        re.MULTILINE,
    )
    assert "Time of a step with ZeRO-3" not in shown


def test_explain_shows_parts_of_the_time_that_add_up(here: Run) -> None:
    rows = table_of(here(*JOB, "--explain").stdout, "Time of a step with ZeRO-3, in seconds:")
    *parts, total = rows
    assert total[0] == "sum"
    assert float(total[1]) == pytest.approx(sum(float(part[1]) for part in parts), abs=0.01)
    assert 99 <= sum(int(part[2].removesuffix("%")) for part in parts) <= 101
    assert all(part[3] for part in parts)


PCIE = "has no known speed: their PCIe is assumed, 63 GB/s one way."


def test_explain_says_where_the_rate_of_pcie_enters(here: Run) -> None:
    assert "PCIe" not in here(*JOB, "--explain").stdout.partition("Time of a step")[2]
    assert PCIE in here(*JOB, "--interconnect", "pcie", "--explain").stdout
    words = ("--model", "7b", "--stage", "3", "--offload", "all", "--host-memory", "1TiB")
    alone = here("plan", "--machine", "1xH200", *words, "--explain")
    said = alone.stdout.partition("Time of a step")[2]
    assert "What is offloaded crosses the PCIe of each GPU: 63 GB/s one way" in said
    assert PCIE not in said


def test_explain_shows_what_each_phase_holds_with_its_formula(here: Run) -> None:
    text = here(*JOB, "--explain").stdout.partition("Memory of each GPU with ZeRO-3")[2]
    text = text.partition("\nnext (")[0]
    rows = table_of(text, "c=context\n")
    assert {row[0] for row in rows} == {"model", "init", "forward", "backward", "step"}
    assert ["init", "master weights", "13.0", "4 P"] in rows


def test_a_time_that_is_unknown_is_a_dash_and_explain_says_why(here: Run) -> None:
    shown = here("plan", "--machine", "cpu", "--model", "10m", "--explain", "-v").stdout
    assert {"-"} == {row[7] for row in strategies_of(shown)}
    assert "Time  " not in shown
    assert "unknown: zerowiz has no speeds" in shown


def test_the_table_with_times_is_not_cut_at_80_columns(
    here: Run, terminal: Callable[..., Terminal]
) -> None:
    words = ("plan", "--machine", "2x8xH100-80GB-SXM", "--model", "405b", "--method", "lora", "-v")
    person = terminal(*words)
    person.end()
    shown, plain = strategies_of("\n".join(person.lines)), strategies_of(here(*words).stdout)
    assert [" ".join(row).split() for row in plain] == [" ".join(row).split() for row in shown]


def test_a_strategy_that_is_not_chosen_is_explained(here: Run) -> None:
    shown = here(*JOB[:-2], "--explain", "ZeRO-2", "-v").stdout
    assert "Time of a step with ZeRO-2" in shown
    (why,) = re.findall(r"Why ([\d.]+) GiB: what each GPU holds in (?:\w+)", shown)
    rows = table_of(shown, f"Why {why} GiB")
    *parts, total = rows
    assert [["ZeRO-2", why]] == [row[::3][:2] for row in strategies_of(shown) if row[0] == "ZeRO-2"]
    assert ["sum", why] == total
    assert float(why) == pytest.approx(sum(float(part[1]) for part in parts), abs=0.5)
    assert all(part[2] for part in parts)


def test_explain_takes_no_word_of_a_script(here: Run, folder: Path) -> None:
    (folder / "train.py").write_text(HF_IN_CODE_WITH_WORDS)
    words = [word for word in JOB if word != "--gradient-checkpointing"]
    shown = here(*words, "--explain", "train.py", "--explain", "zero2").good
    assert "Time of a step with ZeRO-3" in shown.stdout
    assert "Time of a step with ZeRO-2" not in shown.stdout


def test_verbose_shows_all_that_is_known_of_each_strategy(here: Run) -> None:
    plain, more = here(*JOB).stdout, here(*JOB, "-v").stdout
    assert "Buffers  " not in plain
    assert "Buffers  " in more
    head = next(line for line in more.splitlines() if line.startswith("strategy "))
    names = "strategy peak peak in needs headroom host sent time verdict"
    assert names.split() == head.split()


def test_a_host_that_is_too_small_has_a_verdict_of_its_own(here: Run) -> None:
    words = ("plan", "--machine", "8xH100-80GB-SXM", "--model", "8b", "--host-memory", "8GiB")
    shown = here(*words, "--offload", "all").stdout
    verdicts = dict(
        re.findall(r"^  (DDP|ZeRO-\d|ZeRO-2/3 offload) .* -  (.*)$", shown, re.MULTILINE)
    )
    assert {"too big", "host too small"} == set(verdicts.values())
    assert ("too big", "host too small") == (verdicts["DDP"], verdicts["ZeRO-2/3 offload"])
    assert "host unknown" not in shown
    found = json.loads(here(*words, "--offload", "all", "--json").stdout)["strategies"]
    assert {"does_not_fit"} == {each["verdict"] for each in found}
    (short,) = (each["name"] for each in found if each["gpu"]["headroom_bytes"] < 0)
    assert "ddp" == short


EACH = pytest.mark.parametrize("command", COMMANDS)
WITH_JOBS = ("init", "plan", "launch", "measure", "doctor")
# Those that are not set where nobody says them; a switch is off.
SWITCHES = {name for name in rows() if getattr(Options(), name) is False}
WITHOUT_DEFAULT = {"hostfile", "nvme_path", "config", *SWITCHES}
PLAN = ("--model", "7b", "--machine", "8xH100")


@cache
def params(command: str) -> list[typer.core.TyperOption]:
    app = typer.Typer(add_completion=False)
    register(app, command)
    found: list[typer.core.TyperOption] = [*vars(typer.main.get_command(app))["params"]]
    heeded = (each for each in found if each.name not in UNHEEDED.get(command, ()))
    return [each for each in heeded if each.param_type_name == "option"]


def spellings(command: str) -> set[str]:
    return {name for each in params(command) for name in (*each.opts, *each.secondary_opts)}


def page(here: Run, command: str) -> str:
    return here(command, "--help").stdout.partition("\nExamples:\n")[0]


@pytest.mark.parametrize("words", [(), *((command,) for command in COMMANDS)])
def test_a_page_is_plain_and_fits_80_columns(here: Run, words: tuple[str, ...]) -> None:
    shown = here(*words, "--help")
    assert (0, "") == (shown.code, shown.stderr)
    assert shown.stdout.startswith(" ".join(("Usage: zerowiz", *words)))
    assert max(map(len, shown.stdout.splitlines())) <= COLUMNS
    assert shown.stdout.isascii()
    for word in ("<str>", "range>", "x>=", "<=x", "None"):
        assert word not in shown.stdout


def test_the_list_of_commands_cuts_no_line(here: Run) -> None:
    shown = here("--help").stdout
    for name, about in COMMANDS.items():
        assert f" {name} {about} " in " ".join(shown.split())
    examples = shown.partition("\nExamples:\n")[2]
    assert ["zerowiz init", "zerowiz plan train.py"] == re.findall(
        r"^  (zerowiz .*)", examples, re.MULTILINE
    )[:2]


@pytest.mark.parametrize("command", WITH_JOBS)
def test_each_option_shows_its_default(here: Run, command: str) -> None:
    text = " ".join(page(here, command).split())
    for name, row in rows().items():
        default = default_of(name)
        assert (name in WITHOUT_DEFAULT) is (default is None), name
        heeded = row.on in spellings(command)
        assert heeded is (name not in UNHEEDED.get(command, ()))
        if default is not None and heeded:
            assert re.search(rf"{re.escape(row.help)} \[default: {re.escape(default)}\]", text), (
                name
            )


@pytest.mark.parametrize(
    "option", ["--html page.html", "--limits", "--explain", "--price 2", "--verbose"]
)
def test_an_option_of_one_plan_is_refused_where_two_are_compared(here: Run, option: str) -> None:
    result = here("plan", *PLAN, *option.split(), "--compare", "--stage", "3")
    name = option.partition(" ")[0]
    assert 2 == result.code
    assert f"`{name}` is for one plan, and `--compare` shows two" == result.problem


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("machine --machine 8xH100 --force", "`--force` has no effect without `--save`"),
        ("launch --max-attempts 3 x.py", "`--max-attempts` has no effect without `--escalate`"),
    ],
    ids=lambda text: text.partition(" ")[0],
)
def test_an_option_that_would_change_nothing_is_refused(here: Run, line: str, problem: str) -> None:
    result = here(*line.split())
    assert (2, problem) == (result.code, result.problem)
