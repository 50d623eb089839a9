"""The sources that the probes read: this host, or the recording of one."""

from collections.abc import Mapping

from msgspec import Struct

from zerowiz.probe.recording.files import Files
from zerowiz.probe.recording.tape import Calls


class World(Struct, frozen=True, kw_only=True):
    """The sources of every fact about a machine."""

    files: Files
    environ: Mapping[str, str]
    replay: Calls | None = None
    """Recorded NVML calls; `None` asks the driver of this host."""
    log: Calls | None = None
    """Where the driver's answers are logged; `None` logs nothing."""
