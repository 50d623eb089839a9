"""What a search may choose, and what it looks for."""

from enum import StrEnum

from msgspec import Struct

from zerowiz.core.workload.choices import Attention, Loss


class Objective(StrEnum):
    """The values of `--objective`."""

    FLOWCHART = "flowchart"
    """The strategy of the flowchart; the batch is split so that it is fastest."""
    FASTEST = "fastest"
    """The least predicted time of a step, whatever the strategy."""
    SMALLEST = "smallest"
    """The least memory of each device."""


class Freedom(Struct, frozen=True, kw_only=True):
    """The settings of a job that nobody decided, and that reach the ranks if they are chosen.

    What is said on a command line, in a config or in a script stays as it is. The global batch is
    never open: micro-batch times accumulation steps stays what it is in the job.
    """

    split: bool = False
    """The micro-batch, and with it the accumulation steps."""
    checkpointing: tuple[bool, ...] = ()
    """Whether gradient checkpointing could be on, or off, instead of as in the job."""
    attention: tuple[Attention, ...] = ()
    """The kernels that could be taken instead of the job's."""
    losses: tuple[Loss, ...] = ()
    """The losses that could be taken instead of the job's."""

    @property
    def names(self) -> tuple[str, ...]:
        """What a search may choose, by its names in options and in the step."""
        is_open = {
            "micro_batch": self.split,
            "accumulation_steps": self.split,
            "gradient_checkpointing": self.checkpointing,
            "attention": self.attention,
            "loss": self.losses,
        }
        return tuple(name for name, others in is_open.items() if others)
