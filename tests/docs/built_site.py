"""Look into a built site: no page loads anything from another server (`make docs`)."""

import re
import sys
from html.parser import HTMLParser
from pathlib import Path

# What a browser fetches by itself; a link is followed by a person.
FETCHED = {"script": "src", "img": "src", "iframe": "src", "source": "src", "object": "data"}
FETCHED_LINKS = {"stylesheet", "preload", "preconnect", "dns-prefetch", "icon", "modulepreload"}
ELSEWHERE = re.compile(r"(?:https?:)?//")


class Fetched(HTMLParser):
    """Collect the addresses elsewhere that a page fetches."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        address = values.get(FETCHED.get(tag, ""), "")
        if tag == "link" and FETCHED_LINKS & set(values.get("rel", "").split()):
            address = values.get("href", "")
        if ELSEWHERE.match(address):
            self.found.append(address)


def fetched_by_page(text: str) -> list[str]:
    """The addresses elsewhere that a page fetches."""
    parser = Fetched()
    parser.feed(text)
    return parser.found


def fetched_by_style(text: str) -> list[str]:
    """The addresses elsewhere that a style sheet fetches."""
    return re.findall(r"(?:url\(|@import )[\"']?((?:https?:)?//[^\"')]+)", text)


def main(site: Path) -> int:
    """Print what is fetched from elsewhere; 1 where there is any."""
    found = [
        (path, address)
        for suffix, fetched in ((".html", fetched_by_page), (".css", fetched_by_style))
        for path in sorted(site.rglob(f"*{suffix}"))
        for address in fetched(path.read_text(encoding="utf-8"))
    ]
    pages = len(list(site.rglob("*.html")))
    for path, address in found:
        sys.stderr.write(f"{path} fetches {address}\n")
    sys.stdout.write(f"{site}: {pages} pages, {len(found)} fetches from elsewhere\n")
    return 1 if found or not pages else 0


if __name__ == "__main__":
    raise SystemExit(main(Path(sys.argv[1])))
