"""What the launch of a job is made of: the launcher's command, the node, the run."""

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from zerowiz.core.launch.node import (
    OTHER_LAUNCHERS_VARIABLES,
    NodeRank,
    hostfile_text,
    node_options,
)
from zerowiz.core.launch.plan import (
    Launcher,
    PlannedFile,
)
from zerowiz.emit.supervise import Watch
from zerowiz.probe.nodes.hostfile import read_hostfile

Quote = Callable[[Sequence[str]], tuple[str, ...]]


class LauncherCommand(Struct, frozen=True, kw_only=True):
    """DeepSpeed's options and environment to start the ranks on their nodes."""

    options: tuple[str, ...]
    """DeepSpeed's, before the script."""
    env: Mapping[str, str]
    """All that differs from the caller's environment."""
    unset: tuple[str, ...] = ()
    """What of the caller's environment the launcher must not see."""
    files: tuple[PlannedFile, ...] = ()
    notes: tuple[str, ...] = ()
    quote: Quote = tuple
    """How the words after the launcher's script have to be handed over."""
    quote_script: Callable[[str], str] = str
    """How what the launcher takes for the script has to be."""
    starts_modules: bool = True
    """Whether DeepSpeed's `--module` works with it."""
    master_port: int | None = None
    """As it was given; None where a free one is taken."""


class NodeLaunch(Struct, frozen=True, kw_only=True):
    """One zerowiz of many, which starts the ranks of its own node."""

    node: NodeRank
    slots: tuple[tuple[int, ...], ...]
    """The devices of each node, by its rank, as DeepSpeed calls them."""
    master_addr: str
    master_port: int | None
    """As it was given; None where node 0 takes a free one."""

    @property
    def ranks(self) -> tuple[int, ...]:
        """Those of this node; every node has as many."""
        each = len(self.slots[self.node.node_rank])
        first = self.node.node_rank * each
        return tuple(range(first, first + each))

    def launcher_command(self, folder: Path, env: Mapping[str, str]) -> LauncherCommand:
        """DeepSpeed starts this node's ranks alone; they meet those of the others."""
        hostfile = str(folder / "hostfile")
        return LauncherCommand(
            options=node_options(self.node, hostfile, self.slots, self.master_addr),
            env=env,
            unset=tuple(name for name in OTHER_LAUNCHERS_VARIABLES if name in os.environ),
            files=(
                PlannedFile(
                    path=hostfile, text=hostfile_text(self.node, self.slots), own_folder=True
                ),
            ),
            master_port=self.master_port,
        )


class Run(Struct, frozen=True, kw_only=True):
    """What all attempts of one launch share."""

    folder: Path
    """Of its own, absolute: what its ranks said stays there."""
    supervised: bool
    grace_seconds: int
    """For ranks to save and end after they were asked to."""
    escalates: bool = False
    """Whether it starts again, with less memory, after it ran out of it."""
    no_local_rank: bool = False
    """Whether the person said that the script takes no `--local_rank`."""
    hostfile: Path | None = None
    launcher: Launcher = Launcher.PDSH
    """Over a hostfile."""
    node_launch: NodeLaunch | None = None
    """Where each node has a zerowiz of its own: this one."""

    def watch(self, number: int, ranks: int) -> Watch:
        """What is watched of one attempt."""
        return Watch(
            folder=self.folder / f"attempt-{number}",
            ranks=ranks,
            local_ranks=self._local_ranks(ranks),
            grace_s=self.grace_seconds,
            hosts=self._connected_hosts(),
        )

    def _connected_hosts(self) -> tuple[str, ...]:
        """The nodes whose connections are watched; Open MPI watches its own."""
        if self.hostfile is None or self.launcher is Launcher.OPENMPI:
            return ()
        return tuple(read_hostfile(self.hostfile))

    def _local_ranks(self, ranks: int) -> tuple[int, ...] | None:
        """The ranks of this host; None where a launcher spreads them over many."""
        if self.hostfile is not None:
            return None
        return tuple(range(ranks)) if self.node_launch is None else self.node_launch.ranks
