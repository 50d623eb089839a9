"""Ask which changes of a job would make it fit on more GPUs of the table."""

from collections.abc import Callable, Iterator, Sequence

from msgspec import Struct

from zerowiz.app.options import Options, with_plain
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
    """A change of options, and how many more GPUs the job then fits."""

    change: Change
    kinds: int


def find_wider_fits(
    found: Offers,
    options: Options,
    table: Sequence[GpuModel],
    decide_with: Callable[[Options], Decide],
) -> tuple[WiderFit, ...]:
    """The changes after which the job fits GPUs that were too small; none where most do fit.

    Args:
        found: The machines that it fits as it is.
        options: What was said; a change of that is not offered.
        table: The GPUs, by which machines are built.
        decide_with: How options are planned for a machine.
    """
    if 2 * found.kinds_without < found.kinds:
        return ()

    def fits() -> Iterator[WiderFit]:
        most = 0
        for change in _CHANGES:
            if any(getattr(options, name) is not None for name in change):
                continue
            decide = decide_with(with_plain(options, change))
            kinds = count_fitting(found.too_small, table, decide)
            # A combination is worth it where it does more than one change.
            if kinds > (most if len(change) > 1 else 0):
                yield WiderFit(change=change, kinds=kinds)
            most = max(most, kinds)

    return tuple(fits())
