"""Write HTML whose values can be exchanged: every plan fills the same slots."""

from zerowiz.ui.text.plain import escape


class Slots:
    """Collects the values that differ from plan to plan, in the order of their places.

    The page's script puts the values of another plan into the same places; it computes nothing.

    Args:
        exchanged: Whether the HTML says which value stands where.
    """

    def __init__(self, *, exchanged: bool = True) -> None:
        self.values: list[str] = []
        self._exchanged = exchanged

    def text(self, tag: str, value: str, attributes: str = "", **changing: str) -> str:
        """An element whose text may change, and attributes that may.

        The script exchanges text alone, so what is typed is no element, and has no marks either.

        Args:
            tag: Its name.
            value: Its text now.
            attributes: Those that stay, as HTML.
            **changing: The others; `kind` is the class.
        """
        value = value.replace("`", "")
        place = self._keep(value)
        fixed = f" {attributes}" if attributes else ""
        said = f' data-t="{place}"' if self._exchanged else ""
        return f"<{tag}{fixed}{self._changing(changing)}{said}>{escape(value)}</{tag}>"

    def shape(self, tag: str, attributes: str = "", **changing: str) -> str:
        """An element without text."""
        fixed = f" {attributes}" if attributes else ""
        return f"<{tag}{fixed}{self._changing(changing)}/>"

    def opened(self, tag: str, attributes: str = "", **changing: str) -> str:
        """The start of an element that has others in it."""
        fixed = f" {attributes}" if attributes else ""
        return f"<{tag}{fixed}{self._changing(changing)}>"

    def _changing(self, attributes: dict[str, str]) -> str:
        if not attributes:
            return ""
        named = {_NAMES.get(name, name): value for name, value in attributes.items()}
        places = " ".join(f"{name}:{self._keep(value)}" for name, value in named.items())
        words = "".join(f' {name}="{escape(value)}"' for name, value in named.items())
        return f'{words} data-a="{places}"' if self._exchanged else words

    def _keep(self, value: str) -> int:
        self.values.append(value)
        return len(self.values) - 1


_NAMES = {"kind": "class", "anchor": "text-anchor"}
