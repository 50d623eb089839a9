"""Predict, line by line, what one rank holds under a strategy."""

from collections.abc import Collection, Iterable, Iterator
from itertools import chain

from zerowiz.core.machine.types import Accelerator
from zerowiz.core.memory.buffers import Buffers
from zerowiz.core.memory.common import Held, Moments
from zerowiz.core.memory.forward.traced import Traced
from zerowiz.core.memory.ledger import Estimate, Line, Phase, Where
from zerowiz.core.memory.nvme import offload_to_nvme
from zerowiz.core.memory.rank_sizes import RankSizes, rank_sizes
from zerowiz.core.memory.zero012 import WRAPPERS, first_iteration
from zerowiz.core.model.types import Model
from zerowiz.core.strategy import Offload, Part, Strategy
from zerowiz.core.workload import Workload

# torch/aten/src/ATen/cuda/CUDABlas.cpp: 32 MiB per handle on sm_90; the forward and the backward
# thread hold one each. 67 MB in every run of tests/measured/h200.jsonl.
_CUBLAS: Held = ("cuBLAS workspaces", 64 * 2**20, "2 x 32 MiB")
# In the first iteration backward opens with the loss, and its thread has multiplied nothing yet.
_SINGLE: Held = ("cuBLAS workspace", 32 * 2**20, "32 MiB")
_BEFORE_BACKWARD = {(Phase.FORWARD, 0), (Phase.BACKWARD, 0)}
_WITH_MATMULS = (Phase.FORWARD, Phase.BACKWARD, Phase.STEP)


def _size(moment: Iterable[Held]) -> int:
    return sum(size_bytes for _, size_bytes, _ in moment)


def _pinned(size_bytes: int) -> int:
    """Pinned memory comes in powers of two (torch/aten CachingHostAllocator, PowerOf2Ceil)."""
    return 1 << (size_bytes - 1).bit_length() if size_bytes else 0


def _pinned_tensors(model: Model, r: RankSizes) -> int:
    """This rank's part of every tensor, each pinned by itself."""
    w = r.weight_bytes
    return sum(t.copies * _pinned(-(-w * t.numel // r.ranks)) for t in model.tensors)


def _host_stage2(model: Model, r: RankSizes) -> tuple[Held, ...]:
    """stage_1_and_2.py, __init__: all is pinned but what the optimizer makes itself (d4-027)."""
    w, p = r.weight_bytes, r.share
    master_bytes = _pinned(r.master_bytes * p)
    # async_accumulate_grad_in_cpu_via_gpu: a tensor in the share is held whole (f3-001).
    whole = sum(t.copies * _pinned(w * t.numel) for t in model.tensors) // r.ranks
    return (
        ("master weights, pinned", master_bytes, "4 P, to a power of two"),
        ("fp32 gradients, pinned", master_bytes, "4 P, to a power of two"),
        ("parameter staging, pinned", _pinned(w * p), "w P, to a power of two"),
        ("gradient staging, pinned", _pinned(w * r.largest), "w M, to a power of two"),
        (
            "accumulated gradients, pinned",
            whole if r.accumulating else 0,
            "w P, each tensor to a power of two",
        ),
        ("optimizer states", r.state_bytes * p, f"{r.state_bytes} P"),
    )


def _host_stage3(model: Model, r: RankSizes) -> tuple[Held, ...]:
    """stage3.py: the master is not pinned; both kinds of gradients and the parameters are."""
    w, p = r.weight_bytes, r.share
    full, rest = divmod(p, r.sub_group)
    # initialize_optimizer_states: one buffer a group.
    pinned_bytes = full * _pinned(r.master_bytes * r.sub_group) + _pinned(r.master_bytes * rest)
    held = (
        ("master weights", r.master_bytes * p, f"{r.master_bytes} P"),
        ("fp32 gradients, pinned", pinned_bytes, "4 P, each group to a power of two"),
        ("gradients, pinned", _pinned(w * p), "w P, to a power of two"),
        ("optimizer states", r.state_bytes * p, f"{r.state_bytes} P"),
    )
    if r.strategy.offload is not Offload.ALL:
        # aten/src/ATen/native/cuda/Copy.cu: masters that go to the GPU are converted on the host.
        converted = 0 if r.master_bytes == r.trained_bytes else w * r.sub_group
        return (*held, ("parameters on their way", converted, "w G"))
    # partition_parameters.py, _partition_param pins each shard; _move_to_flat_buffer then pins all
    # anew, and torch's pinned allocator gives nothing back (f3-003, f3-004).
    head = _pinned(r.untied_head_bytes // r.ranks) if r.zero_init else 0
    return (
        ("parameters, pinned", _pinned(r.trained_bytes * p), "w P, to a power of two"),
        (
            "parameters as built, pinned",
            _pinned_tensors(model, r) + head,
            "w (N + F) / d, each tensor to a power of two",
        ),
        *held,
    )


def _host_lines(model: Model, r: RankSizes) -> tuple[Held, ...]:
    """Host memory of one rank with the optimizer offloaded; most once the optimizer has stepped."""
    if not r.offloaded:
        return ()
    if r.buffers.on_nvme:
        return offload_to_nvme(model, r).host_lines
    sharded = Part.PARAMETERS in r.strategy.sharded
    return _host_stage3(model, r) if sharded else _host_stage2(model, r)


def _lines(phase: Phase, held: Iterable[Held], where: Where = Where.GPU) -> Iterator[Line]:
    return (
        Line(part=part, phase=phase, size_bytes=size, formula=formula, where=where)
        for part, size, formula in held
        if size
    )


def _with_workspaces(moments: Moments, single: Collection[tuple[Phase, int]]) -> Moments:
    """Two workspaces in each moment with matmuls; one in those named by phase and place."""
    return {
        phase: tuple(
            (*moment, _SINGLE if (phase, place) in single else _CUBLAS)
            for place, moment in enumerate(competing)
        )
        if phase in _WITH_MATMULS
        else competing
        for phase, competing in moments.items()
    }


def _gpu_lines(moments: Moments) -> Iterator[Line]:
    """Each phase by the moment that is largest in it."""
    for phase, competing in moments.items():
        yield from _lines(phase, max(competing, key=_size))


def estimate(
    model: Model,
    workload: Workload,
    ranks: int,
    strategy: Strategy,
    buffers: Buffers,
    accelerator: Accelerator = Accelerator.CUDA,
    traced: Traced | None = None,
) -> Estimate:
    """What one of `ranks` ranks holds; each phase by the moment that is largest in it."""
    rank = rank_sizes(model, workload, ranks, strategy, buffers, traced)
    steady = WRAPPERS[strategy.stage, rank.offloaded](rank)
    first = first_iteration(rank, steady)
    if accelerator is Accelerator.CUDA:
        steady = _with_workspaces(steady, ())
        first = _with_workspaces(first, () if rank.accumulating else _BEFORE_BACKWARD)
    host = _host_lines(model, rank)
    on_host = (_lines(phase, host, Where.HOST) for phase in Phase if phase is not Phase.MODEL)
    return Estimate(
        strategy=strategy,
        lines=(*_gpu_lines(steady), *chain.from_iterable(on_host)),
        first_lines=tuple(_gpu_lines(first)),
    )
