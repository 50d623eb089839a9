"""Describe the run that a config is checked for."""

from collections.abc import Mapping

from msgspec import Struct, field

from zerowiz.core.dsconfig.bad_releases import BadRelease
from zerowiz.core.dsconfig.schema import Schema
from zerowiz.core.machine.types import Accelerator, Machine
from zerowiz.core.script.settings import ScriptSettings
from zerowiz.core.values import replace
from zerowiz.core.workload.choices import Integration


class Context(Struct, frozen=True, kw_only=True):
    """What is known of the run; None is what is not known."""

    integration: Integration | None = None
    world_size: int | None = None
    settings: ScriptSettings | None = None
    """The settings that the training script was seen to make."""
    passed: frozenset[str] = frozenset()
    """The arguments of `deepspeed.initialize` with which the script replaces sections."""
    gpu_bytes: int | None = None
    """Memory of the smallest GPU."""
    compute_capability: tuple[int, int] | None = None
    """The lowest of the GPUs."""
    before: Schema | None = None
    """Of the DeepSpeed that the config was trained with so far, where another is to come."""
    bad_releases: tuple[BadRelease, ...] = ()
    """What is known against the DeepSpeed that will read the config."""
    file_keys: Mapping[str, str] = field(default_factory=dict)
    """What the file calls keys of the config, where the config is built of a file of Accelerate."""


def on_machine(context: Context, machine: Machine) -> Context:
    """The same run on this machine; a given number of ranks counts more than its own."""
    context = replace(context, world_size=context.world_size or machine.world_size)
    if machine.accelerator is Accelerator.CPU:
        return context
    return replace(
        context, gpu_bytes=machine.total_bytes, compute_capability=machine.compute_capability
    )
