"""The record of a run, `zerowiz-run.json`: its attempts, and how each of them ended."""

import json
from collections.abc import Mapping

from msgspec import Struct

from zerowiz.core.codec import decode, encode
from zerowiz.core.outcome.figures import MeasuredFigures, PredictedFigures
from zerowiz.core.outcome.resume import ResumeFrom
from zerowiz.core.outcome.verdict import Cause, JobEnd

SCHEMA_VERSION = 1
FILE_NAME = "zerowiz-run.json"


class AttemptRecord(Struct, frozen=True, kw_only=True):
    """One start of the job."""

    strategy: str
    why: str
    """Why this strategy was chosen, in a sentence."""
    config_path: str
    plan_path: str | None
    command: tuple[str, ...]
    """With passwords replaced."""
    env: Mapping[str, str]
    logs: str
    """The folder with one log for each rank."""
    resume_from: ResumeFrom
    resume_path: str | None
    started_at: str
    """In UTC, such as 2026-11-22T04:30:00Z."""
    predicted: PredictedFigures
    ended_at: str | None = None
    end: JobEnd | None = None
    measured: MeasuredFigures | None = None
    """None as long as it runs, and where no rank took a step that DeepSpeed's engine counts."""


class RunRecord(Struct, frozen=True, kw_only=True):
    """All attempts of one launch."""

    zerowiz_version: str
    script: str
    script_args: tuple[str, ...]
    """With passwords replaced."""
    job: str | None
    """The scheduler's identifier of the job."""
    attempts: tuple[AttemptRecord, ...]
    exit_status: int | None = None
    """None as long as the run lasts."""


def _encode_end(end: JobEnd | None) -> dict[str, object] | None:
    if end is None:
        return None
    first = end.first
    return {
        "status": end.status,
        "cause": end.cause.value,
        "rank": None if first is None else first.rank,
        "host": None if first is None else first.host,
        "log": None if first is None else first.log,
        "last_lines": [] if first is None else list(first.tail),
    }


def render_record(record: RunRecord) -> str:
    """The record as JSON.

    Args:
        record: With at least one attempt.
    """
    first, last = record.attempts[0], record.attempts[-1]
    content = {
        "schema_version": SCHEMA_VERSION,
        "zerowiz_version": record.zerowiz_version,
        "script": record.script,
        "script_args": list(record.script_args),
        "job": record.job,
        "started_at": first.started_at,
        "ended_at": None if record.exit_status is None else last.ended_at,
        "exit": record.exit_status,
        "attempts": [
            {
                "number": number,
                "strategy": attempt.strategy,
                "why": attempt.why,
                "config_path": attempt.config_path,
                "plan_path": attempt.plan_path,
                "command": list(attempt.command),
                "env": dict(attempt.env),
                "logs": attempt.logs,
                "goes_on_from": {"what": attempt.resume_from.value, "path": attempt.resume_path},
                "started_at": attempt.started_at,
                "ended_at": attempt.ended_at,
                "end": _encode_end(attempt.end),
                "predicted": encode(attempt.predicted),
                "measured": encode(attempt.measured),
            }
            for number, attempt in enumerate(record.attempts, start=1)
        ],
    }
    return json.dumps(content, indent=2) + "\n"


class EndSummary(Struct, frozen=True, kw_only=True):
    """How an attempt ended."""

    status: int
    cause: Cause


class AttemptSummary(Struct, frozen=True, kw_only=True):
    """What the record says of one attempt, for a person."""

    number: int
    strategy: str
    started_at: str
    logs: str
    predicted: PredictedFigures
    end: EndSummary | None = None
    """None as long as it runs."""
    measured: MeasuredFigures | None = None


class RunSummary(Struct, frozen=True, kw_only=True):
    """What the record says of a run, for a person."""

    script: str
    attempts: tuple[AttemptSummary, ...]


def parse_record(content: object, path: str) -> RunSummary:
    """The record of a run, as `render_record` wrote it.

    Args:
        content: Its JSON.
        path: What errors call it.

    Raises:
        UsageError: It is no record, or that of a release that kept no predictions.
    """
    return decode(RunSummary, content, path)


def encode_summary(summary: RunSummary) -> dict[str, object]:
    """The summary as `report --json` prints it."""
    attempts = [encode(attempt) for attempt in summary.attempts]
    return {"schema_version": SCHEMA_VERSION, "script": summary.script, "attempts": attempts}
