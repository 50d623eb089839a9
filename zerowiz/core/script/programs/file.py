"""What the file of a program says of its job, and which of its lines a plan changes.

Such a program has no script of the person's: it reads one YAML file, and hands the config under
`deepspeed` to the Trainer.
"""

from collections.abc import Iterable, Iterator, Mapping

from msgspec import Struct

from zerowiz.core.settings import Change

Value = int | str | bool


class ProgramJob(Struct, frozen=True, kw_only=True):
    """What a file says of a job, as far as a plan is concerned."""

    settings: Change
    """What it says of the step, by the fields of the options."""
    not_counted: tuple[str, ...] = ()
    """Its keys that change what a rank holds, and that no formula counts."""
    excluding: tuple[str, ...] = ()
    """Its keys that exclude DeepSpeed, such as those of FSDP."""


def make_job(
    values: Mapping[str, object],
    found: Mapping[str, Value | None],
    unknown: Mapping[str, bool],
    *,
    not_counted: Iterable[str],
    excluding: Iterable[str],
) -> ProgramJob:
    """A job of what was read of a file.

    Args:
        values: The keys and values of the file.
        found: Its settings; None where it decides none.
        unknown: Keys, and whether the file has a value for them that zerowiz does not know.
        not_counted: The keys of the program that no formula counts, if they are set.
        excluding: Its keys that exclude DeepSpeed, if they are set.
    """
    lost = (key for key in not_counted if values.get(key))
    return ProgramJob(
        settings={name: value for name, value in found.items() if value is not None},
        not_counted=(*lost, *(key for key, is_unknown in unknown.items() if is_unknown)),
        excluding=tuple(key for key in excluding if values.get(key)),
    )


def join_names(names: object) -> str:
    """The modules of adapters, in the syntax of `--lora-target-modules`: a list, or one text."""
    return ",".join(map(str, names)) if isinstance(names, list) else str(names)


class Program(Struct, frozen=True, kw_only=True):
    """A program, and how its file says what a plan changes."""

    name: str
    train: tuple[str, ...]
    """The words before its file; `{ranks}` is the number of ranks on a node."""
    without_default: frozenset[str] = frozenset()
    """The settings that a file has to say: the program has no default for them, or its own."""
    keys: Mapping[str, str]
    """The key of each setting, whose values are the same words there."""
    lines: Mapping[tuple[str, Value], tuple[str, ...]]
    """The lines of a value that has other words there."""


class ProgramFile(Struct, frozen=True, kw_only=True):
    """A file, and the program that reads it."""

    path: str
    program: Program
    job: ProgramJob

    def takes(self, name: str, value: Value) -> bool:
        """Whether the file has a setting, or a line of it could say so.

        Args:
            name: The setting.
            value: What it is to be.
        """
        program = self.program
        is_said = self.job.settings.get(name) == value
        return is_said or name in program.keys or (name, value) in program.lines

    def command(self, ranks: int) -> tuple[str, ...]:
        """What trains with the file.

        Args:
            ranks: The ranks on a node.
        """
        return (*(word.format(ranks=ranks) for word in self.program.train), self.path)


def read_word(values: Mapping[str, object], key: str) -> Value | float | None:
    """A value to look up in a table; a list or a mapping, which no table has, is its text.

    Args:
        values: The keys and values of the file.
        key: The key.
    """
    value = values.get(key)
    return value if isinstance(value, str | int | float | None) else str(value)


def read_counts(values: Mapping[str, object], keys: Mapping[str, str]) -> dict[str, Value | None]:
    """The whole numbers of a file, by their settings.

    Args:
        values: The keys and values of the file.
        keys: The key of each setting.
    """
    found = ((name, values.get(key)) for name, key in keys.items())
    return {n: v for n, v in found if isinstance(v, int) and not isinstance(v, bool)}


def list_changes(file: ProgramFile, planned: Change, config_path: str) -> Iterator[str]:
    """The lines that the file is to have for a plan, and has not.

    Args:
        file: The file as it is.
        planned: The settings of the plan that are not the program's defaults, and all that the
            file says.
        config_path: The config that was written.
    """
    yield f"deepspeed: {config_path}"
    lines, keys = file.program.lines, file.program.keys
    for name, value in planned.items():
        if file.job.settings.get(name) == value:
            continue
        key = keys.get(name)
        yield from lines.get((name, value), () if key is None else (f"{key}: {value}",))
    for key in file.job.excluding:
        yield f"{key}:"
