"""Read what the last launch was predicted to take, and what it took."""

from pathlib import Path

from zerowiz.core import shell
from zerowiz.core.job_end import FILE_NAME, RunSummary, measure_run
from zerowiz.core.structs import decode, parse_json, replace
from zerowiz.emit.processes import is_gone, read_measured
from zerowiz.errors import UsageError, ZerowizError
from zerowiz.probe.files import read_named


def read_run(folder: Path) -> RunSummary:
    """The run whose record is in this folder; of one that runs, what its ranks have measured yet.

    Raises:
        UsageError: It is no folder.
        ZerowizError: There is no record, or it is none.
    """
    path = folder / FILE_NAME
    if folder.is_file():
        raise UsageError(
            f"`{folder}` is a file, not the output folder of a launch",
            f"`{shell.join(['zerowiz', 'report', folder.parent])}`",
        )
    try:
        summary = decode(RunSummary, parse_json(read_named(path)), str(path))
    except FileNotFoundError as error:
        raise ZerowizError(
            f"no supervised launch was recorded here: there is no `{path}`",
            (
                "to record one, use `zerowiz launch --supervise SCRIPT`; at a terminal, "
                "zerowiz does not supervise a launch by default"
            ),
            "`zerowiz report FOLDER` takes the `--output-dir` of the launch",
        ) from error
    except OSError as error:
        raise ZerowizError(
            f"`{path}` cannot be read: {(error.strerror or str(error)).lower()}"
        ) from error
    except (ValueError, UsageError) as error:
        raise ZerowizError(
            f"`{path}` is not a record of a launch: {error}",
            "the next supervised launch writes it anew",
        ) from error
    attempts = tuple(
        attempt
        if attempt.end
        else replace(
            attempt,
            is_gone=is_gone(Path(attempt.logs)),
            measured=measure_run(read_measured(Path(attempt.logs)).values()),
        )
        for attempt in summary.attempts
    )
    return replace(summary, attempts=attempts)
