"""State what the probes found around a job; what is not known is None."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True, slots=True)
class Package:
    """A library of the ranks."""

    present: bool | None = None
    version: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Torch:
    """What torch's own files show of it."""

    version: str
    cuda_version: tuple[int, int] | None = None
    """What it was built with; None for a build without."""
    hip: bool = False
    capabilities: frozenset[tuple[int, int]] | None = None
    """What a release holds code for; None for a build from source."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Installed:
    """The Python that the ranks run with, and what it has."""

    program: str
    """`deepspeed`."""
    interpreter: str | None = None
    """What its first line starts."""
    interpreter_exists: bool | None = None
    own: bool | None = None
    """Whether that is the Python of zerowiz."""
    packages: Mapping[str, Package] = field(default_factory=dict)
    torch: Torch | None = None
    prebuilt: frozenset[str] = frozenset()
    """Ops that were compiled when DeepSpeed was installed."""
    cuda_builders: frozenset[str] = frozenset()
    """Ops for the host that this release builds with nvcc all the same."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Toolchain:
    """What an op is built with."""

    compiler: str
    """As torch calls it: `$CXX`, else `c++`."""
    has_compiler: bool
    has_ninja: bool
    python_headers: bool | None = None
    cuda_home: str | None = None
    """As torch finds it; None where it finds none."""
    has_nvcc: bool | None = None
    cuda_version: tuple[int, int] | None = None
    """The version that nvcc prints, where it was run."""
    has_libaio: bool | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Lock:
    """A file that stands while an op is built."""

    path: str
    op: str
    """What is built."""
    age_milliseconds: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Extensions:
    """Where ops are built."""

    folder: str
    writable: bool | None = None
    file_system: str | None = None
    """Its type, as /proc/self/mountinfo names it."""
    built: frozenset[str] = frozenset()
    locks: tuple[Lock, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Folder:
    """A folder that the job writes to."""

    path: str
    is_folder: bool | None = None
    writable: bool | None = None
    free_bytes: int | None = None
    holds_states: bool = False
    """Whether an earlier job offloaded to it; its files are written over."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Import:
    """A library that a script cannot do without."""

    name: str
    line: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Script:
    """What a script's text shows apart from its settings."""

    path: str
    missing: tuple[Import, ...] = ()
    """Imported at the top of it, and not to be found."""
    shadowing: tuple[str, ...] = ()
    """Files in its folder that have a library's name."""
    builds_on_host: bool = False
    """It shows how its model is built, and no word of another place than host memory."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PreflightFacts:
    """Everything that the probes read."""

    installed: Installed | None = None
    toolchain: Toolchain | None = None
    extensions: Extensions | None = None
    script: Script | None = None
    nvme: Folder | None = None
    checkpoints: Folder | None = None
    shm_free_bytes: int | None = None
    locks_any_amount: bool | None = None
    """Whether the limit on locked memory does not bind this process."""
    master_port: int | None = None
    port_taken: bool | None = None
    interfaces: Mapping[str, bool | None] = field(default_factory=dict)
    """Whether anything here has the name that a variable gives: `NCCL_SOCKET_IFNAME`."""

    @property
    def torch(self) -> Torch | None:
        """The torch of the ranks, where its files could be read."""
        return None if self.installed is None else self.installed.torch
