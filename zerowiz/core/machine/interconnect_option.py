"""Apply the value of `--interconnect`, by which a person states links that cannot be measured."""

import re
from collections.abc import Iterator, Mapping
from difflib import get_close_matches

from msgspec import Struct

from zerowiz.core.machine.links import FAST_CLASSES, Interconnect, LinkClass
from zerowiz.core.machine.network import Network, NetworkKind
from zerowiz.core.machine.sources import said_with
from zerowiz.core.machine.types import Accelerator, Machine
from zerowiz.core.values import replace
from zerowiz.errors import UsageError, did_you_mean
from zerowiz.words import _, joined, listing

FLAG = "$interconnect"

_ENTRY = re.compile(r"([a-z]+)(?::(\d{1,6}(?:\.\d{1,3})?)(Gb|GB)(?:/s|ps)?)?", re.ASCII)

_INSIDE: Mapping[str, LinkClass] = {"nvlink": LinkClass.NVLINK_ALL, "pcie": LinkClass.PCIE}
# What is known agrees with these words, and says more.
_AGREES: Mapping[str, frozenset[LinkClass]] = {
    "nvlink": FAST_CLASSES,
    "pcie": frozenset({LinkClass.PCIE}),
}
_BETWEEN: Mapping[str, NetworkKind] = {
    "mnnvl": NetworkKind.NVLINK,
    "infiniband": NetworkKind.INFINIBAND,
    "roce": NetworkKind.ROCE,
    "efa": NetworkKind.EFA,
    "ethernet": NetworkKind.ETHERNET,
}
_BYTES = {"Gb": 125_000_000, "GB": 1_000_000_000}
_OTHER_WORDS: Mapping[str, str] = {"ib": "infiniband", "eth": "ethernet", "tcp": "ethernet"}
_BARE_RATE = re.compile(r"\d{1,6}(?:\.\d{1,3})?", re.ASCII)

_HINTS = (
    _(
        "inside a node: {inside}; between nodes: {between}",
        inside=joined(_(" or "), _INSIDE),
        between=listing(_BETWEEN),
    ),
    _("add the rate one way if you know it: `{flag} nvlink,infiniband:400Gb/s`", flag=FLAG),
)


class _StatedLink(Struct, frozen=True, kw_only=True):
    """One link that a person states."""

    word: str
    bytes_per_s: int | None


def with_interconnect(machine: Machine, text: str) -> Machine:
    """The machine with the links that a person states, inside a node and between nodes.

    A rate or pairs that are already known stay, unless the option contradicts them.

    Args:
        machine: The machine without the option.
        text: Such as `pcie`, `infiniband:400Gb/s` or `nvlink,roce:25GB/s`.

    Raises:
        UsageError: A word is no link, or two links are stated inside a node, or between nodes.
    """
    for link in _parse(text):
        join = _join_inside if link.word in _INSIDE else _join_between
        machine = join(machine, link)
    return machine


def interconnect_sources(text: str) -> dict[str, str]:
    """The source of each value that `with_interconnect` sets, by its path in the JSON.

    Raises:
        UsageError: As `with_interconnect`.
    """
    return {path: said_with(FLAG) for link in _parse(text) for path in _paths(link)}


def spell_network(network: Network) -> str:
    """A known network as the option takes it: `infiniband:3200Gb/s`."""
    word = next(word for word, kind in _BETWEEN.items() if kind is network.kind)
    if network.bytes_per_s is None:
        return word
    return f"{word}:{network.bytes_per_s / _BYTES['Gb']:g}Gb/s"


def _parse(text: str) -> tuple[_StatedLink, ...]:
    links = tuple(_parse_entry(entry.strip(), text) for entry in text.split(","))
    if len({link.word in _INSIDE for link in links}) != len(links):
        raise UsageError(
            _("`{flag} {text}` gives two links for the same place", flag=FLAG, text=text), *_HINTS
        )
    return links


def _parse_entry(entry: str, text: str) -> _StatedLink:
    """One link; the case of its word does not matter, that of a unit tells bits from bytes."""
    word, colon, rate = entry.partition(":")
    match = _ENTRY.fullmatch(f"{word.lower()}{colon}{rate}")
    bytes_per_s = round(float(match[2]) * _BYTES[match[3]]) if match and match[2] else None
    if match is None or match[1] not in (*_INSIDE, *_BETWEEN) or bytes_per_s == 0:
        raise UsageError(
            _("`{flag} {text}`: `{entry}` is not a link", flag=FLAG, text=text, entry=entry),
            *_meant(word.strip().lower(), rate.strip()),
            *_HINTS,
        )
    return _StatedLink(word=match[1], bytes_per_s=bytes_per_s)


def _meant(word: str, rate: str) -> tuple[str, ...]:
    """What a refused entry would be with a word of the option, and with the unit that it lacks."""
    words = (*_INSIDE, *_BETWEEN)
    other = _OTHER_WORDS.get(word)
    near = [other] if other else get_close_matches(word, words, n=1)
    if near and _BARE_RATE.fullmatch(rate):
        stated = f"{near[0]}:{rate}Gb/s"
        return (_("a rate needs its unit, Gb/s or GB/s: `{stated}`", stated=stated),)
    if near and near[0] != word:
        return did_you_mean([f"{near[0]}:{rate}" if rate else near[0]])
    return ()


def _paths(link: _StatedLink) -> Iterator[str]:
    """The paths in the machine's JSON of the values that a stated link sets."""
    if link.word in _BETWEEN:
        yield "network"
        return
    yield "interconnect.class"
    if link.bytes_per_s is not None:
        yield "interconnect.bytes_per_s"


def _join_between(machine: Machine, link: _StatedLink) -> Machine:
    known, kind = machine.network, _BETWEEN[link.word]
    if kind is known.kind and link.bytes_per_s in (None, known.bytes_per_s):
        return machine
    network = Network(kind=kind, bytes_per_s=link.bytes_per_s, nics=known.nics)
    return replace(machine, network=network)


def _join_inside(machine: Machine, link: _StatedLink) -> Machine:
    if machine.accelerator is Accelerator.CPU:
        raise UsageError(
            _("`{flag} {word}`: CPU ranks on one node have no link", flag=FLAG, word=link.word),
            _("remove it"),
        )
    if len(machine.gpus) == 1:
        raise UsageError(
            _(
                "`{flag} {word}`: a single GPU has no link inside its node",
                flag=FLAG,
                word=link.word,
            ),
            *_HINTS,
        )
    known, link_class = machine.interconnect, _INSIDE[link.word]
    if known.link_class in _AGREES[link.word] and link.bytes_per_s in (None, known.bytes_per_s):
        return machine
    interconnect = Interconnect(
        link_class=link_class, bytes_per_s=link.bytes_per_s, weakest_pair=known.weakest_pair
    )
    return replace(machine, interconnect=interconnect, links=())
