"""Read a training script: how it takes its config, and which settings it has."""

import ast
import difflib
import io
import re
import tokenize
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, islice
from pathlib import Path

from zerowiz.core import shell
from zerowiz.core.script.arguments import YAML_SUFFIXES, Release
from zerowiz.core.script.facts import Convention, Obstacle, ScriptFacts
from zerowiz.core.structs import parse_json, replace
from zerowiz.core.workload import NEWEST_TRL
from zerowiz.errors import PreflightError, ZerowizError, did_you_mean
from zerowiz.probe.files import LONGEST_SCRIPT_BYTES, read_named, read_trl_release
from zerowiz.probe.script.commandline import command_line, with_hydra
from zerowiz.probe.script.engine_config import with_convention, with_parallelism
from zerowiz.probe.script.imports import Joined, join
from zerowiz.probe.script.model import with_adapters, with_model, with_own_sizes
from zerowiz.probe.script.reader import Reader
from zerowiz.probe.script.source import parse_quietly, walk
from zerowiz.probe.script.trainer import with_stage_calls, with_trainer, with_weight_saves
from zerowiz.probe.script.training import with_checkpointing, with_float_batches, with_training

# Calls that make a model of a config, and texts by which a script makes it elsewhere than in host
# memory. What `from_pretrained` reads stays mapped from its file.
_BUILDS = re.compile(r"(Model|LM|For[A-Z])\w*(\._?from_config\(|\((config=)?\w*config\b)")
_PLACES = re.compile(
    r"device_map|torch\.device|\.device\b|init_empty_weights|OnDevice|set_default_device|cuda"
    r"|[\"']meta[\"']"
)


# The module that templates/ has for its scripts.
_PORTABLE = re.compile(r"^\s*(from|import) portable_checkpoint\b", re.MULTILINE)
_WANTED = "pass the Python training script, not a shell script or a notebook"


def parse_script(
    text: str,
    path_name: str,
    import_folder: Path | None = None,
    trl_release: Release = NEWEST_TRL,
    script_args: Sequence[str] = (),
) -> ScriptFacts:
    """The facts of a script, from its text and from what it uses of its modules.

    Args:
        text: The script.
        path_name: Its path, as messages have it.
        import_folder: The folder that it imports from first; None to read no modules.
        trl_release: The release of trl whose defaults count.
        script_args: The words after it, which may choose among files of Hydra.

    Raises:
        ZerowizError: The text is not Python.
    """
    try:
        return _facts(text, path_name, import_folder, trl_release, script_args)
    except (MemoryError, RecursionError):
        # Of Python's parser, and of what visits a tree.
        raise ZerowizError(
            f"{path_name} cannot be read: an expression in it has too many levels",
            _WANTED,
        ) from None
    except (SyntaxError, ValueError) as error:
        # Python reads and writes no more digits than sys.get_int_max_str_digits().
        if "digits" not in str(error):
            raise
        line = f"line {error.lineno}" if isinstance(error, SyntaxError) else "it"
        raise ZerowizError(
            f"{path_name} cannot be read: a number in {line} has too many digits",
            "write the number that you mean",
        ) from None


def _facts(
    text: str,
    path_name: str,
    import_folder: Path | None,
    trl_release: Release,
    script_args: Sequence[str],
) -> ScriptFacts:
    joined = Joined(tree=_parse(text, path_name), text=text, seen=text)
    if import_folder is not None:
        joined = join(Path(path_name), joined.tree, text, import_folder)
    own_lines = joined.files[0][0] if joined.files else 0
    source = replace(walk(joined.tree, own_lines), trl_release=trl_release, text=joined.seen)
    line = command_line(source)
    if import_folder is not None and "hydra" in text:
        line = with_hydra(line, source, Path(path_name).parent, script_args)
    read = Reader(source=source, line=line)
    facts = ScriptFacts(
        path=path_name,
        files=joined.files,
        convention=Convention.UNKNOWN,
        integration=None,
        parser=read.line.parser,
    )
    facts = with_own_sizes(with_parallelism(with_convention(facts, read), read), read)
    if facts.integration is None:
        return facts
    starts = facts.locate(facts.config_line or read.line.hf_line)[0]
    facts = replace(
        facts,
        starts=None if starts == path_name else starts,
        names_positions="position_ids" in read.source.text,
        saves_portably=_PORTABLE.search(text) is not None,
    )
    for add in (
        with_training,
        with_float_batches,
        with_trainer,
        with_model,
        with_checkpointing,
        with_adapters,
        with_weight_saves,
        with_stage_calls,
    ):
        facts = add(facts, read)
    builds = _BUILDS.search(joined.text) is not None
    return replace(facts, builds_on_host=builds and not _PLACES.search(joined.text))


def _parse(text: str, path_name: str) -> ast.Module:
    # The keys and values of many such files are Python too: they read as annotations.
    if path_name.endswith(YAML_SUFFIXES):
        raise ZerowizError(
            f"{path_name} is a YAML file, and no training script",
            _WANTED,
            _as_config(path_name),
            (
                "plan for a file of axolotl, LLaMA-Factory or ms-swift by `zerowiz init "
                f"{shell.quote(path_name)}`"
            ),
        )
    try:
        return parse_quietly(text)
    except (SyntaxError, ValueError) as error:
        line = f" line {error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
        reason = error.msg if isinstance(error, SyntaxError) else str(error)
        if "digits" in reason:
            raise
        raise ZerowizError(
            f"{path_name}{line} is not Python: {reason}",
            _WANTED,
        ) from None


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
    folder = path.parent if import_folder is None else import_folder
    facts = _read_source(path, folder, script_args)
    named = facts.parser.settings_file(tuple(script_args))
    if named is not None:
        from zerowiz.probe.config_text import read_settings_file  # noqa: PLC0415 - takes long to load

        is_whole = facts.parser.takes_file(tuple(script_args))
        file = read_settings_file(named, facts.path, is_whole=is_whole)
        facts = replace(facts, settings_file=file)
    return facts


def _read_source(path: Path, import_folder: Path, script_args: Sequence[str]) -> ScriptFacts:
    if path.is_dir():
        scripts = sorted(child.name for child in path.glob("*.py"))
        raise PreflightError(
            f"`{path}` is a folder, not a script",
            *did_you_mean(path / name for name in scripts[:3]),
        )
    if path.exists():
        # With its pictures it may be too large to read.
        if path.suffix == ".ipynb":
            raise ZerowizError(
                f"`{path}` is a notebook, not a script",
                (
                    f"convert it to `{path.with_suffix('.py')}`: `jupyter nbconvert --to script "
                    f"{shell.quote(path)}`"
                ),
            )
        # `{"a": 1}` could also be read as Python.
        if path.suffix == ".json":
            raise ZerowizError(
                f"`{path}` is a JSON file, not a script",
                _as_config(path),
                f"to find mistakes in one: `zerowiz check {shell.quote(path)}`",
            )
    try:
        data = read_named(path, LONGEST_SCRIPT_BYTES)
    except FileNotFoundError:
        raise PreflightError(f"there is no script `{path}`", *_suggest(path)) from None
    except OSError as error:
        raise PreflightError(f"`{path}` cannot be read: {error.strerror}") from None
    text = _decode(data, path)
    _refuse_shell_script(text, path)
    return parse_script(text, str(path), import_folder, read_trl_release(), script_args)


def _as_config(path: object) -> str:
    """How a file is named that is a config."""
    return f"a DeepSpeed config has an option: `$config {shell.quote(path)}`"


# A shell script by its name, or by its first line.
_SHELL_SUFFIXES = (".sh", ".bash", ".zsh", ".sbatch", ".slurm")
_SHEBANG = re.compile(r"#!\S*\b(env +)?(ba|da|k|z)?sh\b")


def _refuse_shell_script(text: str, path: Path) -> None:
    """Say of a shell script how its training is launched."""
    if path.suffix in _SHELL_SUFFIXES or _SHEBANG.match(text):
        from zerowiz.core.launch.other_launchers import (  # noqa: PLC0415 - few scripts are
            find_trainer,
            name_way,
        )

        way = (
            "write `zerowiz launch` in front of the command in it that starts the training, such as"
            f" `zerowiz launch train.py`, then run `bash {shell.quote(path)}`"
        )
        if (found := find_trainer(text)) is not None:
            program, *words = found
            named = f"`{program} {words[0]}` in it starts ranks of its own"
            way = f"{named}: {name_way(program, words)}"
        raise ZerowizError(f"`{path}` is a shell script, not a Python script", way)


def _suggest(path: Path) -> tuple[str, ...]:
    """Hints that name a module, scripts of the folder, the similar ones first, or a template."""
    if (whole := Path(f"{path}.py")).is_file():
        return did_you_mean([whole])
    module = str(path).replace(".", "/")
    if Path(f"{module}.py").is_file() or Path(module, "__main__.py").is_file():
        return (f"to launch a module: `zerowiz launch -m {shell.quote(path)}`",)
    siblings = sorted(child.name for child in path.parent.glob("*.py"))
    near = difflib.get_close_matches(path.name, siblings, n=2)
    if near:
        return did_you_mean(path.parent / name for name in near)
    scripts = ", ".join(f"`{path.parent / name}`" for name in siblings[:3])
    # `zerowiz plan llama-3.1-8b`
    model = (
        ()
        if path.suffix in {".py", ".sh"}
        else (f"a model has an option: `$model {shell.quote(path)}`",)
    )
    if scripts:
        return (*model, f"scripts there: {scripts}")
    return (*model, "to start from one: `zerowiz template`")


def _decode(data: bytes, path: Path) -> str:
    """The text of Python source, by its encoding cookie or BOM."""
    try:
        encoding, _lines = tokenize.detect_encoding(io.BytesIO(data).readline)
        return io.TextIOWrapper(io.BytesIO(data), encoding).read()
    except (SyntaxError, LookupError, UnicodeError) as error:
        raise ZerowizError(
            f"{path} is not Python: {' '.join(str(error).split())}",
            "save it as UTF-8, or declare its encoding in line 1: `# -*- coding: latin-1 -*-`",
        ) from None


# Find what lies near: training scripts, model folders, models in the cache of the Hub.

# What a script that trains with one of the libraries names somewhere.
_TRAINS = re.compile(rb"\bTrainer\b|Trainer\(|TrainingArguments|deepspeed|Accelerator\(")
# A folder of a dataset or of a site holds more.
_MOST_FILES, _MOST_READ = 200, 12


def find_scripts(folder: Path) -> Iterator[ScriptFacts]:
    """The scripts of a folder that a config can reach, or could with one word more, by name.

    Args:
        folder: Its own files are looked at, not those of folders in it.
    """
    paths = sorted(islice(folder.glob("*.py"), _MOST_FILES))
    for path in islice(filter(_may_train, paths), _MOST_READ):
        try:
            facts = read_script(path)
        except ZerowizError:
            continue
        if facts.obstacle in {None, Obstacle.NO_STRATEGY} and facts.integration is not None:
            yield facts


def _may_train(path: Path) -> bool:
    """Whether it is worth while to parse a file, which takes some milliseconds."""
    try:
        return path.is_file() and _TRAINS.search(read_named(path, LONGEST_SCRIPT_BYTES)) is not None
    except OSError:
        return False


_MOST_FOLDERS, _MOST_SHOWN = 300, 8


def find_models(folder: Path, environ: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """The models that lie near, each as `--model` names it, and where it is.

    Args:
        folder: It, its folders and theirs are looked at.
        environ: Names the cache of Hugging Face.
    """
    from zerowiz.probe.model.hf import cached_models  # noqa: PLC0415 - only a missing script asks

    configs = chain(folder.glob("*/config.json"), folder.glob("*/*/config.json"))
    here = sorted(path.parent for path in islice(configs, _MOST_FOLDERS) if _is_model(path))
    folders = ((str(path), "folder here") for path in here)
    cached = ((name, "in the cache of the Hub") for name in cached_models(environ))
    places = dict(chain(folders, cached))  # each once
    return tuple(islice(places.items(), _MOST_SHOWN))


def _is_model(path: Path) -> bool:
    """Whether it describes a model, and none that a run saved on its way."""
    if path.parent.name.startswith((".", "checkpoint-")):
        return False
    try:
        config = path.is_file() and parse_json(read_named(path))
    except (OSError, ValueError):
        return False
    return isinstance(config, dict) and "model_type" in config
