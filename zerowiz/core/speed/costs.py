"""The constants of the step-time model: each has a physical meaning and a unit."""

from msgspec import Struct


class Costs(Struct, frozen=True, kw_only=True):
    """What hardware and software take, beyond the nominal rates of a data sheet."""

    product_fraction: float
    """Of the nominal FLOP/s, reached by a large product of matrices."""
    attention_fraction: float
    """The same of a fused attention kernel."""
    memory_fraction: float
    """Of the nominal memory bandwidth, reached by a kernel that only moves bytes."""
    forward_passes: float
    """Bytes that forward's small kernels move for each byte that it keeps; backward twice that."""
    host_seconds: float
    """Of Python and launches, for each module with weights, forward or backward."""
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
    core_bytes_per_s: float
    """That one CPU core moves while it steps Adam."""
    host_bytes_per_s: float
    """That all cores of a node move at most."""
    unknown_cores: int
    """For each GPU, of a host that nobody described."""
    tight_fraction: float
    """By which steps are longer near the limit of memory, where the allocator flushes."""


# What has no source of its own was fitted by `python tests/speed/fit.py --fit`, on the fitted steps
# of tests/measured at stages 0 to 2 (samples.py says which): they were synchronised at each phase.
COSTS = Costs(
    product_fraction=0.66,
    attention_fraction=0.59,
    # Not fitted: what large copies usually reach; `forward_passes` is fitted beside it.
    memory_fraction=0.80,
    forward_passes=3.5,
    host_seconds=138e-6,
    # No steady step of stage 3 ran freely in tests/measured. Published (public_times.json, qwen): a
    # micro-step of 256 tokens takes a 1.8B model 0.26 s on one A100, where nothing is gathered, and
    # a 7B model 0.50 s on two, of which `host_seconds` are 0.11 and 0.13.
    hook_seconds=150e-6,
    gather_seconds=240e-6,
    micro_step_seconds=19.6e-3,
    gradient_seconds=13e-6,
    step_seconds=44e-6,
    fixed_seconds=9.1e-3,
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
    core_bytes_per_s=5.45e9,
    # Not fitted: twelve channels of DDR5-4800 have 460 GB/s, and half of that is usual.
    host_bytes_per_s=200e9,
    # The cores of the measured machines, by their GPUs.
    unknown_cores=16,
    # 2026-11-capped.jsonl: steady steps near the limit took 1.0 to 1.7 times as long.
    tight_fraction=0.15,
)
