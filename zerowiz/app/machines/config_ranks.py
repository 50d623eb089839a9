"""Take the ranks that a config of Accelerate asks for, where no option says them."""

from msgspec import Struct

from zerowiz.app.options import Options
from zerowiz.core.machine.types import Machine, with_gpus
from zerowiz.errors import UsageError
from zerowiz.words import _


class ConfigRanks(Struct, frozen=True, kw_only=True):
    """The ranks of a config."""

    config: str
    ranks: int
    nodes: int
    gpu_ids: str | None

    @property
    def gpus_per_node(self) -> int:
        """What Accelerate starts on each node (1.15, utils/launch.py)."""
        return max(1, self.ranks // self.nodes)


def read_config_ranks(options: Options) -> ConfigRanks | None:
    """The ranks that the person's config asks for; None where it asks for none.

    Args:
        options: What the person said.

    Raises:
        UsageError: The config cannot be read.
    """
    if options.config is None:
        return None
    # A launch without a config of its own reads none.
    from zerowiz.probe.config.config_file import read_config_text  # noqa: PLC0415 - see above
    from zerowiz.probe.config.config_text import is_yaml  # noqa: PLC0415 - see above

    file = read_config_text(options.config).accelerate if is_yaml(options.config) else None
    if file is None or file.ranks is None:
        return None
    return ConfigRanks(
        config=str(options.config), ranks=file.ranks, nodes=file.nodes, gpu_ids=file.gpu_ids
    )


def choose_config_ranks(options: Options) -> ConfigRanks | None:
    """As `read_config_ranks`; None where options say how many there are, and where."""
    said = (options.gpus, options.gpus_per_node, options.nodes, options.hostfile)
    return read_config_ranks(options) if all(each is None for each in said) else None


def with_config_ranks(machine: Machine, asked: ConfigRanks | None) -> Machine:
    """The machine with as many of its GPUs as the config asks for.

    Raises:
        UsageError: It has fewer.
    """
    if asked is None or asked.gpus_per_node == len(machine.gpus):
        return machine
    here = len(machine.gpus)
    if asked.gpus_per_node > here:
        raise UsageError(
            _(
                "`{config}` asks for {gpus_per_node} processes per node, and this machine "
                "has room for {here}",
                config=asked.config,
                gpus_per_node=asked.gpus_per_node,
                here=here,
            ),
            _("use what is here: `$gpus_per_node {here}`", here=here),
        )
    return with_gpus(machine, asked.gpus_per_node)


def note_config_ranks(machine: Machine, options: Options) -> Machine:
    """The machine, with a note where it has other ranks than the config asks for."""
    asked = read_config_ranks(options)
    if asked is None or asked.ranks == machine.world_size:
        return machine
    return machine.with_notes(
        _(
            "`{config}` asks for {ranks} processes; the plan is for {world_size}",
            config=asked.config,
            ranks=asked.ranks,
            world_size=machine.world_size,
        )
    )
