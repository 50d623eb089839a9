"""Say what was read of a script: how it gets its config, and where something stands."""

from collections.abc import Mapping, Sequence

from zerowiz.core.script.facts import Binding, Convention, ScriptFacts
from zerowiz.words import _, listing

_CONVENTIONS: Mapping[Convention, str] = {
    Convention.HF_PARSER: _(
        "HF Trainer that parses its arguments, gets the config by `--deepspeed`"
    ),
    Convention.HF_IN_CODE: _(
        "HF Trainer with arguments in code, gets the config through environment variables"
    ),
    Convention.HF_LITERAL: _("HF Trainer with the config's file name in the code"),
    Convention.ADD_CONFIG_ARGUMENTS: _("DeepSpeed loop, gets the config by `--deepspeed_config`"),
    Convention.OWN_FLAG: _("gets the config by its own option"),
    Convention.CONFIG_LITERAL: _("has the config's file name in the code"),
    Convention.CONFIG_DICT: _("builds its config itself"),
    Convention.ACCELERATOR: _("Accelerate, gets the config through environment variables"),
    Convention.NONE: _("keeps its own config: zerowiz passes none, and plans with your options"),
    Convention.UNKNOWN: _("zerowiz cannot see how it gets a config"),
}


def convention(facts: ScriptFacts) -> str:
    """How a config reaches a script."""
    file = facts.settings_file
    if facts.convention is Convention.HF_PARSER and file is not None and file.is_whole:
        return _(
            "HF Trainer with its arguments in `{path}`, gets the config by a copy of it",
            path=file.path,
        )
    return _CONVENTIONS[facts.convention]


def places(bindings: Sequence[Binding]) -> str:
    """Where in a script something stands."""
    return listing(
        _("`{code}` in line {line}", code=binding.code, line=binding.line) for binding in bindings
    )
