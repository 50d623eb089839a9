"""How long a run takes and what it costs, as a person asks it."""

from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from zerowiz.core.decision.flowchart import Decision
from zerowiz.core.machine_kinds import PriceList
from zerowiz.core.speed.costs import RunLength
from zerowiz.core.units import parse_count
from zerowiz.errors import UsageError
from zerowiz.probe.package_data import read_gpu_table, read_instances
from zerowiz.ui.text import count
from zerowiz.words import _

if TYPE_CHECKING:
    from zerowiz.core.catalog import PlannedRun
    from zerowiz.core.machine.types import Machine


class RunQuestion(Struct, frozen=True, kw_only=True):
    """What a person said of the length of a run and of prices; None is nothing."""

    tokens: str | None = None
    sequences: str | None = None
    epochs: float | None = None
    prices: tuple[str, ...] = ()
    """Each a price, some with names and commas between them, or the path of a file."""

    def length(self, own_epochs: float | None = None) -> RunLength | None:
        """How much is trained on; a billion tokens where a price is said alone.

        Args:
            own_epochs: How often the script trains on its data, if it says so.

        Raises:
            UsageError: The length is said twice, or makes no sense.
        """
        epochs = self._epochs(1.0 if own_epochs is None else own_epochs)
        if self.tokens is not None and self.sequences is not None:
            raise UsageError(
                _(
                    "`$tokens {tokens}` and `$sequences {sequences}` both set the amount of data",
                    tokens=self.tokens,
                    sequences=self.sequences,
                ),
                _("remove one of them"),
            )
        if self.tokens is not None:
            return RunLength(data_tokens=parse_count("tokens", self.tokens), epochs=epochs)
        if self.sequences is not None:
            return RunLength(data_sequences=parse_count("sequences", self.sequences), epochs=epochs)
        if self.epochs is not None:
            raise UsageError(
                _("`$epochs {epochs:g}` needs the size of the data", epochs=self.epochs),
                _("set it with `$tokens 50M` or `$sequences 52k`"),
            )
        return RunLength(data_tokens=_COMPARED_TOKENS) if self.prices else None

    def leaves_epochs(self) -> bool:
        """Whether the data are said, and not how often they are trained on."""
        return self.epochs is None and not (self.tokens is None and self.sequences is None)

    @property
    def assumed(self) -> str | None:
        """That nobody said how much is trained on; None where somebody did, or no run is asked."""
        if not self.prices or self.tokens is not None or self.sequences is not None:
            return None
        words = _("{tokens} tokens of data (`$tokens`)", tokens=count(_COMPARED_TOKENS))
        return _("assumed {assumed}", assumed=words)

    def _epochs(self, script_epochs: float) -> float:
        epochs = script_epochs if self.epochs is None else self.epochs
        if not 0 < epochs <= _MOST_EPOCHS:
            raise UsageError(
                _(
                    "`$epochs {epochs:g}` must be above 0, and at most {most_epochs}",
                    epochs=epochs,
                    most_epochs=_MOST_EPOCHS,
                )
            )
        return epochs

    def read_prices(self, machine: "Machine | None" = None) -> "PriceList":
        """The prices that were said.

        Args:
            machine: That of the job, whose GPUs have names too; None for many machines.

        Raises:
            UsageError: One is no price, is for nothing that is known, or is said twice.
        """
        from zerowiz.core.machine_kinds import (  # noqa: PLC0415 - most plans ask for no price
            read_prices,
            split_prices,
        )
        from zerowiz.probe.machine.machine_file import read_price_file  # noqa: PLC0415 - as above

        amounts: dict[str, str] = {}
        for text in self.prices:
            path = Path(text)
            read = read_price_file(path) if path.suffix in _PRICE_FILES else split_prices(text)
            for name in read.keys() & amounts.keys():
                raise UsageError(
                    _(
                        "`$price` gives two prices{name}",
                        name=_(" of `{name}`", name=name) if name else "",
                    ),
                    _("remove one of them"),
                )
            amounts |= read
        gpus = () if machine is None else tuple(gpu.name for gpu in machine.gpus)
        return read_prices(amounts, read_gpu_table(), read_instances(), gpus)

    def plan_run(
        self, decision: Decision, machine: str | None, own_epochs: float | None = None
    ) -> "PlannedRun | None":
        """The run on the machine of a decision; None where nobody asks for it.

        Args:
            decision: What was decided.
            machine: As `$machine` names it; None for this one.
            own_epochs: How often the script trains on its data, if it says so.

        Raises:
            UsageError: The length or a price makes no sense, or no price is for this machine.
        """
        length = self.length(own_epochs)
        if length is None:
            return None
        from zerowiz.core.catalog import plan_run  # noqa: PLC0415 - most plans ask for no run
        from zerowiz.core.machine.spec import named_instance  # noqa: PLC0415 - as above

        prices = self.read_prices(decision.job.machine)
        instance = named_instance(machine or "", read_instances())
        run = plan_run(decision, length, prices, None if instance is None else instance.name)
        if prices.prices and run.price_per_hour is None:
            raise UsageError(
                _("`$price` has no price for {gpus}", gpus=decision.job.machine.gpus[0].name),
                _("`$price 2.50/gpu-hour`, without a name, applies to any machine"),
            )
        return run


# Where a price is said and no length is: what machines and strategies are compared by.
_COMPARED_TOKENS = 10**9
_PRICE_FILES = frozenset({".toml", ".json"})
_MOST_EPOCHS = 100_000
