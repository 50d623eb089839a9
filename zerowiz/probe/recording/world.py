"""The sources that the probes read: this host, or the recording of one."""

from collections.abc import Callable, Mapping

from msgspec import Struct

from zerowiz.probe.recording.files import Files
from zerowiz.probe.recording.tape import Calls

CALL_TIMEOUT_S = 30.0
"""Without persistence mode a GPU takes seconds to wake, and all are woken by one call."""


def _nobody(_words: str) -> None:
    """Tell nobody."""


class World(Struct, frozen=True, kw_only=True):
    """The sources of every fact about a machine."""

    files: Files
    environ: Mapping[str, str]
    replay: Calls | None = None
    """Recorded NVML calls; `None` asks the driver of this host."""
    log: Calls | None = None
    """Where the driver's answers are logged; `None` logs nothing."""
    call_timeout_s: float = CALL_TIMEOUT_S
    """How long the driver may take to answer one call."""
    on_wait: Callable[[str], None] = _nobody
    """Told what is waited for, where the driver takes long."""
