"""Say at a terminal what a launch does with its job."""

import sys
from contextlib import suppress

from zerowiz.core.launch.plan import LaunchPlan
from zerowiz.core.outcome.record import AttemptRecord
from zerowiz.core.outcome.resume import Resume
from zerowiz.core.outcome.verdict import JobEnd
from zerowiz.core.strategy import Strategy
from zerowiz.ui import show
from zerowiz.ui.outcome import ended, report
from zerowiz.ui.reporter import TerminalReporter


class TerminalLaunchReporter(TerminalReporter):
    """Loaded whole before a job starts: an environment may change while it runs."""

    def start(self, launch_plan: LaunchPlan) -> None:
        """The command, as a shell line."""
        for note in launch_plan.notes:
            self.note(note)
        if not self.quiet:
            with suppress(OSError):
                sys.stderr.write("\n")
                show.launch(launch_plan, sys.stderr)

    def attempt_ended(self, end: JobEnd, strategy: Strategy, number: int) -> None:
        """Which rank failed first, and why."""
        with suppress(OSError):
            ended.failure(end, strategy, number, sys.stderr)

    def attempt_measured(self, attempt: AttemptRecord, folder: str) -> None:
        """What its memory and its steps were, beside the plan; the record is in the folder."""
        if not self.quiet:
            with suppress(OSError):
                report.last_lines(attempt, folder, sys.stderr)

    def next_attempt(self, strategy: Strategy, resume: Resume, number: int) -> None:
        """What is tried next, and from where the script goes on."""
        with suppress(OSError):
            ended.following(strategy, resume, number, sys.stderr)
