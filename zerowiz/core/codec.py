"""Turn a Machine into plain JSON values and back."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeGuard, TypeVar

from zerowiz.core.machine import (
    Accelerator,
    Gpu,
    Host,
    Interconnect,
    LinkClass,
    Machine,
    MachineSource,
)
from zerowiz.errors import UsageError

_Member = TypeVar("_Member", bound=StrEnum)


@dataclass(frozen=True, kw_only=True, slots=True)
class Fields:
    """Typed reads from one JSON object, with errors that name the key by its whole path."""

    values: Mapping[str, object]
    path: str

    def text(self, key: str) -> str:
        """A text that must be there."""
        value = self.values.get(key)
        if not isinstance(value, str):
            raise self._refusal(key, "a text")
        return value

    def maybe_text(self, key: str) -> str | None:
        """A text, or None when it is null or absent."""
        return None if self.values.get(key) is None else self.text(key)

    def texts(self, key: str) -> tuple[str, ...]:
        """A list of texts; none when it is null or absent."""
        value = self.values.get(key)
        if value is None:
            return ()
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self._refusal(key, "a list of texts")
        return tuple(value)

    def count(self, key: str) -> int:
        """A whole number from 0 that must be there."""
        value = self.values.get(key)
        if not _is_count(value):
            raise self._refusal(key, "a whole number from 0")
        return value

    def maybe_count(self, key: str) -> int | None:
        """A whole number from 0, or None when it is null or absent."""
        return None if self.values.get(key) is None else self.count(key)

    def maybe_pair(self, key: str) -> tuple[int, int] | None:
        """Two whole numbers, or None when they are null or absent."""
        value = self.values.get(key)
        if value is None:
            return None
        match value:
            case [first, second] if _is_count(first) and _is_count(second):
                return (first, second)
            case _:
                raise self._refusal(key, "a list of two whole numbers from 0")

    def member(self, key: str, kind: type[_Member], default: _Member | None = None) -> _Member:
        """One of an enumeration's names; the default stands for null and for absent."""
        value = self.values.get(key)
        if value is None and default is not None:
            return default
        names = [member.value for member in kind]
        if value not in names:
            raise self._refusal(key, f"one of {', '.join(names)}")
        return kind(value)

    def child(self, key: str) -> "Fields":
        """The object under this key; an empty one when it is null or absent."""
        value = self.values.get(key)
        return read_object({} if value is None else value, f"{self.path}.{key}")

    def children(self, key: str) -> tuple["Fields", ...]:
        """The list of objects under this key."""
        value = self.values.get(key)
        if not isinstance(value, list):
            raise self._refusal(key, "a list")
        path = f"{self.path}.{key}"
        return tuple(read_object(item, f"{path}[{i}]") for i, item in enumerate(value))

    def _refusal(self, key: str, wanted: str) -> UsageError:
        if key not in self.values:
            return UsageError(f"`{self.path}.{key}` is missing; it should be {wanted}")
        return UsageError(f"`{self.path}.{key}` is {self.values[key]!r}, not {wanted}")


def read_object(value: object, path: str) -> Fields:
    """Typed reads from a JSON value that should be an object.

    Raises:
        UsageError: It is none.
    """
    if not isinstance(value, Mapping):
        raise UsageError(f"`{path}` is {value!r:.40}, not an object")
    return Fields(values=value, path=path)


def _is_count(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def encode_machine(machine: Machine) -> dict[str, object]:
    """The machine as JSON values: the `machine` object of `plan --json`."""
    link = machine.interconnect
    return {
        "source": machine.source.value,
        "accelerator": machine.accelerator.value,
        "nodes": machine.nodes,
        "gpus": [_encode_gpu(gpu) for gpu in machine.gpus],
        "interconnect": {
            "class": link.link_class.value,
            "bytes_per_s": link.bytes_per_s,
            "weakest_pair": _encode_pair(link.weakest_pair),
        },
        "host": {
            "total_bytes": machine.host.total_bytes,
            "available_bytes": machine.host.available_bytes,
        },
        "notes": list(machine.notes),
    }


def _encode_gpu(gpu: Gpu) -> dict[str, object]:
    return {
        "index": gpu.index,
        "name": gpu.name,
        "uuid": gpu.uuid,
        "total_bytes": gpu.total_bytes,
        "free_bytes": gpu.free_bytes,
        "compute_capability": _encode_pair(gpu.compute_capability),
    }


def _encode_pair(pair: tuple[int, int] | None) -> list[int] | None:
    return None if pair is None else list(pair)


def decode_machine(value: object, path: str = "machine") -> Machine:
    """The machine that these JSON values describe; keys it does not know are left alone.

    Args:
        value: What `encode_machine` gave, or a person wrote: only `gpus` and in it `index` and
            `name` are needed, what is absent is unknown.
        path: What errors call the object.

    Raises:
        UsageError: A key is missing or holds something else; the message names it.
    """
    fields = read_object(value, path)
    nodes = fields.maybe_count("nodes")
    gpus = tuple(_decode_gpu(gpu) for gpu in fields.children("gpus"))
    if nodes == 0:
        raise UsageError(f"`{path}.nodes` is 0; a machine has at least one")
    if not gpus:
        raise UsageError(f"`{path}.gpus` is empty; a machine has at least one")
    if len({gpu.index for gpu in gpus}) != len(gpus):
        raise UsageError(f"`{path}.gpus` lists an `index` twice")
    return Machine(
        source=fields.member("source", MachineSource, MachineSource.FILE),
        accelerator=fields.member("accelerator", Accelerator, Accelerator.CUDA),
        nodes=1 if nodes is None else nodes,
        gpus=gpus,
        interconnect=_decode_interconnect(fields.child("interconnect")),
        host=_decode_host(fields.child("host")),
        notes=fields.texts("notes"),
    )


def _decode_gpu(fields: Fields) -> Gpu:
    return Gpu(
        index=fields.count("index"),
        name=fields.text("name"),
        uuid=fields.maybe_text("uuid"),
        total_bytes=fields.maybe_count("total_bytes"),
        free_bytes=fields.maybe_count("free_bytes"),
        compute_capability=fields.maybe_pair("compute_capability"),
    )


def _decode_interconnect(fields: Fields) -> Interconnect:
    return Interconnect(
        link_class=fields.member("class", LinkClass, LinkClass.UNKNOWN),
        bytes_per_s=fields.maybe_count("bytes_per_s"),
        weakest_pair=fields.maybe_pair("weakest_pair"),
    )


def _decode_host(fields: Fields) -> Host:
    return Host(
        total_bytes=fields.maybe_count("total_bytes"),
        available_bytes=fields.maybe_count("available_bytes"),
    )
