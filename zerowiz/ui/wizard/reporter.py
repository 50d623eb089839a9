"""Say between the wizard's questions what was decided, and not again what was shown before."""

from collections.abc import Sequence
from contextlib import suppress

from zerowiz.core.decision.flowchart import Decision
from zerowiz.core.remedies.remedy import Remedy
from zerowiz.core.script.facts import ScriptFacts
from zerowiz.ui import show
from zerowiz.ui.launch_reporter import TerminalLaunchReporter


class WizardReporter(TerminalLaunchReporter):
    """Machine and script stand in the lines of what was detected."""

    def script(self, facts: ScriptFacts) -> None:
        """Where the reading of the script ended."""
        if not self.quiet:
            with suppress(OSError):
                show.unseen(facts, self.stream)

    def decision(self, decision: Decision, remedies: Sequence[Remedy]) -> None:
        """The flowchart as it was answered, and what the chosen strategy takes."""
        del remedies  # They are a menu.
        if not self.quiet:
            with suppress(OSError):
                show.answers(decision, self.stream)
