"""Build the Machine of a text such as `8xH100` or `2xp5.48xlarge`, with the tables."""

from collections.abc import Mapping, Sequence
from typing import cast

from zerowiz.core import shell
from zerowiz.core.machine.interconnect import mesh_links
from zerowiz.core.machine.names import (
    GpuModel,
    Instance,
    find_instance,
    match_models,
    note_guess,
    note_smallest,
    pick_model,
    read_phrase,
    refuse_name,
)
from zerowiz.core.machine.types import (
    Gpu,
    Host,
    Interconnect,
    LinkClass,
    Machine,
    MachineSource,
    Network,
    PairLink,
    join_pairs,
    with_gpus,
)
from zerowiz.core.structs import decode, encode, replace
from zerowiz.errors import UsageError

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
    if not text.strip():
        raise UsageError("`$machine` has no GPU name", "write it as `8xH100-80GB`")
    phrase = read_phrase(text)
    models = match_models(phrase.name, table)
    if not models:
        raise refuse_name(phrase, table, instances)
    count = gpus_per_node or (1 if phrase.count is None else phrase.count)
    if not 1 <= count <= MOST_GPUS_PER_NODE:
        raise UsageError(
            f"`{text}`: a node has 1 to {MOST_GPUS_PER_NODE} GPUs, not {count}",
            "for several nodes add `$nodes 2`, and give the GPUs of one node here",
        )
    model, four = pick_model(models), shell.quote(f"4x{phrase.name}")
    links = _links(model, count)
    gpus = tuple(
        Gpu(
            index=index,
            name=model.name,
            total_bytes=model.total_bytes,
            free_bytes=model.usable_bytes,
            compute_capability=model.compute_capability,
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
        host=Host(),
        notes=(
            *note_guess(phrase.name, model, table),
            *(
                ()
                if gpus_per_node or phrase.count
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
