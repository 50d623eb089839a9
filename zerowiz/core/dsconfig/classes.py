"""Define the classes that the `type` of an optimizer or a scheduler names, and what they take.

The rows come out of DeepSpeed and torch themselves, version by version (`tests/schema/`).
"""

from collections.abc import Iterable, Mapping
from enum import StrEnum

from msgspec import Struct


class Where(StrEnum):
    """What decides which class DeepSpeed builds for the name of an optimizer."""

    GPU = "gpu"
    CPU = "cpu"
    """The optimizer is offloaded."""
    TORCH_ADAM = "torch_adam"
    """The argument of this name is true."""


class BuiltClass(Struct, frozen=True, kw_only=True):
    """What DeepSpeed builds for a name, with the `params` beside it."""

    path: str
    """Its section, its name, and where it steps: `optimizer adamw cpu`, `scheduler OneCycle`."""
    name: str
    where: Where = Where.GPU
    is_deepspeeds: bool = False
    """A name of DeepSpeed's own; an optimizer's may be written in any case."""
    class_name: str | None = None
    """None where it comes from a package that was not installed."""
    arguments: tuple[str, ...] | None = None
    """What may stand in `params`."""
    needs: tuple[str, ...] = ()
    """Those without a default."""
    ignores_others: bool = False
    """Whether other arguments are left alone, not refused."""
    has_cpu_form: bool = False
    """Whether another class is built where the optimizer is offloaded."""
    refuses_zero: bool = False
    tested_with_zero: bool | None = False
    """Whether ZeRO takes it unasked."""


class Classes(Struct, frozen=True, kw_only=True):
    """The optimizers and schedulers of one version."""

    rows: Mapping[str, BuiltClass]
    """By their paths."""

    def optimizer(self, name: str, where: Where = Where.GPU) -> BuiltClass | None:
        """The class of a name; that of the GPU where no other is built."""
        own = self._find("optimizer", name.lower(), where)
        return own if own and own.is_deepspeeds else self._find("optimizer", name, where)

    def scheduler(self, name: str) -> BuiltClass | None:
        """The class of a name."""
        return self.rows.get(f"scheduler {name}")

    @property
    def own_schedulers(self) -> tuple[str, ...]:
        """The names that are DeepSpeed's own."""
        found = (row for path, row in self.rows.items() if path.startswith("scheduler "))
        return tuple(sorted(row.name for row in found if row.is_deepspeeds))

    def _find(self, section: str, name: str, where: Where) -> BuiltClass | None:
        path = f"{section} {name}"
        return self.rows.get(f"{path} {where}") or self.rows.get(f"{path} {Where.GPU}")


def classes_of(rows: Iterable[BuiltClass]) -> Classes:
    """The classes in these rows."""
    return Classes(rows={row.path: row for row in rows})
