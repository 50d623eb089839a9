"""The page of names is what the tables of the tests become."""

import re
from collections.abc import Mapping

import pytest
from core.machine import test_spec as machines
from core.model import test_known as models
from page_tables import Block, table
from paths import ROOT

from zerowiz.core.machine.spec import parse_machine
from zerowiz.core.model.known import find_known
from zerowiz.errors import UsageError
from zerowiz.probe.machine.gpu_table import read_gpu_table, read_instances
from zerowiz.probe.model.known_models import read_known_models

PAGE = ROOT / "docs" / "reference" / "names.md"


def refused(texts: Mapping[str, object]) -> dict[str, UsageError]:
    found = {}
    for text in texts:
        with pytest.raises(UsageError) as error:
            parse_machine(text, read_gpu_table(), read_instances())
        found[text] = error.value
    return found


def test_the_page_says_what_each_machine_becomes(golden_block: Block) -> None:
    rows = []
    for text in machines.WRITTEN:
        machine = parse_machine(text, read_gpu_table(), read_instances())
        nodes = "" if machine.nodes == 1 else f"{machine.nodes} nodes of "
        taken = any("is taken to be" in note for note in machine.notes)
        gpus = f"{nodes}{len(machine.gpus)} x {machine.gpus[0].name}"
        rows.append((f"`{text}`", gpus, "taken" if taken else ""))
    assert len(rows) >= 60
    golden_block(PAGE, "machines", table(("written", "becomes", "note"), rows))


def test_the_page_says_what_is_close(golden_block: Block) -> None:
    rows = [
        (f"`{text}`", ", ".join(re.findall("`[^`]+`", error.hints[0])))
        for text, error in refused(machines.UNKNOWN).items()
    ]
    golden_block(PAGE, "close machines", table(("written", "close names"), rows))


def test_the_page_says_what_other_hardware_is(golden_block: Block) -> None:
    rows = [
        (f"`{text}`", error.message.partition(" is ")[2].partition(";")[0])
        for text, error in refused(machines.OTHERS).items()
    ]
    golden_block(PAGE, "other hardware", table(("written", "is"), rows))


def test_the_page_says_what_each_model_becomes(golden_block: Block) -> None:
    rows = []
    for text in models.WRITTEN:
        row = find_known(text, read_known_models())
        assert row is not None
        rows.append((f"`{text}`", f"`{row.id}`", f"{row.params:,}"))
    assert len(rows) >= 30
    golden_block(PAGE, "models", table(("written", "model", "parameters"), rows))
