"""The page of errors has a place for each code, and explains it at a terminal too."""

import re
import tomllib
from urllib.parse import urlsplit

import pytest
from cli.harness import Run
from paths import ROOT

from zerowiz.cli import help_page
from zerowiz.core.findings import Rule
from zerowiz.core.lint.linter import RULES as CHECK_RULES
from zerowiz.core.preflight.examine import RULES as PREFLIGHT_RULES
from zerowiz.errors import DOCUMENTATION, HAS_SITE, ExitCode, page_of
from zerowiz.probe.package_data import read_explanation

PAGE = ROOT / "docs" / "reference" / "errors.md"


@pytest.mark.parametrize(
    "words", [("check", "--explain", "zw204"), ("doctor", "--explain", "PF402")]
)
def test_a_code_is_explained_as_the_page_does(words: tuple[str, ...], here: Run) -> None:
    result = here(*words)
    assert 0 == result.code
    code = words[-1].upper()
    section = PAGE.read_text(encoding="utf-8").partition(f"### {code}\n")[2].partition("\n### ")[0]
    assert f"{code}\n\n{section.strip()}\n" == result.stdout


def test_the_address_of_a_code_is_printed_once_there_is_a_site(
    here: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert HAS_SITE is (urlsplit(DOCUMENTATION).hostname != "zerowiz.example")
    for has_site in (True, False):
        monkeypatch.setattr(help_page, "HAS_SITE", has_site)
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


@pytest.mark.parametrize("rule", [*CHECK_RULES, *PREFLIGHT_RULES], ids=lambda rule: rule.code)
def test_no_explanation_has_a_mark_of_the_page(rule: Rule) -> None:
    assert not re.search(r"<!--|-->|\[\[\[|\]\]\]", read_explanation(rule.code))


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
    page = PAGE.read_text(encoding="utf-8")
    assert [f"{int(end)}" for end in ExitCode] == re.findall(
        r"^### Exit (\d+)$", page, re.MULTILINE
    )
