"""Predict what one rank with an offloaded optimizer holds in host memory, beyond its interpreter.

Each public function is the `host_allocations` of rows in core/strategies.py. What is held is most
once the optimizer has stepped.
Symbols are those of `rank_sizes.py`; sources name DeepSpeed 0.19.8's file and function; ids such as
d4-027 name the run of tests/measured/h200.jsonl that settled a formula.
"""

from zerowiz.core.memory.ledger import Allocation, AllocationKind, Moment
from zerowiz.core.memory.nvme import offload_to_nvme
from zerowiz.core.memory.rank_sizes import RankSizes
from zerowiz.core.model.types import Model
from zerowiz.core.strategy import Offload
from zerowiz.words import N_


def _pinned(size_bytes: int) -> int:
    """Pinned memory comes in powers of two (torch/aten CachingHostAllocator, PowerOf2Ceil)."""
    return 1 << (size_bytes - 1).bit_length() if size_bytes else 0


def _pinned_tensors(model: Model, r: RankSizes) -> int:
    """This rank's part of every tensor, each pinned by itself."""
    return sum(
        tensor.copies * _pinned(-(-r.weight_bytes * tensor.numel // r.ranks))
        for tensor in model.tensors
    )


def _states(r: RankSizes) -> Allocation:
    formula = f"{r.state_bytes} P"
    return Allocation(AllocationKind.OPTIMIZER_STATES, r.state_bytes * r.share, formula)


def nothing_on_host(_model: Model, _r: RankSizes) -> Moment:
    """Without offload a rank holds nothing there."""
    return ()


def zero2_host_allocations(model: Model, r: RankSizes) -> Moment:
    """stage_1_and_2.py, __init__: all is pinned but what the optimizer makes itself (d4-027)."""
    w = r.weight_bytes
    master_bytes = _pinned(r.master_bytes * r.share)
    # async_accumulate_grad_in_cpu_via_gpu: a tensor in the share is held whole (f3-001).
    whole = sum(tensor.copies * _pinned(w * tensor.numel) for tensor in model.tensors) // r.ranks
    return (
        Allocation(
            AllocationKind.MASTER_WEIGHTS_PINNED, master_bytes, N_("4 P, to a power of two")
        ),
        Allocation(
            AllocationKind.FP32_GRADIENTS_PINNED, master_bytes, N_("4 P, to a power of two")
        ),
        Allocation(
            AllocationKind.PARAMETER_STAGING_PINNED,
            _pinned(w * r.share),
            N_("w P, to a power of two"),
        ),
        Allocation(
            AllocationKind.GRADIENT_STAGING_PINNED,
            _pinned(w * r.largest),
            N_("w M, to a power of two"),
        ),
        Allocation(
            AllocationKind.ACCUMULATED_GRADIENTS_PINNED,
            whole if r.accumulating else 0,
            N_("w P, each tensor to a power of two"),
        ),
        _states(r),
    )


def zero3_host_allocations(model: Model, r: RankSizes) -> Moment:
    """stage3.py: the master is not pinned; both kinds of gradients and the parameters are."""
    if r.buffers.on_nvme:
        return offload_to_nvme(model, r).host_allocations
    w = r.weight_bytes
    full, rest = divmod(r.share, r.sub_group)
    # initialize_optimizer_states: one buffer a group.
    pinned_bytes = full * _pinned(r.master_bytes * r.sub_group) + _pinned(r.master_bytes * rest)
    optimizer = (
        Allocation(AllocationKind.MASTER_WEIGHTS, r.master_bytes * r.share, f"{r.master_bytes} P"),
        Allocation(
            AllocationKind.FP32_GRADIENTS_PINNED,
            pinned_bytes,
            N_("4 P, each group to a power of two"),
        ),
        Allocation(
            AllocationKind.GRADIENTS_PINNED, _pinned(w * r.share), N_("w P, to a power of two")
        ),
        _states(r),
    )
    if r.strategy.offload is not Offload.ALL:
        # aten/src/ATen/native/cuda/Copy.cu: masters that go to the GPU are converted on the host.
        converted = 0 if r.master_bytes == r.trained_bytes else w * r.sub_group
        return (*optimizer, Allocation(AllocationKind.PARAMETERS_IN_FLIGHT, converted, "w G"))
    # partition_parameters.py, _partition_param pins each shard; _move_to_flat_buffer then pins all
    # anew, and torch's pinned allocator gives nothing back (f3-003, f3-004).
    head_bytes = _pinned(r.untied_head_bytes // r.ranks) if r.zero_init else 0
    return (
        Allocation(
            AllocationKind.PARAMETERS_PINNED,
            _pinned(r.trained_bytes * r.share),
            N_("w P, to a power of two"),
        ),
        Allocation(
            AllocationKind.PARAMETERS_AS_BUILT_PINNED,
            _pinned_tensors(model, r) + head_bytes,
            N_("w (N + F) / d, each tensor to a power of two"),
        ),
        *optimizer,
    )
