"""Build a Machine from a text such as `8xH100-80GB`, with the GPU table."""

import difflib
import re
from collections.abc import Mapping, Sequence

from msgspec import Struct

from zerowiz.core.codec import decode
from zerowiz.core.machine.host import Host
from zerowiz.core.machine.links import Interconnect, LinkClass, PairLink, join_pairs
from zerowiz.core.machine.network import Network
from zerowiz.core.machine.topology import PCIE_LANE_BYTES_PER_S, mesh_links
from zerowiz.core.machine.types import Gpu, Machine, MachineSource, with_nodes
from zerowiz.core.values import Count, replace
from zerowiz.errors import UsageError

_SPEC = re.compile(r"(?:(\d{1,6})\s*[x*]\s*)?(\S.*?)", re.IGNORECASE)
# `4x8xH100`: four nodes of eight; `4x4090` has one count.
_NODES = re.compile(r"(\d{1,6})\s*[x*]\s*(\d{1,6}\s*[x*].+)", re.IGNORECASE)
_NOISE = re.compile(r"nvidia|geforce|tesla|[^a-z0-9]")

# GB200 NVL72, the largest NVLink domain in the table; more GPUs are several nodes.
MOST_GPUS_PER_NODE = 72

# Every card of the table has this width (NVIDIA's datasheets).
_PCIE_LANES = 16


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


class _GpuTable(Struct, frozen=True, kw_only=True):
    gpus: tuple[GpuModel, ...]


class _InstanceTable(Struct, frozen=True, kw_only=True):
    instances: tuple[Instance, ...]


def decode_instances(value: object) -> tuple[Instance, ...]:
    """The rows of `data/instances.json`.

    Raises:
        UsageError: A row lacks a key, or a key has another type; the message names it.
    """
    return decode(_InstanceTable, value, "instance table").instances


def decode_gpu_table(value: object) -> tuple[GpuModel, ...]:
    """The rows of `data/gpus.json`.

    Raises:
        UsageError: A row lacks a key, or a key has another type; the message names it.
    """
    return decode(_GpuTable, value, "gpu table").gpus


def normalize_name(name: str) -> str:
    """A GPU's name without case, punctuation and words such as NVIDIA."""
    return _NOISE.sub("", name.lower())


def match_models(name: str, table: Sequence[GpuModel]) -> tuple[GpuModel, ...]:
    """The rows that a name can mean; several for a name that is too short."""
    return tuple(model for model in table if normalize_name(name) in model.spellings)


def find_model(name: str, table: Sequence[GpuModel]) -> GpuModel:
    """The only row that a name means.

    Raises:
        UsageError: No row has that name, or several rows have it.
    """
    models = match_models(name, table)
    if len(models) == 1:
        return models[0]
    if models:
        choices = ", ".join(f"`{own_name(model, table)}`" for model in models)
        raise UsageError(f"`{name}` matches more than one GPU", f"use one of {choices}")
    raise UsageError(
        f"`{name}` is not a GPU or an instance that zerowiz knows",
        *_close_names(name, table),
        "to plan for another GPU, describe it in a file: `$machine node.json`",
    )


def own_name(model: GpuModel, table: Sequence[GpuModel]) -> str:
    """The first name of a row, of those that mean no other row."""
    return next(a for a in (*model.aliases, model.name) if match_models(a, table) == (model,))


def _close_names(name: str, table: Sequence[GpuModel]) -> tuple[str, ...]:
    known = {normalize_name(alias): alias for model in table for alias in model.aliases}
    known |= {normalize_name(model.name): model.name for model in table}
    close = difflib.get_close_matches(normalize_name(name), known, cutoff=0.5)
    names = ", ".join(f"`{known[match]}`" for match in close)
    return (f"similar names: {names}",) if names else ()


def parse_instance(
    text: str, instances: Sequence[Instance], table: Sequence[GpuModel]
) -> Machine | None:
    """The machine of an instance such as `p5.48xlarge`, or of several: `2xp5.48xlarge`.

    None where the text names none. Case does not matter.
    """
    nodes, name = split_spec(text)
    row = find_instance(name, instances)
    if row is None:
        return None
    return with_nodes(instance_node(row, table), 1 if nodes is None else nodes)


def find_instance(name: str, instances: Sequence[Instance]) -> Instance | None:
    """The row that a name means; None where there is none. Case does not matter."""
    known = {name.lower(): row for row in instances for name in (row.name, *row.aliases)}
    return known.get(name.strip().lower())


def instance_node(row: Instance, table: Sequence[GpuModel]) -> Machine:
    """One node of an instance."""
    return replace(
        parse_spec(f"{row.gpus}x{row.gpu}", table),
        host=Host(total_bytes=row.host_bytes, available_bytes=row.available_bytes),
        network=row.network or Network(),
    )


def split_spec(text: str) -> tuple[int | None, str]:
    """The count of a text such as `8xH200`, None where it has none, and what it is a count of."""
    match = _SPEC.fullmatch(text.strip())
    return (None, "") if match is None else (int(match[1]) if match[1] else None, match[2])


def close_instances(text: str, instances: Sequence[Instance]) -> tuple[str, ...]:
    """A hint at the instances whose names are close; none where none is."""
    match = _SPEC.fullmatch(text.strip())
    known = {name.lower(): name for row in instances for name in (row.name, *row.aliases)}
    close = difflib.get_close_matches("" if match is None else match[2].lower(), known, cutoff=0.8)
    names = ", ".join(f"`{known[name]}`" for name in close)
    return (f"similar instances: {names}",) if names else ()


def with_count(text: str, count: int) -> str:
    """The spec with another count of GPUs: `4xH100` and 8 make `8xH100`."""
    several = _NODES.fullmatch(text.strip())
    if several is not None:
        return f"{several[1]}x{with_count(several[2], count)}"
    match = _SPEC.fullmatch(text.strip())
    return text if match is None else f"{count}x{match[2]}"


def parse_spec(text: str, table: Sequence[GpuModel]) -> Machine:
    """The machine of a spec: idle nodes, whose host is unknown.

    Args:
        text: Such as `8xH100-80GB`, `H200`, or four nodes of eight: `4x8xH200`.
        table: The GPU table.

    Raises:
        UsageError: The count is not that of a node, or the name means no GPU or several.
    """
    several = _NODES.fullmatch(text.strip())
    if several is not None:
        return with_nodes(parse_spec(several[2], table), int(several[1]))
    match = _SPEC.fullmatch(text.strip())
    if match is None:
        raise UsageError("`$machine` has no GPU name", "write it as `8xH100-80GB`")
    count, name = int(match[1] or 1), match[2]
    if not 1 <= count <= MOST_GPUS_PER_NODE:
        raise UsageError(
            f"`{text}`: a node has 1 to {MOST_GPUS_PER_NODE} GPUs, not {count}",
            "for several nodes add `$nodes 2`, and give the GPUs of one node here",
        )
    model = find_model(name, table)
    gpus, links = tuple(_idle_gpu(model, index) for index in range(count)), _links(model, count)
    return Machine(
        source=MachineSource.SPEC,
        gpus=gpus,
        links=links,
        interconnect=(
            join_pairs(links, {gpu.index: gpu.nvlinks for gpu in gpus})
            if links
            else _expected_link(model, count)
        ),
        host=Host(),
        notes=(*_note_board(name, model), *_note_link(model, count)),
    )


def _idle_gpu(model: GpuModel, index: int) -> Gpu:
    return Gpu(
        index=index,
        name=model.name,
        total_bytes=model.total_bytes,
        free_bytes=model.usable_bytes,
        compute_capability=model.compute_capability,
        nvlinks=model.nvlink_links if model.nvlink_mesh else None,
        memory_source="GPU table: an idle GPU",
    )


def _links(model: GpuModel, count: int) -> tuple[PairLink, ...]:
    """Of each pair, where the board is known and its pairs differ."""
    if model.nvlink_mesh is None:
        return ()
    return mesh_links(
        model.nvlink_mesh,
        count,
        link_bytes_per_s=model.nvlink_bytes_per_s // model.nvlink_links,
        pcie_bytes_per_s=model.pcie_bytes_per_s,
    )


def _expected_link(model: GpuModel, count: int) -> Interconnect:
    if count == 1:
        return Interconnect(link_class=LinkClass.NONE)
    if count <= model.nvlink_gpus:
        kind, bytes_per_s = LinkClass.NVLINK_ALL, model.nvlink_bytes_per_s
    else:
        kind = LinkClass.NVLINK_PARTIAL if model.nvlink_gpus else LinkClass.PCIE
        bytes_per_s = model.pcie_bytes_per_s
    return Interconnect(link_class=kind, bytes_per_s=bytes_per_s, weakest_pair=(0, 1))


def _note_board(name: str, model: GpuModel) -> tuple[str, ...]:
    if model.pcie_spelling is None or "sxm" in normalize_name(name):
        return ()
    taken = f"`{name}` is taken to be the SXM version, `{model.name}`"
    return (f"{taken}; for the PCIe version use `{model.pcie_spelling}`",)


def _note_link(model: GpuModel, count: int) -> tuple[str, ...]:
    if _links(model, count):
        return (f"NVLink between `{model.name}` is assumed to be that of a {model.nvlink_mesh}",)
    if count == 1 or count <= model.nvlink_gpus or not model.nvlink_links:
        return ()
    if not model.nvlink_gpus:
        return (f"NVLink bridges between `{model.name}` cards are assumed to be absent",)
    return (f"NVLink joins all pairs of up to {model.nvlink_gpus} `{model.name}`, not of {count}",)
