"""The options of a script's parser, and how it reads the words after the script, or a file."""

import json
import posixpath
import re
from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum
from itertools import takewhile
from typing import NamedTuple, TypeAlias

import msgspec.yaml
from msgspec import Struct

from zerowiz.core.workload import (
    PRECISIONS,
    Precision,
)
from zerowiz.errors import UsageError

# Parse the words after a script as its own options.

Scalar: TypeAlias = int | float | str | bool | None

# peft 0.21, tuners/lora/config.py, `target_modules=None`: peft chooses by the model's type.
BY_ARCHITECTURE = "by-architecture"


class Takes(StrEnum):
    """How many words an option takes."""

    VALUE = "value"
    PERHAPS = "perhaps"
    """argparse's `nargs="?"`: a value, or its `const` where none follows."""
    WORDS = "words"
    """argparse's `nargs="+"`: all the values that follow."""
    STORE_TRUE = "store_true"
    STORE_FALSE = "store_false"
    UNSEEN = "unseen"
    """Any other action."""


# The kinds of options that take no word, and the value that each stores.
SWITCHES: Mapping[Takes, bool] = {Takes.STORE_TRUE: True, Takes.STORE_FALSE: False}


class Reads(StrEnum):
    """How an option parses its word."""

    INT = "int"
    FLOAT = "float"
    STR = "str"
    TRUTH = "truth"
    """A boolean as a word, such as `yes`."""
    WORDS = "words"
    """A list of names, kept as one text with commas."""
    NONEMPTY = "nonempty"
    """argparse's `type=bool`: every word is true, `False` too."""
    UNSEEN = "unseen"


# transformers 5.23, hf_argparser.py, string_to_bool.
_TRUTHS: Mapping[str, bool] = {
    **dict.fromkeys(("yes", "true", "t", "y", "1"), True),
    **dict.fromkeys(("no", "false", "f", "n", "0"), False),
}
_READERS: Mapping[Reads, Callable[[str], Scalar]] = {
    Reads.INT: int,
    Reads.FLOAT: float,
    Reads.STR: str,
    Reads.TRUTH: lambda word: _TRUTHS.get(word.lower()),
    # Fire takes a list in brackets, argparse one word for each item.
    Reads.WORDS: lambda word: re.sub(r"""[][()'"\s]""", "", word),
    Reads.NONEMPTY: bool,
    Reads.UNSEEN: lambda _: None,
}


def read_word(reads: Reads, word: str) -> Scalar:
    """The value of an option's word; None where the script would refuse it."""
    try:
        return _READERS[reads](word)
    except ValueError:
        return None


LOCAL_RANK_FLAG = "--local_rank"
"""What DeepSpeed's launcher puts before the script's words (launcher/launch.py, 0.19.8)."""


class Option(Struct, frozen=True, kw_only=True):
    """One option of the script's own command line."""

    flags: tuple[str, ...]
    """Its spellings, such as `--batch_size`, `-b`."""
    dest: str
    default: Scalar = None
    """None if there is none, or where it is not known."""
    takes: Takes = Takes.VALUE
    reads: Reads = Reads.STR
    const: Scalar = True
    required: bool = False
    """Whether the script's parser surely ends it where no word gives it."""
    line: int | None = None

    @property
    def flag(self) -> str:
        """The spelling to show: the first long one."""
        return next((flag for flag in self.flags if flag.startswith("--")), self.flags[0])

    @property
    def usage(self) -> str:
        """The words that give it, with capitals for its value.

        Example:
            >>> Option(flags=("--data-path",), dest="data_path").usage
            '--data-path DATA_PATH'
        """
        return f"{self.flag} {self.flag.lstrip('-').replace('-', '_').upper()}"


YAML_SUFFIXES = (".yaml", ".yml")


class ScriptParser(Struct, frozen=True, kw_only=True):
    """The script's command line, as far as it is known."""

    options: tuple[Option, ...] = ()
    abbreviates: bool = True
    """argparse's `allow_abbrev`."""
    complete: bool = True
    """Whether every option is known; only then an abbreviation has one meaning."""
    args_file_suffixes: tuple[str, ...] = ()
    """A first word with one of these suffixes is a file that holds all arguments."""
    is_foreign: bool = False
    """Whether a class of another module made it: it may take a file of settings first, and then
    know `--x=4` alone, as alignment-handbook's does."""
    config_flag: str | None = None
    """TrlParser's `--config`: a file of defaults."""
    strict: bool = False
    """Whether it is seen that the script refuses a word that none of `options` spells."""
    of_script: bool = False
    """Whether it is strict, and no release of a library decides which options it has."""

    def spells(self, flag: str) -> bool:
        """Whether an option has exactly this spelling."""
        return any(flag in option.flags for option in self.options)

    def find(self, flag: str) -> tuple[Option, ...]:
        """The options that a flag may mean; several for an ambiguous abbreviation."""
        exact = tuple(option for option in self.options if flag in option.flags)
        if exact or not self.abbreviates or not flag.startswith("--") or flag == "--":
            return exact[:1]
        return tuple(o for o in self.options if any(f.startswith(flag) for f in o.flags))

    def of(self, dest: str) -> tuple[Option, ...]:
        """Every option with this `dest`."""
        return tuple(option for option in self.options if option.dest == dest)

    def takes_file(self, script_args: tuple[str, ...]) -> bool:
        """Whether the first word after the script is a file that holds all arguments."""
        first = script_args[0] if script_args else ""
        return not first.startswith("-") and first.endswith(self.args_file_suffixes)

    def refuses_local_rank(self, script_args: tuple[str, ...]) -> bool:
        """Whether `--local_rank=N`, which DeepSpeed's launcher adds, would end the script.

        A file that holds all arguments has to be the only word (transformers 5.23, the examples'
        `len(sys.argv) == 2`).
        """
        reads_file = self.takes_file(script_args) or self.config_flag in script_args
        reads_file = reads_file or self._begins_with_file(script_args)
        return reads_file or (self.strict and not self.find(LOCAL_RANK_FLAG))

    def _begins_with_file(self, script_args: tuple[str, ...]) -> bool:
        """Whether a file of defaults comes first (alignment-handbook 0.3, H4ArgumentParser)."""
        return (
            self.is_foreign
            and bool(script_args)
            and script_args[0].endswith((*YAML_SUFFIXES, ".json"))
        )

    def settings_file(self, script_args: tuple[str, ...]) -> str | None:
        """The file of values that these words name; None for none.

        Raises:
            UsageError: The option for it stands there, and no file that it would read.
        """
        if self.takes_file(script_args) or self._begins_with_file(script_args):
            return script_args[0]
        flag = self.config_flag
        if flag is None:
            return None
        # trl 1.16, scripts/utils.py, parse_args_and_config: it knows the flag as a word alone.
        joined = next((word for word in script_args if word.startswith(f"{flag}=")), None)
        if joined is not None:
            name = joined.partition("=")[2]
            raise UsageError(
                (
                    f"`{joined}` after the script: TrlParser does not read a file that is "
                    "passed like this"
                ),
                f"write two words: `{flag} {name}`",
            )
        after = script_args[script_args.index(flag) + 1 :] if flag in script_args else None
        if after == ():
            raise UsageError(
                f"`{flag}` after the script has no file name", "write the file after it"
            )
        return after[0] if after else None


class Given(Struct, frozen=True, kw_only=True):
    """An option that somebody gave a value."""

    written: tuple[str, ...]
    """The words, one by one; a key in a settings file."""
    value: Scalar
    """None where it is not known."""
    where: str = "after the script"
    """Where they stand, for messages."""
    in_file: bool = False
    """Whether a key of a settings file gives it."""
    is_null: bool = False
    """Whether a settings file says that it has no value."""
    fault: str | None = None
    """Why a settings file's value is none that the option can have."""

    @property
    def words(self) -> str:
        """The words, for messages."""
        return " ".join(self.written)


def read_words(parser: ScriptParser, words: tuple[str, ...]) -> dict[str, Given]:
    """The options in these words by their `dest`; the last one counts, as in argparse."""
    return {option.dest: given for _, option, given in _each_option(parser, words)}


def left_over(parser: ScriptParser, words: tuple[str, ...]) -> tuple[str, ...]:
    """The words that are no option with a known value, and belong to none.

    Example:
        >>> batch = Option(flags=("--batch",), dest="batch", reads=Reads.INT)
        >>> left_over(ScriptParser(options=(batch,)), ("--batch", "4", "--other", "x"))
        ('--other', 'x')
    """
    known = [(i, given) for i, _, given in _each_option(parser, words) if given.value is not None]
    places = {i + offset for i, given in known for offset in range(len(given.written))}
    return tuple(word for i, word in enumerate(words) if i not in places)


def _each_option(
    parser: ScriptParser, words: tuple[str, ...]
) -> Iterator[tuple[int, Option, Given]]:
    """The options in these words, each with the place of its flag."""
    words = words[: words.index("--")] if "--" in words else words
    for index, word in enumerate(words):
        after = tuple(takewhile(_is_value, words[index + 1 :]))
        # Hydra's `key=value`, and `+key=value`.
        key = word.lstrip("+").partition("=")[0] + "="
        if not word.startswith("-") and not parser.spells(key):
            continue
        flag = word if parser.spells(word) else _split(word)[0]
        flag = key if parser.spells(key) else flag
        meant = parser.find(flag)
        one_meaning = len({option.dest for option in meant}) == 1
        certain = one_meaning and (parser.complete or parser.spells(flag))
        for option in meant:
            given = _take(option, word, after) if certain else Given(written=(word,), value=None)
            yield index, option, given


def unknown_word(parser: ScriptParser, words: tuple[str, ...]) -> str | None:
    """The first long option among these words that surely ends the script; None for none.

    Example:
        >>> steps = Option(flags=("--max_iters",), dest="max_iters")
        >>> parser = ScriptParser(options=(steps,), of_script=True)
        >>> unknown_word(parser, ("--max_iter", "3")), unknown_word(parser, ("--max-iters=3",))
        (None, '--max-iters')
    """
    # zerowiz and DeepSpeed's launcher hand these over themselves, and every parser has its help.
    known = ("--help", "--deepspeed", "--deepspeed_config", LOCAL_RANK_FLAG)
    own = words[: words.index("--")] if "--" in words else words
    # To argparse a word with a space in it is a value.
    flags = (word.partition("=")[0] for word in own if word.startswith("--") and " " not in word)
    unknown = (flag for flag in flags if not parser.find(flag) and not _may_mean(flag, known))
    return next(unknown, None) if parser.of_script else None


def missing_arguments(parser: ScriptParser, words: tuple[str, ...]) -> tuple[Option, ...]:
    """What a parser requires, and these words surely do not give it.

    A word that may give it, such as one that may be an abbreviation, counts as if it did, and so
    does one that belongs to no option, such as a file of settings.

    Example:
        >>> needed = Option(flags=("--data",), dest="data", required=True)
        >>> [o.flag for o in missing_arguments(ScriptParser(options=(needed,)), ("--batch=4",))]
        ['--data']
    """
    options = words[: words.index("--")] if "--" in words else words
    flags = [word.partition("=")[0] for word in options if word.startswith("-")]
    asks_help = any(_may_mean(flag, ("--help", "-h")) for flag in flags)
    if asks_help or any(_is_value(word) for word in left_over(parser, options)):
        return ()
    required = (option for option in parser.options if option.required)
    return tuple(o for o in required if not any(_may_mean(flag, o.flags) for flag in flags))


def _may_mean(flag: str, spellings: tuple[str, ...]) -> bool:
    """Whether a word may spell an option, also shortened, or with others after one dash."""
    if flag.startswith("--"):
        return any(spelling.startswith(flag) for spelling in spellings)
    return any(spelling[1:2] in flag[1:] for spelling in spellings if not spelling.startswith("--"))


def write_words(parser: ScriptParser, option: Option, value: object) -> tuple[str, ...] | None:
    """The words that give an option this value; None where no words can.

    Args:
        parser: The option is one of its own.
        option: The option.
        value: The value.

    Example:
        >>> micro_batch = Option(flags=("--micro_batch", "-b"), dest="micro_batch", reads=Reads.INT)
        >>> write_words(ScriptParser(options=(micro_batch,)), micro_batch, 4)
        ('--micro_batch', '4')
    """
    if option.takes in SWITCHES:
        same = (other for other in parser.of(option.dest) if SWITCHES.get(other.takes) == value)
        return next(((other.flag,) for other in same), None)
    written = None if option.takes is Takes.UNSEEN else _write(option, value)
    if written is not None and (parser.is_foreign or option.flag.endswith("=")):
        return (f"{option.flag.removesuffix('=')}={','.join(written)}",)
    return None if written is None else (option.flag, *written)


_READS_BACK = frozenset({Reads.INT, Reads.FLOAT, Reads.STR, Reads.TRUTH})


def _write(option: Option, value: object) -> tuple[str, ...] | None:
    """The values that follow an option's flag."""
    match option.reads, value:
        case Reads.NONEMPTY, bool():
            return ("1",) if value else ("",)
        case Reads.WORDS, str():
            several = option.takes is Takes.WORDS
            return tuple(value.split(",")) if several else (f"[{value}]",)
        case reads, bool() | int() | float() | str() if reads in _READS_BACK:
            text = str(value)
            return (text,) if read_word(reads, text) == value else None
        case _:
            return None


def _split(word: str) -> tuple[str, str | None]:
    """The flag, and the value that is joined to it as in `--x=4`, `-x4`."""
    if not word.startswith("--") and len(word) > len("-x") and "=" not in word:
        return word[:2], word[2:]
    flag, joined, value = word.partition("=")
    return flag, value if joined else None


def _take(option: Option, word: str, after: tuple[str, ...]) -> Given:
    """One option with the words that belong to it."""
    flag, joined = (word, None) if word in option.flags else _split(word)
    if option.takes in SWITCHES:
        return Given(written=(flag,), value=SWITCHES[option.takes])
    if joined is not None:
        return Given(written=(word,), value=_value(option, joined))
    if not after:
        return Given(written=(word,), value=option.const if option.takes is Takes.PERHAPS else None)
    values = after if option.takes is Takes.WORDS else after[:1]
    return Given(written=(word, *values), value=_value(option, ",".join(values)))


def _value(option: Option, word: str) -> Scalar:
    return None if option.takes is Takes.UNSEEN else read_word(option.reads, word)


def _is_value(word: str) -> bool:
    # argparse, _negative_number_matcher: the only kind of value that may start with a dash.
    return not word.startswith("-") or word == "-" or bool(re.fullmatch(r"-(\d+|\d*\.\d+)", word))


# Understand a file of values that a script takes its arguments from, and write a copy of it.


class SettingsFile(Struct, frozen=True, kw_only=True):
    """A file of values by the names of arguments, as a person hands it to a script."""

    path: str
    """As the person wrote it."""
    values: Mapping[str, object]
    is_whole: bool
    """Whether it holds all arguments (HfArgumentParser), or defaults for the words (TrlParser)."""


class SettingsCopy(Struct, frozen=True, kw_only=True):
    """A settings file with what was settled, to be handed over instead of the person's own."""

    path: str
    of: str
    """The person's own."""
    values: Mapping[str, object]


def read_values(parser: ScriptParser, file: SettingsFile) -> dict[str, Given]:
    """The options that a settings file gives a value, by their `dest`."""
    return {
        option.dest: _given(option, key, file)
        for key in file.values
        for option in _options(parser, key)
    }


def _options(parser: ScriptParser, key: str) -> tuple[Option, ...]:
    """The option that a key names, also by another name of its field."""
    return tuple(o for o in parser.options if f"--{key}" in o.flags)[:1] or parser.of(key)[:1]


def _given(option: Option, key: str, file: SettingsFile) -> Given:
    written = file.values[key]
    # A dataclass takes a value as it is; argparse reads the text of a default as it reads a word.
    is_word = isinstance(written, str) and not file.is_whole and option.reads is not Reads.WORDS
    value = (
        read_word(option.reads, str(written)) if is_word else _FILE_READERS[option.reads](written)
    )
    expected = _EXPECTED.get(option.reads)
    fault = None
    if value is None and written is not None and expected is not None:
        shown = json.dumps(written, default=str, ensure_ascii=False)
        fault = f"`{key}` in {file.path} is {shown}, and not {expected}"
    return Given(
        written=(key,),
        value=value,
        where=f"in {file.path}",
        fault=fault,
        is_null=written is None,
        in_file=True,
    )


def _number(value: object) -> Scalar:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _truth(value: object) -> Scalar:
    return value if isinstance(value, bool) else None


def _text_value(value: object) -> Scalar:
    """A text, or a switch in its place, such as `"fsdp": true`."""
    return value if isinstance(value, str | bool) else None


def _names(value: object) -> Scalar:
    """A list of names, as one text with commas; none leaves the choice to peft."""
    if value is None:
        return BY_ARCHITECTURE
    if isinstance(value, list) and all(isinstance(name, str) for name in value):
        return ",".join(value)
    return _text_value(value)


_FILE_READERS: Mapping[Reads, Callable[[object], Scalar]] = {
    Reads.INT: lambda value: None if isinstance(value, float) else _number(value),
    Reads.FLOAT: _number,
    Reads.STR: _text_value,
    Reads.TRUTH: _truth,
    Reads.WORDS: _names,
    Reads.NONEMPTY: _truth,
    Reads.UNSEEN: lambda _: None,
}
# What a value has to be; fields of text have values of other types too, such as dicts.
_EXPECTED: Mapping[Reads, str] = {
    Reads.INT: "a whole number",
    Reads.FLOAT: "a number",
    Reads.TRUTH: "true or false",
    Reads.WORDS: "a list of names",
}


def copy_values(
    parser: ScriptParser, file: SettingsFile, given: Mapping[str, Given]
) -> dict[str, object]:
    """The values of a settings file, with those of words instead or beside them.

    Args:
        parser: Of the script.
        file: The person's own.
        given: What the words give, by `dest`; values that are not known are left out.
    """
    values = dict(file.values)
    for dest, word in given.items():
        if word.value is None:
            continue
        names = (key for key in file.values if any(o.dest == dest for o in _options(parser, key)))
        several = any(option.reads is Reads.WORDS for option in parser.of(dest))
        value = str(word.value).split(",") if several else word.value
        values[next(names, dest)] = value
    return values


def render_values(path: str, values: Mapping[str, object]) -> str:
    """The text of a settings file: YAML where its name says so, else JSON."""
    if path.endswith(YAML_SUFFIXES):
        return msgspec.yaml.encode(values).decode()
    return json.dumps(values, indent=2, ensure_ascii=False) + "\n"


def copy_path(folder: str, path: str, config_path: str) -> str:
    """Where the copy of a settings file for a run with this config lies.

    Its name holds both paths, so that jobs in one folder do not take each other's copies.

    Args:
        folder: Where zerowiz writes.
        path: The person's own file.
        config_path: The config.

    Example:
        >>> copy_path("", "runs/args.json", "ds_config_zero2.json")
        'runs-args.ds_config_zero2.json'
    """
    parts = posixpath.normpath(path).split("/")
    stem, suffix = posixpath.splitext("-".join(part for part in parts if part not in {"", ".."}))
    config = posixpath.splitext(posixpath.basename(config_path))[0]
    return posixpath.join(folder, f"{stem}.{config}{suffix}")


# The names that libraries have for values of settings.

MIXED_PRECISIONS: Mapping[Scalar, Precision] = {
    row.mixed_precision: name for name, row in PRECISIONS.items() if row.mixed_precision is not None
}
LIGHTNING_PRECISIONS: Mapping[Scalar, Precision] = {
    word: name for name, row in PRECISIONS.items() for word in row.lightning_names
}
# trl 1.16, trainer/grpo_config.py, `vllm_mode`.
COLOCATED, SERVER = "colocate", "server"

Release: TypeAlias = tuple[int, int]


class Field(NamedTuple):
    """A field of an arguments class."""

    reads: Reads
    default: Scalar
    """In the newest release; None for one that is not known."""
    older: tuple[tuple[Release, Scalar], ...] = ()
    """The defaults before some releases of trl, the oldest first."""

    def default_in(self, trl: Release) -> Scalar:
        """The default in a release of trl."""
        return next((value for before, value in self.older if trl < before), self.default)


# The fields of TrainingArguments that matter here, with their defaults; None is one that is not
# known. transformers 5.23, training_args.py, class TrainingArguments.
_TRAINING_ARGUMENTS: Mapping[str, Field] = {
    "per_device_train_batch_size": Field(Reads.INT, 8),
    "gradient_accumulation_steps": Field(Reads.INT, 1),
    "per_device_eval_batch_size": Field(Reads.INT, 8),
    "eval_strategy": Field(Reads.STR, "no"),
    "do_eval": Field(Reads.TRUTH, default=False),
    "bf16": Field(Reads.TRUTH, default=False),
    "fp16": Field(Reads.TRUTH, default=False),
    "gradient_checkpointing": Field(Reads.TRUTH, default=False),
    "gradient_checkpointing_kwargs": Field(Reads.STR, None),
    "optim": Field(Reads.STR, "adamw_torch_fused"),
    "learning_rate": Field(Reads.FLOAT, 5e-5),
    "weight_decay": Field(Reads.FLOAT, 0.0),
    "lr_scheduler_type": Field(Reads.STR, "linear"),
    "warmup_steps": Field(Reads.FLOAT, 0.0),
    "max_grad_norm": Field(Reads.FLOAT, 1.0),
    "adam_beta1": Field(Reads.FLOAT, 0.9),
    "adam_beta2": Field(Reads.FLOAT, 0.999),
    "adam_epsilon": Field(Reads.FLOAT, 1e-8),
    "max_steps": Field(Reads.INT, -1),
    "deepspeed": Field(Reads.STR, None),
    "use_cpu": Field(Reads.TRUTH, default=False),
    "dataloader_num_workers": Field(Reads.INT, 0),
    "use_liger_kernel": Field(Reads.TRUTH, default=False),
    "output_dir": Field(Reads.STR, "trainer_output"),
    # It stands here for DeepSpeed's launcher, which adds the word.
    "local_rank": Field(Reads.INT, -1),
    "resume_from_checkpoint": Field(Reads.STR, None),
    "fsdp": Field(Reads.STR, None),
    "save_only_model": Field(Reads.TRUTH, default=False),
    "load_best_model_at_end": Field(Reads.TRUTH, default=False),
    "auto_find_batch_size": Field(Reads.TRUTH, default=False),
}
# sentence-transformers 5, base/training_args.py: it keeps what transformers has removed.
_SENTENCE_ARGUMENTS = {**_TRAINING_ARGUMENTS, "warmup_ratio": Field(Reads.FLOAT, None)}
# trl 1.16, trainer/base_config.py, class _BaseConfig: bf16 becomes true unless fp16 is. In older
# releases both were false, so the default is not known. Each class has its own learning rate.
_TRL_CONFIG: Mapping[str, Field] = {
    **_TRAINING_ARGUMENTS,
    "learning_rate": Field(Reads.FLOAT, None),
    "bf16": Field(Reads.TRUTH, default=None),
    "gradient_checkpointing": Field(Reads.TRUTH, default=True, older=(((0, 22), False),)),
}
# trl 1.x, trainer/sft_config.py: max_length is 1024.
_SFT_CONFIG: Mapping[str, Field] = {
    **_TRL_CONFIG,
    "max_length": Field(Reads.INT, 1024),
    "packing": Field(Reads.TRUTH, default=False),
    "padding_free": Field(Reads.TRUTH, default=False),
}
# trl 1.16, trainer/reward_config.py, dpo_config.py, kto_config.py.
_PAIRS_CONFIG: Mapping[str, Field] = {
    **_TRL_CONFIG,
    "max_length": Field(Reads.INT, 1024, (((0, 14), None),)),
}
_REFERRING_CONFIG: Mapping[str, Field] = {
    **_PAIRS_CONFIG,
    "precompute_ref_log_probs": Field(Reads.TRUTH, default=False),
}
# trl 1.16, trainer/grpo_config.py, rloo_config.py; a prompt is cut in releases before 0.28 alone.
_GENERATING_CONFIG: Mapping[str, Field] = {
    **_TRL_CONFIG,
    "max_prompt_length": Field(Reads.INT, None, (((0, 28), 512),)),
    "max_completion_length": Field(Reads.INT, 512, (((1, 10), 256),)),
    "num_generations": Field(Reads.INT, 8),
    "steps_per_generation": Field(Reads.INT, None),
    "generation_batch_size": Field(Reads.INT, None),
    "use_vllm": Field(Reads.TRUTH, default=False),
    # Before 0.18 it ran on a GPU of its own, or was a server: neither takes of those that train.
    "vllm_mode": Field(Reads.STR, "colocate", (((1, 0), "server"),)),
    "vllm_gpu_memory_utilization": Field(Reads.FLOAT, 0.3),
    "vllm_enable_sleep_mode": Field(Reads.TRUTH, default=False),
}

# An arguments class of a library that has no row here is not understood.
ARGUMENT_CLASSES: Mapping[str, Mapping[str, Field]] = {
    "TrainingArguments": _TRAINING_ARGUMENTS,
    "Seq2SeqTrainingArguments": _TRAINING_ARGUMENTS,
    # sentence-transformers 5, training_args.py, and those of its cross and sparse encoders.
    "SentenceTransformerTrainingArguments": _SENTENCE_ARGUMENTS,
    "CrossEncoderTrainingArguments": _SENTENCE_ARGUMENTS,
    "SparseEncoderTrainingArguments": _SENTENCE_ARGUMENTS,
    "SFTConfig": {**_SFT_CONFIG, "learning_rate": Field(Reads.FLOAT, 2e-5)},
    # trl 1.16, experimental/gkd/gkd_config.py, gold/gold_config.py: subclasses of SFTConfig.
    "GKDConfig": _SFT_CONFIG,
    "GOLDConfig": _SFT_CONFIG,
    "DPOConfig": _REFERRING_CONFIG,
    "KTOConfig": _REFERRING_CONFIG,
    "RewardConfig": _PAIRS_CONFIG,
    # trl 1.16, experimental/.
    "ORPOConfig": _PAIRS_CONFIG,
    "CPOConfig": _PAIRS_CONFIG,
    "TPOConfig": _PAIRS_CONFIG,
    # trl 1.13, experimental/; these classes left trl after it.
    "BCOConfig": _REFERRING_CONFIG,
    "PRMConfig": _PAIRS_CONFIG,
    # They have the max_length of OnlineDPOConfig, but their trainers cut nothing to it.
    "NashMDConfig": _TRL_CONFIG,
    "XPOConfig": _TRL_CONFIG,
    # These generate: the length of a sequence is that of its prompt and of its completion.
    "GRPOConfig": {**_GENERATING_CONFIG, "beta": Field(Reads.FLOAT, 0.0, (((0, 19), 0.04),))},
    # Before 0.22 it was a class of another kind.
    "RLOOConfig": {
        **_GENERATING_CONFIG,
        "beta": Field(Reads.FLOAT, 0.05),
        "num_generations": Field(Reads.INT, 2),
        "max_prompt_length": Field(Reads.INT, None, (((0, 27), 512),)),
    },
    # trl 1.12, experimental/ppo/ppo_config.py; the class left trl after it.
    "PPOConfig": {**_TRL_CONFIG, "response_length": Field(Reads.INT, 53)},
    # trl 1.16, experimental/online_dpo/online_dpo_config.py: of a prompt and its completion.
    "OnlineDPOConfig": {**_TRL_CONFIG, "max_length": Field(Reads.INT, 512, (((0, 14), None),))},
    # trl 1.x, trainer/model_config.py and scripts/utils.py.
    "ModelConfig": {
        "model_name_or_path": Field(Reads.STR, None),
        "attn_implementation": Field(Reads.STR, None),
        "use_peft": Field(Reads.TRUTH, default=False),
        "lora_r": Field(Reads.INT, 16),
        "lora_target_modules": Field(Reads.WORDS, BY_ARCHITECTURE),
        "load_in_4bit": Field(Reads.TRUTH, default=False),
        "load_in_8bit": Field(Reads.TRUTH, default=False),
    },
    "ScriptArguments": {},
}
TRAINING_CLASSES = frozenset(name for name, row in ARGUMENT_CLASSES.items() if "deepspeed" in row)

# Other names of a field in other releases, the one that takes precedence first: transformers 5.23,
# training_args.py, and 4.40 for `evaluation_strategy`
# and `warmup_ratio`, which is a `warmup_steps` below 1 now; trl 0.16, trainer/sft_config.py.
FIELD_ALIASES: Mapping[str, tuple[str, ...]] = {
    "gradient_checkpointing": ("activation_checkpointing",),
    "gradient_checkpointing_kwargs": ("activation_checkpointing_kwargs",),
    "eval_strategy": ("evaluation_strategy",),
    "max_length": ("max_seq_length",),
    "warmup_steps": ("warmup_ratio",),
}


# transformers 5.23, training_args.py: `nargs="?"`, and True where no word follows.
_PERHAPS = frozenset({"fsdp"})
_TAKES: Mapping[Reads, Takes] = {Reads.TRUTH: Takes.PERHAPS, Reads.WORDS: Takes.WORDS}


def field_options(
    name: str, reads: Reads, default: Scalar, line: int | None = None
) -> tuple[Option, ...]:
    """The options that HfArgumentParser makes of a dataclass field, with `--no_x`.

    Args:
        name: The field.
        reads: How its word is parsed.
        default: None if there is none, or where it is not known.
        line: Where the script defines the field; None for a library's.
    """
    names = (name, *FIELD_ALIASES.get(name, ()))
    takes = Takes.PERHAPS if name in _PERHAPS else _TAKES.get(reads, Takes.VALUE)
    flags = dict.fromkeys(f"--{n}" for m in names for n in (m, m.replace("_", "-")))
    on = Option(flags=tuple(flags), dest=name, default=default, takes=takes, reads=reads, line=line)
    if default is not True:
        return (on,)
    off = (f"--no_{name}", f"--no-{name.replace('_', '-')}")
    return (on, Option(flags=off, dest=name, default=True, takes=Takes.STORE_FALSE, line=line))


# training_args.py of transformers 4.34 to 5.24: fields of TrainingArguments that are gone, each
# with the first release without it, and what its warnings name instead.
REMOVED_FIELDS: Mapping[str, tuple[Release, str]] = {
    "evaluation_strategy": ((4, 51), "eval_strategy"),
    "adafactor": ((5, 0), "optim"),
    "half_precision_backend": ((5, 0), ""),
    "include_inputs_for_metrics": ((5, 0), "include_for_metrics"),
    "no_cuda": ((5, 0), "use_cpu"),
    "overwrite_output_dir": ((5, 0), ""),
    "per_gpu_eval_batch_size": ((5, 0), "per_device_eval_batch_size"),
    "per_gpu_train_batch_size": ((5, 0), "per_device_train_batch_size"),
    "push_to_hub_model_id": ((5, 0), "hub_model_id"),
    "push_to_hub_token": ((5, 0), "hub_token"),
    "save_safetensors": ((5, 0), ""),
    "group_by_length": ((5, 2), "train_sampling_strategy"),
    "logging_dir": ((5, 15), ""),
    "warmup_ratio": ((5, 15), "warmup_steps"),
}
