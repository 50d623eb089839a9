"""Resolve which GPUs `CUDA_VISIBLE_DEVICES` and `--gpus` leave to the job."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from zerowiz.errors import UsageError

VARIABLE = "CUDA_VISIBLE_DEVICES"

# strtoul: as many digits as there are; what follows them in the entry is ignored.
_ORDINAL = re.compile(r"[+-]?\d+", re.ASCII)


@dataclass(frozen=True, kw_only=True, slots=True)
class GpuId:
    """A GPU's two names."""

    index: int
    """NVML's."""
    uuid: str | None = None


def visible_gpus(text: str | None, gpus: Sequence[GpuId]) -> tuple[GpuId, ...]:
    """The GPUs that a CUDA process would see, in its order.

    The rules are CUDA's (CUDA programming guide, environment variables; torch.cuda follows them):
    the first bad entry ends the list, an entry given twice empties it, the first entry decides
    whether it is read as ordinals or as UUIDs, and a UUID may be a unique prefix. Ordinals count
    the usable GPUs in PCI bus order.

    Args:
        text: The variable's value; `None` when it is not set.
        gpus: Every usable GPU of the machine, in NVML's order.

    Raises:
        UsageError: The list names MIG slices.
    """
    if text is None:
        return tuple(gpus)
    if text.lstrip().startswith("MIG-"):
        raise UsageError(
            f"`{VARIABLE}={text}` names a MIG slice, which cannot be planned for",
            "a process gets one slice and slices have no links, so ZeRO has nothing to divide",
            f"name whole GPUs in `{VARIABLE}`, or unset it and choose with `--gpus`",
        )
    by_uuid = text.startswith("GPU-")
    return _visible_by_uuid(text, gpus) if by_uuid else _visible_by_ordinal(text, gpus)


def _visible_by_ordinal(text: str, gpus: Sequence[GpuId]) -> tuple[GpuId, ...]:
    ordinals: list[int] = []
    for entry in text.split(","):
        match = _ORDINAL.match(entry.strip())
        ordinal = -1 if match is None else int(match[0])
        if ordinal < 0:
            break
        if ordinal in ordinals:
            return ()
        ordinals.append(ordinal)
    known = [ordinal < len(gpus) for ordinal in ordinals]
    stop = known.index(False) if False in known else len(known)
    return tuple(gpus[ordinal] for ordinal in ordinals[:stop])


def _visible_by_uuid(text: str, gpus: Sequence[GpuId]) -> tuple[GpuId, ...]:
    chosen: list[GpuId] = []
    for prefix in text.split(","):
        matches = [gpu for gpu in gpus if prefix and (gpu.uuid or "").startswith(prefix)]
        if not prefix.startswith("GPU-") or len(matches) != 1:
            break
        if matches[0] in chosen:
            return ()
        chosen.append(matches[0])
    return tuple(chosen)


def parse_gpus(text: str) -> tuple[int, ...]:
    """The NVML indices that `--gpus 0,2,3` asks for, in that order.

    Raises:
        UsageError: An entry is no index, or stands twice.
    """
    entries = [entry.strip() for entry in text.split(",")]
    bad = [entry for entry in entries if not re.fullmatch(r"\d{1,4}", entry, re.ASCII)]
    if bad:
        raise UsageError(
            f"`--gpus {text}`: `{bad[0]}` is no GPU index",
            "give indices as `nvidia-smi` shows them, such as `--gpus 0,2,3`",
        )
    indices = tuple(int(entry) for entry in entries)
    twice = [index for position, index in enumerate(indices) if index in indices[:position]]
    if twice:
        raise UsageError(f"`--gpus {text}` names GPU {twice[0]} twice")
    return indices


def choose_gpus(
    gpus: Sequence[GpuId], *, visible: str | None = None, asked: str | None = None
) -> tuple[GpuId, ...]:
    """The GPUs of the job: those of `--gpus`, else those that CUDA sees.

    Args:
        gpus: Every usable GPU of the machine, in NVML's order.
        visible: The value of `CUDA_VISIBLE_DEVICES`; `None` when it is not set.
        asked: The value of `--gpus`; `None` when it was not given.

    Raises:
        UsageError: `--gpus` names a GPU that is not there, or that CUDA would not see.
    """
    seen = visible_gpus(visible, gpus)
    if asked is None:
        return seen
    by_index = {gpu.index: gpu for gpu in gpus}
    indices = parse_gpus(asked)
    absent = [index for index in indices if index not in by_index]
    if absent:
        known = ", ".join(str(index) for index in by_index)
        raise UsageError(
            f"`--gpus {asked}`: there is no usable GPU {absent[0]}", f"usable here are {known}"
        )
    hidden = [index for index in indices if by_index[index] not in seen]
    if hidden:
        raise UsageError(
            f"`--gpus {asked}` names GPU {hidden[0]}, which `{VARIABLE}={visible}` hides",
            f"unset `{VARIABLE}`, or choose within it",
        )
    return tuple(by_index[index] for index in indices)
