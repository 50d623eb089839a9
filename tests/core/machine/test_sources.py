import pytest
from hypothesis import given
from hypothesis import strategies as st

from zerowiz.core.machine.interconnect import (
    interconnect_sources,
    list_sources,
    said_with,
    with_interconnect,
)
from zerowiz.core.machine.names import GpuModel
from zerowiz.core.machine.spec import parse_spec
from zerowiz.core.machine.types import (
    Accelerator,
    Gpu,
    Host,
    Interconnect,
    LinkClass,
    Machine,
    MachineSource,
    Network,
    NetworkKind,
    Nic,
    PairLink,
    join_pairs,
)
from zerowiz.core.structs import replace

PLACES = {
    "gpus.total_bytes",
    "gpus.free_bytes",
    "interconnect.class",
    "interconnect.bytes_per_s",
    "host.total_bytes",
    "host.available_bytes",
    "network",
}
MEMORY = "nvmlDeviceGetMemoryInfo_v2"
RATES = {
    18: "NVLinks of the best rings x nominal rate of their generation",
    0: "PCIe of the weakest pair: best generation x lanes in use, nominal",
}
MODEL = GpuModel(
    name="mine",
    aliases=(),
    total_bytes=2,
    usable_bytes=1,
    compute_capability=(9, 0),
    nvlink_links=18,
    nvlink_bytes_per_s=450_000_000_000,
    nvlink_gpus=8,
    pcie_generation=5,
    bf16_flop_per_s=None,
    fp16_flop_per_s=1,
    fp32_flop_per_s=1,
    memory_bytes_per_s=1,
    pcie_spelling=None,
    source={"total": "a test"},
)


def probed(nvlinks: int = 18) -> Machine:
    gpus = tuple(
        Gpu(index=index, name="mine", total_bytes=2, free_bytes=1, memory_source=MEMORY)
        for index in range(2)
    )
    links = (PairLink(pair=(0, 1), nvlinks=nvlinks, bytes_per_s=1),)
    return Machine(
        source=MachineSource.NVML,
        gpus=gpus,
        links=links,
        interconnect=join_pairs(links),
        host=Host(total_bytes=2, available_bytes=1, available_by="cgroup v2"),
        network=Network(kind=NetworkKind.EFA, nics=(Nic(name="rdmap16s27", kind=NetworkKind.EFA),)),
    )


def known_places(machine: Machine) -> set[str]:
    """The places of the JSON that hold a number, or what stands for one."""
    known = {
        "gpus.total_bytes": any(gpu.total_bytes is not None for gpu in machine.gpus),
        "gpus.free_bytes": any(gpu.free_bytes is not None for gpu in machine.gpus),
        "interconnect.class": machine.interconnect.link_class is not LinkClass.UNKNOWN,
        "interconnect.bytes_per_s": machine.interconnect.bytes_per_s is not None,
        "host.total_bytes": machine.host.total_bytes is not None,
        "host.available_bytes": machine.host.available_bytes is not None,
        "network": machine.network != Network(),
    }
    assert PLACES == set(known)
    return {place for place, is_known in known.items() if is_known}


sizes = st.none() | st.integers(0, 99)
machines = st.builds(
    Machine,
    source=st.sampled_from(MachineSource),
    accelerator=st.sampled_from(Accelerator),
    gpus=st.lists(
        st.builds(
            Gpu,
            index=st.integers(0, 9),
            name=st.just("mine"),
            total_bytes=st.none() | st.just(99),
            free_bytes=sizes,
            memory_source=st.none() | st.just(MEMORY),
        ),
        min_size=1,
        max_size=3,
        unique_by=lambda gpu: gpu.index,
    ).map(tuple),
    interconnect=st.builds(Interconnect, link_class=st.sampled_from(LinkClass), bytes_per_s=sizes),
    links=st.sampled_from([(), probed().links]),
    host=st.builds(
        Host,
        total_bytes=sizes,
        available_bytes=sizes,
        available_by=st.none() | st.just("MemAvailable"),
    ),
    network=st.sampled_from([Network(), Network(kind=NetworkKind.EFA), probed().network]),
)


@given(machines)
def test_every_number_that_is_known_has_an_origin_and_no_other(machine: Machine) -> None:
    told = list_sources(machine, {})
    assert known_places(machine) == set(told)
    assert all(told.values())


@pytest.mark.parametrize("nvlinks", [18, 0])
def test_what_the_probe_read_is_told_by_what_it_asked(nvlinks: int) -> None:
    expected = {
        "gpus.total_bytes": MEMORY,
        "gpus.free_bytes": MEMORY,
        "interconnect.class": "NVML: state, far end and peer-to-peer status of every link",
        "interconnect.bytes_per_s": RATES[nvlinks],
        "host.total_bytes": "MemTotal",
        "host.available_bytes": "cgroup v2",
        "network": "sysfs",
    }
    assert expected == list_sources(probed(nvlinks), {})


def test_gpus_that_were_asked_in_two_ways_are_told_so_once_each() -> None:
    machine = probed()
    old = replace(machine.gpus[1], memory_source="nvmlDeviceGetMemoryInfo")
    told = list_sources(replace(machine, gpus=(machine.gpus[0], old)), {})
    assert "nvmlDeviceGetMemoryInfo_v2, nvmlDeviceGetMemoryInfo" == told["gpus.free_bytes"]


def test_a_spec_is_told_by_the_gpu_table() -> None:
    expected = {
        "gpus.total_bytes": "GPU table: an idle GPU",
        "gpus.free_bytes": "GPU table: an idle GPU",
        "interconnect.class": "GPU table",
        "interconnect.bytes_per_s": "GPU table",
    }
    assert expected == list_sources(parse_spec("8xmine", (MODEL,)), {})


def test_what_a_person_wrote_is_told_by_the_file() -> None:
    told = list_sources(
        Machine(
            source=MachineSource.FILE,
            gpus=(Gpu(index=0, name="mine", total_bytes=2, free_bytes=1),),
            host=Host(total_bytes=2, available_bytes=1),
        ),
        {},
    )
    assert {"machine file"} == set(told.values())


def test_ranks_on_the_cpu_share_the_host() -> None:
    told = list_sources(
        Machine(
            source=MachineSource.CPU,
            accelerator=Accelerator.CPU,
            gpus=(Gpu(index=0, name="CPU rank", total_bytes=2, free_bytes=1),),
            host=Host(total_bytes=2, available_bytes=1, available_by="MemAvailable"),
        ),
        {},
    )
    expected = {
        "gpus.total_bytes": "host memory / ranks",
        "gpus.free_bytes": "available host memory / ranks",
        "host.total_bytes": "MemTotal",
        "host.available_bytes": "MemAvailable",
    }
    assert expected == told


@pytest.mark.parametrize(
    ("text", "stated"),
    [
        ("nvlink:450GB/s", {"interconnect.class", "interconnect.bytes_per_s"}),
        ("pcie", {"interconnect.class"}),
        ("ethernet:10Gb/s", {"network"}),
        ("pcie,infiniband", {"interconnect.class", "network"}),
    ],
)
def test_a_stated_link_says_so_and_only_that(text: str, stated: set[str]) -> None:
    machine = with_interconnect(probed(), text)
    told = list_sources(machine, interconnect_sources(text))
    assert known_places(machine) == set(told)
    assert stated == {place for place, words in told.items() if words == said_with("$interconnect")}


def test_what_an_option_or_a_scheduler_settled_is_told_beside_the_rest() -> None:
    told = list_sources(probed(), {"nodes": "SLURM"})
    assert {*PLACES, "nodes"} == set(told)
    assert "SLURM" == told["nodes"]
