"""`python -m zerowiz.worker BATCH`: one rank of `zerowiz measure`, started by `deepspeed`."""

import argparse
import json
import os
from pathlib import Path

from zerowiz.worker.batch import serve


def main() -> None:
    """Read the batch, and serve it as this rank."""
    parser = argparse.ArgumentParser(prog="python -m zerowiz.worker")
    parser.add_argument("batch", type=Path, help="what to measure, as `zerowiz measure` wrote it")
    parser.add_argument("--local_rank", type=int, default=0, help="passed by the launcher")
    args = parser.parse_args()
    serve(json.loads(args.batch.read_text(encoding="utf-8")), int(os.environ["RANK"]))


if __name__ == "__main__":
    main()
