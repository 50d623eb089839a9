"""Find the changes of a job after which it fits more of the GPUs of the table."""

from collections.abc import Callable, Collection, Iterator, Sequence

from msgspec import Struct

from zerowiz.core.catalog.offers import Decide, Offers, count_fitting
from zerowiz.core.machine.names.gpus import GpuModel
from zerowiz.core.settings import Change

# Those that cost least come first. A host of two terabytes is that of eight GPUs.
_CHANGES: tuple[Change, ...] = (
    {"gradient_checkpointing": True},
    {"host_memory": "2TB"},
    {"method": "lora"},
    {"gradient_checkpointing": True, "method": "lora"},
)


class WiderFit(Struct, frozen=True, kw_only=True):
    """A change of options, and how many of the GPUs that are too small the job then fits."""

    change: Change
    kinds: int


def find_wider_fits(
    found: Offers,
    said: Collection[str],
    table: Sequence[GpuModel],
    decide_with: Callable[[Change], Decide],
) -> Iterator[WiderFit]:
    """The changes after which the job fits GPUs that are too small; none where most are not.

    Args:
        found: The machines that it fits as it is.
        said: The options that a person gave; no change of one is offered.
        table: The GPUs, by which machines are built.
        decide_with: How the job is planned for a machine after a change.
    """
    if 2 * found.kinds_without < found.kinds:
        return
    most = 0
    for change in _CHANGES:
        if change.keys() & said:
            continue
        kinds = count_fitting(found.too_small, table, decide_with(change))
        # A combination is worth it where it does more than one change.
        if kinds > (most if len(change) > 1 else 0):
            yield WiderFit(change=change, kinds=kinds)
        most = max(most, kinds)
