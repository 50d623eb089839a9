"""Predict what all ranks of a node hold in its memory, from their start to their checkpoints.

Symbols are those of `rank_sizes.py`. What is offloaded, what stage 3 takes at init and how the
Trainer saves were measured on GPUs (tests/measured); the rest was read in the sources.
"""

from collections.abc import Mapping
from enum import StrEnum

from msgspec import Struct

from zerowiz.core.memory.ledger import Allocation, AllocationKind, Moment, moment_bytes
from zerowiz.core.memory.rank_sizes import RankSizes
from zerowiz.core.model.types import Model
from zerowiz.core.strategy import Offload
from zerowiz.core.values import Count, shows
from zerowiz.core.workload.choices import Method
from zerowiz.words import N_, _


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
            _("{workers} of each rank", workers=use.workers),
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
    return tuple(each._replace(size_bytes=each.size_bytes * ranks) for each in held)


def _process(ranks: int, size_bytes: int) -> Moment:
    return (Allocation(AllocationKind.PROCESSES, ranks * size_bytes, N_("of each rank")),)


def _built(model: Model, r: RankSizes, ranks: int, use: HostUse) -> Moment:
    """A model with new weights; 4-bit weights are made on the GPU."""
    sharded = r.strategy.shards_weights and r.zero_init
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
