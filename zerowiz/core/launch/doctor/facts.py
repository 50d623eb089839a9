"""State what the probes found around a job; what is not known is None."""

from collections.abc import Mapping

from msgspec import Struct, field

from zerowiz.core.dsconfig.bad_releases import BadRelease


class Package(Struct, frozen=True, kw_only=True):
    """A library of the ranks."""

    present: bool | None = None
    version: str | None = None


class Torch(Struct, frozen=True, kw_only=True):
    """What torch's own files show of it."""

    version: str
    cuda_version: tuple[int, int] | None = None
    """What it was built with; None for a build without."""
    hip: bool = False
    capabilities: frozenset[tuple[int, int]] | None = None
    """What a release holds code for; None for a build from source."""


class Installed(Struct, frozen=True, kw_only=True):
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


class Toolchain(Struct, frozen=True, kw_only=True):
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


LOCK_NOTE = "lock.zerowiz"
"""Beside a lock: the file that says which rank made it; `worker/rank.py` writes it."""


class Lock(Struct, frozen=True, kw_only=True):
    """A file that stands while an op is built."""

    path: str
    op: str
    """What is built."""
    age_milliseconds: int
    made: tuple[int, int]
    """Its inode, and when it was made in nanoseconds: no other lock at this path has both."""
    holder_pid: int | None = None
    """A process of this host that has it open: it builds the op."""
    left_by_rank: bool = False
    """A supervised rank made it, in this PID namespace; it and its compilers have ended."""
    sees_all: bool = False
    """Whether every process of this PID namespace that could have it open was looked at."""
    in_container: bool = False
    """Whether there are other PID namespaces on this host, whose processes are not seen here."""


class Extensions(Struct, frozen=True, kw_only=True):
    """Where ops are built."""

    folder: str
    writable: bool | None = None
    file_system: str | None = None
    """Its type, as /proc/self/mountinfo names it."""
    built: frozenset[str] = frozenset()
    locks: tuple[Lock, ...] = ()


class Folder(Struct, frozen=True, kw_only=True):
    """A folder that the job writes to."""

    path: str
    is_folder: bool | None = None
    writable: bool | None = None
    free_bytes: int | None = None
    holds_states: bool = False
    """Whether an earlier job offloaded to it; its files are written over."""


class SavedStates(Struct, frozen=True, kw_only=True):
    """The states of DeepSpeed in a checkpoint."""

    tag: str
    """DeepSpeed's folder in it: `global_step500`."""
    stages: tuple[int, ...]
    """The stages that save such files, each of which loads what the others saved."""
    ranks: int | None = None
    """How many saved a part each; None at stage 0, where the states are whole."""


class Resumed(Struct, frozen=True, kw_only=True):
    """The checkpoint that a job resumes from."""

    path: str
    """As the script is told."""
    is_folder: bool
    states: SavedStates | None = None
    """None if there are none, or if they cannot be read."""


class SourceFolder(Struct, frozen=True, kw_only=True):
    """A folder that has a package which is not installed."""

    path: str
    """What would have to be on Python's path."""
    project: str | None = None
    """The folder that pip can install it from; None where nothing says how."""


class Import(Struct, frozen=True, kw_only=True):
    """A library that a script cannot do without."""

    name: str
    line: int
    source: SourceFolder | None = None
    """Where its package is, if it is one of the script's own repository."""


class Script(Struct, frozen=True, kw_only=True):
    """What a script's text shows apart from its settings."""

    path: str
    missing: tuple[Import, ...] = ()
    """Imported at the top of it, and not to be found."""
    shadowing: tuple[str, ...] = ()
    """Files in its folder that have a library's name."""
    relative: Import | None = None
    """The first import from its own package, where it is started by its path."""


class PreflightFacts(Struct, frozen=True, kw_only=True):
    """Everything that the probes read."""

    installed: Installed | None = None
    bad_releases: tuple[BadRelease, ...] = ()
    """Every row of the table."""
    toolchain: Toolchain | None = None
    extensions: Extensions | None = None
    script: Script | None = None
    nvme: Folder | None = None
    checkpoints: Folder | None = None
    resumed: Resumed | None = None
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
