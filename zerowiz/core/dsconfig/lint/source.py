"""Hold the text of a config, and where its lines stand in the file that it comes from."""

import json
from collections.abc import Iterator, Sequence
from typing import TypeVar

from msgspec import Struct

from zerowiz.core.dsconfig.accelerate import AccelerateFile
from zerowiz.core.dsconfig.hjson import Array, Node, Object
from zerowiz.core.dsconfig.hjson_tokens import JsonTextError, Scalar, Span
from zerowiz.core.workload.choices import Integration

T = TypeVar("T")

# Theory. The rules read the text of a JSON file. A config in another format is written as such a
# text, one key or value to a line; what is found on a line then stands where its key or value does.


class ConfigText(Struct, frozen=True, kw_only=True):
    """A config as the rules read it."""

    path: str
    """As it was given on the command line."""
    text: str = ""
    places: tuple[Span, ...] = ()
    """Where each line of `text` comes from; empty when `text` is the file itself."""
    integration: Integration | None = None
    """The integration, where only one reads such a file."""
    fault: JsonTextError | None = None
    """Why there is no text."""
    accelerate: AccelerateFile | None = None
    """What else a file of Accelerate says, where the config comes from one."""

    @property
    def named_by(self) -> AccelerateFile | None:
        """The file of Accelerate that names this config; None where it is the config."""
        return None if self.places else self.accelerate

    @property
    def is_fixable(self) -> bool:
        """Whether an edit of the text is one of the file."""
        return self.fault is None and not self.places


def render(path: str, root: Node, integration: Integration | None) -> ConfigText:
    """A config that was not JSON, as JSON."""
    lines, places = zip(*_lines(root, ""), strict=True)
    return ConfigText(
        path=path, text="\n".join(lines) + "\n", places=places, integration=integration
    )


def _lines(node: Node, end: str) -> Iterator[tuple[str, Span]]:
    """The lines of a value, with what follows it."""
    match node:
        case Scalar():
            yield json.dumps(node.value) + end, node.place
        case Array():
            yield "[", node.place
            for item, comma in _separated(node.items):
                yield from _lines(item, comma)
            yield "]" + end, node.place
        case Object():
            yield "{", node.place
            for member, comma in _separated(node.members):
                yield json.dumps(member.key.name) + ":", member.key.place
                yield from _lines(member.value, comma)
            yield "}" + end, node.place


def _separated(values: Sequence[T]) -> Iterator[tuple[T, str]]:
    for number, value in enumerate(values, start=1):
        yield value, "," if number < len(values) else ""
