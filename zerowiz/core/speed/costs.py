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
    """Bytes that forward's small kernels move for each byte that it keeps for backward."""
    backward_passes: float
    """The same of backward."""
    host_seconds: float
    """Of Python and launches, for each module with weights, forward or backward."""
    hook_seconds: float
    """Of stage 3's hooks, for each module, forward or backward."""
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
    collective_seconds: float
    """To start one collective."""
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


COSTS = Costs(
    product_fraction=0.70,
    attention_fraction=0.35,
    memory_fraction=0.80,
    forward_passes=2.5,
    backward_passes=3.5,
    host_seconds=100e-6,
    hook_seconds=150e-6,
    step_seconds=50e-6,
    fixed_seconds=5e-3,
    # tests/measured/links.json: 1 GiB over NVLink 0.58 (reduce-scatter) to 0.72 (all-reduce),
    # with NCCL_P2P_DISABLE=1 0.40 to 0.46.
    nvlink_fraction=0.60,
    pcie_link_fraction=0.42,
    network_fraction=0.60,
    collective_seconds=50e-6,
    pcie_fraction=0.7,
    core_bytes_per_s=8e9,
    host_bytes_per_s=200e9,
    unknown_cores=12,
    tight_fraction=0.15,
)
