"""Reduce a machine to the GPUs of a job."""

from collections.abc import Mapping, Sequence

from zerowiz.core.machine.cuda_visible import VARIABLE, choose_gpus, why_fewer
from zerowiz.core.machine.types import Gpu, Machine, pick_gpus
from zerowiz.errors import PreflightError, UsageError
from zerowiz.words import _, listing

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
    _check_order(machine, environ, asked)
    machine = _note_unlike(machine, environ)
    chosen = choose_gpus(machine.gpus, visible=visible, asked=asked)
    ended = None if visible is None else why_fewer(visible, machine.gpus)
    if not chosen:
        raise PreflightError(
            _(
                "`{variable}={visible}` hides all {gpus} usable GPUs",
                variable=VARIABLE,
                visible=_shown(visible),
                gpus=len(machine.gpus),
            ),
            *([] if ended is None else [f"{ended}"]),
            f"unset `{VARIABLE}`, or give it indices or `GPU-...` UUIDs that exist",
        )
    if ended is not None:
        machine = machine.with_notes(f"`{VARIABLE}={_shown(visible)}`: {ended}")
    _refuse_mixture(chosen)
    by_default = visible is None and asked is None
    picked = pick_gpus(machine, chosen)
    return _note_slices(picked, machine) if by_default else picked


def _shown(text: str | None) -> str:
    """A value of the environment in one line."""
    return "".join(c if c.isprintable() else "?" for c in text or "")


def _refuse_mixture(chosen: Sequence[Gpu]) -> None:
    slices = [gpu.label for gpu in chosen if gpu.mig_slice is not None]
    if slices and len(slices) < len(chosen):
        raise UsageError(
            _(
                "GPU {slices}: CUDA cannot use a MIG slice and a whole GPU in one process",
                slices=listing(slices),
            ),
            _("choose whole GPUs, or a single slice"),
        )


def _note_slices(picked: Machine, whole: Machine) -> Machine:
    """Note the GPUs in MIG mode that were not chosen because there are whole ones."""
    chosen = {gpu.index for gpu in picked.gpus}
    left_out = [gpu for gpu in whole.gpus if gpu.mig_slice is not None and gpu.index not in chosen]
    if not left_out:
        return picked
    indices = listing(str(index) for index in dict.fromkeys(gpu.index for gpu in left_out))
    return picked.with_notes(
        _(
            "GPU {indices} is split into MIG slices and not used; to plan for a slice: "
            "`$gpus {label}`",
            indices=indices,
            label=left_out[0].label,
        )
    )


def _is_by_number(visible: str) -> bool:
    return bool(visible) and not visible.startswith(("GPU-", "MIG-"))


def _check_order(machine: Machine, environ: Mapping[str, str], asked: str | None) -> None:
    """Refuse numbers of different GPU models in an order that NVML does not know.

    A launch names GPUs by number, also where UUIDs chose them.
    """
    order = environ.get(ORDER)
    chosen = asked is not None or environ.get(VARIABLE) is not None
    if machine.is_uniform or order in (None, BUS_ORDER) or not chosen:
        return
    raise UsageError(
        _(
            "`{variable}={order}` numbers different GPUs in an order that zerowiz cannot know",
            variable=ORDER,
            order=order,
        ),
        _(
            "to number them as `nvidia-smi` does: `export {order}={bus_order}`",
            order=ORDER,
            bus_order=BUS_ORDER,
        ),
    )


def _note_unlike(machine: Machine, environ: Mapping[str, str]) -> Machine:
    """Note the order of the numbers, where they choose among different GPU models."""
    visible = environ.get(VARIABLE, "")
    if machine.is_uniform or environ.get(ORDER) == BUS_ORDER or not _is_by_number(visible):
        return machine
    remedy = _(
        "CUDA does so only with `{order}={bus_order}`, which `zerowiz launch` sets",
        order=ORDER,
        bus_order=BUS_ORDER,
    )
    return machine.with_notes(
        _(
            "`{variable}={visible}` is read in PCI bus order; {remedy}",
            variable=VARIABLE,
            visible=visible,
            remedy=remedy,
        )
    )
