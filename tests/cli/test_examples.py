"""The examples of every `--help`, run as they stand beside a script `train.py`."""

import shlex
import shutil
from pathlib import Path

import pytest
from cli.harness import HF_PARSER, Run
from paths import ROOT

from zerowiz.cli.commands import COMMANDS
from zerowiz.cli.help_page import EXAMPLES

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
