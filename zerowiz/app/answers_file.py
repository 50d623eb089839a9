"""The answers file (`zerowiz.toml`): read it, join it with what else is said, and write it."""

import json
import os
import posixpath
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from enum import Enum
from pathlib import Path

from msgspec import Struct

from zerowiz.app.command import as_answers, read_as_said, said_after, said_by_config
from zerowiz.app.decide import Plan
from zerowiz.app.machines.machine import means_cpu
from zerowiz.app.options import (
    FileUse,
    Layers,
    Options,
    TakesScript,
    as_words,
    changes,
    kinds,
    lasting,
    with_plain,
)
from zerowiz.core.command_words import flags
from zerowiz.core.decision.questions import OWN_MICRO_BATCH, QUESTIONS
from zerowiz.core.launch.provenance import PlannedFile
from zerowiz.core.launch.secrets import join_words, without_secrets
from zerowiz.core.machine.types import MachineSource
from zerowiz.core.settings import Origin, SettingValue, strongest
from zerowiz.core.structs import replace
from zerowiz.emit.files import rewrite_file, write_private
from zerowiz.errors import UsageError, ZerowizError, did_you_mean
from zerowiz.probe.files import CHECK, FILE_NAME, read_answers

# Say where each setting of a plan comes from.


def find_origins(plan: Plan, layers: Layers) -> dict[str, tuple[object, str]]:
    """Every setting of a plan by its name: its value, None where nothing says it, and its origin.

    Args:
        plan: What was decided.
        layers: What was said, before the script was read.
    """
    values = _values(plan)
    decided = strongest(
        (
            # What options say stands in the layers, with the line or the variable that says it.
            *(value for value in plan.resolved.values if value.origin is not Origin.OPTION),
            *_besides(plan),
            *layers.values.values(),
        )
    )
    return {
        name: (values[name], decided[name].source if name in decided else Origin.DEFAULT.value)
        for name in lasting().values()
    }


def _values(plan: Plan) -> Mapping[str, object]:
    """What the plan takes of each setting."""
    options, job = plan.options, plan.resolved.job
    machine, step = job.machine, job.workload
    return {
        **{name: getattr(options, name) for name in lasting().values()},
        **step.settings(),
        "model": options.model or job.model.name,
        "nodes": machine.nodes,
        "gpus_per_node": len(machine.gpus),
        "accelerator": machine.accelerator,
        "optimizer_state_dtype": job.state_format,
        "global_batch": job.global_batch,
        "integration": plan.resolved.handover.integration,
        **{name: said.value for name, said in plan.resolved.learning.items()},
    }


_DETECTED: Mapping[MachineSource, str] = {
    MachineSource.NVML: "detected: NVML",
    MachineSource.CPU: "detected: host",
    MachineSource.FILE: "machine file",
    MachineSource.SPEC: "machine spec",
}


def _besides(plan: Plan) -> Iterator[SettingValue]:
    """What machine, script, config and the search decide besides the step."""

    def said(name: str, origin: Origin, source: str) -> SettingValue:
        return SettingValue(name=name, value=None, origin=origin, source=source)

    for name in ("nodes", "gpus_per_node", "accelerator"):
        yield said(name, Origin.DETECTED, _DETECTED[plan.resolved.job.machine.source])
    yield said("global_batch", Origin.DETECTED, "micro-batch x accumulation x GPUs")
    if plan.script is not None and plan.script.facts.integration is not None:
        yield said("integration", Origin.SCRIPT, plan.script.facts.path)
    config = plan.resolved.config
    if config.accumulation_steps is not None or config.train_batch_size is not None:
        yield said("global_batch", Origin.CONFIG, str(plan.options.config))
    if plan.search is not None and plan.search.choice is not None:
        for name in plan.resolved.freedom.values(plan.resolved.job.workload):
            yield said(name, Origin.CHOSEN, Origin.CHOSEN.value)


# Read an answers file as settings of a job: each key is a long option, each value checked.

SCRIPT, SCRIPT_ARGS, MODULE = "script", "script-args", "module"
"""The keys that are no settings: which job they are for."""

MAY_BE_PATHS = frozenset({"model", "machine"})
"""The settings whose text may name a file or a folder."""


class NotTextError(ZerowizError):
    """A value that no TOML can hold, such as a path that is not UTF-8."""


class AnswersFile(Struct, frozen=True, kw_only=True):
    """What a file says of a job; its paths are as seen from the working folder."""

    name: str
    """Its path, for messages."""
    text: str
    script: str | None = None
    """The script that the settings are for; None: for any."""
    script_args: tuple[str, ...] = ()
    is_module: bool = False
    values: Mapping[str, object] = {}
    """The settings, by the names of their fields."""
    lines: Mapping[str, int] = {}
    """Where each of them is said."""

    def said(self, name: str, value: object) -> SettingValue:
        """A setting of it, with where it is said."""
        source = f"{self.name} line {self.lines[name]}"
        return SettingValue(name=name, value=value, origin=Origin.FILE, source=source)


_KEY = re.compile(r"\s*[\"']?([\w-]+)[\"']?\s*=|\s*\[")


def read_answers_file(path: Path) -> AnswersFile:
    """The settings in a file.

    Raises:
        ZerowizError: It cannot be read.
        UsageError: A key or a value is none that it can have.
    """
    name = os.path.relpath(path)
    text, content = read_answers(path, name)
    content.pop(CHECK, None)
    # A table is a mistake whose line begins otherwise: None stands for it.
    keys: dict[str | None, int] = {
        match[1]: number
        for number, line in reversed([*enumerate(text.splitlines(), start=1)])
        if (match := _KEY.match(line))
    }
    options, lines = Options(), dict[str, int]()
    for key, value in content.items():
        field = lasting().get(key, key)
        lines[field] = keys.get(key) or keys.get(None, 1)
        try:
            options = _with_key(options, key, value)
        except UsageError as error:
            where = f"`{name}` line {lines[field]}: {error.message}"
            raise UsageError(where, *error.hints) from None
    script, here = content.get(SCRIPT), path.parent
    values = {
        field: _from_here(field, getattr(options, field), here)
        for field in lines
        if field in lasting().values()
    }
    return AnswersFile(
        name=name,
        text=text,
        script=script if script is None or options.module else _path_from_here(script, here),
        script_args=tuple(content.get(SCRIPT_ARGS, ())),
        is_module=options.module,
        values=values,
        lines=lines,
    )


def _with_key(options: Options, key: str, value: object) -> Options:
    """The options with what a key says; script and words of the script are none of them."""
    if key == SCRIPT and not (isinstance(value, str) and value):
        raise UsageError(f"`{key}` takes a text", '`script = "train.py"`')
    is_words = isinstance(value, list) and all(isinstance(word, str) for word in value)
    if key == SCRIPT_ARGS and not is_words:
        raise UsageError(
            f"`{key}` takes a list of texts", '`script-args = ["--output_dir", "out"]`'
        )
    if key in {SCRIPT, SCRIPT_ARGS}:
        return options
    return with_plain(options, {lasting().get(key, key): _plain(key, value)})


def _plain(key: str, value: object) -> object:
    """A value as `with_plain` takes it: a number may stand for a text, `memory-budget = 0.5`.

    Raises:
        UsageError: There is no such setting, or it takes no such value.
    """
    if key != MODULE and key not in lasting():
        raise _unknown(key, value)
    kind = kinds()[lasting().get(key, key)]
    if kind is str and type(value) in {int, float}:
        return str(value)
    takes_text = issubclass(kind, Path | Enum)
    is_plain = isinstance(value, str) if takes_text else isinstance(value, str | bool | int | float)
    if not is_plain or value == "" or (kind is float and type(value) not in {int, float}):
        raise UsageError(f"`{key}` cannot be {json.dumps(value, default=str)}")
    return value


def _unknown(key: str, value: object) -> UsageError:
    from difflib import get_close_matches  # noqa: PLC0415 - few keys are wrong

    if isinstance(value, dict):
        return UsageError(
            f"there are no tables, and `{key}` is one",
            "write each option in a line of its own: `seq-len = 2048`",
        )
    if any(word == f"--{key}" and not name.startswith("no_") for name, word in flags().items()):
        return UsageError(
            f"`{key}` is for one run, so it cannot stand in a file",
            f"set it on the command line: `--{key}`",
        )
    plain = key.lower().replace("_", "-").removeprefix("no-")
    near = get_close_matches(plain, [SCRIPT, SCRIPT_ARGS, MODULE, *lasting()], n=2)
    return UsageError(
        f"there is no setting `{key}`",
        *did_you_mean(near[:1] if plain in near else near),
        "the keys are the long options of `zerowiz plan`",
    )


def _from_here(name: str, value: object, folder: Path) -> object:
    """A path in the file, which is relative to the file's folder, as seen from here."""
    if isinstance(value, Path):
        return Path(_path_from_here(str(value), folder))
    is_path = name in MAY_BE_PATHS and os.path.exists(os.path.join(folder, str(value)))  # noqa: PTH110, PTH118 - no text makes them raise
    return _path_from_here(str(value), folder) if is_path else value


def _path_from_here(path: str, folder: Path) -> str:
    here = Path.cwd()
    is_near = Path(path).is_absolute() or folder == here
    return path if is_near else os.path.relpath(folder / path, here)


# Take from an answers file what nothing that is typed says.


def with_file(typed: Layers, file: AnswersFile, use: FileUse) -> Layers:
    """The layers with what the file says, unless it is for another script.

    Args:
        typed: What is typed.
        file: The answers file.
        use: What the command does with it.
    """
    if not file.lines:
        return typed
    layers = typed
    if typed.script is None:
        layers = _with_script(typed, file, use)
    elif file.script is not None and not _is_same(file, typed.script, typed.options):
        note = f"`{file.name}` is for `{file.script}`, and sets nothing for `{typed.script}`"
        return replace(layers, notes=(*layers.notes, note))
    skipped = {*typed.values, *_said_otherwise(layers)}
    machine = file.values.get("machine")
    is_elsewhere = isinstance(machine, str) and not means_cpu(machine)
    if use.starts_here and is_elsewhere and "machine" not in skipped:
        skipped.add("machine")
        layers = replace(layers, planned_for=file.said("machine", machine))
    values = {name: value for name, value in file.values.items() if name not in skipped}
    options = replace(layers.options, **values)  # type: ignore[arg-type]
    said = {name: file.said(name, value) for name, value in values.items()}
    words = as_words(Options(**changes(options, typed.options)))
    if layers.script is not None and typed.script is None:
        words += [layers.script, *layers.script_args]
    shown = join_words(words)
    what = f"from `{file.name}`: `{shown}`" if words else f"`{file.name}` sets nothing else"
    return replace(
        layers, options=options, values={**layers.values, **said}, notes=(*layers.notes, what)
    )


def _with_script(typed: Layers, file: AnswersFile, use: FileUse) -> Layers:
    """With the script of the file, where the command takes it."""
    with_model = use.takes_script is TakesScript.WITHOUT_MODEL and "model" in typed.values
    is_never = use.takes_script is TakesScript.NEVER or typed.options.module
    if file.script is None or is_never or with_model:
        return typed
    return replace(
        typed,
        script=file.script,
        script_args=file.script_args,
        options=replace(typed.options, module=file.is_module),
        values={**typed.values, "script": file.said("script", file.script)},
    )


def _is_same(file: AnswersFile, script: str, options: Options) -> bool:
    """Whether the file is for the script that is typed."""
    is_same_kind = file.is_module is options.module
    return is_same_kind and posixpath.normpath(file.script or "") == posixpath.normpath(script)


def _said_otherwise(layers: Layers) -> Collection[str]:
    """The settings that a word after the script, or a config says."""
    names = said_by_config(layers.options)
    if layers.script is None or not layers.script_args:
        return names
    try:
        run = read_as_said(layers.script, layers.script_args, layers.options)
    except ZerowizError:
        return names  # said where the script is read
    return names | said_after(run.settings)


# Write the answers of `zerowiz init` into an answers file, and keep what a person wrote there.

_HEADER = """\
# Answers for zerowiz. The keys are its long options; an option on the command line counts more.
# `zerowiz plan --origins` shows what comes from here, `--isolated` ignores this file.
"""


def plan_answers(script: str, script_args: Sequence[str], options: Options) -> PlannedFile:
    """The answers file of a job: what a person said of it, and nothing that was detected.

    It lies in the folder of the configs, unless the file of the working folder names that folder.
    Comments stay, and so does what is already right.

    Args:
        script: Its path, or the name of the module.
        script_args: The words after it; secrets among them are left out.
        options: What was said.

    Raises:
        ZerowizError: The file that is there cannot be read.
        NotTextError: TOML cannot hold a value.
    """
    here = _read_written(Path(FILE_NAME))
    names_folder = here is not None and here.values.get("output_dir") == options.output_dir
    folder = Path() if names_folder else options.output_dir or Path()
    path = folder / FILE_NAME
    file = here if folder == Path() else _read_written(path)
    values = _written_values(script, script_args, options)
    if folder != Path():
        values.pop("output-dir", None)
    wanted = {key: _as_there(key, value, folder) for key, value in values.items()}
    before = {} if file is None else file.values
    same = {key for key in wanted if before.get(lasting().get(key, key)) == values[key]}
    text = rewrite("" if file is None else file.text, wanted, same)
    return PlannedFile(path=str(path), text=text if file is not None else _HEADER + text)


def rewrite(text: str, wanted: Mapping[str, object], same: Collection[str] = ()) -> str:
    r"""The text of an answers file with these values; comments stay.

    Args:
        text: As it is.
        wanted: Every value by its key.
        same: The keys whose values the text has already, perhaps in another form.

    Raises:
        NotTextError: TOML cannot hold a value.

    Example:
        >>> rewrite("# mine\nnodes = 2  # all\ngpus = '0'\n", {"nodes": 4, "model": "7b"})
        '# mine\nnodes = 4  # all\nmodel = "7b"\n'
    """
    import tomlkit  # noqa: PLC0415 - only `init` writes the file

    document = tomlkit.parse(text)
    for key in document.keys() - wanted.keys():
        del document[key]
    for key, value in wanted.items():
        if key not in document or (key not in same and document[key] != value):
            document[key] = value
    written = tomlkit.dumps(document)
    try:
        written.encode()
    except UnicodeEncodeError:
        raise NotTextError("a path or word that is not UTF-8 cannot be written as TOML") from None
    return written


def write_answers(file: PlannedFile) -> None:
    """Write it whole.

    Raises:
        ZerowizError: Its folder cannot be written.
    """
    path = Path(file.path)
    if path.exists():
        rewrite_file(path, file.text)
    else:
        write_private(path, file.content)


def _read_written(path: Path) -> AnswersFile | None:
    return read_answers_file(path.absolute()) if path.is_file() else None


def _written_values(script: str, script_args: Sequence[str], options: Options) -> dict[str, object]:
    """What the file says, by its keys, as it is seen from here."""
    words = list(without_secrets(script_args))
    job: dict[str, object] = {SCRIPT: script if options.module else Path(script)}
    job |= {MODULE: True} if options.module else {}
    job |= {SCRIPT_ARGS: words} if words else {}
    said = changes(options)
    return job | {key: said[name] for key, name in lasting().items() if name in said}


def _as_there(key: str, value: object, folder: Path) -> object:
    """A value as TOML has it, a path as seen from the file's folder."""
    if isinstance(value, Enum):
        return value.value
    may_be_path = lasting().get(key) in MAY_BE_PATHS and os.path.exists(str(value))  # noqa: PTH110 - no text makes it raise
    if not (may_be_path or isinstance(value, Path)):
        return value
    return str(value) if Path(str(value)).is_absolute() else os.path.relpath(str(value), folder)


# Ask anew what the answers file says: what was answered before is the default of each question.


def ask_anew(layers: Layers) -> tuple[Layers, Mapping[str, str]]:
    """What a conversation starts with: what the file answers is asked anew.

    The layers without that, and the answers by the keys of their questions, as their defaults.
    """
    by_file = {name for name, value in layers.values.items() if value.origin is Origin.FILE}
    asked = {*(question.key for question in QUESTIONS), "objective"} & by_file - {
        "script",
        "config",
    }
    values = {name: getattr(layers.options, name) for name in asked}
    before = as_answers(values)
    default = OWN_MICRO_BATCH if "micro_batch" in values else None
    if goal := before.pop("objective", default):
        before["goal"] = goal
    typed = {name: getattr(Options(), name) for name in asked}
    is_gone = "script" in by_file and not Path(str(layers.script)).is_file()
    is_gone = is_gone and not layers.options.module
    options, script = replace(layers.options, **typed), None if is_gone else layers.script
    return replace(layers, options=options, script=script), before
