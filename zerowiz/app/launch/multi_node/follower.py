"""Follow the leader as the zerowiz of another node: join its rendezvous, do its attempts."""

from collections.abc import Callable, Sequence
from pathlib import Path

from zerowiz.app.launch.multi_node.leader import DEADLINE_S, SHARED, Rendezvous, ticks
from zerowiz.core.launch.node import NodeRank
from zerowiz.core.launch.rendezvous import AttemptSpec, Join, LaunchSpec, encode_file, join_name
from zerowiz.emit.files import replace_file
from zerowiz.errors import ZerowizError
from zerowiz.probe.nodes.rendezvous import has_content, read_attempt, read_open_rendezvous
from zerowiz.words import _


def follow(
    job: Path, node: NodeRank, own: Join, *, deadline_s: float = DEADLINE_S
) -> tuple[Rendezvous, AttemptSpec]:
    """Join the rendezvous that node 0 opens, and wait for the first attempt.

    Args:
        job: The folder of the job.
        node: This node.
        own: What this node tells the leader of itself.
        deadline_s: How long node 0 may take.

    Raises:
        ZerowizError: There was none in time, or its config is not on this node as it was written.
    """
    joined: list[Path] = []
    for _tick in ticks(deadline_s):
        opened = read_open_rendezvous(job)
        # A node 0 that opens another has written before how the last one ended.
        for folder in joined:
            attempt = _take(folder, own, 1)
            if attempt is not None:
                return Rendezvous(folder=folder, own=own), attempt
        if opened is not None and job / opened.word not in joined:
            joined.append(job / opened.word)
            replace_file(joined[-1] / join_name(own.rank), encode_file(own))
    raise _no_attempt(node.hosts[0], joined, own, 1, deadline_s, job)


def follow_on(
    rendezvous: Rendezvous,
    node: NodeRank,
    number: int,
    *,
    deadline_s: float,
    hurry: Callable[[], bool] = lambda: False,
) -> AttemptSpec:
    """Wait for a later attempt of node 0.

    Args:
        rendezvous: The one that this node joined.
        node: This node.
        number: Of the attempt, from 2.
        deadline_s: How long node 0 may take.
        hurry: Whether little time is left, because a signal asked this process to end.

    Raises:
        ZerowizError: As `follow`.
    """
    for _tick in ticks(deadline_s, hurry):
        attempt = _take(rendezvous.folder, rendezvous.own, number)
        if attempt is not None:
            return attempt
    folders = [rendezvous.folder]
    raise _no_attempt(node.hosts[0], folders, rendezvous.own, number, deadline_s, rendezvous.folder)


def _take(folder: Path, own: Join, number: int) -> AttemptSpec | None:
    """The attempt, if it includes this node, and what its ranks read is here."""
    attempt = read_attempt(folder, number)
    if attempt is None or own.word not in attempt.heard:
        return None
    return None if attempt.spec is not None and _missing(attempt.spec) else attempt


def _missing(spec: LaunchSpec) -> str | None:
    """The first file that is not here as the leader wrote it; None for none."""
    files = spec.sha256_by_path.items()
    return next((path for path, sha256 in files if not has_content(Path(path), sha256)), None)


def _no_attempt(
    leader: str, folders: Sequence[Path], own: Join, number: int, deadline_s: float, job: Path
) -> ZerowizError:
    attempts = [read_attempt(folder, number) for folder in folders]
    specs = [each.spec for each in attempts if each is not None and own.word in each.heard]
    for spec in specs:
        if spec is not None:
            path = _missing(spec) or next(iter(spec.sha256_by_path))
            return ZerowizError(
                _("`{path}` differs here from what `{leader}` wrote", path=path, leader=leader),
                SHARED,
            )
    if folders:
        return ZerowizError(
            _(
                "`{leader}` started, but sent no instructions within {deadline_s:g} s",
                leader=leader,
                deadline_s=deadline_s,
            ),
            _("see the output on that node"),
        )
    return ZerowizError(
        _(
            "`{leader}` wrote nothing to `{job}` within {deadline_s:g} s",
            leader=leader,
            job=job,
            deadline_s=deadline_s,
        ),
        SHARED,
    )
