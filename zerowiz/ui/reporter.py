"""Say at a terminal what use cases say while they work: on stderr, where results are not."""

import sys
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from typing import TYPE_CHECKING, TextIO

from zerowiz.core.decision.flowchart import Decision
from zerowiz.core.script.facts import ScriptFacts
from zerowiz.core.settings import SettingValue
from zerowiz.errors import LostEdit, ZerowizError
from zerowiz.ui.progress import TerminalWait
from zerowiz.ui.text import error as show_error
from zerowiz.ui.text import note

if TYPE_CHECKING:
    from zerowiz.core.decision.remedies import Remedy


class TerminalReporter:
    """Says it on stderr; where nobody can read it any more, the run and its status stay the same.

    Args:
        quiet: Whether a person wants errors and results alone.
        with_waits: Whether a wait is shown; a program that reads JSON needs none.
        stream: Where it is said, if not on stderr as it is then.
    """

    def __init__(
        self,
        *,
        quiet: bool = False,
        with_waits: bool = True,
        stream: TextIO | None = None,
    ) -> None:
        self.quiet = quiet
        self.with_waits = with_waits and not quiet
        self._stream = stream

    @property
    def stream(self) -> TextIO:
        """Where it is said."""
        return self._stream or sys.stderr

    def note(self, text: str) -> None:
        """What a result rests on, or what may go wrong."""
        if not self.quiet:
            self.event(text)

    def event(self, text: str) -> None:
        """What happened to a run."""
        with suppress(OSError):
            note(text, self.stream)

    def error(self, error: ZerowizError) -> None:
        """A failure that does not end the run."""
        with suppress(OSError):
            show_error(error.message, error.hints, self.stream)

    def script(self, facts: ScriptFacts) -> None:
        """How its config reaches the training script, and where the reading ended."""
        if not self.quiet:
            from zerowiz.ui import show  # noqa: PLC0415 - `--json` shows nothing

            with suppress(OSError):
                show.script(facts, self.stream)

    def decision(
        self,
        decision: Decision,
        remedies: "Sequence[Remedy]",
        learning: Mapping[str, SettingValue],
    ) -> None:
        """The plan, and what would help."""
        if not self.quiet:
            from zerowiz.ui import remedies as remedies_text  # noqa: PLC0415 - as above
            from zerowiz.ui import sentences, show  # noqa: PLC0415 - as above

            with suppress(OSError):
                show.plan(decision, self.stream, sentences.learning(learning))
                if remedies:
                    remedies_text.table(remedies, self.stream)

    def losses(self, losses: Sequence[LostEdit]) -> None:
        """The lines that writing the files would lose."""
        if losses and not self.quiet:
            from zerowiz.ui import show  # noqa: PLC0415 - as above

            with suppress(OSError):
                show.losses(losses, self.stream)
                self.stream.write("\n")

    def wait(self, label: str, total: int | None = None) -> AbstractContextManager[TerminalWait]:
        """A line on a terminal, as long as it lasts; nothing elsewhere."""
        # What is drawn moves the cursor: a stream that counts its rows would count too many.
        stream = sys.stderr if self.with_waits else None
        return TerminalWait(label, stream, total)
