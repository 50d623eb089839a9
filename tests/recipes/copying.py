"""Do a recipe of docs/contributing.md in a copy of the repository."""

import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from cli.harness import Result, clean_environ
from paths import ROOT

# What the product, its tests and its pages need; the rest of a checkout is not copied.
COPIED = (
    *("zerowiz", "templates", "tests", "docs"),
    *("README.md", "README.ja.md", "CHANGELOG.md", "Makefile", "Dockerfile", "pyproject.toml"),
)
PATIENCE_SECONDS = 600

_PATH = re.compile(r"`((?:zerowiz|templates|tests|docs)/[^`]+)`")
PYTEST = ("-m", "pytest", "-q", "-rfE", "-p", "no:cacheprovider")
_COUNTS = re.compile(r"(\d+) \+ (\d+)")


@dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
    """A row of the table of recipes."""

    counts: tuple[int, int]
    """The files to touch by hand: those of the product and its pages, those of the tests."""
    paths: tuple[str, ...]
    """The files to touch; a folder stands for one of its modules."""
    tests: tuple[str, ...]
    """Those that fail until it is done."""

    def names(self, path: str) -> bool:
        """Whether the row says that this file is to be touched."""
        return path in self.paths or f"{path.rpartition('/')[0]}/" in self.paths


def read_recipes() -> dict[str, Recipe]:
    """The rows of the table by their first cell."""
    page = (ROOT / "docs" / "contributing.md").read_text(encoding="utf-8")
    section = page.split("\n## Recipes\n")[1].split("\n## ")[0]
    rows = [line.strip("| ").split(" | ") for line in section.splitlines() if line[:2] == "| "]
    return {name: _read(counts, how, until) for name, counts, how, until in rows[1:]}


def _read(counts: str, how: str, until: str) -> Recipe:
    number = _COUNTS.fullmatch(counts)
    paths, tests = _PATH.findall(how), _PATH.findall(until)
    assert number, f"`{counts}` does not count files"
    assert paths, f"`{how}` names no file to touch"
    assert tests, f"`{until}` names no test that fails until it is done"
    return Recipe(counts=(int(number[1]), int(number[2])), paths=(*paths,), tests=(*tests,))


class Copy:
    """A copy of the repository, and what was changed in it.

    Args:
        root: The folder to copy to.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.rewritten: set[str] = set()
        for name in COPIED:
            if (ROOT / name).is_dir():
                # The compiled modules too: a copied source keeps its time, so they stay valid.
                shutil.copytree(ROOT / name, root / name)
            else:
                shutil.copy2(ROOT / name, root / name)
        self.before = dict(self._digests())

    def edit(self, path: str, old: str, new: str) -> None:
        """Replace a text that stands in a file exactly once."""
        file = self.root / path
        text = file.read_text(encoding="utf-8")
        assert 1 == text.count(old), f"{path} holds {text.count(old)} times: {old}"
        file.write_text(text.replace(old, new), encoding="utf-8")

    def insert(self, path: str, text: str, *, before: str) -> None:
        """Put lines before a text that stands in a file exactly once."""
        self.edit(path, before, text + before)

    def insert_all(self, *inserts: tuple[str, str, str]) -> None:
        """Put lines into files: of each the file, the lines, and the text that they stand before."""
        for path, text, before in inserts:
            self.insert(path, text, before=before)

    def write(self, path: str, text: str) -> None:
        """Add a file."""
        file = self.root / path
        assert not file.exists(), f"{path} is there already"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")

    def python(self, *words: str, **environ: str) -> subprocess.CompletedProcess[str]:
        """Run `python WORDS` in the copy, with the copy's own modules."""
        return subprocess.run(
            [sys.executable, *words],
            cwd=self.root,
            env={**clean_environ(), "PYTHONPATH": str(self.root), **environ},
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE_SECONDS,
        )

    def zerowiz(self, *words: str, **environ: str) -> Result:
        """Run the copy's command."""
        done = self.python("-m", "zerowiz", *words, **environ)
        return Result(stdout=done.stdout, stderr=done.stderr, code=done.returncode)

    def failed(self, *tests: str) -> set[str]:
        """Run some tests of the copy; those that failed."""
        done = self._pytest(*tests)
        return set(re.findall(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE))

    def unfinished(self, recipe: Recipe) -> set[str]:
        """The tests of the recipe that fail as long as it is not done."""
        return {test.partition("[")[0] for test in self.failed(*recipe.tests)}

    def finish(self, recipe: Recipe, *tests: str) -> None:
        """See that these tests pass now, and that the recipe names what was touched."""
        assert set() == self.failed(*tests)
        self.check_files(recipe)

    def check_files(self, recipe: Recipe) -> None:
        """Hold the files that were touched against those that the recipe names and counts."""
        touched = self.touched()
        modules = [path for path in touched if path.endswith(".py")]
        for checks in (("check", "--quiet"), ("format", "--check", "--quiet")):
            done = self.python("-m", "ruff", *checks, "--no-cache", "--force-exclude", *modules)
            assert not modules or 0 == done.returncode, done.stdout + done.stderr
        tests = [path for path in touched if path.startswith("tests/")]
        assert [] == [path for path in touched if not recipe.names(path)]
        assert recipe.counts == (len(touched) - len(tests), len(tests))

    def make_golden(self, *tests: str) -> None:
        """Let some tests rewrite what they generate, as `make golden` does."""
        self.rewrite(*PYTEST, "--update-golden", *tests)

    def make_blocks(self, page: str) -> None:
        """Let cog rewrite the blocks of a page, as `make golden` does."""
        self.rewrite("-m", "cogapp", "-r", "-I", "tests", page)

    def rewrite(self, *words: str) -> None:
        """Run `python WORDS`, whose files are not touched by hand."""
        by_hand, before = self.touched(), dict(self._digests())
        done = self.python(*words)
        assert 0 == done.returncode, done.stdout + done.stderr
        self.rewritten |= changed(before, dict(self._digests())) - set(by_hand)

    def touched(self) -> list[str]:
        """The files that were added, removed or edited by hand."""
        return sorted(self._changed() - self.rewritten)

    def _changed(self) -> set[str]:
        return changed(self.before, dict(self._digests()))

    def _pytest(self, *words: str) -> subprocess.CompletedProcess[str]:
        done = self.python(*PYTEST, *words)
        assert done.returncode in {0, 1}, done.stdout + done.stderr
        return done

    def _digests(self) -> Iterator[tuple[str, str]]:
        for folder, folders, names in os.walk(self.root):
            folders[:] = [name for name in folders if name not in {"__pycache__", ".hypothesis"}]
            for name in names:
                file = Path(folder, name)
                yield (
                    str(file.relative_to(self.root)),
                    hashlib.sha256(file.read_bytes()).hexdigest(),
                )


def changed(before: Mapping[str, str], after: Mapping[str, str]) -> set[str]:
    """The files that two states of a folder do not have alike."""
    return {path for path in before.keys() | after.keys() if before.get(path) != after.get(path)}
