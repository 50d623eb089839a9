"""Ask every node of a hostfile what it has, at once."""

from collections.abc import Mapping
from pathlib import Path

from zerowiz.app.options import Options, as_words, with_count
from zerowiz.app.reporter import Reporter
from zerowiz.core import shell
from zerowiz.core.machine.merge import Fleet, merge_nodes
from zerowiz.core.machine.types import Accelerator, Machine
from zerowiz.core.structs import replace
from zerowiz.errors import PreflightError
from zerowiz.probe.machine.fleet import argv_for, ask_nodes, node_command, pick_transport
from zerowiz.probe.nodes import read_hostfile

# A node with a cold file system takes seconds to load Python; one that is down never answers.
DEADLINE_S = 60

# Connections at a time; sshd holds back a client that opens more (sshd_config, MaxStartups).
_AT_ONCE = 64


def read_fleet(
    hostfile: Path,
    options: Options,
    environ: Mapping[str, str],
    reporter: Reporter,
    *,
    deadline_s: float = DEADLINE_S,
) -> Fleet:
    """What the nodes of the hostfile answered, merged.

    Raises:
        PreflightError: No node answered, or there is nothing to ask them with.
        UsageError: The hostfile makes no sense.
    """
    slots = read_hostfile(hostfile)
    hosts = list(slots)
    command = node_command(_node_words(options, environ), limit_s=deadline_s)
    argv = argv_for(pick_transport(environ), command)
    with reporter.wait("asking nodes", len(hosts)) as wait:
        answers = ask_nodes(
            hosts, argv, concurrency=_AT_ONCE, deadline_s=deadline_s, on_answer=wait.done
        )
    return merge_nodes(answers, slots)


def read_nodes(
    hostfile: Path, options: Options, environ: Mapping[str, str], reporter: Reporter
) -> Machine:
    """The weakest of the hostfile's nodes, every one of which has to answer."""
    fleet = read_fleet(hostfile, options, environ, reporter)
    for short in fleet.short:
        raise PreflightError(
            short.words,
            f"give it that many slots in `{hostfile}`",
        )
    for failure in fleet.failures:
        raise PreflightError(
            (
                f"{len(fleet.failures)} of {options.nodes} nodes did not answer; "
                f"`{failure.host}`: {failure.why}"
            ),
            f"see each node: `zerowiz machine $hostfile {shell.quote(hostfile)}`",
            "plan without asking the nodes: `$machine 8xH100-80GB`",
        )
    return with_count(fleet.machine.with_notes(*(note.words for note in fleet.notes)), options)


def _node_words(options: Options, environ: Mapping[str, str]) -> list[str]:
    """What each node has to know: the accelerator, and how many ranks a CPU has."""
    asked = options.accelerator or environ.get("DS_ACCELERATOR")
    # A node describes itself alone, whatever its scheduler allocated.
    alone = Options(nodes=1)
    if asked != Accelerator.CPU:
        return as_words(alone)
    ranks = options.gpus_per_node
    return as_words(replace(alone, accelerator=Accelerator.CPU, gpus_per_node=ranks))
