"""The constants of the step-time model: each has a physical meaning and a unit."""

import math

from msgspec import Struct

from zerowiz.core.machine.host import Host
from zerowiz.core.speed.rates import GpuRates
from zerowiz.core.values import replace


class Costs(Struct, frozen=True, kw_only=True):
    """What hardware and software take, beyond the nominal rates of a data sheet."""

    product_fraction: float
    """Of the nominal FLOP/s, reached by a large product of matrices on Hopper and newer GPUs."""
    older_product_fraction: float
    """The same of GPUs before Hopper: their power limit allows more of what is nominal."""
    attention_fraction: float
    """The same of a fused attention kernel."""
    masked_attention_fraction: float
    """The same of one that is given a mask."""
    memory_fraction: float
    """Of the nominal memory bandwidth, reached by the optimizer and the copies around it."""
    elementwise_fraction: float
    """The same of the small kernels between the products of matrices."""
    python_call_seconds: float
    """Of the host that the times of Python below are of; those of another one are in proportion."""
    unknown_python_call_seconds: float
    """Of a host that nobody timed."""
    shared_python_call_seconds: float
    """What a reading is pulled towards: the mean of hosts that other jobs share."""
    reading_fraction: float
    """The weight of a reading beside that mean, in logarithms: 1 trusts it alone, 0 the mean.

    A reading takes 3 ms, in which other jobs may keep the host busy, or leave it idle.
    """
    host_spread_fraction: float
    """The standard deviation of the logarithm of what such a call takes, from moment to moment."""
    host_seconds: float
    """Of Python and launches, for each module with weights, forward or backward."""
    checkpoint_seconds: float
    """Of a module in a checkpointed block, forward and twice as long backward, beside its launches.

    torch calls Python for each tensor that an operation saves, when forward drops it, when backward
    computes it again and when it is read (torch/utils/checkpoint.py, _checkpoint_hook).
    """
    hook_seconds: float
    """Of stage 3's hooks, for each module, forward or backward."""
    gather_seconds: float
    """Of stage 3's own Python for each parameter that it gathers from other ranks, each time."""
    micro_step_seconds: float
    """Of a micro-step's forward and backward, whatever the model is: each has half of it."""
    gradient_seconds: float
    """Of a hook of stages 1 and 2, for each tensor that trains, in each backward."""
    step_seconds: float
    """Of an optimizer step's own launches, for each tensor that trains."""
    fixed_seconds: float
    """Of an optimizer step, whatever the model is: clipping, the scheduler, the batch."""
    nvlink_fraction: float
    """Of the nominal link, reached by a large collective."""
    pcie_link_fraction: float
    """The same between GPUs without NVLink, through the host."""
    network_fraction: float
    """The same between nodes."""
    contention_fraction: float
    """Of the GPU's multiprocessors, taken by a collective that runs beside its own work."""
    collective_seconds: float
    """To start one collective."""
    queued_seconds: float
    """To start one that the host queued while others before it ran."""
    pcie_fraction: float
    """Of the nominal PCIe rate, reached by a copy between GPU and pinned host memory."""
    pageable_bytes_per_s: float
    """That a copy to the GPU moves, of what the host casts first into memory that is not pinned."""
    core_bytes_per_s: float
    """That one CPU core moves while it steps Adam."""
    host_bytes_per_s: float
    """That all cores of a node move at most."""
    unknown_cores: int
    """For each GPU, of a host that nobody described."""
    tight_fraction: float
    """By which steps are longer near the limit of memory, where the allocator flushes."""


_HOPPER = (9, 0)
_OF_THE_HOST = (
    *("host_seconds", "checkpoint_seconds", "hook_seconds", "gather_seconds", "micro_step_seconds"),
    *("gradient_seconds", "step_seconds", "fixed_seconds"),
)


def _call_seconds(costs: Costs, read: float | None) -> float:
    """What a call takes on average beside a step, in seconds: the best guess from one reading.

    Theory: with normal logarithms, of hosts and of the moments of one host, the expected mean of a
    host lies between that of all hosts and its reading, weighted by the two variances.
    """
    if read is None:
        return costs.unknown_python_call_seconds
    usual, weight = costs.shared_python_call_seconds, costs.reading_fraction
    return math.exp((1 - weight) * math.log(usual) + weight * math.log(read))


def product_fraction_on(costs: Costs, compute_capability: tuple[int, int]) -> float:
    """What a large product of matrices reaches of the nominal FLOP/s on such a GPU."""
    if compute_capability < _HOPPER:
        return costs.older_product_fraction
    return costs.product_fraction


def memory_rate_on(costs: Costs, rates: GpuRates) -> float:
    """The bytes that a kernel which only moves bytes really moves in a second."""
    return rates.memory_bytes_per_s * costs.memory_fraction


def on_host(costs: Costs, host: Host) -> Costs:
    """The constants with the times of this host."""
    factor = _call_seconds(costs, host.python_call_seconds) / costs.python_call_seconds
    return replace(costs, **{name: factor * getattr(costs, name) for name in _OF_THE_HOST})


# What has no source of its own was fitted by `python tests/speed/fit.py --fit --free-running`, on
# the fitted side of tests/measured/times and regret: nothing was synchronised inside them.
COSTS = Costs(
    product_fraction=0.62,
    # Fitted on the times of A100s and A800s in public_times.json.
    older_product_fraction=0.64,
    attention_fraction=0.71,
    masked_attention_fraction=0.29,
    memory_fraction=0.56,
    elementwise_fraction=0.73,
    # tests/measured/README.md: of the rented host beside one H200.
    python_call_seconds=87e-9,
    # Fitted on the times of qwen at stage 3 in public_times.json, where Python decides: servers
    # that are not shared run it faster.
    unknown_python_call_seconds=60e-9,
    # The geometric mean of the readings beside the fitted steps. One reading differs from others of
    # its lease by 27 % (a standard deviation), and leases from each other by nearly as much: by
    # these variances alone it would weigh 0.4. `reading_fraction` is fitted.
    shared_python_call_seconds=143e-9,
    reading_fraction=0.54,
    # tests/measured/regret: 24 readings in one lease of an H200, 96 to 215 ns.
    host_spread_fraction=0.22,
    host_seconds=124e-6,
    checkpoint_seconds=19.5e-6,
    hook_seconds=320e-6,
    # Not fitted: the steps of two H100s agree with anything up to 100 us, and the published ones of
    # two and more A100s and A800s (public_times.json) with 60 to 200 us.
    gather_seconds=100e-6,
    micro_step_seconds=3.1e-3,
    gradient_seconds=134e-6,
    step_seconds=52e-6,
    fixed_seconds=5.5e-3,
    # tests/measured/links.json: 1 GiB over NVLink 0.58 (reduce-scatter) to 0.72 (all-reduce),
    # with NCCL_P2P_DISABLE=1 0.40 to 0.46. Between nodes nothing was measured.
    nvlink_fraction=0.60,
    pcie_link_fraction=0.42,
    network_fraction=0.60,
    # links.json: 24 channels, each a block of one multiprocessor; an H100 or H200 has 132.
    contention_fraction=0.18,
    # links.json, 64 MiB over NVLink against 1 GiB: 60 us longer than the rate alone.
    collective_seconds=50e-6,
    # In 3 buckets or in 248, without overlap_comm, steps of 2 H100s differ by 1 ms, and scatter
    # by 3 ms (2026-11-h100.jsonl: j1-001 and 006; without peer-to-peer j1-017 and 022). More GPUs
    # were not measured.
    queued_seconds=10e-6,
    # Not fitted: what copies from pinned memory usually reach.
    pcie_fraction=0.70,
    # tests/measured/regret: steps of stage 3 with the optimizer alone offloaded, 1.2B to 3.8B
    # parameters a rank, took 0.2 to 0.42 s per 10^9 parameters longer than the rest explains.
    pageable_bytes_per_s=5.0e9,
    core_bytes_per_s=10.8e9,
    # Not fitted: twelve channels of DDR5-4800 have 460 GB/s, and half of that is usual.
    host_bytes_per_s=200e9,
    # The cores of the measured machines, by their GPUs.
    unknown_cores=16,
    # 2026-11-capped.jsonl: steady steps near the limit took 1.0 to 1.7 times as long.
    tight_fraction=0.15,
)
