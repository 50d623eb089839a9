"""Say why zerowiz cannot pass a config to a script, and what to change in the script."""

from collections.abc import Mapping
from typing import NoReturn

from zerowiz.core.script.facts import Obstacle, ScriptFacts
from zerowiz.errors import PreflightError
from zerowiz.words import _

# For each obstacle the reason, then the hints; {path}, {line} and {config} are filled in.
_OBSTACLES: Mapping[Obstacle, tuple[str, ...]] = {
    Obstacle.NO_ENGINE: (
        _("it has no `deepspeed.initialize`, TrainingArguments or `Accelerator()`"),
        _(
            "raw DeepSpeed: call `deepspeed.add_config_arguments(parser)`, then pass `args=args`"
            " to `deepspeed.initialize`"
        ),
        _('HF Trainer: `TrainingArguments(..., deepspeed="{config}")`'),
    ),
    Obstacle.ENGINE_UNSEEN: (
        _(
            "`deepspeed.add_config_arguments` in line {line} adds options, but zerowiz cannot see"
            " a `deepspeed.initialize(args=...)` that gets them, in the script or in a module"
            " next to it"
        ),
        _("use `$config_via flag:deepspeed_config` if an engine does get them"),
        _("use `$config_via none` if the script builds its config itself"),
    ),
    Obstacle.NO_CONFIG: (
        _("`deepspeed.initialize` in line {line} gets no config that zerowiz can see"),
        _("call `deepspeed.add_config_arguments(parser)`, and pass `args=args` in line {line}"),
    ),
    # deepspeed 0.19.8, __init__.py, initialize: an assertion refuses both.
    Obstacle.TWO_CONFIGS: (
        _(
            "`deepspeed.initialize` in line {line} gets the config twice, as `args=` and as"
            " `config=`"
        ),
        _("remove `config=` in {path} line {line}: `args=` already has it"),
    ),
    Obstacle.BUILT: (
        _("`deepspeed.initialize` in line {line} takes a config that the script builds itself"),
        _(
            "remove `config=` in {path} line {line} and pass `args=args` there, from a parser"
            " with `deepspeed.add_config_arguments(parser)`"
        ),
    ),
    Obstacle.BUILT_HF: (
        _("`deepspeed=` in line {line} is a value that the script computes"),
        _("remove `deepspeed=` in {path} line {line}: zerowiz then passes its file"),
        _('or write `deepspeed="{config}"` there'),
    ),
    Obstacle.BUILT_ACCELERATE: (
        _("the DeepSpeed plugin in line {line} is built by the script"),
        _("remove `deepspeed_plugin=` in {path} line {line}: zerowiz then passes its file"),
    ),
    Obstacle.HIDDEN_HF: (
        _("zerowiz cannot see where its TrainingArguments come from (line {line})"),
        _('write `deepspeed="{config}"` where TrainingArguments is called, in {path} itself'),
        _(
            "or use `$config_via env` if it is called without `deepspeed=`, `$config_via"
            " flag:deepspeed` if a parser fills it"
        ),
    ),
    Obstacle.PROGRAM_FILE: (
        _("LLaMA-Factory takes the config from its YAML file, by the key `deepspeed`"),
        _("pass that file instead: `zerowiz init my.yaml`"),
    ),
}

_SAY_HOW = _(
    "or set how the script gets its config: `$config_via flag:NAME`, `$config_via env` or"
    " `$config_via file:PATH`; with `$config_via none` it keeps its own"
)

_SAY_WHO = _("and add `$integration hf` if a Trainer reads it that zerowiz cannot see")


def refuse(facts: ScriptFacts, config_path: str) -> NoReturn:
    """Refuse a script that takes no config.

    Args:
        facts: What the script shows.
        config_path: The config that it was to take.

    Raises:
        PreflightError: Always; the hints say what to change.
    """
    reason, *hints = _OBSTACLES[facts.obstacle or Obstacle.NO_ENGINE]
    general = (_SAY_HOW, *((_SAY_WHO,) if facts.integration is None else ()))
    words = {"path": facts.text_path, "line": str(facts.config_line), "config": config_path}
    raise PreflightError(
        _(
            "zerowiz cannot pass a config to {path}: {reason}",
            path=facts.text_path,
            reason=reason.format(**words),
        ),
        *(hint.format(**words) for hint in hints),
        *(() if facts.obstacle is Obstacle.PROGRAM_FILE else general),
    )
