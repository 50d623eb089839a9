"""Run one case in a fresh interpreter, where a fork would inherit an initialized CUDA."""

import json
import os
import sys
from pathlib import Path

from zerowiz.worker.batch_files import case_file
from zerowiz.worker.case import run_case


def main() -> None:
    """Run the case of a folder as this rank, and exit with its status."""
    folder = Path(sys.argv[1])
    case = json.loads(case_file(folder).read_text(encoding="utf-8"))
    code = run_case(case, int(os.environ["RANK"]), folder)
    # gloo's thread wants the interpreter lock while Python finalises, and may abort it.
    os._exit(code)


if __name__ == "__main__":
    main()
