"""Whatever is typed ends soon, in a documented code and one line; `make test-faults` tries 2,000."""

from collections.abc import Collection
from pathlib import Path

import pytest
from faults.bounded import misses, run_bounded
from faults.command_lines import command_line
from faults.gpus import fault_misses, gpu_fault, run_fault
from faults.mutations import damage
from faults.table import Fault, error, fault_table, garbage
from faults.zoo import build_zoo
from recorded import play, recording

from zerowiz.cli.commands import COMMANDS
from zerowiz.core.machine.names import decode_machine, encode_machine
from zerowiz.core.machine.types import Machine
from zerowiz.core.machine.warnings import find_warnings
from zerowiz.errors import PreflightError

SEEDS = range(8)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_random_command_line_ends_as_it_should(seed: int, tmp_path: Path) -> None:
    build_zoo(tmp_path / "zoo")
    ended = run_bounded(tmp_path / "zoo", command_line(seed))
    assert [] == misses(ended), (ended.words, ended.stderr)


def test_the_lines_of_a_seed_are_always_the_same() -> None:
    lines = [command_line(seed) for seed in range(300)]
    assert lines == [command_line(seed) for seed in range(300)]
    assert COMMANDS.keys() == {words[0] for words in lines}


# A driver that fails anywhere ends in a plan that is right, or in an error that names the GPU.


@pytest.mark.parametrize("seed", [1, 7, 14, 107])
def test_a_random_fault_of_the_driver_ends_as_it_should(seed: int, tmp_path: Path) -> None:
    build_zoo(tmp_path / "zoo")
    fault = gpu_fault(seed)
    ended = run_fault(fault, tmp_path / "zoo")
    assert [] == fault_misses(fault, ended), (fault, ended.stderr)


# A damaged machine file, config, model or script ends in one line, or in what it still says.


@pytest.mark.parametrize("seed", range(4))
def test_a_damaged_file_ends_as_it_should(seed: int, tmp_path: Path) -> None:
    build_zoo(tmp_path / "zoo")
    ended = run_bounded(tmp_path / "zoo", damage(seed, tmp_path / "zoo"))
    assert [] == misses(ended), (ended.words, ended.stderr)


# Whatever one function of NVML answers for one GPU, the others are planned for, or the error
# names it.
#
# Each function that is called of a machine of four GPUs fails with every code of NVML, then with
# random outputs.

# nvml.h, nvmlReturn_t; for every change those that somebody met, or that mean a lost GPU.
GONE = (15, 16)
MET = (1, 3, 4, 9, *GONE, 18, 999)
each_code = pytest.mark.parametrize(
    "codes",
    [MET, pytest.param({*range(1, 30)}.difference(MET), marks=pytest.mark.slow)],
    ids=["met", "others"],
)
NAME = "h200-x4-busy"
SYMBOLS = sorted(
    {call.partition("(")[0] for call in recording(NAME)["nvml"]} - {"nvmlInitWithFlags"}
)


def is_of_one(symbol: str) -> bool:
    """Whether a function is called of each GPU by itself."""
    return symbol.startswith("nvmlDevice") and "Count" not in symbol


OF_ONE_GPU = [symbol for symbol in SYMBOLS if is_of_one(symbol)]
WHOLE = play(recording(NAME))


def read(symbol: str, fault: Fault, gpu: str | None) -> Machine:
    """The machine under a fault; it can be said, saved and read again."""
    machine = play(recording(NAME), through=lambda table: fault_table(table, symbol, fault, gpu))
    find_warnings(machine)
    assert machine == decode_machine(encode_machine(machine), "it")
    return machine


@each_code
@pytest.mark.parametrize("symbol", OF_ONE_GPU)
def test_one_gpu_whose_call_fails_changes_no_other(symbol: str, codes: Collection[int]) -> None:
    for code in codes:
        machine = read(symbol, error(code), "gpu1")
        there = {gpu.index: gpu for gpu in machine.gpus}
        left_out = [gpu.index for gpu in machine.left_out]
        assert {0, 1, 2, 3} == {*there, *left_out}, code
        assert left_out in ([], [1]), code
        for gpu in WHOLE.gpus:
            if gpu.index in there:
                assert gpu.free_bytes == there[gpu.index].free_bytes, code
        # Of a GPU that is gone, the driver answers nothing any more: its memory is asked last.
        if code in GONE and "MemoryInfo" in symbol:
            assert [1] == left_out, code


@each_code
@pytest.mark.parametrize("symbol", SYMBOLS)
def test_a_function_that_fails_for_all_is_an_error_or_a_machine(
    symbol: str, codes: Collection[int]
) -> None:
    for code in codes:
        try:
            fine = not read(symbol, error(code), None).lives_on_host
        except PreflightError as refused:
            fine = bool(refused.hints)
        assert fine, code


@pytest.mark.parametrize("symbol", SYMBOLS)
def test_random_answers_are_an_error_or_a_machine_that_can_be(symbol: str) -> None:
    for seed in range(6):
        for gpu in ("gpu1", None):
            try:
                machine = read(symbol, garbage(seed), gpu)
            except PreflightError:
                continue
            assert all((gpu.free_bytes or 0) <= (gpu.total_bytes or 0) for gpu in machine.gpus)
