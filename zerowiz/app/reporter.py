"""What use cases say while they work, to whoever listens: a terminal, or nobody."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Protocol

from zerowiz.errors import LostEdit, ZerowizError

if TYPE_CHECKING:
    from zerowiz.core.decision.flowchart import Decision
    from zerowiz.core.decision.remedies import Remedy
    from zerowiz.core.job_end import AttemptRecord, JobEnd
    from zerowiz.core.launch.plan import LaunchPlan, Resume
    from zerowiz.core.script.facts import ScriptFacts
    from zerowiz.core.settings import SettingValue
    from zerowiz.core.strategy_types import Strategy


class Wait(Protocol):
    """A wait that goes on, and what it has come to."""

    def at(self, what: str) -> None:
        """What it waits for now."""

    def done(self, name: str) -> None:
        """One of the things that it waits for is done."""


class Reporter(Protocol):
    """What a use case says.

    Results are returned and failures are raised; a reporter gets the rest. Its implementation at a
    terminal is `ui/reporter.py`.
    """

    def note(self, text: str) -> None:
        """What a result rests on, or what may go wrong."""

    def event(self, text: str) -> None:
        """What happened to a run; said also to those who want results alone."""

    def error(self, error: ZerowizError) -> None:
        """A failure that does not end the run."""

    def script(self, facts: "ScriptFacts") -> None:
        """What was read of the training script."""

    def decision(
        self,
        decision: "Decision",
        remedies: "Sequence[Remedy]",
        learning: "Mapping[str, SettingValue]",
    ) -> None:
        """What was decided, and what would help."""

    def losses(self, losses: Sequence[LostEdit]) -> None:
        """What writing the files would lose."""

    def wait(self, label: str, total: int | None = None) -> AbstractContextManager[Wait]:
        """A wait that may last longer than half a second.

        Args:
            label: What is waited for: `tracing the model`.
            total: How many things are done one after the other; None where they are not counted.
        """


class LaunchReporter(Reporter, Protocol):
    """What a launch says too, of the job that it starts."""

    def start(self, launch_plan: "LaunchPlan") -> None:
        """What is about to run."""

    def attempt_ended(self, end: "JobEnd", strategy: "Strategy", number: int) -> None:
        """How an attempt failed."""

    def attempt_measured(self, attempt: "AttemptRecord", folder: str) -> None:
        """What its memory and its steps were, beside the plan; the record is in the folder."""

    def next_attempt(self, strategy: "Strategy", resume: "Resume", number: int) -> None:
        """What is tried next."""


class SilentReporter:
    """Says nothing: for Python code that calls a use case."""

    def _ignore(self, *_said: object, **_named: object) -> None:
        """Nobody listens."""

    note = event = error = script = decision = losses = at = done = _ignore

    def wait(self, label: str, total: int | None = None) -> AbstractContextManager[Wait]:
        """Nobody waits."""
        del label, total
        return nullcontext(self)


SILENT: Reporter = SilentReporter()
