"""Train a linear layer on two ranks, and fail in the way that is asked for: FOLDER [WAY].

Each rank says in FOLDER how far it has come, so that it can be met there.
"""

import os
import signal
import sys
import time
from pathlib import Path

import deepspeed
import torch
from deepspeed import comm as dist
from torch.utils.file_baton import FileBaton

CONFIG = {
    "train_micro_batch_size_per_gpu": 2,
    "zero_optimization": {"stage": 2},
    "bf16": {"enabled": True},
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
}
FAILING_STEP = 5
STEPS = 10_000_000
# Slow enough to be met in the middle, as a large checkpoint is.
SAVING_S = 3.0


def say_waiting(folder: Path, rank: int) -> None:
    """Say in the folder when this rank waits for an op that another one builds."""
    wait = FileBaton.wait

    def say_and_wait(baton: FileBaton) -> None:
        (folder / f"waits-{rank}").touch()
        wait(baton)

    FileBaton.wait = say_and_wait


class Nothing:
    """A job whose ranks only meet: it starts faster than an engine does."""

    def train(self) -> None:
        """No step."""

    def save(self, folder: Path) -> None:
        """No checkpoint."""


class Engine:
    """A DeepSpeed engine with a linear layer."""

    def __init__(self) -> None:
        model = torch.nn.Linear(256, 256)
        self.engine, *_ = deepspeed.initialize(model=model, config=CONFIG)

    def train(self) -> None:
        """One step."""
        loss = self.engine(torch.ones(2, 256, dtype=torch.bfloat16)).float().mean()
        self.engine.backward(loss)
        self.engine.step()

    def save(self, folder: Path) -> None:
        """A checkpoint of DeepSpeed's."""
        self.engine.save_checkpoint(folder)


def main() -> None:
    """Train until something happens."""
    folder, way = (Path(sys.argv[-2]), sys.argv[-1])
    rank = int(os.environ["RANK"])
    wanted: list[int] = []
    signal.signal(signal.SIGUSR1, lambda number, _: wanted.append(number))
    say_waiting(folder, rank)
    deepspeed.init_distributed()
    work = Engine() if way in {"engine", "memory", "save"} else Nothing()
    for step in range(1, STEPS + 1):
        if step == FAILING_STEP and rank == 1:
            fail(way)
        work.train()
        # Every rank is to save at the same step.
        saves = bool(wanted) or (way == "save" and step == FAILING_STEP)
        asked = torch.tensor([float(saves), float((folder / "finish").exists())])
        dist.all_reduce(asked)
        if asked[1] > 0:
            dist.barrier()
            os._exit(0)  # gloo aborts some exits
        if asked[0] > 0:
            wanted.clear()
            (folder / f"saving-{rank}").touch()
            work.save(folder / "checkpoint")
            time.sleep(SAVING_S if way == "save" else 0)
            (folder / f"saved-{rank}").touch()
        (folder / f"{'step' if step < FAILING_STEP else 'later'}-{rank}").touch()


def fail(way: str) -> None:
    """End this rank, while the others wait for it in a collective."""
    if way == "raise":
        raise RuntimeError("this rank has an error of its own")
    if way == "memory":
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB")
    if way == "allocate":
        torch.empty(1 << 50)


if __name__ == "__main__":
    main()
