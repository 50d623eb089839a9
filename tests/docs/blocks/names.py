"""What the page of names is made of: what the names of the tests become."""

import re
from collections.abc import Mapping

import pytest
from core.machine import test_spec as machine_names
from core.model import test_known as model_names
from docs.blocks.markdown import table

from zerowiz.core.machine.spec import parse_machine
from zerowiz.core.model.from_name import find_known
from zerowiz.errors import UsageError
from zerowiz.probe.package_data import read_gpu_table, read_instances, read_known_models


def refused(texts: Mapping[str, object]) -> dict[str, UsageError]:
    found = {}
    for text in texts:
        with pytest.raises(UsageError) as error:
            parse_machine(text, read_gpu_table(), read_instances())
        found[text] = error.value
    return found


def machines() -> str:
    rows = []
    for text in machine_names.WRITTEN:
        machine = parse_machine(text, read_gpu_table(), read_instances())
        nodes = "" if machine.nodes == 1 else f"{machine.nodes} nodes of "
        taken = any("is taken to be" in note for note in machine.notes)
        gpus = f"{nodes}{len(machine.gpus)} x {machine.gpus[0].name}"
        rows.append((f"`{text}`", gpus, "taken" if taken else ""))
    assert len(rows) >= 60
    return table(("written", "becomes", "note"), rows)


def close_machines() -> str:
    rows = [
        (f"`{text}`", ", ".join(re.findall("`[^`]+`", error.hints[0])))
        for text, error in refused(machine_names.UNKNOWN).items()
    ]
    return table(("written", "close names"), rows)


def other_hardware() -> str:
    rows = [
        (f"`{text}`", error.message.partition(" is ")[2].partition(";")[0])
        for text, error in refused(machine_names.OTHERS).items()
    ]
    return table(("written", "is"), rows)


def models() -> str:
    rows = []
    for text in model_names.WRITTEN:
        row = find_known(text, read_known_models())
        assert row is not None
        rows.append((f"`{text}`", f"`{row.id}`", f"{row.params:,}"))
    assert len(rows) >= 30
    return table(("written", "model", "parameters"), rows)
