"""Predict what a node holds on its host, and what offload to NVMe writes.

Symbols are those of `rank_sizes.py`. A group of G elements is stepped at a time; meanwhile the next
group is being read and the one before is being written. Every tensor of a group (the master, a
moment or two, the gradients) has a buffer of its own. Trained on 2 and 4 CPU ranks, where
what is locked and what is written came out as counted here (tests/core/memory/test_host.py); never
measured on a GPU.
"""

from collections.abc import Mapping
from enum import StrEnum

from msgspec import Struct

from zerowiz.core.memory.allocations import Allocation, AllocationKind, Moment, moment_bytes
from zerowiz.core.memory.buffers import NvmeBuffers
from zerowiz.core.memory.rank_sizes import RankSizes
from zerowiz.core.model.types import Model
from zerowiz.core.strategy_types import Offload
from zerowiz.core.structs import Count, shows
from zerowiz.core.workload import FP32_BYTES, Method
from zerowiz.translation import N_

# swap_tensor/utils.py, MIN_AIO_BYTES: what is smaller stays in memory.
_LEAST_SWAPPED_BYTES = 2**20
# swap_tensor/utils.py, AIO_ALIGNED_BYTES, of each thread that reads or writes one tensor.
_ALIGNED_BYTES = 1024
# csrc/aio/py_lib: locked buffers are whole pages.
_PAGE_BYTES = 4096
# pipelined_optimizer_swapper.py: the group that steps, the next, and the one before; fewer fail
# with "ran out of swap buffers" as soon as there are three groups.
_GROUPS_IN_BUFFERS = 3
# A parameter keeps its buffer while it is gathered: those of one module, and of the next. A
# qwen2_moe block, a leaf module of ZeRO-3, has seven (5 were enough for a Llama).
_PARAMETERS_IN_BUFFERS = 8
# Of 1 G elements, DeepSpeed's default, 12 buffers would lock 48 GB a rank; parameters on NVMe lock
# 2 bytes more of each element of a group on all ranks. Never timed.
_LARGEST_GROUP, _LARGEST_GROUP_OF_ALL_RANKS = 100_000_000, 1_000_000_000

_NO_NVME = NvmeBuffers(optimizer_count=0, param_count=0)


def fit_sub_group(sub_group_size: int, ranks: int) -> int:
    """The `sub_group_size` to write for NVMe: it decides how much is locked."""
    return min(sub_group_size, _LARGEST_GROUP, _LARGEST_GROUP_OF_ALL_RANKS // ranks)


def fit_nvme(model: Model, r: RankSizes) -> NvmeBuffers:
    """The buffers that the config of a rank of stage 3 gets: as many as are needed, and as small.

    Args:
        model: Whose parameters are offloaded.
        r: The rank; its `sub_group_size` is the one that the config gets.
    """
    kept, moves_all = 1 + r.state_bytes // FP32_BYTES, r.strategy.offload is Offload.ALL
    return NvmeBuffers(
        optimizer_count=_GROUPS_IN_BUFFERS * (kept + 1),
        param_count=_PARAMETERS_IN_BUFFERS if moves_all else 0,
        # This rank's part of the largest tensor, trained or frozen.
        param_size=-(-model.largest_param // r.ranks),
        # With DeepSpeed's default, a billion, most models never leave host memory.
        max_in_cpu=0,
    )


def nvme_written_bytes(model: Model, r: RankSizes) -> int:
    """What one rank writes to NVMe.

    A file for each group of the master weights, and for each moment of it; and for each parameter.
    """
    kept = 1 + r.state_bytes // FP32_BYTES
    optimizer_bytes = kept * FP32_BYTES * r.share + _gradients_bytes(model, r)
    if r.strategy.offload is not Offload.ALL:
        return optimizer_bytes
    return optimizer_bytes + _parameters_bytes(model, r, swapped=True)


def _swapped_optimizer(r: RankSizes, nvme: NvmeBuffers) -> Moment:
    group_bytes, count = FP32_BYTES * _largest_group(r), nvme.optimizer_count
    buffer_bytes = _whole(_whole(group_bytes, _ALIGNED_BYTES), _PAGE_BYTES)
    return (
        Allocation(AllocationKind.SWAP_BUFFERS_LOCKED, count * buffer_bytes, f"{count} x 4 G"),
        Allocation(AllocationKind.GRADIENTS_PINNED, r.weight_bytes * r.share, "w P"),
    )


def _swapped_parameters(model: Model, r: RankSizes, nvme: NvmeBuffers) -> Moment:
    """partitioned_param_swapper.py: buffers for parts, and one for a group that has stepped.

    stage3.py sizes that one with `ds_numel`, the whole tensors: d times what is put into it. It has
    none where `max_in_cpu` keeps all (_create_fp16_partitions_with_defragmentation).
    """
    w, count = r.weight_bytes, nvme.param_count
    size = "M / d" if r.buffers.nvme is None else "buffer_size"
    one_bytes = _whole(w * nvme.param_size, _ALIGNED_BYTES)
    locked_bytes = _whole(count * one_bytes, _PAGE_BYTES)
    staying = min(r.share, nvme.max_in_cpu)
    leaves = staying < r.share
    stepped_bytes = _whole(w * r.ranks * _largest_group(r), _PAGE_BYTES) if leaves else 0
    small_bytes = _parameters_bytes(model, r, swapped=False) if leaves else 0
    return (
        Allocation(AllocationKind.PARAMETERS_IN_FLIGHT_LOCKED, locked_bytes, f"{count} w {size}"),
        Allocation(AllocationKind.STEPPED_PARAMETERS_LOCKED, stepped_bytes, "w d G"),
        Allocation(AllocationKind.SMALL_PARAMETERS, small_bytes, N_("w (N + F) / d, below 1 MiB")),
        Allocation(
            AllocationKind.PARAMETERS_PINNED, _pinned(w * staying), N_("w P, to a power of two")
        ),
    )


def _parameters_bytes(model: Model, r: RankSizes, *, swapped: bool) -> int:
    """This rank's part of the parameters that are swapped, or of those too small for it."""
    return sum(
        size_bytes * copies
        for size_bytes, copies in _parts(model, r, r.weight_bytes)
        if (size_bytes >= _LEAST_SWAPPED_BYTES) is swapped
    )


def _whole(size_bytes: int, unit_bytes: int) -> int:
    return -(-size_bytes // unit_bytes) * unit_bytes


def _parts(model: Model, r: RankSizes, value_bytes: int) -> list[tuple[int, int]]:
    """This rank's part of every tensor, in bytes, and how many of the kind there are."""
    return [(value_bytes * -(-tensor.numel // r.ranks), tensor.copies) for tensor in model.tensors]


def _largest_group(r: RankSizes) -> int:
    """stage3.py, _create_fp16_sub_groups: the tensor that fills a group belongs to it, whole."""
    return min(r.share, r.buffers.sub_group_size + -(-r.largest // r.ranks))


def _gradients_bytes(model: Model, r: RankSizes) -> int:
    """optimizer_utils.py, _swap_out_gradients: fp32, and only parts of 1 MiB and more.

    The smaller ones stay where they were reduced, on a GPU that is the GPU, until the step.
    """
    if r.trainable != model.params:
        # Adapters are small.
        return 0
    parts = _parts(model, r, FP32_BYTES)
    return sum(size * copies for size, copies in parts if size >= _LEAST_SWAPPED_BYTES)


# Predict what one rank with an offloaded optimizer holds in host memory, beyond its interpreter.
#
# Each public function is the `host_allocations` of rows in core/strategies.py. What is held is
# most once the optimizer has stepped. Symbols are those of `rank_sizes.py`; sources name
# DeepSpeed 0.19.8's file and function; ids such as d4-027 name the run of
# tests/measured/h200.jsonl that settled a formula.


def _pinned(size_bytes: int) -> int:
    """Pinned memory comes in powers of two (torch/aten CachingHostAllocator, PowerOf2Ceil)."""
    return 1 << (size_bytes - 1).bit_length() if size_bytes else 0


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
    """What stage 3 offloads to the host, and the buffers of what it offloads to NVMe."""
    nvme = (r.buffers.nvme or fit_nvme(model, r)) if r.buffers.on_nvme else _NO_NVME
    optimizer = _swapped_optimizer(r, nvme) if nvme.optimizer_count else _optimizer_on_host(r)
    if r.strategy.offload is not Offload.ALL:
        return optimizer
    if nvme.param_count:
        return (*optimizer, *_swapped_parameters(model, r, nvme))
    return (*_parameters_on_host(model, r), *optimizer)


def _optimizer_on_host(r: RankSizes) -> Moment:
    """stage3.py: the master is not pinned; both kinds of gradients are."""
    if not r.offloaded:
        # _create_fp32_partitions: a copy to the GPU, which the host converts first (Copy.cu).
        converted_bytes = r.master_bytes * r.sub_group
        return (Allocation(AllocationKind.PARAMETERS_IN_FLIGHT, converted_bytes, "master G"),)
    w = r.weight_bytes
    full, rest = divmod(r.share, r.sub_group)
    # initialize_optimizer_states: one buffer a group.
    pinned_bytes = full * _pinned(r.master_bytes * r.sub_group) + _pinned(r.master_bytes * rest)
    # aten/src/ATen/native/cuda/Copy.cu: masters that go to the GPU are converted on the host.
    stays = r.strategy.offload is not Offload.ALL
    converted = w * r.sub_group if stays and r.master_bytes != r.trained_bytes else 0
    return (
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
        Allocation(AllocationKind.PARAMETERS_IN_FLIGHT, converted, "w G"),
    )


def _parameters_on_host(model: Model, r: RankSizes) -> Moment:
    """All are pinned."""
    w = r.weight_bytes
    # partition_parameters.py, _partition_param pins each shard; _move_to_flat_buffer then pins all
    # anew, and torch's pinned allocator gives nothing back (f3-003, f3-004).
    shards_bytes = sum(
        tensor.copies * _pinned(-(-w * tensor.numel // r.ranks)) for tensor in model.tensors
    )
    head_bytes = _pinned(r.untied_head_bytes // r.ranks) if r.workload.resolved_zero_init else 0
    return (
        Allocation(
            AllocationKind.PARAMETERS_PINNED,
            _pinned(r.trained_bytes * r.share),
            N_("w P, to a power of two"),
        ),
        Allocation(
            AllocationKind.PARAMETERS_AS_BUILT_PINNED,
            shards_bytes + head_bytes,
            N_("w (N + F) / d, each tensor to a power of two"),
        ),
    )


# Predict what all ranks of a node hold in its memory, from their start to their checkpoints.
#
# Symbols are those of `rank_sizes.py`. What is offloaded, what stage 3 takes at init and how the
# Trainer saves were measured on GPUs (tests/measured); the rest was read in the sources.


class HostPhase(StrEnum):
    """When a node's memory is held."""

    LOAD = "load"
    """The script builds its model."""
    INIT = "init"
    """DeepSpeed builds its engine."""
    TRAINING = "training"
    SAVING = "saving"
    """A checkpoint is saved."""


class Saving(StrEnum):
    """Who saves a checkpoint."""

    TRAINER = "trainer"
    """The Trainer, or Accelerate: it collects the weights, then calls `save_checkpoint`."""
    ENGINE = "engine"
    """The script calls `save_checkpoint` of DeepSpeed's engine."""
    PORTABLE = "portable"
    """The templates' `portable_checkpoint`, which holds 64 MiB at a time."""


class HostUse(Struct, frozen=True, kw_only=True):
    """What a script does with the memory of its nodes."""

    saving: Saving = Saving.TRAINER
    builds_on_host: bool = False
    """Whether each rank makes its model there, with new weights: `from_config`."""
    workers: Count = 0
    """Of each rank's data loader."""
    is_seen: bool = False
    """Whether a script shows it; otherwise it is assumed."""


@shows("peak_phase", "peak_bytes", "running_bytes")
class HostNeed(Struct, frozen=True, kw_only=True):
    """What the ranks of one node hold in its memory."""

    phases: Mapping[HostPhase, Moment]
    """The largest moment of each phase, of all ranks of the node together."""
    gathers: bool = False
    """Whether the first rank has to hold the whole weights of stage 3 to save them."""

    @property
    def phase_bytes(self) -> Mapping[HostPhase, int]:
        """Bytes held at the peak of each phase."""
        return {phase: moment_bytes(moment) for phase, moment in self.phases.items()}

    @property
    def peak_phase(self) -> HostPhase:
        """The phase with most."""
        sizes = self.phase_bytes
        return max(sizes, key=lambda phase: sizes[phase])

    @property
    def peak_bytes(self) -> int:
        """The most that is ever held."""
        return max(self.phase_bytes.values())

    @property
    def running_phase(self) -> HostPhase:
        """The phase with most of those that no job can do without: it need not save."""
        sizes = self.phase_bytes
        return max(
            (phase for phase in sizes if phase is not HostPhase.SAVING),
            key=lambda phase: sizes[phase],
        )

    @property
    def running_bytes(self) -> int:
        """What is held in that phase."""
        return moment_bytes(self.phases[self.running_phase])


# The resident set of a rank on CUDA: the median of the runs at stage 0 of tests/measured once its
# kernels have run, 1.7 to 1.9 GB, and what runs at stage 3 show of it at init, when they have not.
_PROCESS_BYTES, _STARTING_BYTES = 1_830_000_000, 1_250_000_000
# Private memory of a forked worker of torch's DataLoader, over 20 000 batches: 13 MB. A dataset
# of Python objects comes to be copied too (360 of 400 MB), as reading an object writes to it.
_WORKER_BYTES = 13_000_000
# A model that `from_pretrained` reads is nothing of a rank's own (3 of 988 MB, 2026-11-host.json):
# transformers 5.17 and 5.23, modeling_utils.py, _load_pretrained_model, safe_open(backend="mmap").
# Its pages are the file's, all ranks share them, and the kernel drops them.


def training_alone(held: Moment, ranks: int) -> HostNeed:
    """By the rule of thumb: what is offloaded, and nothing else."""
    return HostNeed(phases={HostPhase.TRAINING: _of_all(held, ranks)})


def predict_host(
    model: Model,
    r: RankSizes,
    held: Moment,
    ranks: int,
    use: HostUse,
    *,
    on_cuda: bool,
    gathers: bool = True,
    flattens: bool = False,
) -> HostNeed:
    """What the ranks of the first node hold, which saves more than the others.

    Args:
        model: The model.
        r: A rank.
        held: What a rank has on the host while it trains.
        ranks: Of a node.
        use: What the script does there.
        on_cuda: Whether the ranks have memory of their own; that of CPU ranks is counted as the
            device's.
        gathers: Whether the config lets stage 3 save its weights whole.
        flattens: Whether ZeRO-1 or ZeRO-2 flattens the weights there (`Estimate.flattens_on_host`).
    """
    starting = _process(ranks, _STARTING_BYTES) if on_cuda else ()
    running = (
        *(_process(ranks, _PROCESS_BYTES) if on_cuda else ()),
        *_of_all(held, ranks),
        Allocation(
            AllocationKind.LOADER_WORKERS,
            use.workers * ranks * _WORKER_BYTES,
            f"{use.workers} of each rank",
        ),
    )
    sharded = r.strategy.shards_weights
    collects = use.saving is Saving.TRAINER and (gathers or not sharded)
    copied = _collected(r, ranks) if collects else ()
    written = () if use.saving is Saving.PORTABLE else _written(r, ranks) if on_cuda else ()
    saved = max(copied, written, key=moment_bytes)
    return HostNeed(
        phases={
            HostPhase.LOAD: (*starting, *(_built(model, r, ranks, use) if on_cuda else ())),
            HostPhase.INIT: (
                *starting,
                *(_defragmented(r, ranks) if on_cuda else ()),
                *(_flattened(r, ranks) if flattens else ()),
            ),
            HostPhase.TRAINING: running,
            HostPhase.SAVING: (*running, *saved),
        },
        gathers=collects and sharded,
    )


def _of_all(held: Moment, ranks: int) -> Moment:
    return tuple(
        allocation._replace(size_bytes=allocation.size_bytes * ranks) for allocation in held
    )


def _process(ranks: int, size_bytes: int) -> Moment:
    return (Allocation(AllocationKind.PROCESSES, ranks * size_bytes, N_("of each rank")),)


def _built(model: Model, r: RankSizes, ranks: int, use: HostUse) -> Moment:
    """A model with new weights; 4-bit weights are made on the GPU."""
    sharded = r.strategy.shards_weights and r.workload.resolved_zero_init
    if not use.builds_on_host or sharded or r.workload.method is Method.QLORA:
        return ()
    whole_bytes = r.weight_bytes * model.params + r.untied_head_bytes
    return (Allocation(AllocationKind.MODEL_BUILT, ranks * whole_bytes, N_("w N of each rank")),)


def _defragmented(r: RankSizes, ranks: int) -> Moment:
    """stage3.py, _create_fp16_partitions_with_defragmentation: zero/utils.py, defragment."""
    if not r.strategy.shards_weights or r.strategy.offload is Offload.ALL:
        return ()
    share_bytes = ranks * r.trained_bytes * r.share
    return (Allocation(AllocationKind.SHARES_MOVED, share_bytes, N_("w P of each rank")),)


def _flattened(r: RankSizes, ranks: int) -> Moment:
    """stage_1_and_2.py, __init__: each parameter, and the flat copy of all (torch.cat)."""
    size_bytes = ranks * 2 * r.weight_bytes * r.trainable
    return (Allocation(AllocationKind.FLATTENING_COPY, size_bytes, N_("2 w N of each rank")),)


def _collected(r: RankSizes, ranks: int) -> Moment:
    """The weights as the Trainer and Accelerate collect them for `save_pretrained`.

    accelerate 1.15, accelerator.py, get_state_dict: below stage 3 every rank, though one alone
    writes, clones the state dict to the CPU (deepspeed/checkpoint/utils.py,
    clone_tensors_for_torch_save), the frozen weights and both names of a tied one too; at stage 3
    the first rank gets each weight once (engine.py, _zero3_consolidated_16bit_state_dict), and with
    peft those alone that are trained (transformers 5.23, trainer.py, save_model).
    """
    trained_bytes = r.trained_bytes * r.trainable
    if r.strategy.shards_weights:
        return (Allocation(AllocationKind.WEIGHTS_COLLECTED, trained_bytes, "w N"),)
    adapters = r.workload.method is not Method.FULL
    one_bytes = trained_bytes + r.untied_head_bytes if not adapters else trained_bytes
    size_bytes = ranks * (one_bytes + r.frozen_bytes)
    return (Allocation(AllocationKind.WEIGHTS_COLLECTED, size_bytes, N_("w N + F of each rank")),)


def _written(r: RankSizes, ranks: int) -> Moment:
    """engine.py, save_checkpoint: torch.save copies one storage at a time off the GPU.

    The moments and the master of stages 1 and 2 are one flat storage each, those of stage 3 one a
    sub-group; at stage 0 the first rank alone writes them, by tensors (torch/serialization.py,
    _save).
    """
    if r.offloaded:
        return ()
    elements = {0: r.largest, 3: ranks * r.sub_group}.get(r.strategy.stage, ranks * r.share)
    return (
        Allocation(AllocationKind.STORAGE_WRITTEN, r.master_bytes * elements, "4 M, 4 P or 4 G"),
    )
