"""An error has a hint that can be pasted or acted on; where its message says it all, it stands here."""

import ast
import re
from collections.abc import Iterator, Mapping
from functools import cache

from paths import ROOT

WITHOUT_HINT: Mapping[str, frozenset[str]] = {
    "it says what the value has to be": frozenset(
        {
            "`$gpus {}` names GPU {} twice",
            "`${} {}` must be a whole number from {} to {}",
            "`${} {}` must be a number above 0",
            "`${}` {}",
            "`{}` is set twice",
            "`${}` must be at least 1, not {}",
            "`{}` cannot be {}",
            "`{}.{}` is missing",
            "`{}`: {}",
            "`{}`: {}{}",
            "GPU {} cannot have {} of {} bytes free",
            "a CPU job has at least one rank, not {}",
            "a GPU is listed twice",
            "a machine has at least one node, not {}",
            "a machine needs at least one GPU",
            "the config holds what JSON cannot: {}",
            "model `{}` has no parameters",
        }
    ),
    "it names a file, and what is wrong with it": frozenset(
        {
            "`{}` is not JSON: {}",
            "`{}` cannot be read: {}",
            "`{}` is not YAML: {} at {}",
            "the folder `{}` cannot be read: {}",
        }
    ),
    "it says how something ended": frozenset(
        {
            "interrupted; nothing was written",
            "nothing was written",
            "the script was not measured: it ended with status {}",
            "ended",
        }
    ),
    "it says what another error said, and where": frozenset(
        {
            "`{}`: {}",
            "given.fault",
        }
    ),
    "it is caught, and no person sees it": frozenset(
        {
            "`{}` has no gradient checkpointing",
            "`{}` reads `{}`, for which zerowiz cannot make an input",
            "a path or word that is not UTF-8 cannot be written as TOML",
            "the script and the machine of the job are not known yet",
            "this job has one zerowiz only",
            "transformers has no model for `{}`",
        }
    ),
}

# A command that names files, as a hint has it: alone, or between backticks.
COMMAND = re.compile(
    r"(?:(?:^|`)(?:sudo|rm|mkdir|mv|cd|ls|bash|jupyter) |`zerowiz (?:plan|launch|init|check|machine) )[^`]*"
)
# Words that no shell splits: of zerowiz itself, or of its tables.
PLAIN_WORDS = frozenset({"self._read", "self.largest", "_SHM"})


@cache
def trees() -> tuple[tuple[str, ast.Module], ...]:
    paths = sorted((ROOT / "zerowiz").rglob("*.py"))
    return tuple((str(path.relative_to(ROOT)), ast.parse(path.read_text())) for path in paths)


def errors() -> set[str]:
    """The names of ZerowizError and of every class below it."""
    bases = {
        each.name: {base.id for base in each.bases if isinstance(base, ast.Name)}
        for _, tree in trees()
        for each in ast.walk(tree)
        if isinstance(each, ast.ClassDef)
    }
    found = {"ZerowizError"}
    while more := {name for name, above in bases.items() if above & found} - found:
        found |= more
    return found


def message_of(call: ast.Call) -> str:
    """The text of an error, where its first argument is one, with a hole for each value."""
    match call.args[0]:
        case ast.JoinedStr(values=values):
            return "".join(str(v.value) if isinstance(v, ast.Constant) else "{}" for v in values)
        case ast.Constant(value=str(text)) | ast.Call(args=[ast.Constant(value=str(text)), *_]):
            return re.sub(r"\{[^{}]*\}", "{}", text)
        case other:
            return ast.unparse(other)


def without_hint() -> Iterator[tuple[str, str]]:
    """Where an error is made without a hint, and its message."""
    names = errors()
    for path, tree in trees():
        for call in ast.walk(tree):
            match call:
                case ast.Call(func=ast.Name(id=name), args=[_], keywords=[]) if name in names:
                    yield f"{path}:{call.lineno}", message_of(call)


def test_an_error_has_a_hint_or_says_it_all() -> None:
    known = frozenset().union(*WITHOUT_HINT.values())
    found = dict(without_hint())
    assert {} == {where: message for where, message in found.items() if message not in known}
    assert set() == known - set(found.values())


def parts_of(node: ast.AST) -> tuple[str, Mapping[str, str]]:
    """A text with its placeholders, and what fills each of them."""
    match node:
        case ast.Call(
            func=ast.Name(id="_") | ast.Attribute(attr="format"),
            args=[ast.Constant(value=str(text))],
            keywords=values,
        ):
            return text, {each.arg: ast.unparse(each.value) for each in values if each.arg}
        case ast.JoinedStr(values=values):
            fills = [
                ast.unparse(each.value) for each in values if isinstance(each, ast.FormattedValue)
            ]
            texts = (each.value if isinstance(each, ast.Constant) else "{}" for each in values)
            names = iter(range(len(fills)))
            text = "".join(f"{{p{next(names)}}}" if each == "{}" else str(each) for each in texts)
            return text, {f"p{number}": fill for number, fill in enumerate(fills)}
        case _:
            return "", {}


def test_what_a_command_of_a_hint_names_is_quoted_for_the_shell() -> None:
    found = {
        f"{path}:{node.lineno}": f"{command}: {fill}"
        for path, tree in trees()
        for node in ast.walk(tree)
        if isinstance(node, ast.expr)
        for text, fills in [parts_of(node)]
        for command in COMMAND.findall(text)
        for name, fill in fills.items()
        if f"{{{name}" in command and not fill.startswith("shell.") and fill not in PLAIN_WORDS
    }
    assert {} == found
