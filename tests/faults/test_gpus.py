"""A driver that fails anywhere ends in a plan that is right, or in an error that names the GPU."""

from pathlib import Path

import pytest
from faults.gpus import fault_misses, gpu_fault, run_fault
from faults.zoo import build_zoo


@pytest.mark.parametrize("seed", [1, 7, 14, 107])
def test_a_random_fault_of_the_driver_ends_as_it_should(seed: int, tmp_path: Path) -> None:
    build_zoo(tmp_path / "zoo")
    fault = gpu_fault(seed)
    ended = run_fault(fault, tmp_path / "zoo")
    assert [] == fault_misses(fault, ended), (fault, ended.stderr)
