"""A rank ran out of memory where the error that it died of says so, and nowhere else."""

import pytest

from zerowiz.core.memory.allocations import MemoryKind
from zerowiz.core.outcome import died_for, last_error

OPENS = 'Traceback (most recent call last):\n  File "train.py", line 3, in <module>\n'

# As torch 2.13, NCCL 2.27 and cuBLAS say it; one row a text: the status, and what ran out.
DEVICE = {
    "torch": OPENS
    + "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total",
    "torch before 2.5": OPENS
    + "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate",
    "a rank's hook": "\n".join(f"[rank1]: {line}" for line in OPENS.splitlines())
    + "\n[rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 MiB",
    "CUDA": OPENS + "RuntimeError: CUDA error: out of memory\nCompile with `TORCH_USE_CUDA_DSA`",
    "cuBLAS": OPENS
    + "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
    "NCCL": OPENS
    + "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:77, unhandled cuda"
    + " error\nLast error:\nCuda failure 2 'out of memory'",
    "rich": "╭──── Traceback (most recent call last) ────╮\n│ train.py:3 │\n╰────╯\n"
    "OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB",
    "chained": OPENS
    + "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate\n\n"
    + "During handling of the above exception, another exception occurred:\n\n"
    + OPENS
    + "RuntimeError: the step failed",
    "the cause of any other": OPENS
    + "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate\n\n"
    + "The above exception was the direct cause of the following exception:\n\n"
    + OPENS
    + "ValueError: no loss",
    "a connection lost while it was handled": OPENS
    + "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate\n\n"
    + "During handling of the above exception, another exception occurred:\n\n"
    + OPENS
    + "torch.distributed.DistBackendError: NCCL communicator was aborted on rank 1.",
    "aborted as it ended": OPENS
    + "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate\n"
    + "terminate called without an active exception",
    "C++": "terminate called after throwing an instance of 'c10::OutOfMemoryError'\n"
    "  what():  CUDA out of memory. Tried to allocate 2.00 GiB",
    "warnings after it": OPENS
    + "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate\n"
    + "[rank0]:[W] Warning: WARNING: destroy_process_group() was not called before program exit",
}
CPU = OPENS + (
    "RuntimeError: [enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't"
    " allocate memory: you tried to allocate 4503599627370496 bytes. Error code 12 (Cannot"
    " allocate memory)"
)
OTHERS = {
    "another error": OPENS + "ValueError: CUDA is not available",
    "one that was caught, and another error": OPENS
    + "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate\nsmaller batch\n"
    + OPENS
    + "ValueError: no",
    "the line of the script that says so": 'Traceback (most recent call last):\n  File "train.py", line'
    ' 9, in <module>\n    print("CUDA out of memory, tried again"); raise ValueError("bad label")\n'
    "ValueError: bad label",
    "the same line, by a rank's hook": "[rank1]: Traceback (most recent call last):\n"
    '[rank1]:   File "train.py", line 9\n[rank1]:     log("CUDA out of memory")\n[rank1]: KeyError: 3',
    "the same line, in rich's box": "╭──── Traceback (most recent call last) ────╮\n"
    '│ ❱ 9 log("CUDA out of memory") │\n╰────╯\nKeyError: 3',
    "the same line, in a group": "  + Exception Group Traceback (most recent call last):\n"
    '  |   File "train.py", line 9\n  |     log("CUDA out of memory")\n  | ExceptionGroup: two',
    "another one while it was handled": OPENS
    + "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate\n\n"
    + "During handling of the above exception, another exception occurred:\n\n"
    + OPENS
    + "ValueError: bad label",
    "a warning alone": "CUDA out of memory, this batch is left out\ndiverged",
    "nothing": "",
}


def died(text: str, *, on_cpu: bool = False, pythons: bool = False) -> MemoryKind | None:
    return died_for(last_error(text.splitlines(), pythons=pythons), on_cpu=on_cpu)


@pytest.mark.parametrize("name", DEVICE)
def test_the_accelerators_memory_ran_out(name: str) -> None:
    assert MemoryKind.GPU is died(DEVICE[name])


def test_what_cplusplus_says_at_the_end_of_python_hides_no_error_of_pythons() -> None:
    crashed = (
        "\nterminate called after throwing an instance of 'c10::Error'\n  what(): shutting down"
    )
    assert died(DEVICE["torch"] + crashed) is None
    assert MemoryKind.GPU is died(DEVICE["torch"] + crashed, pythons=True)


@pytest.mark.parametrize(
    "above",
    [
        "Exception ignored in: <function Loader.__del__ at 0x7f0>",
        "Exception in thread Thread-1 (_pin_memory_loop):",
        "Exception ignored in atexit callback: <function finish at 0x7f0>",
        "--- Logging error ---",
    ],
)
def test_an_error_that_ends_nothing_hides_none_that_did(above: str) -> None:
    late = f"{above}\n{OPENS}ConnectionResetError: [Errno 104] Connection reset by peer"
    assert MemoryKind.GPU is died(f"{DEVICE['torch']}\n{late}")
    # Where no other shows, it may be why the script ended.
    assert MemoryKind.GPU is died(f"{above}\n{DEVICE['torch']}")


def test_host_memory_is_the_accelerators_where_that_is_the_cpu() -> None:
    assert MemoryKind.HOST is died(CPU)
    assert MemoryKind.GPU is died(CPU, on_cpu=True)


@pytest.mark.parametrize(
    "last", ["MemoryError", "OSError: [Errno 12] Cannot allocate memory", "[rank0]: MemoryError: 3"]
)
def test_the_hosts_memory_ran_out(last: str) -> None:
    assert MemoryKind.HOST is died(OPENS + last)


@pytest.mark.parametrize("name", OTHERS)
def test_any_other_error_is_not_for_memory(name: str) -> None:
    assert died(OTHERS[name]) is None
