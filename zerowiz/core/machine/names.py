"""Names of machines: the tables of GPUs and instances, and the machine that a name means."""

import re
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from functools import cache
from typing import cast

from msgspec import Struct

from zerowiz.core import shell
from zerowiz.core.machine.types import (
    PCIE_LANE_BYTES_PER_S,
    Gpu,
    Host,
    Interconnect,
    LinkClass,
    Machine,
    MachineSource,
    Network,
    PairLink,
    join_pairs,
    mesh_links,
    with_gpus,
)
from zerowiz.core.structs import Count, decode, encode, replace, shows
from zerowiz.core.workload import Precision
from zerowiz.errors import UsageError

# What a name is compared without: `A100-SXM4-80GB` and `a100 sxm 80` are one.
_NOISE = re.compile(r"nvidia|geforce|tesla|(?<=\d)gi?b|(?<=sxm)\d|[^a-z0-9]")

# Every card of the table has this width (NVIDIA's datasheets).
_PCIE_LANES = 16
_LAST_OF_64_LANES = (8, 0)


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
    shares_host_memory: bool = False
    """Whether it has no memory of its own (GB10); a node has one of it, then."""
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
    def exponential_rate(self) -> int:
        """In a second: of a head of 128 values an H100's take half as long as the products.

        Shah 2024, FlashAttention-3, section 3.2. CUDA C++ Programming Guide, arithmetic
        instructions: a multiprocessor takes 16 exponentials in a cycle, and each of its lanes does
        two operations.
        """
        lanes = 64 if self.compute_capability <= _LAST_OF_64_LANES else 128
        return self.fp32_flop_per_s // (lanes // 8)

    def flop_per_s(self, precision: Precision) -> int | None:
        """Nominal, of products of matrices in this precision; None where it is not known."""
        return {
            Precision.BF16: self.bf16_flop_per_s,
            Precision.FP16: self.fp16_flop_per_s,
            Precision.FP32: self.fp32_flop_per_s,
        }[precision]

    @property
    def spellings(self) -> frozenset[str]:
        """Every name of it, without case and punctuation."""
        return _spellings(self.name, self.aliases)


# A plan for all machines looks each GPU up in each row.
@cache
def normalize_name(name: str) -> str:
    """A GPU's name without case, punctuation, units and words such as NVIDIA."""
    return _NOISE.sub("", name.lower())


@cache
def _spellings(name: str, aliases: tuple[str, ...]) -> frozenset[str]:
    return frozenset(map(normalize_name, (name, *aliases)))


def match_models(name: str, table: Sequence[GpuModel]) -> tuple[GpuModel, ...]:
    """The rows that have a name; several for a name that is too short."""
    wanted = normalize_name(name)
    return tuple([model for model in table if wanted in _spellings(model.name, model.aliases)])


# Of the cards of the table, CUDA offers at least this much of the memory in their names.
_OFFERED_PERCENT = 91


def any_model(name: str) -> tuple[GpuModel, ...]:
    """A GPU of which only the memory is known: `GPU-45GB`; none for any other name."""
    match = re.fullmatch(r"gpu(\d{1,4})", normalize_name(name))
    if match is None or not int(match[1]):
        return ()
    total_bytes = int(match[1]) * 2**30
    return (
        GpuModel(
            name=name,
            aliases=(),
            total_bytes=total_bytes,
            usable_bytes=total_bytes * _OFFERED_PERCENT // 100,
            compute_capability=(8, 0),
            nvlink_links=0,
            nvlink_bytes_per_s=0,
            nvlink_gpus=0,
            pcie_generation=3,
            fp16_flop_per_s=0,
            fp32_flop_per_s=0,
            memory_bytes_per_s=0,
            source={},
        ),
    )


def pick_model(models: Sequence[GpuModel]) -> GpuModel:
    """The row that is taken where a name can mean several: an SXM board, with the least memory.

    What fits there fits the others.
    """
    boards = [model for model in models if model.pcie_spelling is not None]
    return min(boards or models, key=lambda model: model.total_bytes)


def own_name(model: GpuModel, table: Sequence[GpuModel]) -> str:
    """The first name of a row, of those that mean no other row."""
    return next(a for a in (*model.aliases, model.name) if match_models(a, table) == (model,))


TAKEN_TO_BE = " is taken to be "
"""In a note on what a name means: its first clause says what is assumed."""


def note_guess(name: str, model: GpuModel, table: Sequence[GpuModel]) -> tuple[str, ...]:
    """What was taken for granted of a name: the board, or the memory too."""
    if not model.source:
        offered = f"{model.usable_bytes / 2**30:.1f} GiB"
        return (f"`{name}` is a GPU with bf16 that offers {offered} to a job; times are not known",)
    others = [own_name(row, table) for row in match_models(name, table) if row is not model]
    sxm = model.pcie_spelling is not None
    if not others:
        wanted = normalize_name(name)
        is_said = "sxm" in wanted or wanted == normalize_name(model.name)
        others = [model.pcie_spelling] if model.pcie_spelling and not is_said else []
    if not others:
        return ()
    guess = "SXM" if sxm else f"`{model.name}`"
    *most, last = [f"`{other}`" for other in others]
    names = f"{', '.join(most)} or {last}" if most else last
    return (f"`{name}`{TAKEN_TO_BE}{guess}; for another one use {names}",)


# The table of instances, and which of its rows a name means.

# SageMaker's and Azure's words before the name of a machine; punctuation is left out by people.
_INSTANCE_NOISE = re.compile(r"^ml\.|^standard[ _-]|[^a-z0-9]")


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


def normalize_instance(name: str) -> str:
    """An instance's name without case, punctuation and the words before it."""
    return _INSTANCE_NOISE.sub("", name.strip().lower())


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
    smallest, *others = mean_instances(name, instances)
    if not others:
        return ()
    names = " or ".join(f"`{row.name}`" for row in others)
    return (f"`{name}`{TAKEN_TO_BE}`{smallest.name}`; for another one use {names}",)


# Take apart what people write for a machine: `8xH100`, `4x8xH200`, `2xp5.48xlarge`.

_COUNTS = re.compile(r"(?:(\d{1,6})\s*x\s*)?(?:(\d{1,6})\s*x\s*)?(.*)", re.IGNORECASE | re.DOTALL)


class Phrase(Struct, frozen=True, kw_only=True):
    """A name with its counts."""

    name: str
    count: int | None = None
    """Of what has the name."""
    nodes: int | None = None
    """How many such; only where both counts were written."""

    def of(self, name: str) -> str:
        """The same words about something else."""
        counts = (count for count in (self.nodes, self.count) if count is not None)
        return "".join(f"{count}x" for count in counts) + name


def read_phrase(text: str) -> Phrase:
    """A text as a person wrote it, taken apart."""
    first, second, name = _COUNTS.fullmatch(text.strip()).groups()  # type: ignore[union-attr]
    if second is None:
        return Phrase(name=name, count=None if first is None else int(first))
    return Phrase(name=name, count=int(second), nodes=int(first))


# Find the GPU that a name means; where none has it, names like it.

_LIST = "to see names that it knows: `zerowiz plan --machine all --model 7b`"
_NODE_FILE = "to plan for another GPU, write its memory: `$machine 8xGPU-45GB`"
_MOST = 3


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
        raise UsageError(
            f"`{name}` matches more than one GPU",
            f"use one of {choices}",
        )
    raise refuse_name(Phrase(name=name), table, ())


def refuse_name(
    phrase: Phrase, table: Sequence[GpuModel], instances: Sequence[Instance]
) -> UsageError:
    """The error for a phrase whose name is in no table; the names in its hint are accepted."""
    close = ", ".join(f"`{phrase.of(name)}`" for name in close_names(phrase.name, table, instances))
    return UsageError(
        (
            f"`{phrase.name}` is not a GPU or an instance that zerowiz knows; it plans for NVIDIA "
            "GPUs and for CPU ranks (`$machine cpu`)"
        ),
        *((f"similar names: {close}",) if close else ()),
        _LIST,
        _NODE_FILE,
    )


def close_names(
    name: str, table: Sequence[GpuModel], instances: Sequence[Instance]
) -> tuple[str, ...]:
    """Names of GPUs, then of instances, that are like this one; each means one machine."""
    gpus = {
        normalize_name(row.name): re.sub("NVIDIA |Tesla |GeForce ", "", row.name).replace(" ", "-")
        for row in table
    }
    gpus |= {normalize_name(alias): alias for row in table for alias in row.aliases}
    nodes = {
        normalize_instance(alias): row.name
        for row in instances
        for alias in (row.name, *row.aliases)
    }
    wanted, node = normalize_name(name), normalize_instance(name)
    # `p5` is a family of instances.
    family = [row for key, row in nodes.items() if node and key.startswith(node)]
    close_nodes = [nodes[key] for key in get_close_matches(node, nodes, n=2 * _MOST, cutoff=0.8)]
    close_gpus = [gpus[key] for key in get_close_matches(wanted, gpus, n=2 * _MOST)]
    return (
        *list(dict.fromkeys(close_gpus))[:_MOST],
        *list(dict.fromkeys([*family, *close_nodes]))[:_MOST],
    )


# Turn a name with its counts into a machine, and a machine into JSON.

# GB200 NVL72, the largest NVLink domain in the table; more GPUs are several nodes.
MOST_GPUS_PER_NODE = 72


def parse_machine(
    text: str,
    table: Sequence[GpuModel],
    instances: Sequence[Instance],
    *,
    gpus_per_node: int | None = None,
) -> Machine:
    """The machine that a text means: idle nodes of GPUs, or of an instance.

    Args:
        text: Such as `8xH100-80GB`, `4x8xH200`, `p5.48xlarge`.
        table: The GPU table.
        instances: The table of instances.
        gpus_per_node: Another count than the text has; of an instance, as many of its GPUs.

    Raises:
        UsageError: No machine has that name, or that count of GPUs.
    """
    phrase = read_phrase(text)
    row = find_instance(phrase.name, instances)
    if row is None:
        return parse_spec(text, table, instances, gpus_per_node=gpus_per_node)
    if phrase.nodes is not None:
        raise UsageError(
            f"`{text}` has two counts, and each `{row.name}` has {row.gpus} GPUs",
            f"write the number of nodes: `$machine {phrase.nodes}x{row.name}`",
        )
    node = instance_node(row, table).with_notes(*note_smallest(phrase.name, instances))
    if gpus_per_node is not None:
        node = with_gpus(node, gpus_per_node)
    return replace(node, nodes=1 if phrase.count is None else phrase.count)


def named_instance(text: str, instances: Sequence[Instance]) -> Instance | None:
    """The instance that a text means nodes of; None where it means none."""
    return find_instance(read_phrase(text).name, instances)


def instance_node(row: Instance, table: Sequence[GpuModel]) -> Machine:
    """One node of an instance."""
    return replace(
        parse_spec(f"{row.gpus}x{row.gpu}", table),
        host=Host(total_bytes=row.host_bytes, available_bytes=row.available_bytes),
        network=row.network or Network(),
    )


def parse_spec(
    text: str,
    table: Sequence[GpuModel],
    instances: Sequence[Instance] = (),
    *,
    gpus_per_node: int | None = None,
) -> Machine:
    """The machine of a spec: idle nodes, whose host is unknown.

    Args:
        text: Such as `8xH100-80GB`, `H200`, or four nodes of eight: `4x8xH200`.
        table: The GPU table.
        instances: Whose names are said where the text names nothing.
        gpus_per_node: Another count than the text has.

    Raises:
        UsageError: The count is not that of a node, or the name means no GPU.
    """
    phrase = read_phrase(text)
    models = match_models(phrase.name, table) or any_model(phrase.name)
    if not models:
        raise refuse_name(phrase, table, instances)
    count = gpus_per_node or (1 if phrase.count is None else phrase.count)
    model, four = pick_model(models), shell.quote(f"4x{phrase.name}")
    if not 1 <= count <= (1 if model.shares_host_memory else MOST_GPUS_PER_NODE):
        raise UsageError(
            f"`{text}`: a node has one GPU of this kind, not {count}"
            if model.shares_host_memory
            else f"`{text}`: a node has 1 to {MOST_GPUS_PER_NODE} GPUs, not {count}",
            "for several nodes add `$nodes 2`, and give the GPUs of one node here",
        )
    links = _links(model, count)
    gpus = tuple(
        Gpu(
            index=index,
            name=model.name,
            total_bytes=model.total_bytes,
            free_bytes=model.usable_bytes,
            compute_capability=model.compute_capability,
            shares_host_memory=model.shares_host_memory,
            nvlinks=model.nvlink_links if model.nvlink_mesh else None,
            memory_source="GPU table: an idle GPU",
        )
        for index in range(count)
    )
    node = Machine(
        source=MachineSource.SPEC,
        gpus=gpus,
        links=links,
        interconnect=(
            join_pairs(links, {gpu.index: gpu.nvlinks for gpu in gpus})
            if links
            else _expected_link(model, count)
        ),
        host=(
            Host(total_bytes=model.total_bytes, available_bytes=model.usable_bytes)
            if model.shares_host_memory
            else Host()
        ),
        notes=(
            *note_guess(phrase.name, model, table),
            *(
                ()
                if gpus_per_node or phrase.count or model.shares_host_memory
                else (f"`{phrase.name}` is one GPU; for four in a node use `$machine {four}`",)
            ),
            *_note_link(model, count),
        ),
    )
    return replace(node, nodes=1 if phrase.nodes is None else phrase.nodes)


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


def _note_link(model: GpuModel, count: int) -> tuple[str, ...]:
    if _links(model, count):
        return (f"NVLink between `{model.name}` is assumed to be that of a {model.nvlink_mesh}",)
    if count == 1 or count <= model.nvlink_gpus or not model.nvlink_links:
        return ()
    if not model.nvlink_gpus:
        return (f"NVLink bridges between `{model.name}` cards are assumed to be absent",)
    return (f"NVLink joins all pairs of up to {model.nvlink_gpus} `{model.name}`, not of {count}",)


# The machine as JSON: what `plan --json` has of it, and a file that `--machine` reads.


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
