"""Read the model of a config that a script makes in its code."""

from collections.abc import Mapping

from zerowiz.app.reporter import Reporter
from zerowiz.app.resolve.model import count_model, count_or_trace
from zerowiz.app.resolve.read_model import ReadModel
from zerowiz.core.model.built_config import change_config
from zerowiz.core.model.families import FAMILIES
from zerowiz.core.model.from_size import parse_size
from zerowiz.core.model.from_unknown import is_unknown
from zerowiz.core.script.built_config import ModelConfig
from zerowiz.core.script.settings import ScriptSettings
from zerowiz.core.values import replace
from zerowiz.core.workload.workload import Workload
from zerowiz.probe.model.hf import Named, is_near, read_config
from zerowiz.ui.basis import notes
from zerowiz.words import joined


def made_for(model: str | None, settings: ScriptSettings) -> ModelConfig | None:
    """The config that the script makes, also where it starts from the model that is named.

    None where it makes none, or where the name, or the size, stands for all of it.

    Args:
        model: The value of `--model`; None for none.
        settings: What the script says.
    """
    made = settings.model_config
    if made is not None and model is not None:
        is_base = made.family is None and parse_size(model) is None
        made = replace(made, base=model) if is_base else None
    return made if made is not None and made.is_whole else None


def read_made(
    made: ModelConfig,
    workload: Workload,
    environ: Mapping[str, str],
    reporter: Reporter,
    *,
    trace: bool | None,
) -> ReadModel:
    """The model that a script builds; arguments and errors as of `read_and_trace`."""
    named = _name(made, environ)
    return count_or_trace(None, named, workload, environ, reporter, trace=trace)


def read_made_near(made: ModelConfig, environ: Mapping[str, str]) -> ReadModel | None:
    """The same; None where reading it takes the network, or a trace.

    Raises:
        ZerowizError: It cannot be read.
    """
    if made.base is not None and not is_near(made.base, environ):
        return None
    named = _name(made, environ)
    return None if is_unknown(named.config) else count_model(None, named)


def _name(made: ModelConfig, environ: Mapping[str, str]) -> Named:
    base = None if made.base is None else read_config(made.base, environ=environ)
    named = Named(made.name, {"model_type": made.family}) if base is None else base
    config = change_config(named.config, made.values)
    family = FAMILIES.get(str(config.get("model_type")))
    defaults = {} if family is None else family.defaults
    assumed = {key: config.get(key, defaults.get(key)) for key in made.assumed}
    said = () if named.note is None else (named.note,)
    taken = (notes.taken(key, value, made.assumed[key]) for key, value in assumed.items())
    return Named(named.name, config, joined("; ", (*said, notes.built(made.source), *taken)))
