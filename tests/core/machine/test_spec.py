import re
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zerowiz.core.machine.host import Host
from zerowiz.core.machine.links import LinkClass
from zerowiz.core.machine.network import NetworkKind
from zerowiz.core.machine.spec import (
    GpuModel,
    Instance,
    close_instances,
    decode_gpu_table,
    find_model,
    match_models,
    parse_instance,
    parse_spec,
    with_count,
)
from zerowiz.core.machine.topology import NVLINK_BYTES_PER_S
from zerowiz.core.machine.types import Machine, MachineSource, pick_gpus
from zerowiz.errors import UsageError
from zerowiz.probe.machine.gpu_table import read_gpu_table, read_instances

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
    "v100sxm2",
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


def test_an_idle_gpu_has_free_what_cuda_shows_as_total() -> None:
    [gpu] = parse("1xH200").gpus
    assert (150754820096, 150109880320) == (gpu.total_bytes, gpu.free_bytes)
    assert (9, 0) == gpu.compute_capability


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


@pytest.mark.parametrize("text", ["8xV100-16GB-SXM", "4xV100-32GB-SXM"])
def test_a_board_whose_pairs_differ_is_named(text: str) -> None:
    [note] = parse(text).notes
    assert note.endswith("is assumed to be that of a DGX-1")


def test_some_gpus_of_a_board_have_the_rings_between_them() -> None:
    whole = parse("8xV100-16GB-SXM")
    for chosen, fast in (((0, 1, 4, 5), True), ((0, 1, 4), False), ((4, 5, 6, 7), True)):
        some = pick_gpus(whole, [whole.gpus[index] for index in chosen])
        assert fast is some.is_fast
    assert [0, 6] == [whole.links[0].pair[0], whole.links[-1].pair[0]]


@pytest.mark.parametrize(
    ("text", "spelling"), [("4xA100-40GB", "A100-40GB-PCIe"), ("8xH100-80GB", "H100-80GB-PCIe")]
)
def test_an_assumed_sxm_board_is_noted_with_the_pcie_spelling(text: str, spelling: str) -> None:
    [note] = parse(text).notes
    assert f"`{spelling}`" in note
    assert "PCIe" in parse(spelling).gpus[0].name.replace("PCIE", "PCIe")


@pytest.mark.parametrize("text", ["4xA100-40GB-SXM", "8xH200", "2xRTX4090", "1xRTX3090"])
def test_nothing_assumed_is_nothing_noted(text: str) -> None:
    assert () == parse(text).notes


def test_bridges_that_nobody_mentioned_are_noted_as_not_assumed() -> None:
    assert ("NVLink bridges between `NVIDIA A40` cards are assumed to be absent",) == parse(
        "2xA40"
    ).notes


def test_an_unknown_name_is_refused_with_close_ones() -> None:
    with pytest.raises(
        UsageError, match="`H1000-80GB` is not a GPU or an instance that zerowiz knows"
    ) as caught:
        parse("8xH1000-80GB")
    assert "H100-80GB" in caught.value.hints[0]


def test_a_name_like_no_other_is_refused_with_the_way_out() -> None:
    with pytest.raises(UsageError) as caught:
        parse("8xqqqq")
    assert ("to plan for another GPU, describe it in a file: `$machine node.json`",) == (
        caught.value.hints
    )


@pytest.mark.parametrize(
    ("text", "spellings"),
    [
        ("8xH100", ["H100-80GB-PCIe", "H100-80GB", "H100-94GB"]),
        ("4xA100-PCIe", ["A100-40GB-PCIe", "A100-80GB-PCIe"]),
    ],
)
def test_a_name_that_is_too_short_is_refused_with_those_that_settle_it(
    text: str, spellings: list[str]
) -> None:
    with pytest.raises(UsageError, match="matches more than one GPU") as caught:
        parse(text)
    assert "use one of " + ", ".join(f"`{s}`" for s in spellings) == caught.value.hints[0]
    assert all(parse(spelling) for spelling in spellings)


@pytest.mark.parametrize("text", ["0xH200", "73xH200", "999999xH200"])
def test_a_count_that_no_node_has_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="a node has 1 to 72 GPUs"):
        parse(text)


@given(st.text(max_size=20))
def test_a_text_that_ends_in_no_gpus_name_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse(text + "?q")


@ROWS
def test_every_row_answers_to_its_nvml_name(row: GpuModel) -> None:
    assert row is find_model(row.name, TABLE)


@ROWS
def test_every_row_is_possible(row: GpuModel) -> None:
    assert 0 < row.usable_bytes < row.total_bytes
    assert (row.bf16_flop_per_s is None) == (row.compute_capability < (8, 0))
    assert row.pcie_spelling is None or 1 == len(match_models(row.pcie_spelling, TABLE))


@ROWS
def test_every_group_of_a_row_names_an_address_or_says_that_none_was_found(row: GpuModel) -> None:
    assert SOURCE_GROUPS == row.source.keys()
    nowhere = {
        group for group, text in row.source.items() if not re.search(r"https://\S|\[\?\]", text)
    }
    assert set() == nowhere


@ROWS
def test_every_row_has_the_nvlink_rate_of_its_generation(row: GpuModel) -> None:
    per_link = NVLINK_BYTES_PER_S.get(row.compute_capability, 0)
    assert row.nvlink_links * per_link == row.nvlink_bytes_per_s


def test_only_the_names_that_are_too_short_mean_more_than_one_gpu() -> None:
    rows_of = Counter(spelling for row in TABLE for spelling in row.spellings)
    assert TOO_SHORT == {spelling for spelling, rows in rows_of.items() if rows > 1}


def test_no_row_is_there_twice() -> None:
    assert [1] * len(TABLE) == list(Counter(row.name for row in TABLE).values())


def test_a_broken_row_is_refused_naming_the_key() -> None:
    with pytest.raises(UsageError, match=r"`gpu table\.gpus\[0\]\.aliases` is missing"):
        decode_gpu_table({"gpus": [{"name": "GPU without facts"}]})


INSTANCES = read_instances()
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
    ],
)
def test_an_instance_is_its_gpus_its_host_and_its_nodes(
    text: str, nodes: int, gpus: int, gpu: str, gib: int
) -> None:
    machine = parse_instance(text, INSTANCES, TABLE)
    assert machine is not None
    assert (nodes, gpus) == (machine.nodes, len(machine.gpus))
    assert {gpu} == {each.name for each in machine.gpus}
    assert gib * 2**30 == machine.host.total_bytes


def test_a_job_gets_less_than_all_of_an_instances_memory() -> None:
    machine = parse_instance("g5.12xlarge", INSTANCES, TABLE)
    assert machine is not None
    assert 184 * 2**30 < (machine.host.available_bytes or 0) < 185 * 2**30


def test_the_network_of_an_instance_is_its_vendors() -> None:
    machine = parse_instance("p5.48xlarge", INSTANCES, TABLE)
    assert machine is not None
    assert (NetworkKind.EFA, 400_000_000_000) == (machine.network.kind, machine.network.bytes_per_s)
    assert parse("8xH100-80GB-SXM").interconnect == machine.interconnect


@pytest.mark.parametrize("text", ["8xH200", "h200", "p5.48xlarg", "", "2x"])
def test_what_is_no_instance_is_none(text: str) -> None:
    assert parse_instance(text, INSTANCES, TABLE) is None


def test_a_slip_in_the_name_of_an_instance_names_close_ones() -> None:
    [hint] = close_instances("2xp4d.24xlarg", INSTANCES)
    assert "`p4d.24xlarge`" in hint
    assert () == close_instances("8xH100", INSTANCES)


@pytest.mark.parametrize(("text", "nodes", "gpus"), [("4x8xH200", 4, 8), ("2 x 4 x L40S", 2, 4)])
def test_a_spec_of_two_counts_has_nodes(text: str, nodes: int, gpus: int) -> None:
    machine = parse(text)
    assert (nodes, gpus) == (machine.nodes, len(machine.gpus))


@pytest.mark.parametrize(("text", "other"), [("4xH200", "2xH200"), ("4x8xH200", "4x2xH200")])
def test_another_count_is_that_of_a_nodes_gpus(text: str, other: str) -> None:
    assert other == with_count(text, 2)


@INSTANCE_ROWS
def test_every_instance_is_possible(row: Instance) -> None:
    machine = parse_instance(row.name, INSTANCES, TABLE)
    assert machine is not None
    assert machine.is_uniform
    assert () == tuple(note for note in machine.notes if "is taken to be the SXM version" in note)
    assert 2**33 <= row.available_bytes < row.host_bytes < 2**42


@INSTANCE_ROWS
def test_every_number_of_an_instance_names_an_address(row: Instance) -> None:
    expected = {"memory"} if row.network is None else {"memory", "network"}
    assert expected == row.source.keys()
    assert all("https://" in text for text in row.source.values())


def test_a_name_means_one_instance_and_no_gpu() -> None:
    names = Counter(name.lower() for row in INSTANCES for name in (row.name, *row.aliases))
    assert {1} == set(names.values())
    assert set() == {name for name in names if match_models(name, TABLE)}
