"""Save a DeepSpeed run so that it goes on under any ZeRO stage, with or without offload.

DeepSpeed's own checkpoint loads only where the stage is the same (1 and 2 read each other's). This
one keeps what the stages have in common: weights, fp32 masters and the optimizer's moments by the
parameter's name, the optimizer's steps, learning rates, schedule, loss scale, random numbers.

    check_savable(engine)
    done = load(engine, output_dir).step
    save(engine, output_dir, step=step)

All ranks call all of them. Rank 0 alone writes and reads, 64 MiB at a time: the other nodes need
not see its file system, and no GPU and no host holds more of it. Copy this folder beside your
script.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

import torch
from deepspeed import DeepSpeedEngine
from torch import distributed as dist

from portable_checkpoint.files import (
    FORMAT,
    Spec,
    TensorWriter,
    new_checkpoint,
    read_marker,
    read_specs,
    read_values,
    whole_checkpoints,
    write_marker,
    write_others,
)
from portable_checkpoint.layout import (
    Held,
    counts,
    elementwise_states,
    find_pieces,
    held_weights,
    is_replicated,
    is_sharded,
    make_states,
    shape_of,
    stepped,
)
from portable_checkpoint.state import (
    read_counts,
    read_randoms,
    read_steps,
    restore_counts,
    restore_randoms,
    restore_steps,
)

# The files that are not named for a moment of the optimizer, as `exp_avg` is.
_WEIGHTS, _MASTERS = "model", "master"
# 64 MiB in fp32: what is on its way at a time.
_CHUNK = 2**24


Specs = dict[str, dict[str, Spec]]
"""The tensors of each file."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Loaded:
    """Where a run goes on; step 0 is its start."""

    step: int = 0
    extra: dict[str, Any] = field(default_factory=dict)
    """What the script gave to `save`."""
    randoms: Sequence[dict[str, Any]] = ()
    """Each rank's random numbers, set already; for a script that draws some before it goes on."""


class _Run:
    """An engine, and what of its tensors lies where."""

    def __init__(self, engine: DeepSpeedEngine) -> None:
        self.engine = engine
        self.rank = dist.get_rank()
        self.params = dict(engine.module.named_parameters())
        kept = engine.module.state_dict().keys()
        self.buffers = {n: b for n, b in engine.module.named_buffers() if n in kept}
        self.pieces = find_pieces(engine)
        self.flats = stepped(engine, self.pieces)

    def trains(self, name: str) -> bool:
        return name in self.params and self.params[name] in self.pieces

    def moments(self) -> list[str]:
        return list(elementwise_states(self.engine.basic_optimizer, self.flats[0]))

    def flat(self, flat: torch.Tensor, key: str) -> torch.Tensor:
        return flat if key == _MASTERS else self.engine.basic_optimizer.state[flat][key]

    def held(self, name: str, key: str) -> list[Held]:
        """This rank's elements of a master weight or of a moment."""
        piece = self.pieces[self.params[name]]
        return [] if piece is None else [piece.of(self.flat(piece.flat, key))]


def check_savable(engine: DeepSpeedEngine, *, frozen: bool = True) -> None:
    """See before the first step that `save` will know this engine; hours later it costs a run.

    Args:
        engine: As it was built.
        frozen: As for `save`.

    Raises:
        NotImplementedError: States or weights on NVMe, MoE layers, weights that DeepSpeed stores
            quantized. Which states an optimizer keeps shows after its first step alone.
    """
    run = _Run(engine)
    for name, p in run.params.items():
        if frozen or run.trains(name):
            held_weights(p)


def save(
    engine: DeepSpeedEngine,
    output_dir: Path,
    *,
    step: int,
    keep: int = 2,
    frozen: bool = True,
    extra: dict[str, Any] | None = None,
    texts: Mapping[str, str] | None = None,
) -> None:
    """Write `OUTPUT_DIR/checkpoint-STEP`, whole or not at all, and remove older ones.

    Args:
        engine: Between two optimizer steps.
        output_dir: Where rank 0 writes.
        step: How many steps the run has taken.
        keep: How many checkpoints stay; 0: all.
        frozen: Whether weights that are not trained are written too; else `load` leaves them be.
        extra: What the script wants back: numbers, text, tensors, lists and dicts of them.
        texts: Further files of the checkpoint, as the model's `config.json`.
    """
    run = _Run(engine)
    steps = read_steps(engine, run.params, run.pieces)
    randoms = read_randoms()
    moments = run.moments()
    with ExitStack() as stack:
        folder = None
        if run.rank == 0:
            folder = stack.enter_context(new_checkpoint(output_dir, step, keep))
        _write_weights(run, folder, frozen=frozen)
        for key in (_MASTERS, *moments):
            _write_masters(run, folder, key)
        if folder is not None:
            schedule = engine.lr_scheduler and engine.lr_scheduler.state_dict()
            write_others(folder, {"schedule": schedule, "randoms": randoms, "extra": extra or {}})
            for name, text in (texts or {}).items():
                (folder / name).write_text(text)
            stage = engine.zero_optimization_stage()
            counted = {"moments": moments, "optimizer_steps": steps, **read_counts(engine)}
            write_marker(folder, {"step": step, "stage": stage, **counted})
    dist.barrier()


def _write_weights(run: _Run, folder: Path | None, *, frozen: bool) -> None:
    """The model in its own precision, as `from_pretrained` reads it."""
    names = [name for name in run.params if frozen or run.trains(name)]
    specs = [_spec(run, name, run.params[name].dtype) for name in names]
    buffers = run.buffers if frozen else {}
    specs += [Spec(name=n, shape=tuple(b.shape), dtype=b.dtype) for n, b in buffers.items()]
    with TensorWriter.of(folder, _WEIGHTS, specs) as writer:
        for spec in specs:
            if spec.name in buffers:
                held = [Held(values=buffers[spec.name].view(-1), start=0)]
                _collect(run, spec, held, writer, whole=True)
            else:
                p = run.params[spec.name]
                held = held_weights(p)[:1] if counts(p) else []
                _collect(run, spec, held, writer, whole=not is_sharded(p))


def _write_masters(run: _Run, folder: Path | None, key: str) -> None:
    """The masters, where they are not the weights themselves; or one of the moments."""
    dtype = run.flat(run.flats[0], key).dtype
    specs = [
        _spec(run, name, dtype)
        for name, p in run.params.items()
        if run.trains(name) and not (key == _MASTERS and dtype == p.dtype)
    ]
    if not specs:
        return
    with TensorWriter.of(folder, key, specs) as writer:
        for spec in specs:
            held = run.held(spec.name, key) if counts(run.params[spec.name]) else []
            _collect(run, spec, held, writer, whole=is_replicated(run.engine))


def _spec(run: _Run, name: str, dtype: torch.dtype) -> Spec:
    return Spec(name=name, shape=shape_of(run.params[name]), dtype=dtype)


def _collect(
    run: _Run, spec: Spec, held: list[Held], writer: TensorWriter | None, *, whole: bool
) -> None:
    """Bring a tensor together on rank 0, bit for bit: where one rank has bits, the others add 0."""
    for start, count in _chunks(spec.numel):
        if whole:
            if writer is not None:
                writer.write(held[0].values[start : start + count])
            continue
        values = torch.zeros(count, dtype=spec.dtype, device=run.engine.device)
        for each in held:
            if overlap := each.overlap(start, count):
                values[overlap[0]].copy_(each.values[overlap[1]])
        dist.reduce(values.view(torch.uint8), dst=0)
        if writer is not None:
            writer.write(values)


def newest(output_dir: Path) -> Path | None:
    """The newest whole checkpoint of a folder."""
    return next(reversed(whole_checkpoints(output_dir)), None)


def load(engine: DeepSpeedEngine, output_dir: Path) -> Loaded:
    """Go on from the newest whole checkpoint of a folder; from the start where there is none.

    Args:
        engine: Before its first step.
        output_dir: A folder of checkpoints, or one checkpoint; rank 0 alone reads it.
    """
    run = _Run(engine)
    found: list[Any] = [_read(run, output_dir) if run.rank == 0 else None]
    dist.broadcast_object_list(found)
    if found[0] is None:
        return Loaded()
    if isinstance(found[0], str):
        _refuse(run, found[0])
    folder, marker, specs, others = found[0]
    if marker["moments"]:
        make_states(engine, run.flats)
        if marker["moments"] != run.moments():
            _refuse(run, f"{folder} has {marker['moments']}, this optimizer has {run.moments()}")
    _fill(run, folder, specs, marker["moments"])
    restore_counts(engine, marker)
    restore_steps(engine, run.params, run.pieces, run.flats, marker["optimizer_steps"])
    if engine.lr_scheduler is not None and others["schedule"] is not None:
        engine.lr_scheduler.load_state_dict(others["schedule"])
    restore_randoms(others["randoms"])
    dist.barrier()
    if run.rank == 0:
        print(f"resumed from {folder}, after step {marker['step']}", flush=True)
    return Loaded(step=marker["step"], extra=others["extra"], randoms=others["randoms"])


def _refuse(run: _Run, why: str) -> NoReturn:
    sys.exit(f"error: {why}" if run.rank == 0 else 1)


def _read(run: _Run, output_dir: Path) -> tuple[Any, ...] | str | None:
    """All but the tensors; or why it cannot be taken."""
    folder = output_dir if read_marker(output_dir) else newest(output_dir)
    if folder is None:
        return None
    marker = read_marker(folder)
    if marker["format"] != FORMAT:
        return f"{folder} is of format {marker['format']}, and this script reads {FORMAT}"
    specs = {path.stem: read_specs(path) for path in folder.glob("*.safetensors")}
    there = {name: spec.shape for name, spec in specs[_WEIGHTS].items()}
    here = {name: shape_of(p) for name, p in run.params.items()}
    here |= {name: tuple(buffer.shape) for name, buffer in run.buffers.items()}
    trained = {name for name in run.params if run.trains(name)}
    for name in sorted(there.keys() | trained):
        if there.get(name) != here.get(name):
            shapes = f"{name} is {there.get(name)} there, {here.get(name)} here"
            return f"{folder} is of another model: {shapes}"
    return folder, marker, specs, torch.load(folder / "others.pt", weights_only=True)


def _fill(run: _Run, folder: Path, specs: Specs, moments: Sequence[str]) -> None:
    """Bring all tensors from rank 0's files to where they belong."""
    with ExitStack() as stack:
        paths = [folder / f"{key}.safetensors" for key in specs] if run.rank == 0 else []
        files = {path.stem: stack.enter_context(path.open("rb")) for path in paths}
        for name in (*run.params, *run.buffers):
            for key, held in _targets(run, name, specs, moments):
                _spread(run, specs[key][name], files.get(key), held)
    if hasattr(run.engine.optimizer, "invalidate_secondary_tensor"):  # hpZ's copies are old now
        run.engine.optimizer.invalidate_secondary_tensor()


def _targets(
    run: _Run, name: str, specs: Specs, moments: Sequence[str]
) -> Iterator[tuple[str, list[Held]]]:
    """Which tensors of the files go where."""
    if name in run.buffers:
        held = [Held(values=run.buffers[name].view(-1), start=0)]
    else:
        held = held_weights(run.params[name])
    if run.trains(name):
        held += run.held(name, _MASTERS)
        for moment in moments:
            yield moment, run.held(name, moment)
    # A weight is its master rounded: every step ends so (deepspeed 0.19.8, each wrapper's `step`).
    source = _MASTERS if name in specs.get(_MASTERS, {}) else _WEIGHTS
    if name in specs[source]:
        yield source, held


def _spread(run: _Run, spec: Spec, file: BinaryIO | None, held: list[Held]) -> None:
    """Bring a tensor from rank 0's file to all that hold a part of it."""
    for start, count in _chunks(spec.numel):
        values = torch.empty(count, dtype=spec.dtype, device=run.engine.device)
        if file is not None:
            values.copy_(read_values(file, spec, start, count))
        dist.broadcast(values.view(torch.uint8), src=0)
        for each in held:
            if overlap := each.overlap(start, count):
                each.values[overlap[1]].copy_(values[overlap[0]])


def _chunks(numel: int) -> Iterator[tuple[int, int]]:
    return ((start, min(_CHUNK, numel - start)) for start in range(0, numel, _CHUNK))
