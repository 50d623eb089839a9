"""Describe what a config is checked against, beside DeepSpeed itself."""

from dataclasses import dataclass

from zerowiz.core.script import ScriptSettings
from zerowiz.core.workload import Integration


@dataclass(frozen=True, kw_only=True, slots=True)
class Context:
    """What is known of the run; None is what nobody said."""

    integration: Integration | None = None
    world_size: int | None = None
    settings: ScriptSettings | None = None
    """What the script that the config is for was seen to say."""
    gpu_bytes: int | None = None
    """Memory of the smallest GPU."""
