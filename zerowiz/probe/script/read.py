"""Read a training script: how it takes its config, and which settings it has."""

import ast
import difflib
import io
import re
import shlex
import tokenize
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from zerowiz.core.launch.shell_script import find_training_command, is_shell_script
from zerowiz.core.script import Convention, Release, ScriptFacts
from zerowiz.core.values import replace
from zerowiz.core.workload import NEWEST_TRL
from zerowiz.errors import PreflightError, ZerowizError
from zerowiz.probe.model.libraries import read_trl_release
from zerowiz.probe.script.adapters import with_adapters
from zerowiz.probe.script.checkpointing import with_checkpointing
from zerowiz.probe.script.commandline import command_line
from zerowiz.probe.script.config.engine import ENGINE_ELSEWHERE, with_local_engine
from zerowiz.probe.script.config.keys import with_config_keys
from zerowiz.probe.script.conventions import with_convention
from zerowiz.probe.script.model import with_model
from zerowiz.probe.script.reader import Reader
from zerowiz.probe.script.source import Source
from zerowiz.probe.script.trainer.trainer import with_trainer
from zerowiz.probe.script.training import with_training
from zerowiz.probe.script.walk import HF_PARSE_CALLS, walk

# Calls that make a model of a config, and texts by which a script makes it elsewhere than in host
# memory. What `from_pretrained` reads stays mapped from its file.
_BUILDS = re.compile(r"(Model|LM|For[A-Z])\w*\._?from_config\(")
_PLACES = re.compile(
    r"device_map|torch\.device|\.device\b|init_empty_weights|OnDevice|set_default_device|cuda"
    r"|[\"']meta[\"']"
)


def parse_script(
    text: str,
    path_name: str,
    read_module: Callable[[str], str | None] = lambda _: None,
    trl_release: Release = NEWEST_TRL,
) -> ScriptFacts:
    """The facts of a script, from its text and, where it calls no engine, from its modules'.

    Args:
        text: The script.
        path_name: What messages call it.
        read_module: The text of what lies beside the script under a dotted name; None for nothing.
        trl_release: The release of trl whose defaults count.

    Raises:
        ZerowizError: The text is not Python.
    """
    source = replace(walk(_parse(text, path_name)), trl_release=trl_release)
    read = Reader(source=source, line=command_line(source))
    facts = ScriptFacts(
        path=path_name,
        convention=Convention.UNKNOWN,
        integration=None,
        parser=read.line.parser,
    )
    facts = with_convention(facts, read)
    if facts.obstacle in ENGINE_ELSEWHERE:
        facts = with_local_engine(facts, read, partial(_walk_module, read_module))
    if facts.integration is None:
        return facts
    facts = replace(
        facts,
        args_file=_args_file(source, path_name),
        saves_portably=_saves_portably(source),
        builds_on_host=bool(_BUILDS.search(text)) and not _PLACES.search(text),
    )
    for add in (
        with_training,
        with_trainer,
        with_config_keys,
        with_model,
        with_checkpointing,
        with_adapters,
    ):
        facts = add(facts, read)
    return facts


def _walk_module(read_module: Callable[[str], str | None], name: str) -> Source | None:
    """The names and calls of a module beside the script; None where it cannot be read."""
    text = read_module(name)
    try:
        return None if text is None else walk(_parse(text, name))
    except ZerowizError:
        return None


def _parse(text: str, path_name: str) -> ast.Module:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # such as invalid escapes in the script
            return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError) as error:
        line = f" line {error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
        reason = error.msg if isinstance(error, SyntaxError) else str(error)
        raise ZerowizError(
            f"{path_name}{line} is not Python: {reason}",
            "pass the Python training script, not a shell script or a notebook",
        ) from None


def _saves_portably(source: Source) -> bool:
    """Whether it imports the module that templates/ has for its scripts."""
    origins = (*source.imports.values(), *source.stars)
    return any(origin.partition(".")[0] == "portable_checkpoint" for origin in origins)


# transformers 5.23, hf_argparser.py, parse_args_into_dataclasses, `look_for_args_file`.
def _args_file(source: Source, path_name: str) -> str | None:
    """The `.args` file of the script, whose words HfArgumentParser puts before the command line."""
    path = Path(path_name)
    reads = any(
        call.method in HF_PARSE_CALLS and not _is_false(call.keyword("look_for_args_file"))
        for call in source.calls
    )
    return str(path.with_suffix(".args")) if reads and path.name else None


def _is_false(expr: ast.expr | None) -> bool:
    return isinstance(expr, ast.Constant) and expr.value is False


def read_script(
    path: Path, script_args: Sequence[str] = (), import_folder: Path | None = None
) -> ScriptFacts:
    """The facts of a script's file, and of the files that it reads arguments from.

    Args:
        path: The script.
        script_args: The words after it, which may name a settings file.
        import_folder: The folder that it imports from first; None for its own.

    Raises:
        PreflightError: The script, or the settings file, does not exist or cannot be opened.
        UsageError: The settings file holds no values by their names.
        ZerowizError: The script is not Python.
    """
    facts = _read_source(path, path.parent if import_folder is None else import_folder)
    named = facts.parser.settings_file(tuple(script_args))
    if named is not None:
        from zerowiz.probe.config.settings_file import read_settings_file  # noqa: PLC0415 - takes long to load

        is_whole = facts.parser.takes_file(tuple(script_args))
        file = read_settings_file(named, facts.path, is_whole=is_whole)
        facts = replace(facts, settings_file=file)
    if facts.args_file is None or not Path(facts.args_file).is_file():
        return facts
    try:
        words = Path(facts.args_file).read_text(encoding="utf-8").split()
    except (OSError, UnicodeDecodeError) as error:
        raise PreflightError(
            f"`{facts.args_file}`, from which {facts.path} reads arguments, cannot be read:"
            f" {error}",
            "save it as UTF-8 text, or move it away",
        ) from None
    return replace(facts, args_file_words=tuple(words))


def _read_source(path: Path, import_folder: Path) -> ScriptFacts:
    if path.is_dir():
        scripts = sorted(child.name for child in path.glob("*.py"))
        raise PreflightError(
            f"`{path}` is a folder, not a script",
            *(f"did you mean `{path / name}`?" for name in scripts[:3]),
        )
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise PreflightError(f"there is no script `{path}`", *_suggest(path)) from None
    except OSError as error:
        raise PreflightError(f"`{path}` cannot be read: {error.strerror}") from None
    text = _decode(data, path)
    _refuse_other_languages(text, path)
    beside = partial(_read_module, import_folder)
    return parse_script(text, str(path), beside, read_trl_release())


# More than any module that somebody wrote.
_LONGEST_MODULE_BYTES = 2**20


def _read_module(folder: Path, name: str) -> str | None:
    """The text of the module that a script in this folder imports by a dotted name."""
    if not name:
        return None
    place = folder.joinpath(*name.split("."))
    for path in (place.with_suffix(".py"), place / "__init__.py"):
        try:
            if path.is_file() and path.stat().st_size <= _LONGEST_MODULE_BYTES:
                return path.read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
    return None


def _refuse_other_languages(text: str, path: Path) -> None:
    """Say of a notebook, and of a shell script, how its training is launched."""
    if path.suffix == ".ipynb":
        raise ZerowizError(
            f"`{path}` is a notebook, not a script",
            f"convert it to `{path.with_suffix('.py')}`: `jupyter nbconvert --to script"
            f" {shlex.quote(str(path))}`",
        )
    if not is_shell_script(str(path), text):
        return
    command = find_training_command(text)
    if command is None:
        raise ZerowizError(
            f"`{path}` is a shell script, and zerowiz cannot see which Python script it starts",
            "pass the Python script: `zerowiz launch train.py`",
        )
    as_typed = [] if command.expands else [f"`zerowiz launch {shlex.join(command.words)}`"]
    raise ZerowizError(
        f"`{path}` is a shell script that starts the training with `{command.launcher}` in line"
        f" {command.line}",
        *as_typed,
        f"write `zerowiz launch` before `{command.launcher}` in that line, then run `bash {path}`",
    )


def _suggest(path: Path) -> tuple[str, ...]:
    """Hints that name a module, the folder's scripts with a similar name, or its first scripts."""
    module = str(path).replace(".", "/")
    if Path(f"{module}.py").is_file() or Path(module, "__main__.py").is_file():
        return (f"to launch a module: `zerowiz launch -m {path}`",)
    siblings = sorted(child.name for child in path.parent.glob("*.py"))
    near = difflib.get_close_matches(path.name, siblings, n=2)
    if near:
        return tuple(f"did you mean `{path.parent / name}`?" for name in near)
    scripts = ", ".join(f"`{path.parent / name}`" for name in siblings[:3])
    return (f"scripts there: {scripts}",) if scripts else ()


def _decode(data: bytes, path: Path) -> str:
    """The text of Python source, by its encoding cookie or BOM."""
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
        return io.TextIOWrapper(io.BytesIO(data), encoding).read()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ZerowizError(
            f"{path} line {line} is not valid {error.encoding}",
            "save it as UTF-8, or declare its encoding in line 1: `# -*- coding: latin-1 -*-`",
        ) from None
    except SyntaxError as error:
        raise ZerowizError(f"{path} line 1 is not Python: {error.msg}") from None
