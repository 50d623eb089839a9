"""What the page of GPUs, instances and models is made of: the tables that zerowiz plans with."""

from docs.blocks.markdown import sources, table

from zerowiz.core.machine.names import GpuModel, Instance, match_models
from zerowiz.core.model.from_name import KnownModel
from zerowiz.probe.package_data import read_gpu_table, read_instances, read_known_models


def spec_name(row: GpuModel) -> str:
    """The shortest name that means this GPU alone."""
    rows = read_gpu_table()
    alone = [name for name in (*row.aliases, row.name) if match_models(name, rows) == (row,)]
    return min(alone, key=len)


def of(row: GpuModel, group: str, text: str) -> str:
    """A number, and a question mark where its source is not known."""
    return f"{text} ?" if "[?]" in row.source[group] else text


def nvlink(row: GpuModel) -> str:
    if not row.nvlink_bytes_per_s:
        return "-"
    board = f", {row.nvlink_gpus} GPUs" if row.nvlink_gpus else ", by a bridge"
    return of(row, "nvlink", f"{row.nvlink_bytes_per_s / 1e9:g} GB/s{board}")


def gpu_cells(row: GpuModel) -> tuple[str, ...]:
    half = row.bf16_flop_per_s or row.fp16_flop_per_s
    return (
        f"`{spec_name(row)}`",
        row.name,
        of(row, "usable", f"{row.usable_bytes / 2**30:.2f} GiB"),
        of(row, "bandwidth", f"{row.memory_bytes_per_s / 1e9:g} GB/s"),
        nvlink(row),
        of(row, "pcie", f"{row.pcie_generation}.0"),
        of(row, "flops", f"{half / 1e12:g} TFLOP/s{'' if row.bf16_flop_per_s else ' (fp16)'}"),
        sources(row.source.values()),
    )


def network(row: Instance) -> str:
    found = row.network
    if found is None:
        return "not known"
    rate = "" if found.bytes_per_s is None else f" {found.bytes_per_s * 8 / 1e9:g} Gb/s"
    return f"{found.kind}{rate}"


def instance_cells(row: Instance) -> tuple[str, ...]:
    return (
        f"`{row.name}`",
        f"{row.gpus} x {row.gpu}",
        f"{row.host_bytes / 2**30:.0f} GiB",
        network(row),
        sources(row.source.values()),
    )


def model_cells(row: KnownModel) -> tuple[str, ...]:
    shape = row.build().architecture
    assert shape is not None
    unsure = " ?" if "[?]" in row.source["params"] else ""
    return (
        f"`{row.id}`",
        f"{row.params:,}{unsure}",
        f"{shape.layers} x {shape.hidden_size}",
        f"`{row.config['model_type']}`",
        sources(row.source.values()),
    )


def gpus() -> str:
    head = ("name", "as the driver has it", "memory", "bandwidth", "NVLink", "PCIe", "bf16")
    return table((*head, "sources"), map(gpu_cells, read_gpu_table()))


def instances() -> str:
    head = ("name", "GPUs", "host memory", "network", "sources")
    return table(head, map(instance_cells, read_instances()))


def models() -> str:
    head = ("name", "parameters", "layers x width", "family", "sources")
    return table(head, map(model_cells, read_known_models()))
