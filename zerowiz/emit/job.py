"""Watch over a job that runs: hand on signals, end what must end, and see who ended how."""

import os
import select
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from zerowiz.core.outcome.verdict import KILLED, STDOUT_UNREAD, JobEnd, RankEnd, judge
from zerowiz.core.values import replace
from zerowiz.emit.attempt import AttemptFolder
from zerowiz.emit.connections import Connections
from zerowiz.emit.processes import (
    ENDING,
    FORWARDED,
    PATIENCE_S,
    end_job,
    is_alive,
    read_space,
    send,
)

_POLL_S = 0.2
# Between the end of a rank and what who stood beside it writes of it.
_WRITTEN_S = 5.0
# Another node's ranks, and a file system that shows their files late.
_ELSEWHERE_S = 5.0
_REFRESH_S = 2.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Watch:
    """What is watched."""

    folder: Path
    """Of this attempt alone; absolute, and shared between the nodes where they share anything."""
    ranks: int
    local_ranks: tuple[int, ...] | None
    """The ranks that this host is to run; None where a launcher starts them on the hosts."""
    grace_s: float
    """For ranks to save and end, before what is left is killed."""
    hosts: tuple[str, ...] = ()
    """The nodes that a launcher here keeps connections to, as many ranks on each, in order."""


class SupervisedJob:
    """A job that runs, from its launcher's start until nothing of it is left."""

    def __init__(
        self,
        watch: Watch,
        launcher: "subprocess.Popen[bytes]",
        inbox: int,
        mark: str,
        others: frozenset[int],
    ) -> None:
        self.watch = watch
        self.launcher = launcher
        self.inbox = inbox
        self.mark = mark
        self.others = others
        self.space = read_space()
        self.folder = AttemptFolder(watch.folder)
        self.connections = Connections(launcher.pid, watch.hosts, watch.ranks)
        self.refresh_at = 0.0
        self.stopped_by: int | None = None
        self.stopped_at: float | None = None
        self.told: set[int] = set()
        self.killed_at: dict[int, float] = {}
        self.gone_at: dict[int, float] = {}
        self.kill_at = float("inf")

    def follow(self) -> None:
        """Hand on signals and watch the ranks until all is over, or patience is."""
        while time.monotonic() < self.kill_at:
            select.select(
                [self.inbox], [], [], min(_POLL_S, max(0, self.kill_at - time.monotonic()))
            )
            # Before the look: a rank that ends of a signal has not failed by itself.
            self.receive()
            is_gone = self.launcher_is_gone()
            self.look()
            self.tell_newcomers()
            if is_gone and not self.ranks_here():
                return
            is_bad = self.is_bad()
            if is_gone or is_bad:
                self.give_grace()
            # The launcher of one host ends the other ranks of that host alone.
            if is_gone or (is_bad and self.is_elsewhere()):
                self.folder.tell_to_end()

    def receive(self) -> None:
        """Hand on the signals that have arrived."""
        try:
            numbers = os.read(self.inbox, 1024)
        except BlockingIOError:
            return
        # A rank that has begun since the last look gets them too.
        self.folder.look()
        for number in numbers:
            if number in ENDING:
                self.stop(number)
            if number in FORWARDED:
                self.folder.order(str(number))
                for rank in self.ranks_here():
                    self.signal(rank, number)

    def stop(self, number: int) -> None:
        """Give the ranks time to end, the first time; the second time, none."""
        if self.stopped_by is not None or not self.folder.ranks:
            self.kill_at = 0.0
        self.stopped_by = self.stopped_by or number
        self.stopped_at = self.stopped_at or time.time()
        self.give_grace()

    def give_grace(self) -> None:
        """From here on the time of what runs is measured."""
        self.kill_at = min(self.kill_at, time.monotonic() + self.watch.grace_s)

    def signal(self, rank: int, number: int) -> None:
        """Signal a rank of this host itself, and never its launcher."""
        send(self.folder.ranks[rank].process, number)
        self.told |= {rank} if number in ENDING else set()

    def tell_newcomers(self) -> None:
        """A rank that started after the signal ends too."""
        if self.stopped_by is not None:
            for rank in self.ranks_here() - self.told:
                self.signal(rank, self.stopped_by)

    def ranks_here(self) -> set[int]:
        """The ranks that run on this host."""
        ranks = self.folder.ranks.values()
        return {each.rank for each in ranks if each.runs_here(self.space)}

    def is_bad(self) -> bool:
        """Whether a rank has failed, or nothing more will be heard of it."""
        return bool(self.lost_ranks()) or any(end.status != 0 for end in self.folder.ends.values())

    def lost_ranks(self) -> frozenset[int]:
        """The ranks of nodes that no longer answer."""
        return frozenset().union(*self.connections.lost(self.folder.ends).values())

    def is_elsewhere(self) -> bool:
        """Whether ranks run on other hosts too."""
        return any(rank.space != self.space for rank in self.folder.ranks.values())

    def look(self) -> None:
        """Read what is new in the folder, which other hosts may write to."""
        is_ours_alone = len(self.watch.local_ranks or ()) == self.watch.ranks
        if not is_ours_alone and time.monotonic() > self.refresh_at:
            self.folder.refresh()
            self.refresh_at = time.monotonic() + _REFRESH_S
        self.folder.look()
        for each, rank in self.folder.ranks.items():
            if rank.space == self.space and not rank.runs_here(self.space):
                self.gone_at.setdefault(each, time.time())

    def launcher_is_gone(self) -> bool:
        """Whether the launcher has ended; its pid stays its own until all is over."""
        options = os.WEXITED | os.WNOHANG | os.WNOWAIT
        return os.waitid(os.P_PID, self.launcher.pid, options) is not None

    def end(self) -> None:
        """Leave nothing of the job on this host."""
        patience_s = dict(PATIENCE_S)
        if time.monotonic() >= self.kill_at:
            self.kill_ranks()
            del patience_s[signal.SIGTERM]
        end_job(self.mark, self.launcher.pid, patience_s, self.others)
        self.launcher.wait()

    def kill_ranks(self) -> None:
        """The ranks first: who stands beside one can still write how it ended."""
        self.folder.look()
        self.folder.tell_to_end()
        for number, rank in self.folder.ranks.items():
            if rank.space == self.space and is_alive(rank.process):
                self.killed_at[number] = time.time()
                send(rank.process, signal.SIGKILL)
        until = time.monotonic() + _WRITTEN_S
        while self.ranks_here() and time.monotonic() < until:
            time.sleep(_POLL_S / 4)

    def judge(self) -> JobEnd:
        """How it ended, all that is known."""
        self.folder.look()
        self.wait_for_others()
        # A scheduler tells the ranks and zerowiz at the same time, and the ranks may be faster.
        self.receive()
        ranks, ends = self.folder.ranks, dict(self.folder.ends)
        for each, at in self.killed_at.items():
            if each in ends and ends[each].status == KILLED:
                told_at = ends[each].told_at or at
                ends[each] = replace(ends[each], told_at=told_at, host_oom=False)
        expected = set(ranks) if self.watch.local_ranks is None else {*self.watch.local_ranks}
        now = time.time()
        lost = [
            RankEnd(
                rank=each,
                host=ranks[each].host,
                status=None,
                ended_at=self.gone_at.get(each, now),
                told_at=self.killed_at.get(each),
            )
            for each in sorted(expected & ranks.keys() - ends.keys())
        ]
        return judge(
            (*ends.values(), *lost),
            launcher_status=self.launcher.returncode,
            ranks=len(expected | ends.keys()),
            stopped_by=self.stopped_by,
            stopped_at=self.stopped_at,
            lost=self.lost_ranks(),
        )

    def wait_for_others(self) -> None:
        """For what the ranks of other hosts have to say of their end.

        Where each host has its own supervisor, only after a failure: it answers for its own ranks.
        """
        own = self.watch.local_ranks
        if own is not None:
            ended_well = self.launcher.returncode in {0, STDOUT_UNREAD}
            went_well = ended_well and {*own} <= self.folder.ends.keys()
            if not went_well and self.stopped_by is None:
                # Of a launcher that fails, or a rank that is lost, nobody else would hear.
                self.folder.tell_to_end()
            if not self.is_bad():
                return
        patience_s = _ELSEWHERE_S
        if self.is_bad() and self.is_elsewhere():
            self.folder.tell_to_end()
            patience_s += self.watch.grace_s
        until = time.monotonic() + patience_s
        while any(
            rank.space != self.space and each not in self.folder.ends.keys() | self.lost_ranks()
            for each, rank in self.folder.ranks.items()
        ):
            self.receive()
            if time.monotonic() > until or self.kill_at == 0:
                return
            time.sleep(_POLL_S)
            self.look()
