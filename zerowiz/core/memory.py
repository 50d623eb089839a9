"""Predict, line by line, what one rank holds under a strategy."""

from collections.abc import Sequence

from zerowiz.core.buffers import Buffers
from zerowiz.core.ledger import Estimate, Line, Phase, Where
from zerowiz.core.machine import Accelerator
from zerowiz.core.model import Model
from zerowiz.core.rank import Rank, place_rank
from zerowiz.core.strategy import Offload, Part, Strategy
from zerowiz.core.traced import Traced
from zerowiz.core.workload import Workload
from zerowiz.core.wrappers import WRAPPERS, Held

# torch/aten/src/ATen/cuda/CUDABlas.cpp: 32 MiB per handle on sm_90; the forward and the backward
# thread hold one each. 67 MB in every run of tests/measured/h200.jsonl.
_CUBLAS: Held = ("cuBLAS workspaces", 64 * 2**20, "2 x 32 MiB")
_WITH_MATMULS = (Phase.FORWARD, Phase.BACKWARD, Phase.STEP)


def _size(moment: Sequence[Held]) -> int:
    return sum(size_bytes for _, size_bytes, _ in moment)


def _pinned(size_bytes: int) -> int:
    """Pinned memory comes in powers of two (torch/aten CachingHostAllocator, PowerOf2Ceil)."""
    return 1 << max(0, size_bytes - 1).bit_length()


def _host_lines(r: Rank) -> tuple[Held, ...]:
    """Host memory of one rank with the optimizer offloaded (d4-027)."""
    w, p = r.weight_bytes, r.share
    if not r.offloaded:
        return ()
    params = ("parameters", w * p if r.strategy.offload is Offload.ALL else 0, "w P")
    states = ("optimizer states", r.state_bytes * p, f"{r.state_bytes} P")
    master_bytes, staging_bytes = r.master_bytes * p, w * p
    if Part.PARAMETERS in r.strategy.sharded:
        # stage3.py: the master is not pinned; both kinds of gradients are.
        group = r.master_bytes * min(p, r.buffers.sub_group_size)
        groups = -(-p // r.buffers.sub_group_size)
        return (
            params,
            ("master weights", master_bytes, f"{r.master_bytes} P"),
            ("fp32 gradients, pinned", groups * _pinned(group), "4 P, to powers of two"),
            ("gradients, pinned", _pinned(staging_bytes), "w P, to a power of two"),
            states,
        )
    # stage_1_and_2.py, __init__: master, its gradient and the 16-bit staging copy are pinned.
    accumulated = w * r.held_share if r.accumulating else 0
    return (
        params,
        ("master weights, pinned", _pinned(master_bytes), "4 P, to a power of two"),
        ("fp32 gradients, pinned", _pinned(master_bytes), "4 P, to a power of two"),
        ("parameter staging, pinned", _pinned(staging_bytes), "w P, to a power of two"),
        ("accumulated gradients, pinned", accumulated, "w S"),
        states,
    )


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
    libraries = {Accelerator.CUDA: (_CUBLAS,), Accelerator.CPU: ()}[accelerator]
    rank = place_rank(model, workload, ranks, strategy, buffers, traced)
    lines: list[Line] = []
    for phase, moments in WRAPPERS[strategy.stage, rank.offloaded](rank).items():
        held = (*max(moments, key=_size), *(libraries if phase in _WITH_MATMULS else ()))
        host = () if phase is Phase.MODEL else _host_lines(rank)
        for where, entries in ((Where.GPU, held), (Where.HOST, host)):
            lines.extend(
                Line(part=part, phase=phase, size_bytes=size, formula=formula, where=where)
                for part, size, formula in entries
                if size
            )
    return Estimate(strategy=strategy, lines=tuple(lines))
