"""`replace`; each `type: ignore` here is one that mypy would call unused if it checked nothing."""

import pytest

from zerowiz.core.machine.types import Host
from zerowiz.core.structs import replace


def test_a_copy_has_the_fields_that_were_changed_and_those_that_were_not() -> None:
    host = Host(cores=8, total_bytes=2**30)
    assert Host(cores=4, total_bytes=2**30) == replace(host, cores=4)
    assert Host(cores=8, total_bytes=2**30) == host


def test_a_keyword_that_is_no_field_is_refused_by_mypy_too() -> None:
    with pytest.raises(TypeError):
        replace(Host(), core=4)  # type: ignore[call-arg]


def test_a_value_of_another_type_is_refused_by_mypy_alone() -> None:
    assert "4" == replace(Host(), cores="4").cores  # type: ignore[arg-type]
