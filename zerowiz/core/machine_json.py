"""The machine as JSON: what `plan --json` has of it, and a file that `--machine` reads."""

from collections.abc import Mapping
from typing import cast

from zerowiz.core.codec import decode, encode
from zerowiz.core.machine.types import Machine, MachineSource


def encode_machine(machine: Machine) -> dict[str, object]:
    """The machine as JSON values: the `machine` object of `plan --json`."""
    return cast("dict[str, object]", encode(machine))


def decode_machine(value: object, path: str = "machine") -> Machine:
    """The machine that these JSON values describe.

    Only `gpus` and in it `index` and `name` are needed; what is absent is unknown.

    Raises:
        UsageError: As `decode`.
    """
    if isinstance(value, Mapping) and value.get("source") is None:
        value = {**value, "source": MachineSource.FILE.value}
    return decode(Machine, value, path)
