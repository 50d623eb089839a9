"""Read the tensors of a checkpoint from the headers of its safetensors files, without weights."""

import operator
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from zerowiz.core.codec import parse_json
from zerowiz.core.model.checkpoint_check import Stored, StoredTensor
from zerowiz.errors import UsageError
from zerowiz.probe.named_file import read_named
from zerowiz.words import _

_WEIGHTS, _INDEX = "model.safetensors", "model.safetensors.index.json"
# safetensors, src/tensor.rs: N_LEN, MAX_HEADER_SIZE.
_LENGTH_BYTES = 8
_LARGEST_HEADER_BYTES = 100_000_000
_CUT_SHORT = _("download the file again if it is incomplete")


def parse_header(where: str, content: bytes) -> tuple[StoredTensor, ...]:
    """The tensors that a header names.

    Args:
        where: What errors call the file.
        content: The header's JSON.

    Raises:
        UsageError: It is no header of safetensors.
    """
    try:
        entries = cast("Any", parse_json(content))
        return tuple(
            StoredTensor(name=name, dtype=str(entry["dtype"]), shape=_shape(entry["shape"]))
            for name, entry in entries.items()
            if name != "__metadata__"
        )
    except (ValueError, AttributeError, KeyError, TypeError) as error:
        raise UsageError(
            _("{where} is not a safetensors file: its header is invalid", where=where), _CUT_SHORT
        ) from error


def _shape(sizes: Sequence[object]) -> tuple[int, ...]:
    shape = tuple(operator.index(cast("Any", size)) for size in sizes)
    if any(size < 0 for size in shape):
        raise ValueError(shape)
    return shape


def parse_index(where: str, content: bytes) -> Sequence[str]:
    """The files that an index names, each once.

    Args:
        where: What errors call the file.
        content: The file's JSON.

    Raises:
        UsageError: It is no index.
    """
    try:
        index = cast("Any", parse_json(content))
        return sorted({os.fspath(name) for name in index["weight_map"].values()})
    except (ValueError, AttributeError, KeyError, TypeError) as error:
        raise UsageError(
            _("{where} is not an index of safetensors", where=where), _CUT_SHORT
        ) from error


def _read_header(path: Path) -> tuple[StoredTensor, ...]:
    with path.open("rb") as file:
        length_bytes = int.from_bytes(file.read(_LENGTH_BYTES), "little")
        # In another kind of file, the length could be that of the whole file.
        content = file.read(length_bytes) if length_bytes <= _LARGEST_HEADER_BYTES else b""
    return parse_header(f"`{path}`", content)


def _find_files(folder: Path) -> Iterator[Path]:
    """The files with the weights; in an unfinished download some are missing."""
    index, weights = folder / _INDEX, folder / _WEIGHTS
    if index.is_file():
        names = parse_index(f"`{index}`", read_named(index))
        yield from (folder / name for name in names)
    elif weights.is_file():
        yield weights


def read_stored(folder: Path) -> Stored | None:
    """The tensors of the checkpoint in a folder; None if there is none, or only a part of one.

    Raises:
        UsageError: A file is not of the kind that its name says.
    """
    paths = list(_find_files(folder))
    if not paths or not all(path.is_file() for path in paths):
        return None
    tensors: Mapping[str, StoredTensor] = {
        tensor.name: tensor for path in paths for tensor in _read_header(path)
    }
    return Stored(tensors=tuple(tensors.values()))
