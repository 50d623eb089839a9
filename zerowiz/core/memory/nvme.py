"""Fit DeepSpeed's offload to NVMe: the values of its sections, what it locks and what it writes.

Symbols are those of `rank_sizes.py`. A group of G elements is stepped at a time; meanwhile the next
group is being read and the one before is being written. Every tensor of a group (the master, a
moment or two, the gradients) has a buffer of its own. Trained on 2 and 4 CPU ranks, where
what is locked and what is written came out as counted here (tests/core/memory/test_nvme.py); never
measured on a GPU.
"""

from collections.abc import Mapping

from msgspec import Struct

from zerowiz.core.memory.ledger import Allocation, AllocationKind, Moment
from zerowiz.core.memory.rank_sizes import RankSizes
from zerowiz.core.model.types import Model
from zerowiz.core.strategy import Offload
from zerowiz.core.workload.choices import FP32_BYTES
from zerowiz.words import N_

Section = Mapping[str, bool | int | str]

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

_DEVICE: Section = {"device": "nvme", "pin_memory": True}
# constants.py of swap_tensor: DeepSpeed's own values; ds_nvme_tune finds better ones for a drive.
AIO: Section = {
    "block_size": 2**20,
    "queue_depth": 8,
    "intra_op_parallelism": 1,
    "single_submit": False,
    "overlap_events": True,
}


class NvmeOffload(Struct, frozen=True, kw_only=True):
    """One rank's states on NVMe; the caller adds `nvme_path`, the folder on every node."""

    offload_optimizer: Section
    offload_param: Section | None
    """None where the parameters stay on the GPU."""
    zero_optimization: Section
    """What else that section has to hold."""
    aio: Section
    host_allocations: Moment
    """Of one rank; nothing else of the optimizer is in host memory between steps."""
    written_bytes: int
    """Of one rank, below the folder."""

    def node_bytes(self, ranks: int) -> int:
        """Below the folder, when so many ranks write into it."""
        return ranks * self.written_bytes


def fit_sub_group(sub_group_size: int, ranks: int) -> int:
    """The `sub_group_size` to write for NVMe: it decides how much is locked."""
    return min(sub_group_size, _LARGEST_GROUP, _LARGEST_GROUP_OF_ALL_RANKS // ranks)


def offload_to_nvme(model: Model, r: RankSizes) -> NvmeOffload:
    """The sections for a rank of stage 3, and what they cost it.

    Args:
        model: Whose parameters are offloaded.
        r: The rank; its `sub_group_size` is the one that the config gets.
    """
    kept = 1 + r.state_bytes // FP32_BYTES
    buffers = _GROUPS_IN_BUFFERS * (kept + 1)
    swapped = _Parameters(model=model, r=r) if r.strategy.offload is Offload.ALL else None
    group_bytes = FP32_BYTES * _largest_group(r)
    buffer_bytes = _whole(_whole(group_bytes, _ALIGNED_BYTES), _PAGE_BYTES)
    return NvmeOffload(
        offload_optimizer={
            **_DEVICE,
            "buffer_count": buffers,
            "pipeline_read": True,
            "pipeline_write": True,
        },
        offload_param=None if swapped is None else {**_DEVICE, **swapped.section},
        zero_optimization={} if swapped is None else {"stage3_max_reuse_distance": 0},
        aio=AIO,
        host_allocations=(
            Allocation(
                AllocationKind.SWAP_BUFFERS_LOCKED, buffers * buffer_bytes, f"{buffers} x 4 G"
            ),
            Allocation(AllocationKind.GRADIENTS_PINNED, r.weight_bytes * r.share, "w P"),
            *(() if swapped is None else swapped.host_allocations),
        ),
        # A file for each group of the master weights, and for each moment of it.
        written_bytes=kept * FP32_BYTES * r.share
        + _gradients_bytes(model, r)
        + (0 if swapped is None else swapped.written_bytes),
    )


class _Parameters(Struct, frozen=True, kw_only=True):
    """Parameters on NVMe, and the buffers that they are read into."""

    model: Model
    r: RankSizes

    @property
    def largest_part(self) -> int:
        """This rank's part of the largest tensor, trained or frozen."""
        return -(-self.model.largest_param // self.r.ranks)

    @property
    def section(self) -> Section:
        """max_in_cpu: with the default, a billion, most models never leave host memory."""
        return {
            "buffer_count": _PARAMETERS_IN_BUFFERS,
            "buffer_size": self.largest_part,
            "max_in_cpu": 0,
        }

    @property
    def host_allocations(self) -> Moment:
        """partitioned_param_swapper.py: buffers for parts, and one for a group that has stepped.

        stage3.py sizes that one with `ds_numel`, the whole tensors: d times what is put into it.
        """
        w, r = self.r.weight_bytes, self.r
        one_bytes = _whole(w * self.largest_part, _ALIGNED_BYTES)
        whole_group_bytes = w * r.ranks * _largest_group(r)
        small_bytes = self._bytes(swapped=False)
        return (
            Allocation(
                AllocationKind.PARAMETERS_IN_FLIGHT_LOCKED,
                _whole(_PARAMETERS_IN_BUFFERS * one_bytes, _PAGE_BYTES),
                f"{_PARAMETERS_IN_BUFFERS} w M / d",
            ),
            Allocation(
                AllocationKind.STEPPED_PARAMETERS_LOCKED,
                _whole(whole_group_bytes, _PAGE_BYTES),
                "w d G",
            ),
            Allocation(
                AllocationKind.SMALL_PARAMETERS, small_bytes, N_("w (N + F) / d, below 1 MiB")
            ),
        )

    @property
    def written_bytes(self) -> int:
        """A file for each parameter."""
        return self._bytes(swapped=True)

    def _bytes(self, *, swapped: bool) -> int:
        w, r = self.r.weight_bytes, self.r
        return sum(
            size_bytes * copies
            for size_bytes, copies in _parts(self.model, r, w)
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
