"""The sources that the probes read: this host, or the recording of one."""

from collections.abc import Mapping
from dataclasses import dataclass

from zerowiz.probe.recording.files import Files
from zerowiz.probe.recording.tape import Calls


@dataclass(frozen=True, kw_only=True, slots=True)
class World:
    """The sources of every fact about a machine."""

    files: Files
    environ: Mapping[str, str]
    replay: Calls | None = None
    """Recorded NVML calls; `None` asks the driver of this host."""
    log: Calls | None = None
    """Where the driver's answers are logged; `None` logs nothing."""
