"""A rank ran out of memory where the error that it died of says so, and nowhere else."""

import json
from typing import Any, cast

import pytest
from cli.harness import HF_IN_CODE
from hypothesis import given
from hypothesis import strategies as st
from paths import TEMPLATES

from zerowiz.core.job_end import (
    AttemptRecord,
    Cause,
    JobEnd,
    MeasuredFigures,
    PredictedFigures,
    RankEnd,
    RunRecord,
    RunSummary,
    died_for,
    judge,
    last_error,
    parse_end,
    plain_status,
    render_record,
)
from zerowiz.core.launch.plan import ResumeFrom, Saved, output_folder, plan_resume
from zerowiz.core.memory.allocations import MemoryKind
from zerowiz.core.script.arguments import SettingsFile
from zerowiz.core.script.config_delivery import deliver
from zerowiz.core.script.facts import ScriptFacts
from zerowiz.core.script.settings import ScriptRun
from zerowiz.core.strategies import DDP, ZERO1, ZERO2, ZERO2_OFFLOAD, ZERO3
from zerowiz.core.strategy_types import Strategy
from zerowiz.core.structs import decode, replace
from zerowiz.errors import UsageError
from zerowiz.probe.script.read_script import parse_script, read_script

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
    "NCCL's own": OPENS
    + "torch.distributed.DistBackendError: NCCL error in: NCCLUtils.hpp:275, unhandled cuda error\n"
    + "ncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\n"
    + "Failed to CUDA calloc async 6291456 bytes",
    "cuDNN 9": OPENS
    + "RuntimeError: cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED",
    "Triton": OPENS + "RuntimeError: Triton Error [CUDA]: out of memory",
    # It prints this and ends with status 1; nothing is raised.
    "bitsandbytes": "Error out of memory at line 380 in file /src/csrc/pythonInterface.c",
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
    # Where its files and its counters are, and how much a block of threads shares.
    "cuBLAS of another version": OPENS
    + "RuntimeError: CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`",
    "NCCL of another cause": OPENS
    + "torch.distributed.DistBackendError: NCCL error in: NCCLUtils.hpp:275, unhandled cuda error\n"
    + "Last error:\nCuda failure 1 'invalid argument'",
    "NCCL and the limit of locked memory": OPENS
    + "torch.distributed.DistBackendError: NCCL error in: NCCLUtils.hpp:275, unhandled system error\n"
    + "Last error:\nCall to ibv_create_cq failed with error Cannot allocate memory",
    "bitsandbytes of another cause": "Error invalid argument at line 88 in file /src/csrc/ops.cu",
    "Triton and the memory of a block": OPENS
    + "triton.runtime.errors.OutOfResources: out of resource: shared memory, Required: 135200",
    "/dev/shm": OPENS
    + "RuntimeError: unable to allocate shared memory(shm) for file </torch_7>: No space left on"
    + " device (28)",
    "a worker that was killed": OPENS
    + "RuntimeError: DataLoader worker (pid 77) is killed by signal: Killed. ",
    "nothing": "",
}


CRASHED = (
    f"{DEVICE['torch']}\nterminate called after throwing an instance of 'c10::Error'\n"
    "  what(): shutting down"
)
GPU, HOST = MemoryKind.GPU, MemoryKind.HOST
LATE = f"{OPENS}ConnectionResetError: [Errno 104] Connection reset by peer"
# An error under these ends nothing.
IGNORED = (
    "Exception ignored in: <function Loader.__del__ at 0x7f0>",
    "Exception in thread Thread-1 (_pin_memory_loop):",
    "Exception ignored in atexit callback: <function finish at 0x7f0>",
    "--- Logging error ---",
)
OF_HOST = (
    "MemoryError",
    "OSError: [Errno 12] Cannot allocate memory",
    "[rank0]: MemoryError: 3",
    "MemoryError: std::bad_alloc",
    "numpy._core._exceptions._ArrayMemoryError: Unable to allocate 7.45 GiB for an array",
    "pyarrow.lib.ArrowMemoryError: malloc of size 1073741824 failed",
    "RuntimeError: unable to mmap 8 bytes from file </a>: Cannot allocate memory (12)",
)


@pytest.mark.parametrize(
    ("text", "on_cpu", "pythons", "expected"),
    [
        *(pytest.param(text, False, False, GPU, id=name) for name, text in DEVICE.items()),
        *(pytest.param(text, False, False, None, id=name) for name, text in OTHERS.items()),
        *((OPENS + last, on_cpu, False, HOST) for last in OF_HOST for on_cpu in (False, True)),
        *((CPU, on_cpu, False, HOST) for on_cpu in (False, True)),
        ("terminate called after throwing an instance of 'std::bad_alloc'", False, False, HOST),
        # A rank on the CPU has no GPU, whatever it says.
        *(
            pytest.param(text, True, False, None, id=f"CPU: {name}")
            for name, text in DEVICE.items()
        ),
        # What C++ says at the end of Python hides no error of Python's.
        (CRASHED, False, False, None),
        (CRASHED, False, True, GPU),
        *((f"{DEVICE['torch']}\n{above}\n{LATE}", False, False, GPU) for above in IGNORED),
        # Where no other shows, it may be why the script ended.
        *((f"{above}\n{DEVICE['torch']}", False, False, GPU) for above in IGNORED),
    ],
)
def test_a_rank_died_for_memory_where_its_last_error_says_so(
    text: str, *, on_cpu: bool, pythons: bool, expected: MemoryKind | None
) -> None:
    assert expected is died_for(last_error(text.splitlines(), pythons=pythons), on_cpu=on_cpu)


# The record of a run says what was tried and how it ended.

RUNS = AttemptRecord(
    strategy="zero2",
    why="sharding gradients and optimizer states is enough",
    config_path="ds_config_zero2.json",
    plan_path="ds_config_zero2.plan.json",
    command=("deepspeed", "train.py"),
    env={"DS_ACCELERATOR": "cpu"},
    logs="/out/.zerowiz/runs/1/attempt-1",
    resume_from=ResumeFrom.START,
    resume_path=None,
    started_at="2026-11-22T04:30:00Z",
    predicted=PredictedFigures(peak_bytes=9),
)
FIRST = RankEnd(
    rank=3, host="n2", status=1, ended_at=7.0, memory=MemoryKind.GPU, tail=("no",), log="rank-3.log"
)
DIED = replace(
    RUNS,
    ended_at="2026-11-22T04:31:00Z",
    end=JobEnd(status=1, cause=Cause.CUDA_OOM, first=FIRST),
)
WELL = replace(RUNS, ended_at="2026-11-22T04:40:00Z", end=JobEnd(status=0, cause=Cause.FINISHED))
RECORD = RunRecord(
    zerowiz_version="1", script="train.py", script_args=(), job=None, attempts=(RUNS,)
)


def test_a_run_lasts_from_its_first_attempt_to_its_last() -> None:
    goes_on = json.loads(render_record(replace(RECORD, attempts=(DIED, RUNS))))
    assert (None, None) == (goes_on["exit"], goes_on["ended_at"])
    assert [1, 2] == [attempt["number"] for attempt in goes_on["attempts"]]
    first, second = (attempt["end"] for attempt in goes_on["attempts"])
    # The rank that was first is named with its last lines.
    assert second is None
    assert {
        "status": 1,
        "cause": "cuda_oom",
        "rank": 3,
        "host": "n2",
        "log": "rank-3.log",
        "last_lines": ["no"],
    } == first
    ended = json.loads(render_record(replace(RECORD, attempts=(DIED, WELL), exit_status=0)))
    assert (0, RUNS.started_at, WELL.ended_at) == (
        *(ended["exit"], ended["started_at"], ended["ended_at"]),
    )


def test_what_was_predicted_and_measured_is_read_again() -> None:
    measured = MeasuredFigures(ranks=2, peak_bytes=7, step_seconds=0.5)
    text = render_record(replace(RECORD, attempts=(replace(DIED, measured=measured), RUNS)))
    died, runs = decode(RunSummary, json.loads(text), "zerowiz-run.json").attempts
    assert (RUNS.predicted, measured) == (died.predicted, died.measured)
    assert died.end is not None
    assert (1, Cause.CUDA_OOM) == (died.end.status, died.end.cause)
    assert (2, None, None) == (runs.number, runs.end, runs.measured)


def test_a_record_without_predictions_is_refused_by_name() -> None:
    content = json.loads(render_record(RECORD))
    del content["attempts"][0]["predicted"]
    with pytest.raises(UsageError, match=r"`zerowiz-run\.json"):
        decode(RunSummary, content, "zerowiz-run.json")


# From where a restarted script goes on, and with which words.

RUN_CLM = """\
from dataclasses import dataclass, field
from transformers import AutoModelForCausalLM, HfArgumentParser, Trainer, TrainingArguments

@dataclass
class ModelArguments:
    model_name_or_path: str = field(default="gpt2")

model_args, args = HfArgumentParser((ModelArguments, TrainingArguments)).parse_args_into_dataclasses()
model = AutoModelForCausalLM.from_pretrained(model_args.model_name_or_path)
Trainer(model=model, args=args).train(resume_from_checkpoint=args.resume_from_checkpoint)
"""
FOREIGN = parse_script(RUN_CLM, "run_clm.py")
ALL = Saved(portable="out/p-3", engine="out/checkpoint-3", weights="out/checkpoint-2")


OURS = [read_script(TEMPLATES / name) for name in ("train_hf.py", "train_deepspeed.py")]
UNNAMED = parse_script(HF_IN_CODE, "t.py")
IN_OUT = ("--output_dir", "out")
TAKES_CHECKPOINT = (*IN_OUT, "--resume_from_checkpoint", "out/checkpoint-3")
TAKES_WEIGHTS = (*IN_OUT, "--model_name_or_path", "out/checkpoint-2")


@pytest.mark.parametrize(
    ("script", "words", "saved", "strategies", "resume_from", "expected"),
    [
        # Our templates resume at every stage; one that was told so is not told twice.
        *(
            (script, words, ALL, (ZERO2, ZERO3), ResumeFrom.CHECKPOINT, expected)
            for script in OURS
            for words, expected in (
                (("--seed", "3"), ("--seed", "3", "--resume")),
                (("--resume", "--seed", "3"), ("--resume", "--seed", "3")),
            )
        ),
        # Without a checkpoint: with `--resume` it would take that of an earlier run.
        *((script, (), Saved(), (ZERO2, ZERO3), ResumeFrom.START, ()) for script in OURS),
        (FOREIGN, IN_OUT, Saved(), (ZERO1, ZERO2), ResumeFrom.START, IN_OUT),
        # A model that cannot be named.
        (UNNAMED, (), ALL, (ZERO1, ZERO2), ResumeFrom.START, ()),
        # DeepSpeed's own checkpoint is taken only where it loads.
        (FOREIGN, IN_OUT, ALL, (ZERO1, ZERO2), ResumeFrom.CHECKPOINT, TAKES_CHECKPOINT),
        *(
            (FOREIGN, IN_OUT, ALL, strategies, ResumeFrom.WEIGHTS, TAKES_WEIGHTS)
            for strategies in ((ZERO2, ZERO3), (DDP, ZERO2), (ZERO1, ZERO2_OFFLOAD))
        ),
    ],
)
def test_a_script_goes_on_from_what_it_can_load(
    script: ScriptFacts,
    words: tuple[str, ...],
    saved: Saved,
    strategies: tuple[Strategy, Strategy],
    resume_from: ResumeFrom,
    expected: tuple[str, ...],
) -> None:
    resume = plan_resume(ScriptRun(script, words), saved, *strategies)
    assert (resume_from, expected) == (resume.resume_from, resume.script_args)


@pytest.mark.parametrize("script", OURS)
def test_our_templates_take_the_portable_checkpoint(script: ScriptFacts) -> None:
    assert "out/p-3" == plan_resume(ScriptRun(script), ALL, ZERO2, ZERO3).path
    assert not ScriptRun(script).resumes
    assert ScriptRun(script, ("--resume",)).resumes


@pytest.mark.parametrize(
    ("after", "expected"),
    [
        (ZERO2, {"resume_from_checkpoint": "out/checkpoint-3"}),
        (ZERO3, {"model_name_or_path": "out/checkpoint-2"}),
    ],
)
def test_a_script_that_takes_one_file_resumes_by_the_copy_of_it(
    after: Strategy, expected: dict[str, str]
) -> None:
    said = {"output_dir": "mine", "model_name_or_path": "gpt2"}
    file = SettingsFile(path="args.json", values=said, is_whole=True)
    facts = replace(FOREIGN, settings_file=file)
    assert "mine" == output_folder(ScriptRun(facts, ("args.json",)))
    resume = plan_resume(ScriptRun(facts, ("args.json",)), ALL, ZERO1, after)
    delivery = deliver(facts, resume.script_args, after.config_name)
    assert delivery.copy is not None
    assert {**said, **expected, "deepspeed": after.config_name} == delivery.copy.values
    assert (f"args.ds_config_zero{after.stage}.json",) == delivery.script_args


@pytest.mark.parametrize(
    ("script", "words", "expected"),
    [
        (FOREIGN, ("--output_dir", "a"), "a"),
        (FOREIGN, ("--output_dir=b",), "b"),
        (FOREIGN, (), "trainer_output"),
        *((script, (), "out") for script in OURS),
    ],
)
def test_the_folder_is_the_one_that_the_words_name_else_the_scripts_default(
    script: ScriptFacts, words: tuple[str, ...], expected: str | None
) -> None:
    assert expected == output_folder(ScriptRun(script, words))


# A job's status and cause are those of who ended it, whoever else ended after.


def end(rank: int, status: int | None, at: float = 0.0, **settings: Any) -> RankEnd:
    return RankEnd(**{"host": "a", **settings}, rank=rank, status=status, ended_at=at)


VERDICT_WELL, TERMINATED = end(0, 0), end(0, 143, at=9)

# What there was to see, and how it is to be told: the ends, the launcher's status, a stop and when.
# fmt: off
TABLE: dict[str, tuple[tuple[RankEnd, ...], int, int | None, float | None, tuple[int, str]]] = {
    "all ended well": ((VERDICT_WELL, end(1, 0)), 0, None, None, (0, "finished")),
    "all ended well though told to end": ((VERDICT_WELL, end(1, 0)), 0, 15, 1.0, (0, "finished")),
    "one failed, the launcher ended the other": ((TERMINATED, end(1, 3, at=5)), 3, None, None, (3, "failed")),
    "two failed, the first counts": ((end(0, 1, at=6), end(1, 3, at=5)), 1, None, None, (3, "failed")),
    "left with the status of a kill": ((TERMINATED, end(1, 137, at=5, exited=True)), 137, None, None, (137, "failed")),
    "left with the status of a crash, after another's error": ((end(0, 1, at=5.5, failed_at=5.2), end(1, 139, at=5.4, exited=True)), 1, None, None, (1, "failed")),
    "killed from outside": ((TERMINATED, end(1, 137, at=5)), 247, None, None, (137, "killed")),
    "killed for memory": ((TERMINATED, end(1, 137, at=5, memory=MemoryKind.HOST)), 247, None, None, (137, "host_oom")),
    "killed, its peer's error showed before": ((end(0, 1, at=6, failed_at=4.5), end(1, 137, at=5)), 247, None, None, (137, "killed")),
    "killed with its watcher, its peer's error showed before": ((end(0, 1, at=6, failed_at=4.5), end(1, None, at=5.2)), 247, None, None, (137, "killed")),
    "killed with its watcher, and missed only when its peer was gone": ((end(0, 1, at=6, failed_at=5.2), end(1, None, at=6.3)), 247, None, None, (137, "killed")),
    "killed with its watcher, the launcher saw its peer's end": ((end(0, 1, at=6, failed_at=5.2), end(1, None, at=5.2)), 1, None, None, (137, "killed")),
    "killed with its watcher, long after another's error": ((end(0, 1, at=6, failed_at=5.2), end(1, None, at=8.1)), 1, None, None, (1, "failed")),
    "failed where nothing could be written": ((TERMINATED, end(1, None, at=9)), 3, None, None, (3, "failed")),
    "killed by a person, long after another's error": ((end(0, 1, at=12, failed_at=4), end(1, 137, at=9)), 247, None, None, (1, "failed")),
    "killed after another's error, and stopped": ((end(0, 3, at=6, failed_at=2), end(1, 139, at=5.2)), 3, 15, 5.0, (3, "failed")),
    "killed as soon as another was gone": ((end(0, 1, at=5.2, failed_at=5), end(1, 137, at=5.4)), 1, None, None, (1, "failed")),
    "told to end while it unwound": ((end(0, 143, at=9, failed_at=4), end(1, 1, at=6, failed_at=5)), 1, None, None, (1, "failed")),
    "told to end while it unwound for memory": ((end(0, 143, at=9, failed_at=6, memory=MemoryKind.GPU), end(1, 1, at=6, failed_at=5)), 1, None, None, (1, "cuda_oom")),
    "killed after the grace, for another's error": ((end(0, 1, at=6, failed_at=5), end(1, 137, at=7)), 1, None, None, (1, "failed")),
    "aborted, as it ended for its error": ((end(0, 1, at=6, failed_at=5.1), end(1, 134, at=5, failed_at=4)), 250, None, None, (134, "failed")),
    "aborted, for a peer's error": ((end(0, 1, at=6, failed_at=4), end(1, 134, at=5)), 1, None, None, (1, "failed")),
    "aborted": ((TERMINATED, end(1, 134, at=5)), 250, None, None, (134, "killed")),
    "memory, after another lost its peer": ((end(0, 1, at=4), end(1, 1, at=5, memory=MemoryKind.GPU)), 1, None, None, (1, "cuda_oom")),
    "killed with its watcher": ((TERMINATED, end(1, None, at=9)), 247, None, None, (137, "killed")),
    "killed with its watcher, the launcher told to end": ((TERMINATED, end(1, None, at=9)), 241, None, None, (143, "killed")),
    "lost, and the launcher lost with it": ((end(0, None), end(1, None)), 0, None, None, (137, "killed")),
    "SIGTERM to a rank": ((TERMINATED, end(1, 143, at=5)), 241, None, None, (143, "killed")),
    "deepspeed killed": ((end(0, 143, asked_at=0), end(1, 143, asked_at=0)), -9, None, None, (137, "launcher")),
    "deepspeed killed, the ranks saved": ((end(0, 0, asked_at=0), end(1, 0, asked_at=0)), -9, None, None, (137, "launcher")),
    "deepspeed killed, a peer lost its connection before it was told": ((end(0, 143, at=5.3, asked_at=5.1), end(1, 1, at=5.4, failed_at=5.2)), -9, None, None, (137, "launcher")),
    "deepspeed killed, a peer lost its connection and was told then": ((end(0, 143, at=5.3, asked_at=5.1), end(1, 1, at=5.4, failed_at=5.2, asked_at=5.3)), -9, None, None, (137, "launcher")),
    "told to end for another, after it had run out": ((end(0, 1, at=5), end(1, 1, at=9, failed_at=4, asked_at=5.2, memory=MemoryKind.GPU)), 1, None, None, (1, "cuda_oom")),
    "killed after the grace, for its launcher": ((end(0, None, at=9, asked_at=8), end(1, 137, at=8.1, asked_at=8)), 2, None, None, (2, "launcher")),
    "all ended well, and the launcher's output was not read": ((VERDICT_WELL, end(1, 0)), 120, None, None, (0, "finished")),
    "killed with its watcher on another host, whose others were told": ((TERMINATED, end(2, None, at=30, host="b"), end(3, 143, at=9, asked_at=8, host="b")), 247, None, None, (137, "killed")),
    "launch.py killed": ((end(0, 143, asked_at=0), end(1, 143, asked_at=0)), 0, None, None, (137, "launcher")),
    "launch.py killed, the ranks saved": ((end(0, 0, asked_at=0), end(1, 0, asked_at=0)), 0, None, None, (137, "launcher")),
    "launch.py killed before it started all": ((VERDICT_WELL,), 0, None, None, (137, "launcher")),
    "no such host": ((), 1, None, None, (1, "launcher")),
    "ssh failed": ((), 255, None, None, (255, "launcher")),
    "stopped before there was a rank": ((), -9, 15, 1.0, (143, "stopped")),
    "stopped": ((end(0, 143, at=5.1), end(1, 143, at=5.1)), 241, 15, 5.0, (143, "stopped")),
    "stopped, and faster than the news of it": ((end(0, 130, at=4.8), end(1, 130, at=4.8)), 1, 2, 5.0, (130, "stopped")),
    "stopped, a peer was lost": ((end(0, 1, at=5.1, raised=True), TERMINATED), 1, 15, 5.0, (143, "stopped")),
    "stopped, killed after the grace": ((end(0, 137, at=35), end(1, 137, at=35)), -9, 15, 5.0, (143, "stopped")),
    "stopped, answered by a status": ((end(0, 85, at=6), TERMINATED), 85, 15, 5.0, (85, "stopped")),
    "stopped after it had failed": ((end(0, 3, at=2), TERMINATED), 3, 15, 5.0, (3, "failed")),
}
# fmt: on


@pytest.mark.parametrize("name", TABLE)
def test_the_status_and_the_cause_are_those_of_who_ended_the_job(name: str) -> None:
    ends, launcher_status, stopped_by, stopped_at, expected = TABLE[name]
    judged = judge(
        ends,
        launcher_status=launcher_status,
        ranks=2,
        stopped_by=stopped_by,
        stopped_at=stopped_at,
    )
    assert expected == (judged.status, judged.cause.value)
    assert stopped_by == judged.stopped_by


STATUSES = st.one_of(st.none(), st.integers(0, 255))
ENDS = st.lists(
    st.builds(
        end,
        st.integers(0, 7),
        STATUSES,
        st.floats(0, 100),
        asked_at=st.none() | st.floats(0, 100),
        raised=st.booleans(),
        memory=st.sampled_from((None, *MemoryKind)),
        failed_at=st.none() | st.floats(0, 100),
    ),
    max_size=4,
)


@given(
    ends=ENDS,
    launcher_status=st.integers(-15, 255),
    ranks=st.integers(1, 4),
    stopped_by=st.one_of(st.none(), st.sampled_from((1, 2, 15))),
)
def test_only_a_job_whose_ranks_all_ended_well_by_themselves_ends_well(
    ends: list[RankEnd], launcher_status: int, ranks: int, stopped_by: int | None
) -> None:
    judged = judge(
        ends,
        launcher_status=launcher_status,
        ranks=ranks,
        stopped_by=stopped_by,
        stopped_at=None if stopped_by is None else 50.0,
    )
    well = [each.status == 0 and each.asked_at is None for each in ends]
    ended_well = launcher_status in {0, 120} and all(well) and len(well) >= ranks
    assert ended_well == (judged.status == 0) == (judged.cause is Cause.FINISHED)
    assert 0 <= judged.status <= 255


@given(ends=ENDS.filter(bool))
def test_the_order_in_which_the_ends_are_read_does_not_matter(ends: list[RankEnd]) -> None:
    distinct = [replace(each, rank=place, ended_at=place) for place, each in enumerate(ends)]
    forth = judge(distinct, launcher_status=1, ranks=1)
    assert forth == judge(distinct[::-1], launcher_status=1, ranks=1)


WRAPPED = {0: 0, 1: 1, 3: 3, 128: 128, 241: 143, 247: 137, 250: 134, 255: 255, -9: 137, -15: 143}


@pytest.mark.parametrize("launcher_status", WRAPPED)
def test_a_signal_that_deepspeed_subtracts_from_256_is_added_to_128(launcher_status: int) -> None:
    assert WRAPPED[launcher_status] == plain_status(launcher_status)


CONTENT: dict[str, object] = {
    "rank": 1,
    "host": "a",
    "status": 1,
    "exited": True,
    "ended_at": 20.0,
    "failed_at": 15.0,
    "told": None,
    "told_at": None,
    "oom_killed": False,
    "accelerator": None,
    "tail": ["Traceback (most recent call last):", "torch.OutOfMemoryError: CUDA out of memory."],
}


TAIL = cast("list[str]", CONTENT["tail"])
# As C++ ends a process: while Python unwinds, and without an error of Python's.
UNWINDING = {"tail": [*TAIL, "terminate called after throwing an instance"]}
BY_SIGNAL = {"exited": False}
WORKER = OTHERS["a worker that was killed"].splitlines()
ABORTED = {"tail": ["terminate called after throwing an instance of 'c10::DistBackendError'"]}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, {"memory": MemoryKind.GPU, "tail": tuple(TAIL)}),
        ({"tail": [str(n) for n in range(200)]}, {"tail": tuple(map(str, range(160, 200)))}),
        # It is dated by the error that it came of; a child of the rank may have said it.
        ({"failed_at": 10.0}, {"since": 10.0}),
        ({**BY_SIGNAL, "status": 137}, {"since": 20.0}),
        ({"failed_at": None}, {"since": 20.0}),
        ({"failed_at": 21.0}, {"since": 20.0}),
        ({**BY_SIGNAL, "status": 134, "failed_at": None, **ABORTED}, {"since": 20.0}),
        # An error of long ago was caught: the script said so, and went on.
        (
            {"status": 85, "ended_at": 5000.0},
            {"since": 5000.0, "failed_at": None, "raised": False, "memory": None},
        ),
        ({"status": 1, "ended_at": 200.0}, {"memory": MemoryKind.GPU}),
        # Who is ended while it unwinds has failed.
        *(
            ({**BY_SIGNAL, "status": status, **UNWINDING, **more}, expected)
            for status in (134, 139, 143)
            for more, expected in (
                ({}, {"since": 15.0, "raised": True, "memory": MemoryKind.GPU}),
                ({"told_at": 14.0}, {"memory": None}),
                # Long before, it was caught.
                ({"failed_at": 5.0}, {"since": 20.0, "failed_at": None}),
            )
        ),
        # Who was ended from outside did not die of what it had said.
        *(
            (
                {"exited": status == 0, "status": status, "failed_at": 5.0},
                {"memory": None},
            )
            for status in (0, 129, 130, 137, 143)
        ),
        # A kill is for memory where the kernel counted one.
        ({**BY_SIGNAL, "status": 137, "oom_killed": True}, {"memory": MemoryKind.HOST}),
        ({**BY_SIGNAL, "status": 137}, {"memory": None}),
        ({"tail": WORKER, "oom_killed": True}, {"memory": MemoryKind.HOST}),
        ({"tail": WORKER}, {"memory": None, "raised": True}),
        # `sys.exit(137)` is an end that the script chose.
        ({"status": 137, "oom_killed": True, "tail": []}, {"memory": None, "exited": True}),
        ({"status": 1, "oom_killed": True}, {"memory": MemoryKind.GPU}),
    ],
)
def test_the_report_of_a_rank_is_read(
    changes: dict[str, object], expected: dict[str, object]
) -> None:
    ended = parse_end({**CONTENT, **changes}, "rank-1.log")
    assert expected == {name: getattr(ended, name) for name in expected}
