"""A training script: the settings that it has, and how a config reaches it."""

from zerowiz.core.script.arguments import (
    ARGUMENT_CLASSES,
    BY_ARCHITECTURE,
    FIELD_ALIASES,
    TRAINING_CLASSES,
    field_options,
)
from zerowiz.core.script.bindings import Setting
from zerowiz.core.script.delivery import OBSTACLES, Delivery, deliver
from zerowiz.core.script.facts import UNSEEN, Binding, Convention, Obstacle, ScriptFacts
from zerowiz.core.script.options import (
    SWITCHES,
    Option,
    Reads,
    Scalar,
    ScriptParser,
    Takes,
    read_word,
    read_words,
)
from zerowiz.core.script.settings import (
    ScriptSettings,
    check_accelerator,
    check_method,
    settle,
)

__all__ = [
    "ARGUMENT_CLASSES",
    "BY_ARCHITECTURE",
    "FIELD_ALIASES",
    "OBSTACLES",
    "SWITCHES",
    "TRAINING_CLASSES",
    "UNSEEN",
    "Binding",
    "Convention",
    "Delivery",
    "Obstacle",
    "Option",
    "Reads",
    "Scalar",
    "ScriptFacts",
    "ScriptParser",
    "ScriptSettings",
    "Setting",
    "Takes",
    "check_accelerator",
    "check_method",
    "deliver",
    "field_options",
    "read_word",
    "read_words",
    "settle",
]
