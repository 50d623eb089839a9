"""The scripts that a person can start from, a row each."""

from msgspec import Struct

from zerowiz.core.workload import Loop
from zerowiz.words import _


class Template(Struct, frozen=True, kw_only=True):
    """One of them; it lies in a folder with a small model, a text and `portable_checkpoint`."""

    loop: Loop
    """What takes its steps."""
    script: str
    """The name of its file."""
    title: str
    """What a menu calls it."""
    about: str
    """What it is for."""


MODEL_FOLDER = "model"
"""Where the config.json of its small model lies."""

TEMPLATES = (
    Template(
        loop=Loop.TRAINER,
        script="train_hf.py",
        title=_("a template for the Trainer"),
        about=_("the Trainer of transformers, with every option of TrainingArguments"),
    ),
    Template(
        loop=Loop.ENGINE,
        script="train_deepspeed.py",
        title=_("a template without the Trainer"),
        about=_("a plain loop over the engine of deepspeed.initialize, to change as you like"),
    ),
)
"""The first one is the default."""


def template_of(loop: Loop) -> Template:
    """The template whose steps are taken so.

    Example:
        >>> template_of(Loop.ENGINE).script
        'train_deepspeed.py'
    """
    return next(template for template in TEMPLATES if template.loop is loop)
