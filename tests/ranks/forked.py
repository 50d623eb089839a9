"""Ranks of one host that are forked where the libraries are loaded: what each answers to a question.

A program calls `answer`, and runs as `python PROGRAM QUESTIONS ANSWERS` (`harness.ask_ranks`).
"""

import gc
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from deepspeed.accelerator import get_accelerator
from deepspeed.ops import __compatible_ops__

from zerowiz.probe.preflight.read_facts import find_free_port

# A rank whose partner died waits for it; the alarm ends that.
PATIENCE_S = 280

Question = Mapping[str, Any]
Answer = dict[str, Any]
Job = Callable[[Question, Path], Answer]
"""What a rank does with a question, in a folder of all its ranks."""


def answer(job: Job, at_once: int = 1) -> None:
    """Answer every question of a file in another, so many at once: a list, of each of its ranks.

    `raised` of an answer is the error that ended the rank, beside its `log`; None where none did.
    """
    # gloo alone: the op for shared memory takes 69 MB of it from each rank.
    __compatible_ops__["deepspeed_shm_comm"] = False
    # A CPU without half precision stands in for a GPU, which has it.
    get_accelerator().is_fp16_supported = lambda: True
    get_accelerator().create_op_builder("CPUAdamBuilder").load()
    torch.set_num_threads(1)
    # What is loaded by now stays: no rank has to look for garbage in it.
    gc.freeze()
    questions = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory() as name:
        places = [Path(name, str(number)) for number in range(len(questions))]
        asked = list(zip(questions, places, strict=True))
        for first in range(0, len(asked), at_once):
            ranks = [rank for each in asked[first : first + at_once] for rank in _fork(job, *each)]
            for rank in ranks:
                os.waitpid(rank, 0)
        answers = [
            [_read(place, rank) for rank in range(question["ranks"])] for question, place in asked
        ]
    Path(sys.argv[2]).write_text(json.dumps(answers), encoding="utf-8")


def _fork(job: Job, question: Question, folder: Path) -> list[int]:
    """The processes of the ranks that answer a question."""
    folder.mkdir()
    port, world = str(find_free_port()), question["ranks"]
    children = []
    for rank in range(world):
        child = os.fork()
        if child == 0:
            own = {"RANK": str(rank), "LOCAL_RANK": str(rank), "MASTER_PORT": port}
            where = {"WORLD_SIZE": str(world), "LOCAL_WORLD_SIZE": str(world)}
            os.environ |= own | where | {"LOCAL_SIZE": str(world), "MASTER_ADDR": "127.0.0.1"}
            try:
                _be_rank(job, question, rank, folder)
            finally:
                # gloo's threads abort one exit in ten otherwise.
                os._exit(0)
        children.append(child)
    return children


def _be_rank(job: Job, question: Question, rank: int, folder: Path) -> None:
    signal.alarm(PATIENCE_S)
    log = os.open(folder / f"rank{rank}.log", os.O_WRONLY | os.O_CREAT)
    os.dup2(log, 1)
    os.dup2(log, 2)
    files = [folder / f"rank{each}.json" for each in range(question["ranks"])]
    try:
        said = {"raised": None, **job(question, folder)}
    except BaseException as error:  # noqa: BLE001 (the error is the answer)
        said = {"raised": f"{type(error).__name__}: {error}"}
    partial = folder / f"partial{rank}"
    partial.write_text(json.dumps(said), encoding="utf-8")
    partial.replace(files[rank])
    # A rank that leaves would end what the others wait for.
    while not said["raised"] and not all(path.exists() for path in files):
        time.sleep(0.05)


def _read(folder: Path, rank: int) -> Answer:
    path = folder / f"rank{rank}.json"
    log = (folder / f"rank{rank}.log").read_text(encoding="utf-8", errors="replace")[-2000:]
    if not path.is_file():
        return {"raised": "no answer", "log": log}
    said: Answer = json.loads(path.read_text(encoding="utf-8"))
    return {"log": log, **said} if said["raised"] else said
