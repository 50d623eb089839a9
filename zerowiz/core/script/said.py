"""Join what a person says to a script: in the words after it, and in the files that it reads."""

from collections.abc import Mapping

from zerowiz.core.script.facts import ScriptFacts
from zerowiz.core.script.options import Given, read_words
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
