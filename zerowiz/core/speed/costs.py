"""The constants of the step-time model: each has a physical meaning and a unit."""

from msgspec import Struct

from zerowiz.core.machine.host import Host
from zerowiz.core.values import replace


class Costs(Struct, frozen=True, kw_only=True):
    """What hardware and software take, beyond the nominal rates of a data sheet."""

    product_fraction: float
    """Of the nominal FLOP/s, reached by a large product of matrices."""
    attention_fraction: float
    """The same of a fused attention kernel."""
    masked_attention_fraction: float
    """The same of one that is given a mask."""
    memory_fraction: float
    """Of the nominal memory bandwidth, reached by a kernel that only moves bytes."""
    forward_passes: float
    """Bytes that forward's small kernels move for each byte that it keeps; backward twice that."""
    python_call_seconds: float
    """Of the host that the times of Python below are of; those of another one are in proportion."""
    unknown_python_call_seconds: float
    """Of a host that nobody timed."""
    host_spread_fraction: float
    """The standard deviation of the logarithm of what such a call takes, from moment to moment."""
    host_seconds: float
    """Of Python and launches, for each module with weights, forward or backward."""
    checkpoint_seconds: float
    """Of a block that is checkpointed, forward and as long again backward, beside its modules."""
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


_OF_THE_HOST = (
    *("host_seconds", "checkpoint_seconds", "hook_seconds", "gather_seconds", "micro_step_seconds"),
    *("gradient_seconds", "step_seconds", "fixed_seconds"),
)


def on_host(costs: Costs, host: Host) -> Costs:
    """The constants with the times of this host."""
    call_seconds = host.python_call_seconds or costs.unknown_python_call_seconds
    factor = call_seconds / costs.python_call_seconds
    return replace(costs, **{name: factor * getattr(costs, name) for name in _OF_THE_HOST})


# What has no source of its own was fitted by `python tests/speed/fit.py --fit --free-running`, on
# the fitted steps of tests/measured/times: nothing was synchronised inside them.
COSTS = Costs(
    product_fraction=0.60,
    attention_fraction=0.88,
    masked_attention_fraction=0.27,
    # Not fitted: what large copies usually reach; `forward_passes` is fitted beside it.
    memory_fraction=0.80,
    forward_passes=2.7,
    # tests/measured/README.md: of the rented host beside one H200.
    python_call_seconds=87e-9,
    # Fitted on the times of qwen at stage 3 in public_times.json, where Python decides: servers
    # that are not shared run it faster.
    unknown_python_call_seconds=60e-9,
    # tests/measured/regret: 24 readings in one lease of an H200, 96 to 215 ns.
    host_spread_fraction=0.22,
    host_seconds=112e-6,
    checkpoint_seconds=111e-6,
    hook_seconds=328e-6,
    # Nothing is gathered on one GPU. Published (public_times.json, qwen): a micro-step of 256
    # tokens takes a 7B model 0.50 s on two A100s, and a 1.8B model 0.26 s on one.
    gather_seconds=240e-6,
    micro_step_seconds=2.9e-3,
    gradient_seconds=127e-6,
    step_seconds=44e-6,
    fixed_seconds=22.3e-3,
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
    core_bytes_per_s=11.0e9,
    # Not fitted: twelve channels of DDR5-4800 have 460 GB/s, and half of that is usual.
    host_bytes_per_s=200e9,
    # The cores of the measured machines, by their GPUs.
    unknown_cores=16,
    # 2026-11-capped.jsonl: steady steps near the limit took 1.0 to 1.7 times as long.
    tight_fraction=0.15,
)
