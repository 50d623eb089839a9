"""Time the merge of 1,000 nodes' answers, from the JSON text that each prints to one machine.

Run with `python tests/bench/fleet_merge.py`. Every node has 8 GPUs and the links of their 28 pairs.
"""

import json
import statistics
import sys
import time
from itertools import combinations

from zerowiz.core.machine.merge import Fleet, NodeAnswer, NodeFailure, merge_nodes
from zerowiz.core.machine.names import encode_machine
from zerowiz.core.machine.types import (
    Gpu,
    Host,
    Machine,
    MachineSource,
    NetworkKind,
    Nic,
    PairLink,
    PciePath,
    PcieSlot,
    join_nics,
    join_pairs,
)
from zerowiz.probe.machine.fleet import parse_answer

NODES = 1000
GPUS = 8
RUNS = 9


def node(number: int) -> Machine:
    """A node that differs a little from every other, as real ones do."""
    links = tuple(
        PairLink(pair=pair, nvlinks=18, bytes_per_s=478_125_000_000, path=PciePath.SYS, p2p="OK")
        for pair in combinations(range(GPUS), 2)
    )
    nics = tuple(
        Nic(name=f"mlx5_{i}", kind=NetworkKind.INFINIBAND, bytes_per_s=50_000_000_000)
        for i in range(GPUS)
    )
    gpus = tuple(
        Gpu(
            index=index,
            name="NVIDIA H200",
            uuid=f"GPU-{number}-{index}",
            total_bytes=150_754_820_096,
            reserved_bytes=600_000_000,
            free_bytes=150_000_000_000 - number * 1_000_000,
            compute_capability=(9, 0),
            ordinal=index,
            bus_id=f"00000000:{index:02X}:00.0",
            numa_node=index // 4,
            pcie=PcieSlot(max_generation=5, current_generation=5, max_lanes=16, current_lanes=16),
            nvlinks=18,
        )
        for index in range(GPUS)
    )
    return Machine(
        source=MachineSource.NVML,
        gpus=gpus,
        interconnect=join_pairs(links),
        links=links,
        network=join_nics(nics),
        host=Host(total_bytes=2 * 10**12, available_bytes=19 * 10**11 - number * 10**6, cores=192),
        driver_version="570.86.15",
        cuda_version=(12, 8),
    )


def answer(number: int) -> str:
    """What `zerowiz machine --json` prints there."""
    content = {"schema_version": 1, "machine": encode_machine(node(number))}
    return json.dumps(content, indent=2) + "\n"


def read(texts: list[str]) -> list[NodeAnswer | NodeFailure]:
    """The answers as `zerowiz` takes them from the nodes."""
    return [parse_answer(f"n{number}", 0, text, "") for number, text in enumerate(texts)]


def main() -> None:
    """Read and merge several times, print the medians."""
    texts = [answer(number) for number in range(NODES)]
    read_s, merge_s = [], []
    fleet: Fleet | None = None
    for _ in range(RUNS):
        start = time.perf_counter()
        answers = read(texts)
        middle = time.perf_counter()
        fleet = merge_nodes(answers)
        read_s.append(middle - start)
        merge_s.append(time.perf_counter() - middle)
    if fleet is None or fleet.failures or fleet.machine.nodes != NODES:
        sys.exit("not every node was merged")
    size = sum(map(len, texts)) / NODES
    lines = (
        f"{NODES} nodes of {GPUS} GPUs, {size / 1000:.0f} kB of JSON each, median of {RUNS} runs",
        f"JSON to values   {statistics.median(read_s):.3f} s",
        f"merge            {statistics.median(merge_s):.3f} s",
    )
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
