"""Read what a person says of how a config reaches a script: `--config-via`."""

import posixpath
from collections.abc import Mapping

from zerowiz.core.script.facts import Convention, Obstacle, ScriptFacts
from zerowiz.core.script.options import Option
from zerowiz.core.values import replace
from zerowiz.core.workload.choices import Integration
from zerowiz.errors import UsageError
from zerowiz.words import _, listing

# The word before the colon; whether a name follows it; what it means; and who takes the config
# where the script does not show it.
_WAYS: Mapping[str, tuple[bool, Convention, Integration]] = {
    "flag": (True, Convention.OWN_FLAG, Integration.DEEPSPEED),
    "env": (False, Convention.ACCELERATOR, Integration.ACCELERATE),
    "file": (True, Convention.CONFIG_LITERAL, Integration.DEEPSPEED),
    "none": (False, Convention.NONE, Integration.DEEPSPEED),
}


def split_config_via(text: str) -> tuple[str, str]:
    """The way, and the name that belongs to it; empty if it has none.

    Raises:
        UsageError: There is no such way.

    Example:
        >>> split_config_via("flag:ds_config")
        ('flag', 'ds_config')
    """
    way, colon, name = text.partition(":")
    named = way in _WAYS and _WAYS[way][0]
    is_empty = not posixpath.basename(name).strip("-. ")
    if way not in _WAYS or bool(colon) is not named or (named and is_empty):
        raise UsageError(
            _("`$config_via {text}` is not a way to pass a config", text=text),
            _(
                "use `flag:NAME` (an option of the script), `env` (Accelerate's variables),"
                " `file:PATH` (a file that it reads) or `none`"
            ),
        )
    return way, name


def with_config_via(
    facts: ScriptFacts, text: str | None, integration: Integration | None = None
) -> ScriptFacts:
    """What a script shows, with what a person says of how its config reaches it.

    Args:
        facts: What it shows.
        text: As the option has it; None where nobody says.
        integration: The library that reads the config, as a person says; None where nobody does.

    Raises:
        UsageError: The script is seen to have no such option, or to read another file.
    """
    if text is None:
        return facts
    way, name = split_config_via(text)
    _, convention, reader = _WAYS[way]
    said = replace(
        facts,
        convention=convention,
        obstacle=None,
        integration=facts.integration or integration or reader,
        literal_config=None,
    )
    if way == "file":
        return _with_file(said, name, facts.literal_config)
    return _with_flag(said, name, facts.obstacle) if way == "flag" else said


def _with_file(facts: ScriptFacts, name: str, seen: str | None) -> ScriptFacts:
    """With the file that a script reads; one that changes its folder names it differently."""
    if seen is None:
        return replace(facts, literal_config=name, config_line=None)
    if posixpath.basename(seen) != posixpath.basename(name):
        raise UsageError(
            _(
                "`$config_via file:{name}`: {path} line {config_line} names `{seen}`",
                name=name,
                path=facts.path,
                config_line=facts.config_line,
                seen=seen,
            ),
            _("use `$config_via file:{seen}`", seen=seen),
        )
    return replace(facts, literal_config=name)


def _with_flag(facts: ScriptFacts, name: str, obstacle: Obstacle | None) -> ScriptFacts:
    flag, parser = f"--{name.lstrip('-')}", facts.parser
    if parser.find(flag):
        return replace(facts, own_flag=flag)
    if parser.complete and parser.options:
        words = ("config", "deepspeed")
        takes = [each for each in parser.options if any(word in each.dest for word in words)]
        names = listing(f"`{each.flag}`" for each in takes)
        raise UsageError(
            _(
                "`$config_via flag:{name}`: {path} has no option `{flag}`",
                name=name,
                path=facts.path,
                flag=flag,
            ),
            *([_("its options: {names}", names=names)] if names else []),
            *(
                []
                if obstacle
                else [_("remove `$config_via`: zerowiz can see how the script gets its config")]
            ),
        )
    option = Option(flags=(flag,), dest=flag.lstrip("-"))
    return replace(facts, own_flag=flag, parser=replace(parser, options=(*parser.options, option)))


def named_file(text: str | None) -> str | None:
    """The path that the config is written to, where the script reads that one alone."""
    if text is None:
        return None
    way, name = split_config_via(text)
    return name if way == "file" else None
