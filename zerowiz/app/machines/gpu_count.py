"""Take as many GPUs of a machine as was said."""

from zerowiz.app.options import Options
from zerowiz.core.machine.types import Machine, with_gpus
from zerowiz.errors import UsageError
from zerowiz.words import _


def with_count(machine: Machine, options: Options) -> Machine:
    """The machine with as many of its GPUs as `--gpus-per-node` says."""
    count = options.gpus_per_node
    return machine if count is None else with_gpus(machine, count)


def refuse_gpus(options: Options) -> None:
    """See that no GPUs are named for ranks on the CPU."""
    if options.gpus is not None:
        raise UsageError(
            _("`$gpus {gpus}` selects GPUs, and the CPU accelerator has none", gpus=options.gpus),
            _("set the number of CPU ranks: `$gpus_per_node 2`"),
        )
