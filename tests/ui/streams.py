"""Streams for what is shown at a terminal."""

import io


class TerminalStream(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True
