import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from paths import ROOT

from zerowiz.app.options import Options, rows
from zerowiz.core.command_words import flags, spell
from zerowiz.errors import UsageError

NAMED = re.compile(r"`\$([a-z][a-z_]*)")


def texts() -> Iterator[tuple[Path, str]]:
    """The product's modules, less the ones that define or spell settings."""
    for path in sorted((ROOT / "zerowiz").rglob("*.py")):
        if path.name not in {"settings.py", "flags.py", "workload.py", "errors.py"}:
            yield path, path.read_text(encoding="utf-8")


def test_every_setting_that_a_text_names_is_one() -> None:
    named = {(p.name, name) for p, text in texts() for name in NAMED.findall(text)}
    assert named
    # `$schema` is a key of configs.
    assert {("keys.py", "schema")} == {each for each in named if each[1] not in flags()}


def test_core_names_no_flag_but_in_the_rows() -> None:
    ours = {flag for flag in flags().values() if flag.startswith("--")}
    core = ROOT / "zerowiz" / "core"
    # Command lines of DeepSpeed and of a job script, and the options of other launchers.
    found = {
        (str(path.relative_to(core)), flag)
        for path, text in texts()
        if core in path.parents
        for flag in re.findall(r"[\"`](--[a-z][a-z-]+)", _without_prose(text))
        if flag in ours
    }
    assert {
        ("launch/node.py", "--hostfile"),
        ("launch/remote.py", "--hostfile"),
        ("launch/plan.py", "--module"),
    } == {
        each for each in found if each[0] not in {"launch/sbatch.py", "launch/launcher_options.py"}
    }


def _without_prose(text: str) -> str:
    return re.sub(r"\"\"\".*?\"\"\"|#.*?\n", "", text, flags=re.DOTALL)


def test_every_option_has_a_spelling_of_its_own() -> None:
    spellings = [rows()[name].flag for name in Options.__annotations__]
    assert len(spellings) == len(set(spellings))
    assert {name: row.on for name, row in rows().items()}.items() <= flags().items()


@pytest.mark.parametrize(
    ("text", "spelled"),
    [
        ("`$micro_batch 0`", "`--micro-batch 0`"),
        ("`$no_hpz`", "`--no-hpz`"),
        ("`$gpus_per_node 2`, `$gpus 0`", "`--gpus-per-node 2`, `--gpus 0`"),
        ("in $HOME, $USER and $somewhere", "in $HOME, $USER and $somewhere"),
    ],
)
def test_a_setting_is_spelled_and_other_words_stay(text: str, spelled: str) -> None:
    assert spelled == spell(text)


def test_to_python_an_error_names_the_field() -> None:
    assert "`micro_batch` must be at least 1" == str(
        UsageError("`$micro_batch` must be at least 1")
    )
