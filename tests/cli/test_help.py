"""What `--help` says: the options that a command heeds, in the order of use, with their defaults."""

import re
from functools import cache

import pytest
import typer
from cli.harness import COLUMNS, Run

from zerowiz.app.options import Options, rows
from zerowiz.cli.commands import COMMANDS
from zerowiz.cli.help_page import IDLE, NEEDS, UNHEEDED, default_of, heeded_params

EACH = pytest.mark.parametrize("command", COMMANDS)
WITH_JOBS = ("init", "plan", "launch", "measure", "doctor")
# Those that are not set where nobody says them; a switch is off.
SWITCHES = {name for name in rows() if getattr(Options(), name) is False}
WITHOUT_DEFAULT = {"hostfile", "nvme_path", "config", *SWITCHES}
PLAN = ("--model", "7b", "--machine", "8xH100")


@cache
def params(command: str) -> list[typer.core.TyperOption]:
    from importlib import import_module

    app = typer.Typer(add_completion=False)
    import_module(f"zerowiz.cli.commands.{command}").register(app)
    found = heeded_params(typer.main.get_command(app), command)
    return [each for each in found if each.param_type_name == "option"]


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


@EACH
def test_the_headings_stand_in_the_order_of_use(here: Run, command: str) -> None:
    order = ["Arguments", "Options", "Run", "Model", "Machine", "Training step", "Choice"]
    order += ["Time and cost", "Output", "Other"]
    found = re.findall(r"^(\w[\w ]+):$", page(here, command), re.MULTILINE)
    assert [each for each in order if each in found] == found


@EACH
def test_an_option_of_another_command_is_named_as_that(here: Run, command: str) -> None:
    others = {name for each in COMMANDS for name in spellings(each)} - {"--help", "-h"}
    rows_left_out = [rows()[name] for name in UNHEEDED.get(command, ())]
    hidden = {name for row in rows_left_out for name in (row.on, row.off, row.short)}
    for option in sorted(others - spellings(command) - hidden):
        result = here(command, option)
        assert (2, f"there is no option `{option}`") == (result.code, result.problem), option
        named = re.findall(r"`zerowiz (\w+)`", result.hints)
        assert named
        for each in named:
            assert option in spellings(each)


@pytest.mark.parametrize(
    ("command", "name"), [(each, name) for each in UNHEEDED for name in sorted(UNHEEDED[each])]
)
def test_an_option_that_a_command_does_not_heed_is_in_no_page(
    here: Run, command: str, name: str
) -> None:
    assert not re.search(rf"^ +.*{rows()[name].on}\b ", page(here, command), re.MULTILINE)


@pytest.mark.parametrize("flag", ["--yes", "--dry-run"])
def test_what_happens_anyway_may_be_asked_for(here: Run, flag: str) -> None:
    assert here("plan", *PLAN).stdout == here("plan", *PLAN, flag).stdout


@pytest.mark.parametrize("command", ["init", "launch", "measure", "doctor"])
def test_the_rule_of_thumb_belongs_to_plan(here: Run, command: str) -> None:
    result = here(command, "--accelerator", "cpu", "--model", "10m", "--accounting", "textbook")
    assert 2 == result.code
    assert "works with `zerowiz plan` only" in result.problem


@pytest.mark.parametrize(
    ("command", "words", "lacks"),
    [
        ("machine", ("--machine", "8xH100", "--force"), "`--save`"),
        ("machine", ("--machine", "8xH100", "--deadline", "3"), "`--hostfile`"),
        ("launch", ("--max-attempts", "3", "train.py"), "`--escalate`"),
        ("launch", ("--launcher", "openmpi", "train.py"), "`--hostfile`"),
        ("plan", (*PLAN, "--module"), "SCRIPT"),
        ("plan", (*PLAN, "--config-via", "env"), "SCRIPT"),
        ("measure", ("--model", "10m", "-m"), "SCRIPT"),
        ("measure", ("--model", "10m", "--config-via", "env"), "SCRIPT"),
    ],
)
def test_an_option_that_would_change_nothing_is_refused(
    here: Run, command: str, words: tuple[str, ...], lacks: str
) -> None:
    result = here(command, *words)
    assert 2 == result.code
    assert result.problem.endswith(f" has no effect without {lacks}")
    assert lacks in result.hints


@pytest.mark.parametrize(
    ("command", "words", "beside"),
    [
        ("machine", ("--machine", "8xH100", "--disk", "."), "`--machine`"),
        ("launch", ("--no-supervise", "--grace-seconds", "9", "train.py"), "`--no-supervise`"),
        ("measure", ("--model", "10m", "--case-deadline", "9", "train.py"), "SCRIPT"),
        ("measure", ("--cases", "cases.json", "--steps", "9"), "`--cases`"),
        ("measure", ("--cases", "cases.json", "--cap-bytes", "9"), "`--cases`"),
        ("plan", (*PLAN, "--html", "page.html", "--compare", "--stage", "3"), "`--compare`"),
        ("plan", (*PLAN, "--limits", "--compare", "--stage", "3"), "`--compare`"),
        ("plan", (*PLAN, "--explain", "--compare", "--stage", "3"), "`--compare`"),
        ("plan", (*PLAN, "--tokens", "1B", "--compare", "--stage", "3"), "`--compare`"),
    ],
)
def test_an_option_that_changes_nothing_beside_another_is_refused(
    here: Run, command: str, words: tuple[str, ...], beside: str
) -> None:
    result = here(command, *words)
    assert (2, True) == (result.code, result.problem.endswith(f" has no effect with {beside}"))
    option = re.fullmatch(r"`(--[a-z-]+)` has .*", result.problem)
    assert option is not None
    assert option[1] in words
    assert f"remove `{option[1]}`" == result.hints


def test_each_need_is_of_options_that_the_command_has() -> None:
    for command, needs in NEEDS.items():
        names = {each.name for each in params(command)}
        for need in needs:
            assert {need.option, *need.alone} <= names
            assert need.beside in names | {"script"}
    for command, idles in IDLE.items():
        known = {each.name for each in params(command)} | {"script"}
        assert {name for idle in idles for name in (idle.option, idle.beside)} <= known
