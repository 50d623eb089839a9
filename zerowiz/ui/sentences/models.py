"""Say what is trained: the model, and which of its parameters."""

from zerowiz.core.model.types import Model, ModelSource
from zerowiz.core.workload.choices import Method
from zerowiz.ui.text.units import count
from zerowiz.words import _


def method(value: Method) -> str:
    """What trains, as the line of a step says it."""
    return _("full fine-tuning") if value is Method.FULL else value


def model(value: Model) -> str:
    """A model, its size, and where that is from."""
    said = _(
        "{value}, {params} parameters ({source})",
        value=value.name,
        params=count(value.params),
        source=_(value.source.value),
    )
    if value.source is not ModelSource.SIZE:
        return said
    return _("{said}, interpolated: {shape}", said=said, shape=shape(value))


def shape(model: Model) -> str:
    """What a model is that stands for a size."""
    a = model.architecture
    family = a.family.partition("_")[0].capitalize()
    return _(
        "a {family} of {layers} layers x {hidden_size}, vocabulary {vocab_size}",
        family=family,
        layers=a.layers,
        hidden_size=a.hidden_size,
        vocab_size=a.vocab_size,
    )
