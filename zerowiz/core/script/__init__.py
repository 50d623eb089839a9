"""A training script: the settings that it has, and how a config reaches it."""

from zerowiz.core.script.arguments import (
    ARGUMENT_CLASSES,
    BY_ARCHITECTURE,
    FIELD_ALIASES,
    TRAINING_CLASSES,
    Release,
    field_options,
)
from zerowiz.core.script.bindings import Bindings, Setting, State, Words
from zerowiz.core.script.built_config import ModelConfig
from zerowiz.core.script.config_via import named_file, split_config_via, with_config_via
from zerowiz.core.script.delivery import Delivery, add_settled, add_words, deliver
from zerowiz.core.script.facts import (
    UNSEEN,
    Binding,
    BuiltConfig,
    Convention,
    KeyUse,
    Obstacle,
    Pipeline,
    Placement,
    ScriptFacts,
    TrainerFacts,
    TrainerUse,
)
from zerowiz.core.script.options import (
    LOCAL_RANK_FLAG,
    SWITCHES,
    Option,
    Reads,
    Scalar,
    ScriptParser,
    Takes,
    read_word,
    read_words,
    write_words,
)
from zerowiz.core.script.said import read_said
from zerowiz.core.script.settings import (
    ScriptSettings,
    Settled,
    can_be_given,
    check_accelerator,
    check_method,
    settle,
)
from zerowiz.core.script.settings_file import (
    YAML_SUFFIXES,
    SettingsCopy,
    SettingsFile,
    render_values,
)
from zerowiz.core.script.trainers import cut_group

__all__ = [
    "ARGUMENT_CLASSES",
    "BY_ARCHITECTURE",
    "FIELD_ALIASES",
    "LOCAL_RANK_FLAG",
    "SWITCHES",
    "TRAINING_CLASSES",
    "UNSEEN",
    "YAML_SUFFIXES",
    "Binding",
    "Bindings",
    "BuiltConfig",
    "Convention",
    "Delivery",
    "KeyUse",
    "ModelConfig",
    "Obstacle",
    "Option",
    "Pipeline",
    "Placement",
    "Reads",
    "Release",
    "Scalar",
    "ScriptFacts",
    "ScriptParser",
    "ScriptSettings",
    "Setting",
    "SettingsCopy",
    "SettingsFile",
    "Settled",
    "State",
    "Takes",
    "TrainerFacts",
    "TrainerUse",
    "Words",
    "add_settled",
    "add_words",
    "can_be_given",
    "check_accelerator",
    "check_method",
    "cut_group",
    "deliver",
    "field_options",
    "named_file",
    "read_said",
    "read_word",
    "read_words",
    "render_values",
    "settle",
    "split_config_via",
    "with_config_via",
    "write_words",
]
