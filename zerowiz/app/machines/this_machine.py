"""Read the machine that this runs on: its GPUs, or its cores as ranks of the CPU accelerator."""

from collections.abc import Callable, Mapping

from zerowiz.app.options import (
    Options,
    choose_config_ranks,
    refuse_gpus,
    with_config_ranks,
    with_count,
)
from zerowiz.app.reporter import Reporter
from zerowiz.core.machine.types import Accelerator, Machine
from zerowiz.probe.files import CALL_TIMEOUT_S, Files, World
from zerowiz.probe.machine.host import cpu_machine, with_number_formats
from zerowiz.probe.machine.read_machine import read_here, read_machine


def read_this(
    options: Options,
    environ: Mapping[str, str],
    reporter: Reporter,
    *,
    accelerator: Accelerator,
) -> Machine:
    """This machine, with as many of its GPUs or ranks as the options, or a config, ask for.

    Args:
        options: What the person said.
        environ: The environment.
        reporter: Hears which GPU is waited for, where the driver takes long.
        accelerator: What the job runs on.

    Raises:
        PreflightError: There is no GPU here.
        UsageError: GPUs are named for ranks on the CPU.
    """
    timeout_s = CALL_TIMEOUT_S if options.probe_timeout is None else options.probe_timeout
    world = World(files=Files(), environ=environ, call_timeout_s=timeout_s, on_wait=reporter.event)
    return READERS[accelerator](options, world)


def _read_gpus(options: Options, world: World) -> Machine:
    asked = choose_config_ranks(options)
    gpus = options.gpus if asked is None else asked.gpu_ids
    return with_config_ranks(with_count(read_machine(world, gpus=gpus), options), asked)


def _read_ranks(options: Options, world: World) -> Machine:
    asked = choose_config_ranks(options)
    refuse_gpus(options)
    host = with_number_formats(read_here(world), world.files, world.environ)
    ranks = options.gpus_per_node if asked is None else asked.ranks_per_node
    return cpu_machine(ranks or 1, host)


READERS: Mapping[Accelerator, Callable[[Options, World], Machine]] = {
    Accelerator.CUDA: _read_gpus,
    Accelerator.CPU: _read_ranks,
}
"""What reads the devices of an accelerator."""
