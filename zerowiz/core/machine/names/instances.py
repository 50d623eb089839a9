"""The table of instances, and which of its rows a name means."""

import re
from collections.abc import Mapping, Sequence

from msgspec import Struct

from zerowiz.core.codec import decode
from zerowiz.core.machine.network import Network
from zerowiz.core.values import Count
from zerowiz.words import _, joined

# SageMaker's and Azure's words before the name of a machine; punctuation is left out by people.
_NOISE = re.compile(r"^ml\.|^standard[ _-]|[^a-z0-9]")


class Instance(Struct, frozen=True, kw_only=True):
    """One row of the table of instances: a node that can be rented or bought under this name."""

    name: str
    aliases: tuple[str, ...]
    gpus: Count
    gpu: str
    """As in a spec."""
    host_bytes: Count
    """What its vendor says; a GB that is not said to be a GiB counts as 1e9 bytes."""
    network: Network | None = None
    source: Mapping[str, str]

    @property
    def available_bytes(self) -> int:
        """What a job gets of it, after the kernel and the services of a node.

        torchx/specs/named_resources_aws.py, MEM_TAX: 96 % works for most instance types.
        """
        return self.host_bytes * 96 // 100


class _InstanceTable(Struct, frozen=True, kw_only=True):
    instances: tuple[Instance, ...]


def decode_instances(value: object) -> tuple[Instance, ...]:
    """The rows of `data/instances.json`.

    Raises:
        UsageError: A row lacks a key, or a key has another type; the message names it.
    """
    return decode(_InstanceTable, value, _("instance table")).instances


def normalize_instance(name: str) -> str:
    """An instance's name without case, punctuation and the words before it."""
    return _NOISE.sub("", name.strip().lower())


def mean_instances(name: str, instances: Sequence[Instance]) -> tuple[Instance, ...]:
    """The rows that a name means; the first is taken of several, which is the smallest."""
    wanted = normalize_instance(name)
    return tuple(
        row for row in instances if wanted in map(normalize_instance, (row.name, *row.aliases))
    )


def find_instance(name: str, instances: Sequence[Instance]) -> Instance | None:
    """The row that a name means; None where there is none."""
    return next(iter(mean_instances(name, instances)), None)


def note_smallest(name: str, instances: Sequence[Instance]) -> tuple[str, ...]:
    """What was taken for granted of a name that several instances have."""
    taken, *others = mean_instances(name, instances)
    if not others:
        return ()
    names = joined(_(" or "), (f"`{row.name}`" for row in others))
    return (
        _(
            "`{name}` is taken to be `{taken}`; for another one use {names}",
            name=name,
            taken=taken.name,
            names=names,
        ),
    )
