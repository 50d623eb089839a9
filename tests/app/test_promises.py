"""Each measured run, asked through the command line: the peak that `plan --json` prints."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from app.decide.asked import ROWS, said_of, words_of
from cli.harness import Run, clean_environ
from measured.rows import FOREACH, Row, predict_fullest, strategy_of
from paths import ROOT

HEAVY = frozenset({"torch", "transformers", "deepspeed", "questionary", "prompt_toolkit"})
BAND = 0.05
# A plan does not know the groups of an optimizer, and counts two: Adafactor in one group holds 8.4 %
# less (f1-022).
BAND_ABOVE = 0.09

# Its Adam is torch's own, which is not fused unless it is told to be.
UNFUSED = """\
import argparse

import deepspeed
import torch

parser = argparse.ArgumentParser()
parser.add_argument("--local_rank", type=int)
parser = deepspeed.add_config_arguments(parser)
args = parser.parse_args()
model = torch.nn.Linear(1, 1)
optimizer = torch.optim.AdamW(model.parameters())
engine, *_ = deepspeed.initialize(args=args, model=model, optimizer=optimizer)
"""

LOADED = """\
import sys

from zerowiz.cli.commands import main

try:
    main()
finally:
    sys.stderr.write("\\n" + " ".join(sys.modules))
"""


@pytest.fixture(autouse=True)
def recorded_transformers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """What the measured runs had installed: what attention keeps differs between releases."""
    (release,) = {row["versions"]["transformers"] for row in ROWS}
    info = tmp_path / "site" / f"transformers-{release}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: transformers\nVersion: {release}\n", encoding="utf-8"
    )
    monkeypatch.syspath_prepend(str(info.parent))
    return info.parent


def name(row: Row) -> str:
    return f"{row['id']}-{row['model']}-{strategy_of(row).name}"


# Only a script can say that its Adam is not fused; `plan` reads none.
SCRIPTED = [row for row in ROWS if row["optimizer"] in FOREACH]
# Nothing can say that ZeRO-3 is handed a model that was built whole; one in 4 bits always is.
SAID = [
    row
    for row in ROWS
    if row["optimizer"] not in FOREACH
    and (row.get("zero_init") is not False or row.get("quantized"))
]
# The default tests ask for some of them.
_SAMPLED = 8


def each(rows: Sequence[Row]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(
        "row",
        [
            pytest.param(row, id=name(row), marks=[pytest.mark.thorough] * bool(place % _SAMPLED))
            for place, row in enumerate(rows)
        ],
    )


each_said = each(SAID)


def test_most_measured_runs_can_be_asked_for() -> None:
    assert len(SAID) > 150
    assert len(ROWS) - len(SAID) < 20


@each_said
def test_plan_prints_what_the_formulas_say_and_what_was_measured(
    row: Row, here: Run, folder: Path
) -> None:
    result = here("plan", *words_of(row, folder))
    assert (0 if row["ok"] else 4) == result.code, result.stderr
    said_bytes = said_of(row, result.stdout)
    assert predict_fullest(row).peak_bytes == said_bytes
    if row["ok"]:
        ranks = [rank["peak_bytes"] for rank in row.get("rank_peaks") or ()]
        fullest_bytes = max([row["peak_bytes"], *ranks])
        assert (1 - BAND) * fullest_bytes < said_bytes < (1 + BAND_ABOVE) * fullest_bytes


@pytest.mark.parametrize("row", SCRIPTED, ids=name)
def test_a_launch_prints_what_the_formulas_say_of_an_adam_that_is_not_fused(
    row: Row, here: Run, folder: Path
) -> None:
    (folder / "train.py").write_text(UNFUSED, encoding="utf-8")
    result = here("launch", "--dry-run", *words_of(row, folder), "train.py")
    assert predict_fullest(row).peak_bytes == said_of(row, result.stdout)


# One of each strategy and method.
PROCESSES = list({(strategy_of(row), row.get("quantized")): row for row in SAID}.values())


@pytest.mark.parametrize("row", PROCESSES, ids=name)
def test_a_plan_loads_nothing_heavy_and_prints_the_same(
    row: Row, folder: Path, recorded_transformers: Path
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LOADED, "plan", *words_of(row, folder)],
        cwd=folder,
        env={**clean_environ(), "PYTHONPATH": f"{recorded_transformers}:{ROOT}"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert predict_fullest(row).peak_bytes == said_of(row, done.stdout)
    assert frozenset() == HEAVY & set(done.stderr.splitlines()[-1].split())
