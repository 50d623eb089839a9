"""Follow node 0, as a copy of zerowiz on any other node: answer it, and do as it says."""

from collections.abc import Callable, Sequence
from pathlib import Path

from zerowiz.app.launch.multi_node.leader import DEADLINE_S, SHARED, Rendezvous, ticks
from zerowiz.core.launch.node import NodeRank
from zerowiz.core.launch.rendezvous import AttemptSpec, Join, encode_file, join_name
from zerowiz.emit.files import replace_file
from zerowiz.errors import ZerowizError
from zerowiz.probe.nodes.rendezvous import has_content, read_attempt, read_open_rendezvous


def follow(
    job: Path, place: NodeRank, own: Join, *, deadline_s: float = DEADLINE_S
) -> tuple[Rendezvous, AttemptSpec]:
    """Answer the calls of node 0 until it says what the first attempt is.

    Args:
        job: The folder of the job.
        place: Of this copy.
        own: What this copy says of itself.
        deadline_s: How long node 0 may take.

    Raises:
        ZerowizError: It did not say so in time, or its config is not what lies here.
    """
    answered: list[Path] = []
    for _ in ticks(deadline_s):
        call = read_open_rendezvous(job)
        # A node 0 that calls again has said before what its last call came to.
        for folder in answered:
            attempt = _take(folder, own, 1)
            if attempt is not None:
                return Rendezvous(folder=folder, own=own), attempt
        if call is not None and job / call.word not in answered:
            answered.append(job / call.word)
            replace_file(answered[-1] / join_name(own.rank), encode_file(own))
    raise _no_word(place.hosts[0], answered, own, 1, deadline_s, job)


def follow_on(
    rendezvous: Rendezvous,
    place: NodeRank,
    number: int,
    *,
    deadline_s: float,
    hurry: Callable[[], bool] = lambda: False,
) -> AttemptSpec:
    """What node 0 says of a later attempt.

    Args:
        rendezvous: Of this copy.
        place: Of this copy.
        number: Of the attempt, from 2.
        deadline_s: How long node 0 may take.
        hurry: Whether there is little time left: this copy was told to end.

    Raises:
        ZerowizError: As `follow`.
    """
    for _ in ticks(deadline_s, hurry):
        attempt = _take(rendezvous.folder, rendezvous.own, number)
        if attempt is not None:
            return attempt
    folders = [rendezvous.folder]
    raise _no_word(place.hosts[0], folders, rendezvous.own, number, deadline_s, rendezvous.folder)


def _take(folder: Path, own: Join, number: int) -> AttemptSpec | None:
    """The attempt, if this copy is meant by it and can see its config."""
    attempt = read_attempt(folder, number)
    if attempt is None or own.word not in attempt.heard:
        return None
    agreed = attempt.spec
    there = agreed is None or has_content(Path(agreed.config_path), agreed.config_sha256)
    return attempt if there else None


def _no_word(
    first: str, folders: Sequence[Path], own: Join, number: int, deadline_s: float, job: Path
) -> ZerowizError:
    said = [read_attempt(folder, number) for folder in folders]
    meant = [each.spec for each in said if each is not None and own.word in each.heard]
    for agreed in meant:
        if agreed is not None:
            return ZerowizError(f"`{agreed.config_path}` is not here as `{first}` wrote it", SHARED)
    if folders:
        return ZerowizError(
            f"`{first}` called, and has not said what to do within {deadline_s:g} s",
            "its own output says why",
        )
    return ZerowizError(f"no word from `{first}` in `{job}` within {deadline_s:g} s", SHARED)
