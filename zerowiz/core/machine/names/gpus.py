"""The GPU table, and which of its rows a name means."""

import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import NamedTuple

from msgspec import Struct

from zerowiz.core.codec import decode
from zerowiz.core.machine.topology import PCIE_LANE_BYTES_PER_S
from zerowiz.core.values import Count, shows
from zerowiz.words import _, joined, listing

_NOISE = re.compile(r"nvidia|geforce|tesla|[^a-z0-9]")

# Every card of the table has this width (NVIDIA's datasheets).
_PCIE_LANES = 16


@shows("name", "total_bytes", "compute_capability", "nvlink_bytes_per_s")
class GpuModel(Struct, frozen=True, kw_only=True):
    """One row of the GPU table."""

    name: str
    """As NVML prints it."""
    aliases: tuple[str, ...]
    total_bytes: Count
    """NVML's total, with the driver's reserve."""
    usable_bytes: Count
    """CUDA's total on an idle GPU."""
    compute_capability: tuple[Count, Count]
    nvlink_links: Count
    nvlink_bytes_per_s: Count
    """Nominal, in one direction, per GPU, over all its links; 0 without NVLink."""
    nvlink_gpus: Count
    """How many GPUs of one board NVLink connects in all pairs; 0 where that needs a bridge."""
    nvlink_mesh: str | None = None
    """The board in MESHES that is assumed, where the NVLinks of pairs differ."""
    pcie_generation: Count
    bf16_flop_per_s: Count | None = None
    """Dense; `None` where the GPU has no bf16 arithmetic."""
    fp16_flop_per_s: Count
    fp32_flop_per_s: Count
    """Outside the tensor cores: torch takes no TF32 for products of matrices by itself."""
    memory_bytes_per_s: Count
    pcie_spelling: str | None = None
    """The name of the PCIe card, where a short name means the SXM board."""
    source: Mapping[str, str]
    """The addresses of each group's sources; `[?]` where none was found."""

    @property
    def pcie_bytes_per_s(self) -> int:
        """Nominal, in one direction."""
        return _PCIE_LANES * PCIE_LANE_BYTES_PER_S[self.pcie_generation]

    @property
    def spellings(self) -> frozenset[str]:
        """Every name of it, without case and punctuation."""
        return frozenset(normalize_name(name) for name in (self.name, *self.aliases))


class _GpuTable(Struct, frozen=True, kw_only=True):
    gpus: tuple[GpuModel, ...]


def decode_gpu_table(value: object) -> tuple[GpuModel, ...]:
    """The rows of `data/gpus.json`.

    Raises:
        UsageError: A row lacks a key, or a key has another type; the message names it.
    """
    return decode(_GpuTable, value, _("gpu table")).gpus


# A plan for all machines looks each GPU up in each row.
@cache
def normalize_name(name: str) -> str:
    """A GPU's name without case, punctuation and words such as NVIDIA."""
    return _NOISE.sub("", name.lower())


def match_models(name: str, table: Sequence[GpuModel]) -> tuple[GpuModel, ...]:
    """The rows that have a name; several for a name that is too short."""
    return tuple(model for model in table if normalize_name(name) in model.spellings)


# Rule: what people add to the name of a GPU without meaning another one.
_ADDED = re.compile(
    r"\b(?:nvidia|geforce|tesla|gpus?|tensor|core|hbm\d?e?|generation|ampere|hopper|blackwell|nvlink)\b"
)
_FORM = re.compile(r"(?:\b|(?<=\d)|(?<=gb))(sxm|pcie|nvl)\d?\b")
# `80GB`, `80 GiB`, `80g`; a number alone only as a part of its own, which no model's number is:
# `A100-40`, and not `A40`.
_MEMORY = re.compile(r"(?<=[^a-z0-9])(\d{2,3})[\s-]*(?:g(?:i?b)?)?\b|^(\d{2,3})[\s-]*g(?:i?b)?\b")


class _NameParts(NamedTuple):
    """What a name says of a GPU."""

    base: str
    memory: str | None
    form: str | None


@cache
def _split_name(name: str) -> _NameParts:
    """`A100-80GB-SXM4` is an `a100` of 80 with the form `sxm`."""
    text = _ADDED.sub(" ", name.lower().replace("_", " "))
    form = _FORM.search(text)
    text = _FORM.sub(" ", text).strip()
    memory = _MEMORY.search(text)
    said = None if memory is None else memory[1] or memory[2]
    return _NameParts(
        base=normalize_name(_MEMORY.sub(" ", text, count=1)),
        memory=said,
        form=None if form is None else form[1],
    )


def _parts_of(model: GpuModel) -> list[_NameParts]:
    return [_split_name(name) for name in (model.name, *model.aliases)]


def _can_mean(said: _NameParts, model: GpuModel) -> bool:
    """Whether all that a name says is true of a row."""
    names = _parts_of(model)
    forms = {name.form for name in names} - {None} or ({"pcie"} if not model.nvlink_gpus else set())
    return (
        said.base in {name.base for name in names}
        and (said.memory is None or said.memory in {name.memory for name in names})
        and (said.form is None or said.form in forms)
    )


def mean_models(name: str, table: Sequence[GpuModel]) -> tuple[GpuModel, ...]:
    """The rows that a person can mean by a name: `A100 80G SXM` stands in no row as it is.

    What is read from a driver is no such name: `match_models` takes it to the letter.
    """
    return match_models(name, table) or tuple(
        model for model in table if _can_mean(_split_name(name), model)
    )


def same_base(name: str, table: Sequence[GpuModel]) -> tuple[GpuModel, ...]:
    """The rows that differ from a name in memory or form at most: the `H100` of `H100-120GB`."""
    base = _split_name(name).base
    return tuple(row for row in table if base in {parts.base for parts in _parts_of(row)})


_SERIES = re.compile(r"([a-z]+)(\d+)")


def same_series(name: str, table: Sequence[GpuModel]) -> tuple[GpuModel, ...]:
    """The rows of the same letters, the nearest number first: the `H200` of `H199`."""
    said = _SERIES.fullmatch(_split_name(name).base)
    if said is None:
        return ()
    distances = {
        row.name: min(abs(int(number) - int(said[2])) for number in numbers)
        for row in table
        if (numbers := _numbers(row, said[1]))
    }
    near = sorted((row for row in table if row.name in distances), key=lambda r: distances[r.name])
    return tuple(near)


def _numbers(model: GpuModel, series: str) -> list[str]:
    found = (_SERIES.match(parts.base) for parts in _parts_of(model))
    return [each[2] for each in found if each is not None and each[1] == series]


def pick_model(models: Sequence[GpuModel]) -> GpuModel:
    """The row that is taken where a name can mean several: an SXM board, with the least memory.

    What fits there fits the others.
    """
    boards = [model for model in models if model.pcie_spelling is not None]
    return min(boards or models, key=lambda model: model.total_bytes)


def own_name(model: GpuModel, table: Sequence[GpuModel]) -> str:
    """The first name of a row, of those that mean no other row."""
    return next(a for a in (*model.aliases, model.name) if match_models(a, table) == (model,))


def note_guess(name: str, model: GpuModel, table: Sequence[GpuModel]) -> tuple[str, ...]:
    """What was taken for granted of a name: the board, or the memory too."""
    others = [own_name(row, table) for row in mean_models(name, table) if row is not model]
    sxm = model.pcie_spelling is not None
    if not others:
        is_said = _split_name(name).form or normalize_name(name) == normalize_name(model.name)
        others = [model.pcie_spelling] if model.pcie_spelling and not is_said else []
    if not others:
        return ()
    taken = (
        _("`{name}` is taken to be the SXM version, `{model}`", name=name, model=model.name)
        if sxm
        else _("`{name}` is taken to be `{model}`", name=name, model=model.name)
    )
    *most, last = [f"`{other}`" for other in others]
    names = _("{most} or {last}", most=listing(most), last=last) if most else last
    use = (
        _("for the PCIe version use {names}", names=names)
        if others == [model.pcie_spelling]
        else _("for another one use {names}", names=names)
    )
    return (joined("; ", (taken, use)),)
