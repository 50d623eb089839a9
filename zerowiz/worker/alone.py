"""Run one case in an interpreter of its own, where a fork would inherit a CUDA that is in use."""

import json
import os
import sys
from pathlib import Path

from zerowiz.worker.case import run_case
from zerowiz.worker.marks import case_mark


def main() -> None:
    """Run the case of a folder as this rank; the exit status is the case's."""
    folder = Path(sys.argv[1])
    case = json.loads(case_mark(folder).read_text(encoding="utf-8"))
    code = run_case(case, int(os.environ["RANK"]), folder)
    # gloo's thread wants the interpreter lock while Python finalises, and may abort it.
    os._exit(code)


if __name__ == "__main__":
    main()
