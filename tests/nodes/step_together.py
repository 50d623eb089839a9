"""Reduce a number over all ranks, again and again: the job of the tests of nodes.

One rank that is lost leaves the others in a collective, as in any training.
"""

import argparse
import json
import os
import signal
import sys
import time
from pathlib import Path

import torch
from torch import distributed as dist


def main() -> None:
    """Step until all steps are done, a rank fails, or somebody ends it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--local_rank", type=int, default=0, help="passed by the launcher")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--fails", type=int, help="the rank that raises")
    parser.add_argument("--saves", action="store_true", help="on SIGTERM, save and end")
    parser.add_argument("--text", action="append", help="only shown")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    if args.saves:
        signal.signal(signal.SIGTERM, lambda *_: save(args.out, rank))
    seen = {"argv": sys.argv[1:], "environ": dict(os.environ), "host": os.uname().nodename}
    (args.out / f"seen-{rank}.json").write_text(json.dumps(seen), encoding="utf-8")
    for step in range(args.steps):
        total = torch.ones(1)
        dist.all_reduce(total)
        sys.stderr.write(f"step {step} of rank {rank}: {total.item():g} ranks\n")
        if step == 1 and rank == args.fails:
            msg = "this rank fails on purpose"
            raise RuntimeError(msg)
        time.sleep(0.2)
    dist.barrier()
    os._exit(0)  # gloo aborts one exit in ten otherwise


def save(out: Path, rank: int) -> None:
    """What a script does with its grace."""
    time.sleep(2)  # all the others have the signal by then, and none waits for this rank in vain
    (out / f"saved-{rank}").touch()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.raise_signal(signal.SIGTERM)


if __name__ == "__main__":
    main()
