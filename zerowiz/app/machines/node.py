"""Find where this copy of zerowiz stands among those of its job, as options and launcher say."""

import os

from zerowiz.app.machines.machine import CPU_MACHINE
from zerowiz.app.options import Options
from zerowiz.core.launch.node import NodeRank
from zerowiz.core.values import replace
from zerowiz.errors import UsageError
from zerowiz.probe.nodes.node import read_node_rank


def find_place(options: Options) -> NodeRank | None:
    """Where it stands; None where there is not one copy on each node.

    Raises:
        UsageError: The launcher started it in another way, or tells what cannot be.
    """
    named = options.machine not in {None, CPU_MACHINE}
    if options.hostfile is not None or options.nodes == 1 or named:
        return None
    return read_node_rank(os.environ)


def with_place(options: Options, place: NodeRank | None) -> Options:
    """With the nodes that the launcher above tells of; nobody is asked anything there."""
    if place is None:
        return options
    if options.nodes not in {None, place.nodes}:
        raise UsageError(f"`$nodes {options.nodes}`: this job has {place.nodes} nodes")
    return replace(options, nodes=place.nodes, yes=True)
