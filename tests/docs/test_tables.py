"""The names on the page of GPUs, instances and models mean their rows."""

import re

from docs.blocks.tables import spec_name
from paths import ROOT

from zerowiz.core.machine.spec import parse_spec
from zerowiz.core.model.from_name import find_known
from zerowiz.probe.package_data import read_gpu_table, read_instances, read_known_models

PAGE = ROOT / "docs" / "reference" / "tables.md"


def test_the_name_of_a_gpu_means_its_row() -> None:
    rows = read_gpu_table()
    meant = [parse_spec(f"2x{spec_name(row)}", rows).gpus[0].name for row in rows]
    assert [row.name for row in rows] == meant


def test_the_name_of_a_model_means_its_row() -> None:
    rows = read_known_models()
    assert all(find_known(row.id, rows) == row for row in rows)


def test_each_row_links_to_a_source() -> None:
    rows = re.findall(r"^\| `.*$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(rows) == sum(map(len, (read_gpu_table(), read_instances(), read_known_models())))
    assert [] == [row for row in rows if "](http" not in row]
