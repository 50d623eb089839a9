"""Load a checkpoint on two ranks, take a step, save over it, and kill rank 0 in the middle: OUT KILL_AT.

KILL_AT counts what changes a folder or sees a file onto the disk, from the folder that is filled on.
"""

import hashlib
import os
import signal
import sys
from itertools import count
from pathlib import Path
from typing import Any

import deepspeed
import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "templates"))
from portable_checkpoint import load, save  # type: ignore[import-not-found]

CALLS = ("mkdir", "rename", "unlink", "rmdir", "fsync")
CONFIG = {
    "train_micro_batch_size_per_gpu": 2,
    "zero_optimization": {"stage": 2},
    "bf16": {"enabled": True},
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
}
STEP = 1


def die_at(number: int) -> None:
    """Let this process be killed before its call of this number."""
    calls = count(1)
    is_filled = False
    mkdir = os.mkdir
    for name in CALLS:
        does = getattr(os, name)

        def or_die(*words: Any, does: Any = does, **named: Any) -> Any:
            nonlocal is_filled
            is_filled = is_filled or (does is mkdir and str(words[0]).endswith(".partial"))
            if is_filled and next(calls) == number:
                os.kill(os.getpid(), signal.SIGKILL)
            return does(*words, **named)

        setattr(os, name, or_die)


def main() -> None:
    """One run; rank 0 says the hash of what it loaded, and of what it saves."""
    out, at = Path(sys.argv[-2]), int(sys.argv[-1])
    torch.manual_seed(0)
    model = torch.nn.Linear(64, 64)
    engine, *_ = deepspeed.initialize(model=model, config=CONFIG)
    load(engine, out)
    say(f"loaded {weights(model)}")
    loss = engine(torch.ones(2, 64, dtype=torch.bfloat16)).float().mean()
    engine.backward(loss)
    engine.step()
    say(f"saves {weights(model)}")
    if engine.global_rank == 0 and at:
        die_at(at)
    save(engine, out, step=STEP)


def weights(model: torch.nn.Module) -> str:
    data = torch.cat([p.detach().float().view(-1) for p in model.parameters()])
    return hashlib.sha256(data.numpy().tobytes()).hexdigest()[:16]


def say(line: str) -> None:
    if os.environ["RANK"] == "0":
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
