"""What a machine's GPUs can do, by the table."""

import pytest

from zerowiz.core.machine.types import Gpu, Machine, MachineSource
from zerowiz.core.speed.costs import find_rates
from zerowiz.core.workload import Precision
from zerowiz.probe.package_data import read_gpu_table


def _machine(*names: str) -> Machine:
    gpus = tuple(Gpu(index=place, name=name) for place, name in enumerate(names))
    return Machine(source=MachineSource.SPEC, gpus=gpus)


def test_an_h200_is_as_fast_as_its_datasheet_says() -> None:
    rates = find_rates(_machine("NVIDIA H200"), read_gpu_table())
    assert rates is not None
    assert 989_000_000_000_000 == pytest.approx(rates.flop_per_s(Precision.BF16), rel=0.01)
    assert 67_000_000_000_000 == rates.flop_per_s(Precision.FP32)
    assert 4_800_000_000_000 == rates.memory_bytes_per_s


def test_fp32_is_no_rate_of_the_tensor_cores() -> None:
    """TF32 has half the rate of bf16 or a quarter, and is not what torch takes by itself."""
    for gpu in read_gpu_table():
        assert gpu.fp32_flop_per_s < 0.65 * gpu.fp16_flop_per_s, gpu.name
        assert "fp32" in gpu.source


def test_no_rate_is_known_of_a_slice() -> None:
    gpu = Gpu(index=0, name="NVIDIA H200", mig_slice=1)
    machine = Machine(source=MachineSource.SPEC, gpus=(gpu,))
    assert find_rates(machine, read_gpu_table()) is None


@pytest.mark.parametrize("names", [("a card of no table",), ("NVIDIA H200", "NVIDIA A10")])
def test_no_rate_is_known_of_a_strange_gpu_and_of_two_kinds(names: tuple[str, ...]) -> None:
    assert find_rates(_machine(*names), read_gpu_table()) is None
