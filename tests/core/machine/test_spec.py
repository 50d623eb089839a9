import re
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zerowiz.core.machine.names import (
    GpuModel,
    Instance,
    close_names,
    find_model,
    match_models,
    named_instance,
    normalize_instance,
    parse_machine,
    parse_spec,
)
from zerowiz.core.machine.types import (
    NVLINK_BYTES_PER_S,
    Host,
    LinkClass,
    Machine,
    MachineSource,
    NetworkKind,
    pick_gpus,
)
from zerowiz.core.machine_kinds import list_kinds
from zerowiz.errors import UsageError
from zerowiz.probe.files import read_gpu_table, read_instances

TABLE = read_gpu_table()
SOURCE_GROUPS = {
    "total",
    "usable",
    "capability",
    "nvlink",
    "pcie",
    "flops",
    "fp32",
    "bandwidth",
}
# Too short to tell which GPU: these are refused with a list, and no other name is.
TOO_SHORT = {
    "v100",
    "v100sxm",
    "a100",
    "a100sxm",
    "a100pcie",
    "h100",
}
ROWS = pytest.mark.parametrize("row", TABLE, ids=lambda row: row.name)


def parse(text: str) -> Machine:
    return parse_spec(text, TABLE)


@pytest.mark.parametrize(
    ("text", "count", "name"),
    [
        ("4xA100-40GB", 4, "NVIDIA A100-SXM4-40GB"),
        ("8xh100-80gb-sxm", 8, "NVIDIA H100 80GB HBM3"),
        ("8xH100-80GB-SXM", 8, "NVIDIA H100 80GB HBM3"),
        ("2xRTX4090", 2, "NVIDIA GeForce RTX 4090"),
        ("2x4090", 2, "NVIDIA GeForce RTX 4090"),
        ("2 x RTX 4090", 2, "NVIDIA GeForce RTX 4090"),
        ("1xH200", 1, "NVIDIA H200"),
        ("h200", 1, "NVIDIA H200"),
        ("4XL40S", 4, "NVIDIA L40S"),
        ("2xA100-PCIE-40GB", 2, "NVIDIA A100-PCIE-40GB"),
        ("8xNVIDIA H100 80GB HBM3", 8, "NVIDIA H100 80GB HBM3"),
        ("4xT4", 4, "Tesla T4"),
        ("1xGH200", 1, "NVIDIA GH200 480GB"),
        ("8xB300", 8, "NVIDIA B300 SXM6 AC"),
        ("4xL40", 4, "NVIDIA L40"),
        ("2xRTX A5000", 2, "NVIDIA RTX A5000"),
        ("1xRTX-PRO-6000", 1, "NVIDIA RTX PRO 6000 Blackwell Workstation Edition"),
    ],
)
def test_a_spec_names_a_count_and_a_gpu(text: str, count: int, name: str) -> None:
    machine = parse(text)
    assert [(index, name) for index in range(count)] == [(g.index, g.name) for g in machine.gpus]
    assert MachineSource.SPEC is machine.source
    assert Host() == machine.host


@pytest.mark.parametrize(
    ("text", "kind", "bytes_per_s"),
    [
        ("1xH100-80GB", LinkClass.NONE, None),
        ("1xRTX4090", LinkClass.NONE, None),
        ("8xH100-80GB", LinkClass.NVLINK_ALL, 450_000_000_000),
        ("4xA100-40GB", LinkClass.NVLINK_ALL, 300_000_000_000),
        ("8xB200", LinkClass.NVLINK_ALL, 900_000_000_000),
        ("8xH800", LinkClass.NVLINK_ALL, 200_000_000_000),
        ("2xV100-16GB", LinkClass.NVLINK_ALL, 25_000_000_000),
        ("4xV100-16GB", LinkClass.NVLINK_ALL, 100_000_000_000),
        ("8xV100-16GB", LinkClass.NVLINK_RING, 150_000_000_000),
        ("8xV100-32GB", LinkClass.NVLINK_RING, 150_000_000_000),
        ("16xV100-32GB", LinkClass.NVLINK_PARTIAL, 15_760_000_000),
        ("8xV100-32GB-PCIe", LinkClass.PCIE, 15_760_000_000),
        ("2xRTX4090", LinkClass.PCIE, 31_504_000_000),
        ("2xRTX3090", LinkClass.PCIE, 31_504_000_000),
        ("2xA40", LinkClass.PCIE, 31_504_000_000),
        ("4xH100-80GB-PCIe", LinkClass.PCIE, 63_008_000_000),
    ],
)
def test_the_link_is_what_the_board_always_has(
    text: str, kind: LinkClass, bytes_per_s: int | None
) -> None:
    link = parse(text).interconnect
    assert (kind, bytes_per_s) == (link.link_class, link.bytes_per_s)


@pytest.mark.parametrize(
    ("text", "noted"),
    [
        # A board whose pairs differ, an SXM board with the spelling of PCIe, absent bridges.
        ("8xV100-16GB-SXM", "is assumed to be that of a DGX-1"),
        ("4xV100-32GB-SXM", "is assumed to be that of a DGX-1"),
        ("4xA100-40GB", "`A100-40GB-PCIe`"),
        ("8xH100-80GB", "`H100-80GB-PCIe`"),
        ("2xA40", "NVLink bridges between `NVIDIA A40` cards are assumed to be absent"),
        ("L40S", "`L40S` is one GPU; for four in a node use `$machine 4xL40S`"),
        # Nothing assumed is nothing noted.
        *((text, None) for text in ("4xA100-40GB-SXM", "8xH200", "2xRTX4090", "1xRTX3090")),
        ("1xL40S", None),
    ],
)
def test_what_is_assumed_is_noted(text: str, noted: str | None) -> None:
    notes = parse(text).notes
    assert (0 if noted is None else 1) == len(notes)
    assert all(noted in note for note in notes if noted)


def test_some_gpus_of_a_board_have_the_rings_between_them() -> None:
    whole = parse("8xV100-16GB-SXM")
    for chosen, fast in (((0, 1, 4, 5), True), ((0, 1, 4), False), ((4, 5, 6, 7), True)):
        some = pick_gpus(whole, [whole.gpus[index] for index in chosen])
        assert fast is some.is_fast
    assert [0, 6] == [whole.links[0].pair[0], whole.links[-1].pair[0]]


WAY_OUT = (
    "to see names that it knows: `zerowiz plan --machine all --model 7b`",
    "to plan for another GPU, write its memory: `$machine 8xGPU-45GB`",
)


@pytest.mark.parametrize(
    ("text", "error", "hint"),
    [
        (
            "8xH1000-80GB",
            *("`H1000-80GB` is not a GPU or an instance that zerowiz knows", "H100-80GB"),
        ),
        *(("8xqqqq", "is not a GPU or an instance", hint) for hint in WAY_OUT),
        # A count behind a name.
        *(
            (text, "is not a GPU or an instance", "similar names: ")
            for text in ("h100:8", "H100 x8", "8 H100", "A100 80G SXM")
        ),
        *((text, "a node has 1 to 72 GPUs", "") for text in ("0xH200", "73xH200", "999999xH200")),
        ("2x8xp5.48xlarge", "has two counts", "`$machine 2xp5.48xlarge`"),
        *(
            (text, "it plans for NVIDIA GPUs and for CPU ranks", "")
            for text in ("8xMI300X", "tpu-v5e", "gaudi3", "Ascend 910B", "M3 Max")
        ),
    ],
)
def test_what_is_no_machine_is_refused_with_the_way_out(text: str, error: str, hint: str) -> None:
    with pytest.raises(UsageError, match=error) as caught:
        parse_machine(text, TABLE, read_instances())
    assert hint in " ".join(caught.value.hints)


@pytest.mark.parametrize(
    ("name", "spellings"),
    [
        ("H100", ["H100-80GB-PCIe", "H100-80GB", "H100-94GB"]),
        ("A100-PCIe", ["A100-40GB-PCIe", "A100-80GB-PCIe"]),
    ],
)
def test_a_price_needs_a_name_of_one_gpu_and_a_plan_takes_the_smallest_and_says_so(
    name: str, spellings: list[str]
) -> None:
    with pytest.raises(UsageError, match="matches more than one GPU") as caught:
        find_model(name, TABLE)
    assert "use one of " + ", ".join(f"`{s}`" for s in spellings) == caught.value.hints[0]
    meant = {parse(spelling).gpus[0].name for spelling in spellings}
    machine = parse(f"2x{name}")
    [taken] = {gpu.name for gpu in machine.gpus}
    assert taken in meant
    others = [s for s in spellings if parse(s).gpus[0].name != taken]
    assert all(f"`{other}`" in machine.notes[0] for other in others)


@given(st.text(max_size=20))
def test_a_text_that_ends_in_no_gpus_name_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse(text + "?q")


@ROWS
def test_every_row_is_possible(row: GpuModel) -> None:
    assert row is find_model(row.name, TABLE)
    assert 0 < row.usable_bytes < row.total_bytes
    assert (row.bf16_flop_per_s is None) == (row.compute_capability < (8, 0))
    assert row.pcie_spelling is None or 1 == len(match_models(row.pcie_spelling, TABLE))
    per_link = NVLINK_BYTES_PER_S.get(row.compute_capability, 0)
    assert row.nvlink_links * per_link == row.nvlink_bytes_per_s


@ROWS
def test_every_group_of_a_row_names_an_address_or_says_that_none_was_found(row: GpuModel) -> None:
    assert SOURCE_GROUPS == row.source.keys()
    nowhere = {
        group
        for group, text in row.source.items()
        if not re.search(r"https://\S|in public repositories|\[\?\]", text)
    }
    assert set() == nowhere


def test_only_the_names_that_are_too_short_mean_more_than_one_gpu() -> None:
    rows_of = Counter(spelling for row in TABLE for spelling in row.spellings)
    assert TOO_SHORT == {spelling for spelling, rows in rows_of.items() if rows > 1}
    assert len(TABLE) == len({row.name for row in TABLE})


INSTANCES = read_instances()


def named(text: str) -> Machine:
    return parse_machine(text, TABLE, INSTANCES)


INSTANCE_ROWS = pytest.mark.parametrize("row", INSTANCES, ids=lambda row: row.name)


@pytest.mark.parametrize(
    ("text", "nodes", "gpus", "gpu", "gib"),
    [
        ("p5.48xlarge", 1, 8, "NVIDIA H100 80GB HBM3", 2048),
        ("P4D.24XLarge", 1, 8, "NVIDIA A100-SXM4-40GB", 1152),
        ("2xp4de.24xlarge", 2, 8, "NVIDIA A100-SXM4-80GB", 1152),
        ("16 x p5en.48xlarge", 16, 8, "NVIDIA H200", 2048),
        ("g5.12xlarge", 1, 4, "NVIDIA A10G", 192),
        ("Standard_NC24ads_A100_v4", 1, 1, "NVIDIA A100 80GB PCIe", 220),
        ("4xnd96isr_h100_v5", 4, 8, "NVIDIA H100 80GB HBM3", 1900),
        # A spec has two counts.
        ("4x8xH200", 4, 8, "NVIDIA H200", None),
        ("2 x 4 x L40S", 2, 4, "NVIDIA L40S", None),
    ],
)
def test_a_name_is_the_gpus_the_host_and_the_nodes(
    text: str, nodes: int, gpus: int, gpu: str, gib: int | None
) -> None:
    machine = named(text)
    assert (nodes, gpus) == (machine.nodes, len(machine.gpus))
    assert {gpu} == {each.name for each in machine.gpus}
    assert (gib and gib * 2**30) == machine.host.total_bytes


def test_an_instance_has_its_vendors_network_and_a_job_less_than_all_of_its_memory() -> None:
    machine = named("p5.48xlarge")
    assert (NetworkKind.EFA, 400_000_000_000) == (machine.network.kind, machine.network.bytes_per_s)
    assert parse("8xH100-80GB-SXM").interconnect == machine.interconnect
    assert 184 * 2**30 < (named("g5.12xlarge").host.available_bytes or 0) < 185 * 2**30
    [gpu] = parse("1xH200").gpus
    assert (150754820096, 150109880320) == (gpu.total_bytes, gpu.free_bytes)


def test_a_gpu_without_memory_of_its_own_is_alone_in_a_node_whose_memory_is_its_own() -> None:
    machine = parse("GB10")
    assert machine.lives_on_host
    assert machine.free_bytes == machine.host.available_bytes
    with pytest.raises(UsageError, match="a node has one GPU of this kind, not 2"):
        parse("2xGB10")
    [sizes] = {kind.sizes for kind in list_kinds(TABLE, ()) if kind.gpu.shares_host_memory}
    assert [(1, 1)] == [(size.nodes, size.gpus) for size in sizes]


@pytest.mark.parametrize("text", ["8xH200", "h200", "p5.48xlarg", "", "2x"])
def test_what_is_no_instance_is_none(text: str) -> None:
    assert named_instance(text, INSTANCES) is None


@pytest.mark.parametrize("text", ["4xH200", "L40S", "4x8xH200", "2xp5e.48xlarge"])
def test_another_count_is_that_of_a_nodes_gpus(text: str) -> None:
    machine = parse_machine(text, TABLE, INSTANCES, gpus_per_node=2)
    assert (named(text).nodes, 2) == (machine.nodes, len(machine.gpus))
    assert not [note for note in machine.notes if "is one GPU" in note]


@INSTANCE_ROWS
def test_every_instance_is_possible(row: Instance) -> None:
    machine = named(row.name)
    assert machine.is_uniform
    assert () == tuple(note for note in machine.notes if "is taken to be the SXM version" in note)
    assert 2**33 <= row.available_bytes < row.host_bytes < 2**42


@INSTANCE_ROWS
def test_every_number_of_an_instance_names_an_address(row: Instance) -> None:
    expected = {"memory"} if row.network is None else {"memory", "network"}
    assert expected == row.source.keys()
    assert all("https://" in text for text in row.source.values())


# These are taken to be the smaller one, and a note says so.
TWO_INSTANCES = {"dgxa100", "dgx1"}


def test_a_name_means_one_instance_and_no_gpu() -> None:
    names = Counter(
        name for row in INSTANCES for name in set(map(normalize_instance, (row.name, *row.aliases)))
    )
    assert TWO_INSTANCES == {name for name, count in names.items() if count > 1}
    assert set() == {name for name in names if match_models(name, TABLE)}


@pytest.mark.parametrize("name", sorted(TWO_INSTANCES))
def test_of_two_instances_the_smaller_is_taken_and_the_other_is_named(name: str) -> None:
    machine = named(name)
    [note] = [note for note in machine.notes if "is taken to be" in note]
    other = named(re.findall("`([^`]+)`", note)[-1])
    assert (machine.gpus[0].total_bytes or 0) < (other.gpus[0].total_bytes or 0)


H100, A100, A100_80 = "NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-40GB", "NVIDIA A100-SXM4-80GB"
V100 = "Tesla V100-SXM2-16GB"
# What people write, and what it becomes: nodes, GPUs of each, the GPU, whether a note says a guess.
WRITTEN = {
    "8xH100": (1, 8, H100, True),
    "1xH100": (1, 1, H100, True),
    "H100": (1, 1, H100, True),
    "8xH100 SXM": (1, 8, H100, False),
    "h100sxm5": (1, 1, H100, False),
    "8xH100-SXM5-80GB": (1, 8, H100, False),
    "H100 80GB HBM3": (1, 1, H100, False),
    "nvidia-h100-80gb": (1, 1, H100, True),
    "h100-pcie": (1, 1, "NVIDIA H100 PCIe", False),
    "2x H100 NVL": (1, 2, "NVIDIA H100 NVL", False),
    "h100-94": (1, 1, "NVIDIA H100 NVL", False),
    "4x8xH100": (4, 8, H100, True),
    "8xA100": (1, 8, A100, True),
    "4xA100-40": (1, 4, A100, True),
    "a100-80": (1, 1, A100_80, True),
    "A100 (80GB)": (1, 1, A100_80, True),
    "a100 pcie 80gb": (1, 1, "NVIDIA A100 80GB PCIe", False),
    "A100-PCIe": (1, 1, "NVIDIA A100-PCIE-40GB", True),
    "8xV100": (1, 8, V100, True),
    "A10G": (1, 1, "NVIDIA A10G", False),
    "a10": (1, 1, "NVIDIA A10", False),
    "4xL4": (1, 4, "NVIDIA L4", False),
    "nvidia-tesla-t4": (1, 1, "Tesla T4", False),
    "4090": (1, 1, "NVIDIA GeForce RTX 4090", False),
    "4x4090": (1, 4, "NVIDIA GeForce RTX 4090", False),
    "2x RTX 3090 24GB": (1, 2, "NVIDIA GeForce RTX 3090", False),
    "RTX-A6000": (1, 1, "NVIDIA RTX A6000", False),
    "6000 ada": (1, 1, "NVIDIA RTX 6000 Ada Generation", False),
    "8xh200": (1, 8, "NVIDIA H200", False),
    "8xB200": (1, 8, "NVIDIA B200", False),
    "gh200": (1, 1, "NVIDIA GH200 480GB", False),
    "GB10": (1, 1, "NVIDIA GB10", False),
    "2x1xDGX Spark": (2, 1, "NVIDIA GB10", False),
    "dgx-h100": (1, 8, H100, False),
    "dgx a100": (1, 8, A100, True),
    "p5.48xlarge": (1, 8, H100, False),
    "P5 48XLARGE": (1, 8, H100, False),
    "ml.p5.48xlarge": (1, 8, H100, False),
    "a3-highgpu-8g": (1, 8, H100, False),
    "2xA3_HIGHGPU_8G": (2, 8, H100, False),
    "a2-ultragpu-4g": (1, 4, A100_80, False),
    "Standard_ND96isr_H100_v5": (1, 8, H100, False),
    "standard nd96isr h100 v5": (1, 8, H100, False),
    "NC24ads-A100-v4": (1, 1, "NVIDIA A100 80GB PCIe", False),
    "g5.12xlarge": (1, 4, "NVIDIA A10G", False),
}


@pytest.mark.parametrize("text", WRITTEN)
def test_what_people_write_is_a_machine_and_a_guess_is_said_in_one_note(text: str) -> None:
    nodes, gpus, name, is_guessed = WRITTEN[text]
    machine = named(text)
    assert (nodes, gpus, {name}) == (
        machine.nodes,
        len(machine.gpus),
        {gpu.name for gpu in machine.gpus},
    )
    assert int(is_guessed) == sum("is taken to be" in note for note in machine.notes)


def test_case_and_punctuation_do_not_matter() -> None:
    for text in (*WRITTEN, *(row.name for row in INSTANCES)):
        meant = named(text)
        for other in (text.upper(), text.lower(), text.replace("-", "_"), text.replace(" ", "-")):
            assert (meant.gpus, meant.nodes) == (named(other).gpus, named(other).nodes), other


# What is in no table, and a name that its hint has.
UNKNOWN = {
    "8xH10": "8xH100",
    "8xH1000-80GB": "8xH100-80GB",
    "H100-120GB": "H100-80GB",
    "4xa100-64": "4xA100-40GB",
    "4x RTX 3080": "4xRTX-3090",
    "RTX 5080": "RTX-5090",
    "gb200 nvl72": "GB200",
    "L45": "L40",
    "p5": "p5.48xlarge",
    "2xp4d.24xlarg": "2xp4d.24xlarge",
    "4xstandard_nd96isr_h100": "4xND96isr_H100_v5",
    "a3-highgpu": "a3-highgpu-8g",
    "dgx-h10": "DGX-H100",
    "A6000 Ada": "A6000",
    "v101": "V100",
    "8xb201": "8xB200",
}


@pytest.mark.parametrize("text", UNKNOWN)
def test_each_close_name_pasted_back_is_a_machine(text: str) -> None:
    with pytest.raises(UsageError, match="is not a GPU or an instance that zerowiz knows") as error:
        named(text)
    names = re.findall("`([^`]+)`", error.value.hints[0])
    assert UNKNOWN[text] in names
    for name in names:
        assert " " not in name
        assert named(name).gpus


@given(st.text("abhlvxp0123456789.-_ gGBx:", max_size=12))
def test_whatever_is_close_is_known(text: str) -> None:
    for name in close_names(text, TABLE, INSTANCES):
        assert named(name).gpus
