"""Run one case in a fresh interpreter, where a fork would inherit an initialized CUDA."""

import json
import os
import sys
from pathlib import Path
from typing import cast

from zerowiz.worker.batch_files import CaseStart, case_file, read_start, start_file
from zerowiz.worker.case import run_case


def main() -> None:
    """Run the case of a folder as this rank, and exit with its status."""
    folder = Path(sys.argv[1])
    case = json.loads(case_file(folder).read_text(encoding="utf-8"))
    start = cast("CaseStart", read_start(start_file(folder)))
    code = run_case(case, int(os.environ["RANK"]), folder, start)
    # gloo's thread wants the interpreter lock while Python finalises, and may abort it.
    os._exit(code)


if __name__ == "__main__":
    main()
