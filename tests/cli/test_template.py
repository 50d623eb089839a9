"""`zerowiz template`: a script to start from, copied whole or not at all."""

import shlex
import sys
from pathlib import Path

import pytest
from cli.harness import Run
from paths import ROOT
from ranks.harness import rank_environ, read_reports, run
from templates.jobs import losses

from zerowiz.core.templates import TEMPLATES, Template
from zerowiz.core.workload import Loop

EACH = pytest.mark.parametrize("template", TEMPLATES, ids=lambda each: each.loop)


def paths(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def test_there_is_one_for_each_loop_and_the_trainer_is_the_default() -> None:
    assert set(Loop) == {each.loop for each in TEMPLATES}
    assert Loop.TRAINER is TEMPLATES[0].loop


@EACH
def test_all_that_the_script_needs_is_copied_byte_for_byte(
    here: Run, folder: Path, template: Template
) -> None:
    assert 0 == here("template", "--loop", template.loop, "a/first run").code
    copied = folder / "a" / "first run"
    for path in paths(copied):
        assert (ROOT / "templates" / path).read_bytes() == (copied / path).read_bytes()
    assert {"corpus.txt", "model/config.json", template.script} < paths(copied)
    assert "portable_checkpoint/__init__.py" in paths(copied)


def test_without_a_folder_the_templates_are_listed_and_nothing_is_written(
    here: Run, folder: Path
) -> None:
    result = here("template")
    assert 0 == result.code
    for each in TEMPLATES:
        assert f"--loop {each.loop}" in result.stdout
        assert each.script in result.stdout
    assert set() == paths(folder)


def test_a_second_copy_changes_nothing_and_the_other_template_joins_it(
    here: Run, folder: Path
) -> None:
    here("template", "demo")
    before = paths(folder)
    again = here("template", "demo")
    assert (0, True) == (again.code, again.stdout.startswith("all of it is in demo already\n"))
    other = here("template", "--loop", "engine", "demo")
    assert "wrote demo/train_deepspeed.py\n" == other.stdout.partition("\n\n")[0] + "\n"
    assert before | {"demo/train_deepspeed.py"} == paths(folder)


def test_a_file_of_another_content_refuses_all_of_it(here: Run, folder: Path) -> None:
    (folder / "demo").mkdir()
    (folder / "demo" / "corpus.txt").write_text("mine\n")
    result = here("template", "demo")
    assert 1 == result.code
    assert "`demo/corpus.txt` already exists with other content; zerowiz does not change it" == (
        result.problem
    )
    assert "use an empty folder" == result.hints
    assert {"demo/corpus.txt"} == paths(folder)
    assert "mine\n" == (folder / "demo" / "corpus.txt").read_text()


@pytest.mark.parametrize("name", ["train.py", "train.py/below"])
def test_what_is_no_folder_is_named(here: Run, folder: Path, name: str) -> None:
    (folder / "train.py").write_text("mine\n")
    result = here("template", name)
    assert 1 == result.code
    assert "not a" in result.problem
    assert result.hints
    assert {"train.py"} == paths(folder)


def test_here_the_next_command_enters_no_folder(here: Run, folder: Path) -> None:
    result = here("template", ".")
    assert "next: zerowiz launch --model model train_hf.py\n" in result.stdout
    assert "train_hf.py" in paths(folder)


@pytest.mark.deepspeed
@pytest.mark.parametrize(
    "template",
    [
        pytest.param(each, marks=() if each.loop is Loop.ENGINE else pytest.mark.slow)
        for each in TEMPLATES
    ],
    ids=lambda each: each.loop,
)
def test_the_command_that_it_names_trains_the_copy_on_two_ranks(
    tmp_path: Path, template: Template
) -> None:
    reports = tmp_path / "reports"
    ours = rank_environ(reports)
    env = {**ours, "PYTHONPATH": f"{ours['PYTHONPATH']}:{ROOT}"}
    zerowiz = [sys.executable, "-m", "zerowiz"]

    said = run([*zerowiz, "template", "--loop", template.loop, "demo"], env=env, cwd=tmp_path)
    line = said.stdout.partition("on a machine without a GPU: ")[2].strip()
    enter, _, launch = line.partition(" && ")
    assert "cd demo" == enter
    _, command, *words = shlex.split(launch)
    done = run(
        [*zerowiz, command, "--yes", "--gpus-per-node", "2", *words],
        env=env,
        cwd=tmp_path / "demo",
    )

    assert 0 == done.returncode, f"{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    assert [0, 1] == [report["rank"] for report in read_reports(reports)]
    seen = losses(done.stdout)
    assert seen[max(seen)] < seen[min(seen)] - 1
