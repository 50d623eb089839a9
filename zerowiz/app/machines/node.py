"""Find which node of its job this is, where a launcher started one zerowiz on each."""

import os

from zerowiz.app.machines.machine import means_cpu
from zerowiz.app.options import Options
from zerowiz.core.launch.node import NodeRank
from zerowiz.core.values import replace
from zerowiz.errors import UsageError
from zerowiz.probe.nodes.node import read_node_rank
from zerowiz.words import _


def find_node(options: Options) -> NodeRank | None:
    """This node; None where there is not one zerowiz on each node.

    Raises:
        UsageError: The launcher started it in another way, or its variables contradict each other.
    """
    named = options.machine is not None and not means_cpu(options.machine)
    if options.hostfile is not None or options.nodes == 1 or named:
        return None
    return read_node_rank(os.environ)


def with_node(options: Options, node: NodeRank | None) -> Options:
    """With the nodes of the launcher, and without questions: nobody could answer on every node."""
    if node is None:
        return options
    if options.nodes not in {None, node.nodes}:
        raise UsageError(
            _(
                "`$nodes {nodes}`: this job has {node_nodes} nodes",
                nodes=options.nodes,
                node_nodes=node.nodes,
            ),
            _("remove `$nodes`"),
        )
    return replace(options, nodes=node.nodes, yes=True)
