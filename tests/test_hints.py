"""An error has a hint that can be pasted or acted on; where its message says it all, it stands here."""

import ast
import re
from collections.abc import Iterator, Mapping
from functools import cache

from paths import ROOT

WITHOUT_HINT: Mapping[str, frozenset[str]] = {
    "it says what the value has to be": frozenset(
        {
            "`$epochs {epochs:g}` must be above 0, and at most {most_epochs}",
            "`$gpus {text}` names GPU {twice} twice",
            "`$probe_timeout {timeout_s:g}` must be at least 1 s",
            "`${name} {value}` must be a whole number from {least} to {most}",
            "`${name}` must be {takes}, not {value!r:.40}",
            "`{name}` is set twice",
            "`${name}` must be at least 1, not {count}",
            "`--disk {output_dir}` is not a folder",
            "`{flag}` after the script has no file name",
            "`{host}` is not the name of a host",
            "`{key}` is empty",
            "`{key}` takes text, not {kind_of}",
            "`{key}` takes {kinds}, not {kind_of}",
            "`{name}={text}` is not a node number",
            "`{name}` must be at least 1",
            "`{path}.{needed}` is missing",
            "`{path}` is {value!r:.40}, not {words}",
            "`{read} {flag}`: `{flag}` could mean {options}",
            "`{read}`: `{flag}` needs a value",
            "`{said_by}`: {total} ranks cannot be divided equally over {nodes} nodes",
            "`{text:.60}` is not a list of hosts as SLURM writes it",
            "`quantized` trains LoRA adapters: add a `lora_rank`",
            "GPU {index} cannot have {free} of {total} bytes free",
            "GPU {index} cannot have {size_bytes} bytes of {label} memory",
            "`python_call_seconds` must be more than 0 and less than 1, not {call_seconds}",
            "a CPU job has at least one rank, not {ranks}",
            "a GPU is listed twice",
            "a machine has at least one node, not {nodes}",
            "a machine needs at least one GPU",
            "config.json of `{name}`: `{key}` {found}",
            "the config holds what JSON cannot: {error}",
            "model `{name}` has no parameters",
            "the index of a GPU cannot be negative: {index}",
            "`HF_ENDPOINT` or `HF_TOKEN` cannot be sent to {endpoint}",
        }
    ),
    "it names a file, and what is wrong with it": frozenset(
        {
            "`{name}` is not JSON: {error}",
            "`{name}` is not an answers file: it has too many levels",
            "`{named}` has no named values, but {script} reads its arguments from it",
            "`{path}` cannot be read: {reason}",
            "`{path}` cannot be read: {strerror}",
            "`{path}` is not UTF-8 text (byte {start})",
            "`{path}` is not YAML: {reason} at {where}",
            "`{path}`, whose variables DeepSpeed sends, cannot be read: {reason}",
            "cannot write `{path}`: {reason}",
            "machine file `{path}` cannot be read: {strerror}",
            "the folder `{filename}` cannot be read: {reason}",
            "there is no file `{name}`, from which {script} reads its arguments",
            "there is no file `{path}`",
            "{path} line 1 is not Python: {msg}",
        }
    ),
    "it says how something ended": frozenset(
        {
            "interrupted; nothing was written",
            "nothing was written",
            "the script was not measured: it ended with status {status}",
            "ended",
        }
    ),
    "it says what another error said, and where": frozenset(
        {
            "`$compare`: `{words}`: {why}",
            "f'`{path}`: {refused.message}'",
            "f'`{words}`: ' + error.args[0]",
            "given.fault",
            "str(error)",
            "why",
        }
    ),
    "it is caught, and no person sees it": frozenset(
        {
            "`{name__}` has no gradient checkpointing",
            "`{name__}` reads `{main}`, for which zerowiz cannot make an input",
            "f'`{shown}` is not UTF-8, so it cannot be written as TOML'",
            "the script and the machine of the job are not known yet",
            "this job has one zerowiz only",
            "transformers has no model for `{model_type}`",
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
    """The English text of an error, where its first argument is one."""
    first = call.args[0]
    is_text = isinstance(first, ast.Call) and ast.unparse(first.func) == "_"
    text = first.args[0] if isinstance(first, ast.Call) and is_text else first
    return str(text.value) if isinstance(text, ast.Constant) else ast.unparse(text)


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
