"""The GPUs that a job gets of a machine, by CUDA_VISIBLE_DEVICES and `--gpus`."""

import re
from collections.abc import Mapping, Sequence

from zerowiz.core.machine.types import Gpu, Machine, pick_gpus
from zerowiz.errors import PreflightError, UsageError

# Choose the GPUs of a job by `CUDA_VISIBLE_DEVICES` and `--gpus`.

VARIABLE = "CUDA_VISIBLE_DEVICES"


def visible_gpus(text: str | None, gpus: Sequence[Gpu]) -> tuple[Gpu, ...]:
    """The GPUs that a CUDA process would see, in its order.

    The rules are CUDA's (CUDA programming guide, environment variables; torch.cuda follows them).
    The first bad entry ends the list. An entry that stands twice empties it. The first entry
    decides whether the entries are ordinals or UUIDs, and a UUID may be a unique prefix. Ordinals
    count the GPUs that can be opened, in PCI bus order.

    A process sees at most one MIG slice, and then no whole GPU (MIG user guide, device
    enumeration). Where the variable is not set, whole GPUs are preferred to slices, because a
    launch names them.

    Args:
        text: The variable's value; `None` where it is not set.
        gpus: Every usable GPU of the machine, in NVML's order, one in MIG mode as its slices.
    """
    if text is None:
        whole = tuple(gpu for gpu in gpus if gpu.mig_slice is None)
        return whole or tuple(gpus[:1])
    chosen: list[Gpu] = []
    for entry in text.split(","):
        if text.startswith(("GPU-", "MIG-")):
            matches = [gpu for gpu in gpus if _means(entry, gpu.uuid or "")]
            gpu = matches[0] if entry.startswith(text[:4]) and len(matches) == 1 else None
        else:
            gpu = _find_by_ordinal(entry, gpus)
        if gpu is None:
            break
        if gpu in chosen:
            return ()
        chosen.append(gpu)
    slices = tuple(gpu for gpu in chosen if gpu.mig_slice is not None)
    return slices[:1] or tuple(chosen)


def _find_by_ordinal(entry: str, gpus: Sequence[Gpu]) -> Gpu | None:
    """The GPU of a number; of one in MIG mode its first slice."""
    # CUDA reads the leading digits (C's strtoul), and ignores what follows them in the entry.
    match = re.match(r"\s*\+?(\d{1,99})", entry, re.ASCII)
    ordinal = None if match is None else int(match[1])
    return next((gpu for gpu in gpus if gpu.cuda_ordinal == ordinal), None)


def _means(entry: str, uuid: str) -> bool:
    """Whether an entry is a UUID or a prefix of it; case and text after the UUID do not matter."""
    entry, uuid = entry[:4] + entry[4:].lower(), uuid[:4] + uuid[4:].lower()
    return bool(uuid) and (uuid.startswith(entry) or entry.startswith(uuid))


def why_fewer(text: str, gpus: Sequence[Gpu]) -> str | None:
    """Why CUDA takes fewer GPUs than the list has entries; `None` where it takes all of them.

    An empty list and the usual values for "no GPU" are not worth a note.
    """
    entries, chosen = text.split(","), visible_gpus(text, gpus)
    sliced = any(gpu.mig_slice is not None for gpu in chosen)
    if text.strip() in ("", "-1", "NoDevFiles") or sliced or len(chosen) == len(entries):
        return None
    if not chosen and visible_gpus(entries[0], gpus):
        return "CUDA uses no GPU if one is listed twice"
    return f"CUDA stops at `{_shown(entries[len(chosen)])}`, which is not a GPU here"


def parse_gpus(text: str) -> tuple[str, ...]:
    """The labels in the value of `--gpus`, in its order: NVML indices, `3:1` for a slice.

    Raises:
        UsageError: An entry is no index, or stands twice.
    """
    entries = [entry.strip() for entry in text.split(",")]
    bad = [entry for entry in entries if not re.fullmatch(r"\d{1,4}(:\d{1,2})?", entry, re.ASCII)]
    if bad:
        raise UsageError(
            f"`$gpus {text}`: `{bad[0]}` is not a GPU index",
            "use the indices of `nvidia-smi`, such as `$gpus 0,2,3`",
            "to plan for another machine: `$machine 8xH100-80GB`",
        )
    labels = tuple(":".join(str(int(part)) for part in entry.split(":")) for entry in entries)
    twice = [label for position, label in enumerate(labels) if label in labels[:position]]
    if twice:
        raise UsageError(f"`$gpus {text}` names GPU {twice[0]} twice")
    return labels


def choose_gpus(
    gpus: Sequence[Gpu], *, visible: str | None = None, asked: str | None = None
) -> tuple[Gpu, ...]:
    """The GPUs of the job: those of `--gpus`, else those that CUDA sees.

    Args:
        gpus: Every usable GPU of the machine, in NVML's order, one in MIG mode as its slices.
        visible: The value of `CUDA_VISIBLE_DEVICES`; `None` where it is not set.
        asked: The value of `--gpus`; `None` where it was not given.

    Raises:
        UsageError: `--gpus` names a GPU that does not exist, or that CUDA would not see.
    """
    seen = visible_gpus(visible, gpus)
    if asked is None:
        return seen
    by_label = {gpu.label: gpu for gpu in gpus}
    labels = parse_gpus(asked)
    absent = [label for label in labels if label not in by_label]
    usable = ", ".join(gpu.label for gpu in seen or gpus)
    if absent:
        slices = [label for label in by_label if label.startswith(f"{absent[0]}:")]
        if slices:
            raise UsageError(
                f"`$gpus {asked}`: GPU {absent[0]} is split into MIG slices",
                f"choose one slice: {' or '.join(f'`$gpus {label}`' for label in slices)}",
            )
        raise UsageError(
            f"`$gpus {asked}`: there is no usable GPU {absent[0]}", f"use one of {usable}"
        )
    hidden = [label for label in labels if visible is not None and by_label[label] not in seen]
    if hidden:
        raise UsageError(
            f"`$gpus {asked}` names GPU {hidden[0]}, which `{VARIABLE}={visible}` hides",
            f"unset `{VARIABLE}`, or choose from its GPUs: {usable}",
        )
    return tuple(by_label[label] for label in labels)


ORDER = "CUDA_DEVICE_ORDER"
BUS_ORDER = "PCI_BUS_ID"
"""NVML's order. A launch sets it, because CUDA's default order is the fastest GPU first."""


def select_gpus(machine: Machine, environ: Mapping[str, str], asked: str | None) -> Machine:
    """The machine with the GPUs of `--gpus`, else with those that CUDA sees.

    Args:
        machine: With every usable GPU.
        environ: The job's environment.
        asked: The value of `--gpus`; `None` where it was not given.

    Raises:
        PreflightError: No GPU is left.
        UsageError: `asked` names a GPU that does not exist or is not visible, or it cannot be known
            which GPU a number means.
    """
    visible = environ.get(VARIABLE)
    machine = _check_order(machine, environ, asked)
    chosen = choose_gpus(machine.gpus, visible=visible, asked=asked)
    ended = None if visible is None else why_fewer(visible, machine.gpus)
    if not chosen:
        raise PreflightError(
            f"`{VARIABLE}={_shown(visible)}` hides all {len(machine.gpus)} usable GPUs",
            *([] if ended is None else [f"{ended}"]),
            f"unset `{VARIABLE}`, or give it indices or `GPU-...` UUIDs that exist",
        )
    if ended is not None:
        machine = machine.with_notes(f"`{VARIABLE}={_shown(visible)}`: {ended}")
    slices = [gpu.label for gpu in chosen if gpu.mig_slice is not None]
    if slices and len(slices) < len(chosen):
        raise UsageError(
            (
                f"GPU {', '.join(slices)}: CUDA cannot use a MIG slice and a whole GPU in "
                "one process"
            ),
            "choose whole GPUs, or a single slice",
        )
    by_default = visible is None and asked is None
    picked = pick_gpus(machine, chosen)
    return _note_slices(picked, machine) if by_default else picked


def _shown(text: str | None) -> str:
    """A value of the environment in one line."""
    return "".join(c if c.isprintable() else "?" for c in text or "")


def _note_slices(picked: Machine, whole: Machine) -> Machine:
    """Note the GPUs in MIG mode that were not chosen because there are whole ones."""
    chosen = {gpu.index for gpu in picked.gpus}
    left_out = [gpu for gpu in whole.gpus if gpu.mig_slice is not None and gpu.index not in chosen]
    if not left_out:
        return picked
    indices = ", ".join(str(index) for index in dict.fromkeys(gpu.index for gpu in left_out))
    return picked.with_notes(
        f"GPU {indices} is split into MIG slices and not used; to plan for a slice: "
        f"`$gpus {left_out[0].label}`"
    )


def _check_order(machine: Machine, environ: Mapping[str, str], asked: str | None) -> Machine:
    """The machine with a note of the order of numbers that choose among different GPU models.

    A launch names GPUs by number, also where UUIDs chose them.

    Raises:
        UsageError: NVML does not know the order.
    """
    order, visible = environ.get(ORDER), environ.get(VARIABLE)
    if machine.is_uniform or order == BUS_ORDER or (asked is None and visible is None):
        return machine
    if order is not None:
        raise UsageError(
            f"`{ORDER}={order}` numbers different GPUs in an order that zerowiz cannot know",
            f"to number them as `nvidia-smi` does: `export {ORDER}={BUS_ORDER}`",
        )
    if not visible or visible.startswith(("GPU-", "MIG-")):
        return machine
    remedy = f"CUDA does so only with `{ORDER}={BUS_ORDER}`, which `zerowiz launch` sets"
    return machine.with_notes(f"`{VARIABLE}={visible}` is read in PCI bus order; {remedy}")
