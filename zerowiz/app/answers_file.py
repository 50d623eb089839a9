"""The answers file (`zerowiz.toml`): read it, join it with what else is said, and write it."""

import os
import posixpath
import re
import tomllib
from collections.abc import Collection, Iterator, Mapping, Sequence
from enum import Enum
from pathlib import Path

from msgspec import Struct

from zerowiz.app.ask import said_by_config
from zerowiz.app.command import Command, read_as_said, said_after, understand_command
from zerowiz.app.decide import Plan
from zerowiz.app.machines.machine import means_cpu
from zerowiz.app.options import (
    FileUse,
    Layers,
    Options,
    PlannedMachine,
    TakesScript,
    Typed,
    added,
    as_words,
    choices_of,
    kinds,
    lasting,
    of_one_run,
    rows,
)
from zerowiz.app.reporter import SILENT
from zerowiz.core import shell
from zerowiz.core.command_words import canonical_choice
from zerowiz.core.decision.questions import OWN_MICRO_BATCH, QUESTIONS
from zerowiz.core.launch.provenance import PlannedFile, hide_secrets, without_secrets
from zerowiz.core.machine.types import MachineSource
from zerowiz.core.settings import Origin, SettingRow, SettingValue, strongest
from zerowiz.core.structs import replace
from zerowiz.emit.files import replace_file, rewrite_file
from zerowiz.errors import UsageError, ZerowizError, did_you_mean
from zerowiz.probe.files import FILE_NAME, read_answers_text


class Statement(Struct, frozen=True, kw_only=True):
    """One `key = value`, or a line without one."""

    text: str
    """All its lines, with the line break at the end."""
    line: int
    """The number of the first, from 1."""
    key: str | None = None
    """None for a comment or a blank line."""
    value: object = None


# Say where each setting of a plan comes from.


class SettingOrigin(Struct, frozen=True, kw_only=True):
    """One setting of a plan, and what decides it."""

    name: str
    value: object
    """None where nobody says it, and nothing follows from the rest."""
    origin: str


def find_origins(plan: Plan, layers: Layers) -> tuple[SettingOrigin, ...]:
    """Every setting of a plan, with what decides it.

    Args:
        plan: What was decided.
        layers: What was said, before the script was read.
    """
    values = _values(plan)
    decided = strongest(
        (
            *_detected(plan),
            # What options say stands in the layers, with the line or the variable that says it.
            *(value for value in plan.resolved.values if value.origin is not Origin.OPTION),
            *_besides(plan),
            *_later(plan, layers),
            *_chosen(plan),
            *layers.values.values(),
        )
    )
    return tuple(
        SettingOrigin(
            name=name,
            value=values[name],
            origin=decided[name].source if name in decided else Origin.DEFAULT.value,
        )
        for name in lasting().values()
    )


def _values(plan: Plan) -> Mapping[str, object]:
    """What the plan takes of each setting."""
    options, job = plan.options, plan.resolved.job
    machine, step = job.machine, job.workload
    values = {name: getattr(options, name) for name in lasting().values()}
    worked_out: dict[str, object] = {
        "model": options.model or job.model.name,
        "nodes": machine.nodes,
        "gpus_per_node": len(machine.gpus),
        "accelerator": machine.accelerator,
        "optimizer_state_dtype": job.state_format,
        "global_batch": step.micro_batch * step.accumulation_steps * machine.world_size,
        "integration": plan.resolved.handover.integration,
    }
    return {
        **values,
        **worked_out,
        **{n: v for n, v in step.settings().items() if n not in worked_out},
    }


_DETECTED: Mapping[MachineSource, str] = {
    MachineSource.NVML: "detected: NVML",
    MachineSource.CPU: "detected: host",
    MachineSource.FILE: "machine file",
    MachineSource.SPEC: "machine spec",
}


def _detected(plan: Plan) -> Iterator[SettingValue]:
    """What the machine decides where nothing is said of it."""
    source = _DETECTED[plan.resolved.job.machine.source]
    follows = {"global_batch": "micro-batch x accumulation x GPUs"}
    by_machine = dict.fromkeys(("nodes", "gpus_per_node", "accelerator"), source)
    for name, by in (by_machine | follows).items():
        yield SettingValue(name=name, value=None, origin=Origin.DETECTED, source=by)


def _besides(plan: Plan) -> Iterator[SettingValue]:
    """What the script or a config of the person's own decides besides the step."""
    if plan.script is not None:
        facts, made = plan.script.facts, plan.script.settings.model_config
        seen = {
            "integration": facts.path if facts.integration is not None else None,
            "model": None if made is None else made.source,
        }
        for name, source in seen.items():
            if source is not None:
                yield SettingValue(name=name, value=None, origin=Origin.SCRIPT, source=source)
    config = plan.resolved.config
    if config.accumulation_steps is not None or config.train_batch_size is not None:
        source = str(plan.options.config)
        yield SettingValue(name="global_batch", value=None, origin=Origin.CONFIG, source=source)


def _later(plan: Plan, layers: Layers) -> Iterator[SettingValue]:
    """What was said in another launcher's words, or in an earlier run of the script."""
    before, after = layers.options, plan.options
    named = layers.script is not None and (
        plan.script is None or plan.script.facts.target != layers.script
    )
    by = f"`{layers.script}` on the command line" if named else "an earlier run"
    for name in lasting().values():
        value = getattr(after, name)
        if getattr(before, name) != value:
            yield SettingValue(name=name, value=value, origin=Origin.OPTION, source=by)


def _chosen(plan: Plan) -> Iterator[SettingValue]:
    """What zerowiz chose of what is open, also where it is as it was."""
    chose = plan.search is not None and plan.search.choice is not None
    values = plan.resolved.freedom.values(plan.resolved.job.workload) if chose else {}
    for name, value in values.items():
        yield SettingValue(name=name, value=value, origin=Origin.CHOSEN, source=Origin.CHOSEN.value)


# Read an answers file as settings of a job: each key is a long option, each value checked.

SCRIPT, SCRIPT_ARGS, MODULE = "script", "script-args", "module"
"""The keys that are no settings: which job they are for."""

MAY_BE_PATHS = frozenset({"model", "machine"})
"""The settings whose text may name a file or a folder."""


class AnswersFile(Struct, frozen=True, kw_only=True):
    """What a file says of a job; its paths are as seen from the working folder."""

    name: str
    """Its path, for messages."""
    statements: tuple[Statement, ...]
    script: str | None = None
    """The script that the settings are for; None: for any."""
    script_args: tuple[str, ...] = ()
    is_module: bool = False
    values: Mapping[str, object] = {}
    """The settings, by the names of their fields."""
    lines: Mapping[str, int] = {}
    """Where each of them is said."""

    def place(self, name: str) -> str:
        """Where a setting is said."""
        return f"{self.name} line {self.lines[name]}"

    def said(self, name: str, value: object) -> SettingValue:
        """A setting of it, with where it is said."""
        return SettingValue(name=name, value=value, origin=Origin.FILE, source=self.place(name))


def read_answers_file(path: Path) -> AnswersFile:
    """The settings in a file.

    Raises:
        ZerowizError: It cannot be read.
        UsageError: A key or a value is none that it can have.
    """
    name = os.path.relpath(path)
    statements = read_statements(read_answers_text(path, name), name)
    values: dict[str, object] = {}
    lines: dict[str, int] = {}
    for line in (statement for statement in statements if statement.key is not None):
        try:
            field, value = _read(str(line.key), line.value)
        except UsageError as error:
            where = f"`{name}` line {line.line}: {error.message}"
            raise UsageError(where, *error.hints) from None
        values[field], lines[field] = value, line.line
    script, words = values.pop(SCRIPT, None), values.pop(SCRIPT_ARGS, ())
    is_module = values.pop(MODULE, False) is True
    _check_together(values, lines, name)
    here = {field: _from_here(field, value, path.parent) for field, value in values.items()}
    if script is not None and not is_module:
        script = _path_from_here(str(script), path.parent)
    return AnswersFile(
        name=name,
        statements=statements,
        script=None if script is None else str(script),
        script_args=tuple(words) if isinstance(words, list) else (),
        is_module=is_module,
        values=here,
        lines=lines,
    )


def _read(key: str, value: object) -> tuple[str, object]:
    """The field that a key means, and its value."""
    if key == SCRIPT:
        return key, _text(key, value)
    if key == MODULE:
        return key, _typed(key, bool, rows()["module"], value)
    if key == SCRIPT_ARGS:
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise UsageError(
                f"`{key}` takes a list of texts, not {_kind_of(value)}",
                '`script-args = ["--output_dir", "out"]`',
            )
        return key, value
    name = lasting().get(key)
    if name is None:
        raise _unknown(key, value)
    return name, _typed(key, kinds()[name], rows()[name], value)


def _unknown(key: str, value: object) -> UsageError:
    from difflib import get_close_matches  # noqa: PLC0415 - few keys are wrong

    if isinstance(value, dict):
        return UsageError(
            f"there are no tables, and `{key}` is one",
            "write each option in a line of its own: `seq-len = 2048`",
        )
    if key in of_one_run():
        return UsageError(
            f"`{key}` is for one run, so it cannot stand in a file",
            f"set it on the command line: `--{key}`",
        )
    plain = key.lower().replace("_", "-").removeprefix("no-")
    known = [SCRIPT, SCRIPT_ARGS, MODULE, *lasting()]
    near = [name for name in known if plain == name] or get_close_matches(plain, known, n=2)
    return UsageError(
        f"there is no setting `{key}`",
        *did_you_mean(near),
        "the keys are the long options of `zerowiz plan`",
    )


def _typed(key: str, kind: type, row: SettingRow, value: object) -> object:
    """The value that a setting has."""
    choices = choices_of(kind, row)
    if choices:
        return _choice(key, kind, row, choices, value)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if kind is bool and isinstance(value, bool):
        return value
    if kind is int and is_number and isinstance(value, int):
        return value
    if kind is float and is_number:
        return float(str(value))
    if kind in {bool, int, float}:
        raise UsageError(f"`{key}` takes {_KINDS[kind]}, not {_kind_of(value)}")
    text = str(value) if is_number and kind is str else _text(key, value)
    return Path(text) if issubclass(kind, Path) else text


def _choice(key: str, kind: type, row: SettingRow, choices: Sequence[str], value: object) -> object:
    text = str(value) if type(value) is int else _text(key, value)
    word = canonical_choice(row.key, text, choices)
    if word not in choices:
        from difflib import get_close_matches  # noqa: PLC0415 - few words are wrong

        near = get_close_matches(word, choices)
        hints = [f'did you mean `{key} = "{choice}"`?' for choice in near]
        listed = f"{', '.join(choices[:-1])} or {choices[-1]}"
        raise UsageError(f"`{key}` is {listed}, not `{text}`", *hints)
    return kind(word) if issubclass(kind, Enum) else word


def _text(key: str, value: object) -> str:
    if not isinstance(value, str):
        raise UsageError(f"`{key}` takes text, not {_kind_of(value)}")
    if not value:
        raise UsageError(f"`{key}` is empty")
    return value


_KINDS: Mapping[type, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    list: "a list",
    dict: "a table",
}


def _kind_of(value: object) -> str:
    """What a value of TOML is called."""
    if isinstance(value, str):
        return f'text (`"{value}"`)'
    return _KINDS.get(type(value)) or "a date"


_NAMED_VALUES = re.compile(r"\$([a-z_]+)")


def _check_together(values: Mapping[str, object], lines: Mapping[str, int], name: str) -> None:
    """Refuse values that contradict each other, or that no job can have."""
    try:
        Options(**values)  # type: ignore[arg-type]
    except UsageError as error:
        places = [lines[key] for key in _NAMED_VALUES.findall(error.message) if key in lines]
        where = f" line {places[0]}" if places else ""
        raise UsageError(f"`{name}`{where}: {error.message}", *error.hints) from None


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


def with_file(layers: Layers, file: AnswersFile, use: FileUse) -> Layers:
    """The layers with what the file says, unless it is for another script.

    Args:
        layers: What is typed.
        file: The answers file.
        use: What the command does with it.
    """
    typed = layers.typed
    command = _understand(typed)
    named = None if command is None else command.script
    if typed.script is None:
        layers = _with_script(layers, file, use)
    elif file.script is not None and not _is_same(file, named, command):
        note = f"`{file.name}` is for `{file.script}`, and sets nothing for `{named}`"
        return replace(layers, notes=(*layers.notes, note))
    skipped = {*typed.values, *_said_otherwise(layers, command)}
    machine = file.values.get("machine")
    is_elsewhere = isinstance(machine, str) and not means_cpu(machine)
    if use.starts_here and is_elsewhere and "machine" not in skipped:
        skipped.add("machine")
        planned_for = PlannedMachine(name=str(machine), place=file.place("machine"))
        layers = replace(layers, planned_for=planned_for)
    values = {name: value for name, value in file.values.items() if name not in skipped}
    options = replace(layers.options, **values)  # type: ignore[arg-type]
    said = {name: file.said(name, value) for name, value in values.items()}
    words = as_words(added(layers.typed.options, options))
    if layers.script is not None and typed.script is None:
        words += [layers.script, *hide_secrets(layers.script_args)]
    what = f"from `{file.name}`: `{shell.join(words)}`" if words else f"`{file.name}` sets nothing"
    return replace(
        layers, options=options, values={**layers.values, **said}, notes=(*layers.notes, what)
    )


def _with_script(layers: Layers, file: AnswersFile, use: FileUse) -> Layers:
    """With the script of the file, where the command takes it."""
    typed = layers.typed
    with_model = use.takes_script is TakesScript.WITHOUT_MODEL and "model" in typed.values
    is_never = use.takes_script is TakesScript.NEVER or typed.options.module
    if file.script is None or is_never or with_model:
        return layers
    return replace(
        layers,
        script=file.script,
        script_args=file.script_args,
        options=replace(typed.options, module=file.is_module),
        values={**layers.values, "script": file.said("script", file.script)},
    )


def _understand(typed: Typed) -> Command | None:
    """The script that is typed, behind another launcher too; what is wrong is said later."""
    try:
        return understand_command(typed.script, typed.script_args, typed.options, SILENT)
    except ZerowizError:
        return None


def _is_same(file: AnswersFile, named: str | None, command: Command | None) -> bool:
    """Whether the file is for the script that is typed."""
    if command is None or named is None or file.script is None:
        return False
    is_same_kind = file.is_module is command.options.module
    return is_same_kind and posixpath.normpath(file.script) == posixpath.normpath(named)


def _said_otherwise(layers: Layers, command: Command | None) -> Collection[str]:
    """The settings that another launcher, a word after the script, or a config says."""
    names = set(said_by_config(layers.options))
    script, words = layers.script, layers.script_args
    if layers.typed.script is not None:
        if command is None:
            return names
        changed = added(layers.options, command.options)
        names |= {
            name
            for name in Options.__struct_fields__
            if getattr(changed, name) != getattr(_NOTHING, name)
        }
        script, words = command.script, command.script_args
    if script is None or not words:
        return names
    try:
        run = read_as_said(script, words, layers.options if command is None else command.options)
    except ZerowizError:
        return names  # said where the script is read
    return names | said_after(run.settings)


_NOTHING = Options()


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
    wanted = {key: _as_there(key, value, folder, file) for key, value in values.items()}
    text = rewrite(() if file is None else file.statements, wanted)
    return PlannedFile(path=str(path), text=text if file is not None else _HEADER + text)


def write_answers(file: PlannedFile) -> None:
    """Write it whole.

    Raises:
        ZerowizError: Its folder cannot be written.
    """
    path = Path(file.path)
    if path.exists():
        rewrite_file(path, file.text)
    else:
        replace_file(path, file.text)


def _read_written(path: Path) -> AnswersFile | None:
    return read_answers_file(path.absolute()) if path.is_file() else None


def _written_values(script: str, script_args: Sequence[str], options: Options) -> dict[str, object]:
    """What the file says, by its keys, as it is seen from here."""
    words = list(without_secrets(script_args))
    job: dict[str, object] = {SCRIPT: script if options.module else Path(script)}
    job |= {MODULE: True} if options.module else {}
    job |= {SCRIPT_ARGS: words} if words else {}
    defaults = Options()
    chosen = {key: getattr(options, name) for key, name in lasting().items()}
    return job | {
        key: value for key, value in chosen.items() if value != getattr(defaults, lasting()[key])
    }


def _as_there(key: str, value: object, folder: Path, file: AnswersFile | None) -> object:
    """A value as TOML has it; as it is written already, where it means the same."""
    name = lasting().get(key)
    if file is not None and name is not None and file.values.get(name) == value:
        return next(statement.value for statement in file.statements if statement.key == key)
    if isinstance(value, Enum):
        return value.value
    may_be_path = name in MAY_BE_PATHS and os.path.exists(str(value))  # noqa: PTH110 - no text makes it raise
    if not (may_be_path or isinstance(value, Path)):
        return value
    return str(value) if Path(str(value)).is_absolute() else os.path.relpath(str(value), folder)


# Ask anew what the answers file says: what was answered before is the default of each question.


class Conversation(Struct, frozen=True, kw_only=True):
    """What a conversation starts with."""

    options: Options
    script: str | None
    before: Mapping[str, str]
    """What the file answers, by the keys of the questions: their defaults."""


def ask_anew(layers: Layers) -> Conversation:
    """What a conversation starts with: what the file answers is asked anew."""
    by_file = {name for name in layers.values if name not in layers.typed.values}
    asked = {*(question.key for question in QUESTIONS), "objective"} & by_file - {"script"}
    values = {name: getattr(layers.options, name) for name in asked}
    before = {name: _answer(value) for name, value in values.items()}
    default = OWN_MICRO_BATCH if "micro_batch" in values else None
    if goal := before.pop("objective", default):
        before["goal"] = goal
    typed = {name: getattr(layers.typed.options, name) for name in asked}
    is_gone = "script" in by_file and not Path(str(layers.script)).is_file()
    is_gone = is_gone and not layers.options.module
    return Conversation(
        options=replace(layers.options, **typed),
        script=None if is_gone else layers.script,
        before=before,
    )


def _answer(value: object) -> str:
    """A setting as one answers its question."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value)


_PLACE = re.compile(r" \(at line (\d+), column \d+\)$")


class NotTextError(ZerowizError):
    """A value that no TOML can hold, such as a path that is not UTF-8."""


def read_statements(text: str, name: str) -> tuple[Statement, ...]:
    r"""The statements of a file, in its order.

    Args:
        text: Its content.
        name: What errors call it.

    Raises:
        UsageError: It is not TOML.

    Example:
        >>> [(each.key, each.value) for each in read_statements("# mine\nnodes = 2\n", "a.toml")]
        [(None, None), ('nodes', 2)]
    """
    try:
        tomllib.loads(text)
    except RecursionError:
        raise UsageError(f"`{name}` is not an answers file: it has too many levels") from None
    except tomllib.TOMLDecodeError as error:
        place = _PLACE.search(str(error))
        where = f" line {place[1]}" if place else ""
        what = _PLACE.sub("", str(error))
        raise UsageError(
            f"`{name}`{where} is not TOML: {what[:1].lower() + what[1:]}",
            "write each option in a line of its own: `seq-len = 2048`",
        ) from None
    return tuple(_split(text))


def _split(text: str) -> Iterator[Statement]:
    """A statement ends with the line after which what was read so far is TOML."""
    lines = text.split("\n")
    begun, start = "", 1
    for number, line in enumerate(lines, start=1):
        if number == len(lines) and not line and not begun:
            return
        begun += f"{line}\n"
        try:
            table = tomllib.loads(begun)
        except tomllib.TOMLDecodeError:
            continue
        key = next(iter(table), None)
        yield Statement(text=begun, line=start, key=key, value=table.get(key) if key else None)
        begun, start = "", number + 1


def rewrite(statements: Sequence[Statement], wanted: Mapping[str, object]) -> str:
    r"""The text with these values: what is right stays as it is written, comments stay in any case.

    Args:
        statements: Of the file as it is.
        wanted: Every value by its key: text, a whole number, a number, a truth, or a list of texts.

    Raises:
        NotTextError: TOML cannot hold a value.

    Example:
        >>> found = read_statements("# mine\nnodes = 2  # all\ngpus = '0'\n", "a.toml")
        >>> rewrite(found, {"nodes": 4, "model": "7b"})
        '# mine\nnodes = 4  # all\nmodel = "7b"\n'
    """
    left = dict(wanted)
    text = ""
    for statement in statements:
        if statement.key is None:
            text += statement.text
        elif statement.key in left:
            value = left.pop(statement.key)
            same = type(value) is type(statement.value) and value == statement.value
            text += (
                statement.text
                if same
                else f"{_render(statement.key, value)}{_comment(statement)}\n"
            )
    return text + "".join(f"{_render(key, value)}\n" for key, value in left.items())


def _comment(statement: Statement) -> str:
    """What stands behind the value."""
    line = statement.text.rstrip("\r\n")
    for place in (match.start() for match in re.finditer(r"\s*#", line)):
        try:
            before = tomllib.loads(line[:place])
        except tomllib.TOMLDecodeError:
            continue
        if before:
            return line[place:]
    return ""


def _render(key: str, value: object) -> str:
    return f"{key} = {_value(value)}"


def _value(value: object) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case int() | float():
            return repr(value)
        case list() | tuple():
            return f"[{', '.join(map(_value, value))}]"
        case _:
            return _quote(str(value))


def _quote(text: str) -> str:
    """A basic string; toml.io/en/v1.0.0, String: quotes, backslashes and controls are escaped."""
    if any("\ud800" <= character <= "\udfff" for character in text):
        shown = text.encode("ascii", "backslashreplace").decode()
        raise NotTextError(f"`{shown}` is not UTF-8, so it cannot be written as TOML")
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    controls = re.sub(r"[\x00-\x1f\x7f]", lambda match: f"\\u{ord(match[0]):04x}", escaped)
    return f'"{controls}"'
