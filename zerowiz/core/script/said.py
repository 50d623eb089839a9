"""Join what a person says to a script: in the words after it, and in the files that it reads."""

from collections.abc import Iterator, Mapping

from zerowiz.core.script.arguments import FIELD_ALIASES, REMOVED_FIELDS
from zerowiz.core.script.facts import Convention, ScriptFacts
from zerowiz.core.script.options import (
    LOCAL_RANK_FLAG,
    Given,
    Required,
    ScriptParser,
    missing_arguments,
    read_words,
)
from zerowiz.core.script.settings_file import read_values
from zerowiz.core.values import replace
from zerowiz.words import _


def read_said(facts: ScriptFacts, script_args: tuple[str, ...]) -> Mapping[str, Given]:
    """The options that somebody gave a value, by their `dest`; what takes precedence counts.

    Args:
        facts: What the script shows, with the settings file that these words name.
        script_args: The words after the script.
    """
    file, words = facts.settings_file, read_words(facts.parser, script_args)
    values = {} if file is None else read_values(facts.parser, file)
    if file is not None and file.is_whole:
        return {**values, **words}
    beside = {
        dest: replace(given, where=_("in {args_file}", args_file=facts.args_file))
        for dest, given in read_words(facts.parser, facts.args_file_words).items()
    }
    # trl 1.16, scripts/utils.py, parse_args_and_config: the file's values become defaults, and
    # parse_args_into_dataclasses puts the words of the `.args` file before the others.
    return {**values, **beside, **words}


def unsaid_arguments(facts: ScriptFacts, script_args: tuple[str, ...]) -> tuple[Required, ...]:
    """What the script's parser requires, and nobody says.

    Args:
        facts: What the script shows, with the settings file that these words name.
        script_args: The words after the script, with those that zerowiz adds.
    """
    parser = facts.parser
    reads_file = parser.takes_file(script_args) or parser.config_flag in script_args
    if facts.settings_file is not None or reads_file:
        return ()
    words = (*facts.args_file_words, *script_args)
    # zerowiz and DeepSpeed's launcher add these themselves.
    added = {"--deepspeed", "--deepspeed_config", LOCAL_RANK_FLAG, facts.own_flag}
    return tuple(each for each in missing_arguments(parser, words) if added.isdisjoint(each.flags))


def removed_words(facts: ScriptFacts, script_args: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """What a person says by fields that newer releases of transformers do not have.

    transformers 5.23, hf_argparser.py, and trl 1.16, scripts/utils.py: a parser that does not ask
    for what it leaves over ends the script, and so does a file with a key of no field.

    Args:
        facts: What the script shows, with the settings file that these words name.
        script_args: The words after the script.

    Yields:
        The field, and where it stands, for messages.
    """
    if facts.convention is not Convention.HF_PARSER or not facts.parser.strict:
        return
    file = facts.settings_file
    for key in () if file is None else file.values:
        if _is_removed(facts.parser, key):
            yield key, _("`{key}` in {path}", key=key, path=file.path if file else "")
    if file is not None and file.is_whole:
        return
    for words, where in (
        (facts.args_file_words, _("in {args_file}", args_file=facts.args_file)),
        (script_args, _("after the script")),
    ):
        for word in words[: words.index("--")] if "--" in words else words:
            flag = word.partition("=")[0]
            name = flag.removeprefix("--").replace("-", "_")
            # `--no_x` of a field that is on by default.
            names = (name, name.removeprefix("no_"))
            field = next((each for each in names if _is_removed(facts.parser, each)), None)
            if flag.startswith("--") and field is not None:
                yield field, f"`{flag}` {where}"


def _is_removed(parser: ScriptParser, name: str) -> bool:
    """Whether newer releases have no field of that name, and the script has no option of its own.

    The name before of a field is an option of older releases.
    """
    if name not in REMOVED_FIELDS:
        return False
    found = parser.find(f"--{name}")
    is_own = any(option.line is not None for option in found)
    return not is_own and (not found or any(name in also for also in FIELD_ALIASES.values()))
