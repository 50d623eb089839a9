"""Read what an hour of a machine costs, and find the price of one."""

import re
from collections.abc import Mapping, Sequence
from enum import StrEnum

from msgspec import Struct

from zerowiz.core.machine.names.find import close_names, find_model
from zerowiz.core.machine.names.gpus import GpuModel, match_models, mean_models
from zerowiz.core.machine.names.instances import Instance, find_instance
from zerowiz.core.machine.names.phrase import Phrase, likely_phrase
from zerowiz.core.machine.spec import read_spec
from zerowiz.core.machine.types import Machine
from zerowiz.core.values import replace
from zerowiz.errors import UsageError
from zerowiz.words import _, joined, listing

_AMOUNT = re.compile(
    r"([$€£¥]?)\s*(\d{1,12}(?:\.\d{1,9})?)\s*([A-Za-z]{3})?\s*/\s*(gpu|node)-(?:hour|hr|h)",
    re.IGNORECASE,
)
# As half of the world writes 2.50.
_DECIMAL_COMMA = re.compile(r"(\D*\d+),(\d{1,2}\D*)")
_HINTS = (
    _("write `$price 2.50/gpu-hour` or `$price 32/node-hour`"),
    _("of several machines: `$price H100-80GB=2.50/gpu-hour,p5.48xlarge=98/node-hour`"),
    _('or a file, in TOML with `"H100-80GB" = "2.50/gpu-hour"`'),
)


class PriceUnit(StrEnum):
    """What is paid for by the hour."""

    GPU = "gpu"
    NODE = "node"


class Price(Struct, frozen=True, kw_only=True):
    """What an hour of something costs."""

    amount: float
    unit: PriceUnit
    currency: str
    """As it was written, `$` or `EUR`; empty where none was."""
    instance: str | None = None
    """The instance that it is for."""
    gpu: str | None = None
    """The GPU that it is for, as NVML prints it."""
    gpus: int | None = None
    """How many of it a node has; None for any."""
    name: str = ""
    """What it is for, as it was written; empty for any machine."""

    def per_hour(self, machine: Machine) -> float:
        """Of all nodes of a machine."""
        return self.amount * (machine.world_size if self.unit is PriceUnit.GPU else machine.nodes)

    def is_for(self, machine: Machine, instance: str | None) -> bool:
        """Whether it is the price of this machine, which may be nodes of an instance."""
        if self.instance is not None:
            return self.instance == instance
        if self.gpu is None:
            return True
        of_kind = machine.is_uniform and machine.gpus[0].name == self.gpu
        return of_kind and self.gpus in {None, len(machine.gpus)}


class PriceList(Struct, frozen=True, kw_only=True):
    """The prices that a person gave, the most special first."""

    prices: tuple[Price, ...] = ()

    @property
    def currency(self) -> str:
        """Of all of them."""
        return next((price.currency for price in self.prices), "")

    def per_hour(self, machine: Machine, instance: str | None) -> float | None:
        """What an hour of a machine costs; None where no price is for it.

        Args:
            machine: The GPUs of a job.
            instance: The name in the table of instances that its nodes have, if they have one.
        """
        of_it = (price for price in self.prices if price.is_for(machine, instance))
        return next((price.per_hour(machine) for price in of_it), None)

    def names(self, instance: str) -> bool:
        """Whether an instance has a price of its own."""
        return any(price.instance == instance for price in self.prices)

    def counts_of(self, gpu: str) -> tuple[int, ...]:
        """The numbers of a GPU in a node that have a price of their own."""
        of_it = (price.gpus for price in self.prices if price.gpu == gpu)
        return tuple(sorted({count for count in of_it if count is not None}))

    @property
    def of_any_node(self) -> bool:
        """Whether a node has one price, whatever it is."""
        return any(p.unit is PriceUnit.NODE and not (p.instance or p.gpu) for p in self.prices)


NO_PRICES = PriceList()
"""Where nobody asks for a cost."""


def split_prices(text: str) -> dict[str, str]:
    """The amount of each name in `H100-80GB=2.50/gpu-hour,p5.48xlarge=98/node-hour`.

    A price of any machine has the empty name.

    Raises:
        UsageError: A name has two prices, or none stands before its `=`.
    """
    found: dict[str, str] = {}
    comma = _DECIMAL_COMMA.fullmatch(text)
    if comma is not None:
        raise UsageError(
            _("`$price {text}` has a comma in its number", text=text),
            _("did you mean `$price {text}`?", text=f"{comma[1]}.{comma[2]}"),
        )
    for entry in text.split(","):
        name, equals, amount = entry.rpartition("=")
        if equals and not name.strip():
            raise UsageError(_("`$price {text}` has no name before `=`", text=text), *_HINTS)
        if name.strip() in found:
            whose = _(" of `{name}`", name=name.strip()) if equals else ""
            raise UsageError(
                _("`$price {text}` gives two prices{whose}", text=text, whose=whose), *_HINTS
            )
        found[name.strip()] = amount.strip()
    return found


def read_prices(
    amounts: Mapping[str, str],
    table: Sequence[GpuModel],
    instances: Sequence[Instance],
    own_gpus: Sequence[str] = (),
) -> PriceList:
    """The prices by the names of what they are for.

    Args:
        amounts: Such as `2.50/gpu-hour`, by the name of an instance, of a GPU, of GPUs of a node
            (`8xH200`), or by an empty name for any machine.
        table: The GPUs that can be named.
        instances: The instances that can be named.
        own_gpus: Those of the job's machine, as NVML prints them: they count where a name means no
            row of the table, or several.

    Raises:
        UsageError: An amount is no price, a name means nothing, or currencies differ.
    """
    prices = [_read(name, amount, table, instances, own_gpus) for name, amount in amounts.items()]
    currencies = sorted({price.currency for price in prices})
    if len(currencies) > 1:
        shown = joined(
            _(" and "), (f"`{currency}`" if currency else _("none") for currency in currencies)
        )
        raise UsageError(
            _("`$price` has more than one currency: {shown}", shown=shown),
            _("use one currency for all"),
        )
    return PriceList(prices=tuple(sorted(prices, key=_generality)))


def _generality(price: Price) -> int:
    """How many machines it can be for, as a rank."""
    said = (price.instance is not None, price.gpus is not None, price.gpu is not None, True)
    return said.index(True)


def _read(
    name: str,
    amount: str,
    table: Sequence[GpuModel],
    instances: Sequence[Instance],
    own_gpus: Sequence[str],
) -> Price:
    match = _AMOUNT.fullmatch(amount.strip())
    if match is None or (match[1] and match[3]):
        words = f"{name}={amount}" if name else amount
        raise UsageError(_("`$price {words}` is not an hourly price", words=words), *_HINTS)
    price = Price(
        amount=float(match[2]),
        unit=PriceUnit(match[4].lower()),
        currency=match[1] or (match[3] or "").upper(),
        name=name,
    )
    return price if not name else _named(price, table, instances, own_gpus)


def _named(
    price: Price,
    table: Sequence[GpuModel],
    instances: Sequence[Instance],
    own_gpus: Sequence[str],
) -> Price:
    """The price of what its name means."""
    name = price.name
    instance = find_instance(name, instances)
    if instance is not None:
        return replace(price, instance=instance.name)
    phrase = read_spec(name, table) or likely_phrase(name)
    count, gpu = phrase.count, phrase.name
    own = [name for name in own_gpus if _is_own(gpu, name)]
    if not own and not mean_models(gpu, table):
        raise _refuse(phrase, table, instances)
    found = own[0] if own and len(match_models(gpu, table)) != 1 else find_model(gpu, table).name
    if price.unit is PriceUnit.NODE and count is None:
        raise UsageError(
            _(
                "`$price {name}=...` is the price of a node, and does not say how many "
                "GPUs a node has",
                name=name,
            ),
            _(
                "write `8x{name}=.../node-hour`, or the price of a GPU: `{name}=.../gpu-hour`",
                name=name,
            ),
        )
    return replace(price, gpu=found, gpus=count)


def _refuse(phrase: Phrase, table: Sequence[GpuModel], instances: Sequence[Instance]) -> UsageError:
    """The error for a price whose name is in no table."""
    close = listing(f"`{phrase.of(name)}`" for name in close_names(phrase.name, table, instances))
    return UsageError(
        _(
            "`$price {name}=...`: `{name}` is not a GPU or an instance that zerowiz knows",
            name=phrase.name,
        ),
        *((_("similar names: {close}", close=close),) if close else ()),
        _("`$price 2.50/gpu-hour`, without a name, applies to any machine"),
    )


def _is_own(name: str, own: str) -> bool:
    """Whether a name is that of a GPU of the job, or the words that it begins with."""
    words, own_words = _words(name), _words(own)
    return bool(words) and own_words[: len(words)] == words


def _words(name: str) -> list[str]:
    """Those of a GPU's name, without its maker."""
    words = re.findall(r"\w+", name.lower())
    return words[1:] if words[:1] == ["nvidia"] else words
