"""From a training script, a model and these GPUs to a running DeepSpeed job.

The names of the Python API are loaded when they are first used; `import zerowiz` loads nothing.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from zerowiz.app.api import PlanResult, check, find_machines, plan, read_machine, write_config
    from zerowiz.errors import ZerowizError

__version__ = "1.0.0rc2"

__all__ = [
    "PlanResult",
    "ZerowizError",
    "check",
    "find_machines",
    "plan",
    "read_machine",
    "write_config",
]


def __getattr__(name: str) -> object:
    """A name of the API, from the module that has it."""
    if name not in __all__:
        raise AttributeError(f"module `zerowiz` has no attribute `{name}`")
    from importlib import import_module  # noqa: PLC0415 - `import zerowiz` loads nothing

    room = "zerowiz.errors" if name == "ZerowizError" else "zerowiz.app.api"
    value: object = getattr(import_module(room), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
