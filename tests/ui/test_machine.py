"""What a person sees of a machine."""

import io

import pytest
from fake_host import ANSWERING

from zerowiz.core.machine.types import Host
from zerowiz.core.structs import replace
from zerowiz.probe.machine.host import cpu_machine, read_host, with_number_formats
from zerowiz.probe.recording import RecordedFiles
from zerowiz.ui import machine

FILES = RecordedFiles(answers=ANSWERING)
HOST = with_number_formats(read_host(FILES), FILES, {})
# What is available says its bound among the sources; no rank is planned in fp16 unasked; how fast
# Python runs differs from one look to the next, and is in `machine --json`.
UNSAID = {"available_by", "computes_fp16", "python_call_seconds"}


def shown(host: Host) -> str:
    stream = io.StringIO()
    machine.machine(replace(cpu_machine(1, HOST), host=host), stream)
    return stream.getvalue()


@pytest.mark.parametrize("name", sorted({*Host.__struct_fields__} - UNSAID))
def test_a_person_sees_each_fact_of_a_host(name: str) -> None:
    assert shown(HOST) != shown(replace(HOST, **{name: None}))
