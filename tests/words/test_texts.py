"""No string for people stands outside the catalog, but for those named here with a reason."""

import ast
import re
from collections.abc import Mapping

import pytest
from words.finder import PACKAGE, all_unmarked, is_for_people, words_put_in

# A module, or a folder that ends in a slash; what its strings match; why nobody translates them.
ALLOWED: Mapping[str, tuple[str, str]] = {
    "worker/": (".*", "runs in the ranks: its words are for logs, beside those of torch"),
    "core/launch/sbatch.py": (".*", "writes a file, which is the same in every language"),
    "core/memory/": (r"(?!.*\b(a|of)\b).*", "formulas, of symbols and no sentences"),
    "probe/model/trace.py": ("traced: .*", "formulas, which a cache keeps"),
    "core/model/": (r"[\w!+]+ [\w! ]+", "shapes of tensors, and fields of a config"),
    "core/machine/interconnect.py": (r"[NVSYX\d ]+", "a matrix of links"),
    "core/trial.py": ("torch .*", "names in rows that programs read"),
    "core/measured_row.py": (".*gib.*", "names a file"),
    "core/decision/questions.py": ("template: ", "begins an answer that is kept"),
    "core/lint/report.py": (".*", "JSON for editors"),
    "core/lint/optimizer.py": (
        '"(bf16|fp16)": .*|mixed_precision: .*',
        "a line of a config",
    ),
    "core/preflight/environment.py": (".* (install|-m) .*", "commands"),
    "core/launch/nodes.py": (".* slots=.*|-o Server.*", "a line of a hostfile, options of ssh"),
    "core/launch/plan.py": ("RTX 40", "names GPUs"),
    "core/speed/step_time.py": ("NVIDIA .*", "names a GPU"),
    "core/outcome.py": ("Traceback .*", "what Python prints"),
    "core/script/programs/": (r"[\w.]+: .*|LLaMA-Factory", "lines of a file, and a name"),
    "probe/preflight/interpreter.py": ("Open MPI", "a name"),
    "probe/machine/scheduler.py": ("Open MPI", "a name"),
    "probe/machine/host.py": ("cgroup v.", "a name"),
    "probe/machine/network.py": ("4: RNIC|unknown", "what the kernel writes"),
    "probe/model/hub.py": ("Bearer .*", "a header of HTTP"),
    "probe/recording.py": ("zerowiz .|.: files|NVML error .", "what a recording holds"),
    "app/init.py": ("remedy .", "an answer, not its title"),
    "cli/": ("(zerowiz|launch) .\n?", "commands"),
    "ui/drawn.py": ("ansimagenta bold", "a style"),
    "ui/machine.py": (".*(8xH100|p5.48xlarge).*", "names of machines"),
    "ui/text.py": ("reverse .*|. min|CPU rank", "a style; a unit; what programs read"),
    "ui/page.py": (
        r"[.:\w]+[^{]*\{.*|.*=.*|(row|dots|point|mark) .*| (disabled|chosen)|.zerowiz .|<svg .*|bounds of it",
        "classes and attributes of HTML, its style, a heading that is marked one line above",
    ),
    "ui/charts.py": (
        r"[.:\w]+[^{]*\{.*|.*=.*|(row|dots|point|mark) .*| (disabled|chosen)|.zerowiz .|<svg .*|bounds of it",
        "classes and attributes of HTML, its style, a heading that is marked one line above",
    ),
    "ui/pictures.py": ("peak in", "a heading that is marked in ui/text.py"),
}


def allowing(module: str, text: str) -> str | None:
    """The row that lets a string stand as it is."""
    for place, (pattern, _) in ALLOWED.items():
        covers = module.startswith(place) if place.endswith("/") else module == place
        if covers and re.fullmatch(pattern, text, re.DOTALL):
            return place
    return None


def test_every_string_for_people_is_in_the_catalog() -> None:
    found = [each for each in all_unmarked() if allowing(each[0], each[2]) is None]
    assert [] == found, "write _() around it, or N_() where it is shown with _() elsewhere"


def test_no_exception_is_allowed_for_nothing() -> None:
    used = {allowing(module, text) for module, _, text in all_unmarked()}
    assert set() == set(ALLOWED) - used


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("remove one of them", True),
        ("`$gpus \u25e6` names GPU \u25e6 twice", True),
        ("\u25e6 GPUs", True),
        ("<p>No other settings: \u25e6</p>", True),
        ("unset NCCL_P2P_DISABLE", False),
        ("`--stage 2`", False),
        ("$micro_batch \u25e6", False),
        ("zerowiz launch train.py", False),
        ("zerowiz cannot see it", True),
        ("bf16", False),
        ("\u25e6 GiB", False),
    ],
)
def test_what_looks_like_words_is_found(text: str, expected: bool) -> None:
    assert expected is is_for_people(text)


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ('_("{some} of them", some="any" if all_of_them else str(count))', ["any"]),
        ('_("host, {by}", by=host.by or "unknown")', ["unknown"]),
        ('EDITS = {1: "remove it"}\n_("{edit} now", edit=EDITS[1])', ["remove it"]),
        ('_("{why}", why=WHYS.get(word, "nobody knows"))', ["nobody knows"]),
        ('_("{some} of them", some=_("any"))', []),
        ('_("install `{package}`", package="openssh-client")', []),
        ('_("{unit} of memory", unit="GiB")', []),
    ],
)
def test_a_word_that_is_put_into_a_text_is_found(code: str, expected: list[str]) -> None:
    assert expected == [word for _, word in words_put_in(ast.parse(code))]


def test_texts_are_joined_by_what_keeps_their_english() -> None:
    joins = [
        f"{path.relative_to(PACKAGE)}:{node.lineno}"
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute)
        and node.attr == "join"
        and isinstance(node.value, ast.Call)
        and isinstance(node.value.func, ast.Name)
        and node.value.func.id == "_"
    ]
    assert [] == joins, "`joined(_(...), parts)` instead of `_(...).join(parts)`"
