"""Write the catalogs: what stands in the code, with the translations that are there already.

$ make words

A text that is new stands in the catalog without a translation, and people read it in English until
somebody writes one.
"""

import ast
import io
import runpy
import sys
from pathlib import Path

from babel.messages.catalog import Catalog
from babel.messages.pofile import read_po, write_po

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "zerowiz"
FOLDER = PACKAGE / "data" / "locale"
LANGUAGES = tuple(sorted(path.name for path in FOLDER.iterdir() if path.is_dir()))


def path_of(language: str) -> Path:
    """The catalog that translators edit; the compiled one lies beside it."""
    return FOLDER / language / "LC_MESSAGES" / "zerowiz.po"


def read_catalog(language: str) -> Catalog:
    """What is translated."""
    path = path_of(language)
    if not path.exists():
        return Catalog(locale=language)
    return read_po(io.BytesIO(path.read_bytes()), locale=language)


def extract() -> dict[str, set[str]]:
    """Each text of the code, and the modules that it stands in.

    Babel's own reader does not see what stands inside an f-string of Python 3.11.
    """
    found: dict[str, set[str]] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            message = _marked(node)
            if message:
                name = path.relative_to(PACKAGE.parent).as_posix()
                found.setdefault(message, set()).add(name)
    return found


def _marked(node: ast.AST) -> str | None:
    """The text of a call of `_` or `N_`."""
    match node:
        case ast.Call(func=ast.Name(id="_" | "N_"), args=[ast.Constant(value=str(message)), *_]):
            return message
        case _:
            return None


def make_catalog(language: str) -> bytes:
    """The catalog of the code's texts, with what was translated of them."""
    before = read_catalog(language)
    made = Catalog(locale=language, charset="utf-8", fuzzy=False)
    texts = extract()
    for message, modules in sorted(texts.items(), key=lambda each: (min(each[1]), each[0])):
        known = before.get(message)
        made.add(
            message,
            "" if known is None else known.string,
            locations=[(module, 0) for module in sorted(modules)],
            flags={"python-brace-format"} if "{" in message else (),
        )
    text = io.BytesIO()
    write_po(text, made, width=0, omit_header=True, include_lineno=False)
    header = (
        "# Texts of zerowiz. `make words` brings them up to date; see docs/contributing.md.\n"
        'msgid ""\nmsgstr ""\n'
        f'"Language: {language}\\n"\n"Content-Type: text/plain; charset=utf-8\\n"\n\n'
    )
    return header.encode() + text.getvalue()


def main() -> None:
    """Write the catalog of each language, and compile it."""
    compile_catalog = runpy.run_path(str(ROOT / "hatch_build.py"))["compile_catalog"]
    for language in LANGUAGES:
        path = path_of(language)
        path.write_bytes(make_catalog(language))
        compile_catalog(path)
        missing = [str(each.id) for each in read_catalog(language) if each.id and not each.string]
        sys.stdout.writelines(f"{path}: not translated: {each!r}\n" for each in missing)


if __name__ == "__main__":
    main()
