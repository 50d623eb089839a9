"""Read what the last launch was predicted to take, and what it took."""

import json
from pathlib import Path

from zerowiz.core.measure.run_figures import measure_run
from zerowiz.core.outcome.record import FILE_NAME, AttemptSummary, RunSummary, parse_record
from zerowiz.core.values import replace
from zerowiz.emit.attempt_folder import read_measured
from zerowiz.errors import ZerowizError


def read_run(folder: Path) -> RunSummary:
    """The run whose record is in this folder; of one that runs, what its ranks have measured yet.

    Raises:
        ZerowizError: There is no record, or it is none.
    """
    path = folder / FILE_NAME
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ZerowizError(
            f"no supervised launch was recorded here: there is no `{path}`",
            "`zerowiz launch --supervise SCRIPT` records one; at a terminal of your own, outside a"
            " container and a job, a launch is not supervised without it",
            "`zerowiz report FOLDER` takes the `--output-dir` of the launch",
        ) from error
    except OSError as error:
        raise ZerowizError(
            f"`{path}` cannot be read: {(error.strerror or str(error)).lower()}"
        ) from error
    except ValueError as error:
        raise ZerowizError(f"`{path}` is not JSON") from error
    summary = parse_record(content, str(path))
    attempts = tuple(each if each.end else _with_steps(each) for each in summary.attempts)
    return replace(summary, attempts=attempts)


def _with_steps(attempt: AttemptSummary) -> AttemptSummary:
    reports = read_measured(Path(attempt.logs)).values()
    return replace(attempt, measured=measure_run(reports, attempt.predicted.memory))
