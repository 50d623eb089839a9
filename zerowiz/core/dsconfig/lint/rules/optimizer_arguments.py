"""Find arguments that the class of an optimizer refuses."""

from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches

from zerowiz.core.dsconfig.classes import BuiltClass, Where
from zerowiz.core.dsconfig.lint.config import AUTO, Config, shown
from zerowiz.core.dsconfig.lint.finding import ConfigFinding
from zerowiz.core.dsconfig.lint.rules.keys import UNKNOWN_KEY
from zerowiz.core.dsconfig.lint.rules.offload import offloads
from zerowiz.core.rule import Severity
from zerowiz.words import _, joined

# Theory. runtime/engine.py, _configure_basic_optimizer (0.19.8; the same since 0.16.9) hands
# `optimizer.params` over as keyword arguments. What each class takes is in the schema, tried on
# DeepSpeed and torch themselves; mup's classes, which pass on what they do not know, are not.

# It has a rule of its own.
_REFUSED_BEFORE = "max_grad_norm"
# What people write; Adam's own names are in most examples.
_OTHER_WORDS: Mapping[str, str] = {"learning_rate": "lr", "wd": "weight_decay", "epsilon": "eps"}


def check_optimizer_arguments(config: Config) -> Iterator[ConfigFinding]:
    """Each argument that the class does not take."""
    name = config.word("optimizer.type")
    params = config.get("optimizer.params")
    if name is None or name == AUTO or not isinstance(params, dict):
        return
    built = _built(config, name)
    if not built or any(each.arguments is None for each in built):
        return
    known = frozenset(word for each in built for word in each.arguments or ())
    ignores = all(each.ignores_others for each in built)
    for word in params:
        entry = config.last.get(f"optimizer.params.{word}")
        if entry is None or word in known or word == _REFUSED_BEFORE:
            continue
        found = entry.found(
            UNKNOWN_KEY,
            _(
                "{optimizer} ignores the argument `{argument}`",
                optimizer=_who(name, built),
                argument=shown(word),
            )
            if ignores
            else _(
                "{optimizer} has no argument `{argument}`",
                optimizer=_who(name, built),
                argument=shown(word),
            ),
            severity=Severity.WARNING if ignores else Severity.ERROR,
            because=_("DeepSpeed does not look at it")
            if ignores
            else _("DeepSpeed passes it to the class, which stops with a TypeError"),
            fix=_fix(word, known),
        )
        yield config.if_built(found)


def _built(config: Config, name: str) -> tuple[BuiltClass, ...]:
    """What DeepSpeed may build for a name: two, as long as nobody knows where it steps."""
    find = config.schema.classes.optimizer
    if config.truth("optimizer.params.torch_adam"):
        places: tuple[Where, ...] = (Where.TORCH_ADAM,)
    else:
        offloaded = offloads(config)
        places = tuple(
            where
            for where, is_there in ((Where.GPU, offloaded), (Where.CPU, offloaded is False))
            if not is_there
        )
    return tuple(row for where in places if (row := find(name, where)) is not None)


def _who(name: str, built: Sequence[BuiltClass]) -> str:
    """The name, and the class where that has another."""
    kinds = dict.fromkeys(each.class_name for each in built if each.class_name)
    others = [kind for kind in kinds if kind.lower() != name.lower()]
    return f"`{shown(name)}`" + (
        _(" (here {others})", others=joined(_(" or "), others)) if others else ""
    )


def _fix(word: str, known: frozenset[str]) -> str:
    near = get_close_matches(word, sorted(known), n=1)
    other = _OTHER_WORDS.get(word)
    meant = other if other in known else near[0] if near else None
    return _("write `{meant}`", meant=meant) if meant else _("remove it")
