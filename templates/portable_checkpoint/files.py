"""Write a checkpoint's files as a stream, and put its folder in place whole or not at all.

Nothing here knows DeepSpeed: `portable_checkpoint` decides what is written.
"""

import json
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

import torch

# Written last: a folder that holds it is whole.
MARKER = "portable.json"
FORMAT = 1

# Being written, or being removed.
_PARTIAL = ".{}.partial"
# Whole still, while a new one of the same step takes its place.
_REPLACED = ".{}.replaced"
_NAME = re.compile(r"checkpoint-(\d+)|\.checkpoint-(\d+)\.replaced")

# The safetensors format, section "Format" (github.com/huggingface/safetensors).
_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
_CODES = {dtype: code for code, dtype in _DTYPES.items()}


@dataclass(frozen=True, kw_only=True, slots=True)
class Spec:
    """A tensor of a file."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    offset_bytes: int = 0
    """From the file's start; known once the file is written."""

    @property
    def numel(self) -> int:
        """How many elements it has."""
        return prod(self.shape)


class TensorWriter:
    """A safetensors file, written from its start to its end."""

    def __init__(self, path: Path, specs: Sequence[Spec]) -> None:
        header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
        end = 0
        for spec in specs:
            start, end = end, end + spec.numel * spec.dtype.itemsize
            header[spec.name] = {
                "dtype": _CODES[spec.dtype],
                "shape": list(spec.shape),
                "data_offsets": [start, end],
            }
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        self._file = path.open("wb")
        self._file.write(len(text).to_bytes(8, "little") + text)

    def write(self, values: torch.Tensor) -> None:
        """Append the next elements."""
        flat = values.detach().cpu().contiguous().view(-1).view(torch.uint8)
        self._file.write(memoryview(flat.numpy()))

    @classmethod
    @contextmanager
    def of(
        cls, folder: Path | None, name: str, specs: Sequence[Spec]
    ) -> Iterator["TensorWriter | None"]:
        """A file of a folder, on the disk when the block ends; none where there is no folder."""
        if folder is None:
            yield None
            return
        writer = cls(folder / f"{name}.safetensors", specs)
        with writer._file:
            yield writer
            _flush(writer._file)


def read_specs(path: Path) -> dict[str, Spec]:
    """The tensors of a safetensors file."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(length))
    header.pop("__metadata__", None)
    return {
        name: Spec(
            name=name,
            shape=tuple(entry["shape"]),
            dtype=_DTYPES[entry["dtype"]],
            offset_bytes=8 + length + entry["data_offsets"][0],
        )
        for name, entry in header.items()
    }


def read_values(file: BinaryIO, spec: Spec, start: int, count: int) -> torch.Tensor:
    """Some elements of a tensor in an open file."""
    values = bytearray(count * spec.dtype.itemsize)
    file.seek(spec.offset_bytes + start * spec.dtype.itemsize)
    if file.readinto(values) != len(values):
        raise OSError(f"{file.name} ends within {spec.name}")
    return torch.frombuffer(values, dtype=spec.dtype)


def read_marker(folder: Path) -> dict[str, Any] | None:
    """What a whole checkpoint says of itself; None where it is not one of ours, or not whole."""
    try:
        marker = json.loads((folder / MARKER).read_text())
    except (OSError, ValueError):
        return None
    return marker if isinstance(marker, dict) and "format" in marker else None


def whole_checkpoints(output_dir: Path) -> list[Path]:
    """The whole checkpoints of a folder, in the order in which they were saved.

    No clock is asked: each save counts those before it. A run that was started again from its
    beginning saves lower steps than it finds, and a clock can be set back.
    """
    found: dict[int, tuple[int, Path]] = {}
    for form in (_REPLACED, "{}"):  # the one in its place comes last, and is taken
        for folder in output_dir.glob(form.format("checkpoint-*")):
            named, marker = _NAME.fullmatch(folder.name), read_marker(folder)
            if named is not None and marker is not None:
                # Before saves were counted, markers held a time alone.
                found[int(named[1] or named[2])] = marker.get("saves", 0), folder
    return [found[step][1] for step in sorted(found, key=lambda step: (found[step][0], step))]


@contextmanager
def new_checkpoint(output_dir: Path, step: int, keep: int) -> Iterator[Path]:
    """A folder to fill, put in place when the block ends well; then old ones are removed.

    At every moment the last whole checkpoint is there: one of the same step is moved aside before
    this one takes its place, and goes last.

    Args:
        output_dir: The folder of the checkpoints.
        step: Which becomes a part of its name.
        keep: How many checkpoints stay, 0 for all; folders of others are never touched.
    """
    output_dir.mkdir(parents=True, exist_ok=True)
    _clear_up(output_dir)
    folder = output_dir / f"checkpoint-{step}"
    if folder.exists() and read_marker(folder) is None:
        raise FileExistsError(f"{folder} is not one of our checkpoints: move it, or save elsewhere")
    partial = output_dir / _PARTIAL.format(folder.name)
    partial.mkdir()
    yield partial
    _flush_folder(partial)
    replaced = output_dir / _REPLACED.format(folder.name)
    if folder.exists():
        folder.rename(replaced)
    partial.rename(folder)
    _flush_folder(output_dir)
    if replaced.exists():
        _remove(replaced)
    for old in whole_checkpoints(output_dir)[:-keep]:
        _remove(old)


def _clear_up(output_dir: Path) -> None:
    """Undo a save that was ended before its end."""
    for partial in output_dir.glob(_PARTIAL.format("checkpoint-*")):
        shutil.rmtree(partial)
    for replaced in output_dir.glob(_REPLACED.format("checkpoint-*")):
        folder = output_dir / replaced.name.removeprefix(".").removesuffix(".replaced")
        if folder.exists():
            _remove(replaced)
        else:
            replaced.rename(folder)


def write_others(folder: Path, others: dict[str, Any]) -> None:
    """What has no shape of the model's, in `others.pt`."""
    with (folder / "others.pt").open("wb") as file:
        torch.save(others, file)
        _flush(file)


def write_marker(folder: Path, says: dict[str, Any]) -> None:
    """Call what was written whole, and the newest of its folder."""
    markers = map(read_marker, whole_checkpoints(folder.parent))
    before = max((marker.get("saves", 0) for marker in markers if marker), default=0)
    says = {"format": FORMAT, "saves": before + 1, **says}
    with (folder / MARKER).open("wb") as file:
        file.write(json.dumps(says, indent=1).encode())
        _flush(file)


def _remove(folder: Path) -> None:
    """Take a checkpoint out of sight before its files go, so that none is ever seen in part."""
    name = _PARTIAL.format(folder.name.removeprefix("."))
    shutil.rmtree(folder.rename(folder.with_name(name)))


def _flush(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())


def _flush_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
