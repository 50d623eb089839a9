"""Read the model that `--model` names."""

from collections.abc import Mapping

from zerowiz.app.reporter import Reporter
from zerowiz.core.memory.micro_step import ReadModel
from zerowiz.core.model.families import FAMILIES
from zerowiz.core.model.from_name import is_unknown, parse_size
from zerowiz.core.model.hf_config import change_config
from zerowiz.core.script.bindings import ModelConfig
from zerowiz.core.script.settings import ScriptSettings
from zerowiz.core.structs import replace
from zerowiz.core.workload import Workload
from zerowiz.probe.model.hf import Named, is_near, model_of, read_config
from zerowiz.ui import assumptions

# Seen on two cores: 10 s for the template's model, as for one of 32 layers.
_TRACE_S = 10


def read_and_trace(
    text: str,
    workload: Workload,
    environ: Mapping[str, str],
    reporter: Reporter,
    *,
    trace: bool | None,
) -> ReadModel:
    """The model that `--model` names.

    Args:
        text: What was said.
        workload: The micro-step that a trace takes.
        environ: Names the caches and the hub.
        reporter: Hears what is waited for.
        trace: Whether to trace; None traces what is not known otherwise, if that is possible.

    Raises:
        ZerowizError: There is no such model, or it can be neither counted, traced nor guessed.
    """
    with reporter.wait(f"reading config.json of `{text}`"):
        named = read_config(text, environ=environ)
    if named is None:
        notes = (assumptions.size_untraced(text),) if trace else ()
        return ReadModel(model=model_of(text, None), notes=notes)
    return count_or_trace(text, named, workload, environ, reporter, trace=trace)


def count_or_trace(
    text: str | None,
    named: Named,
    workload: Workload,
    environ: Mapping[str, str],
    reporter: Reporter,
    *,
    trace: bool | None,
) -> ReadModel:
    """The same for a model whose config is known; `text` is None for one that is built anew.

    Raises:
        ZerowizError: It can be neither counted, traced nor guessed.
    """
    if not (trace or is_unknown(named.config)):
        return count_model(text, named)
    from zerowiz.app.resolve.trace import trace_or_guess  # noqa: PLC0415 - takes long to load

    with reporter.wait(f"tracing `{named.name}` on the meta device", usual_seconds=_TRACE_S):
        read = trace_or_guess(text, named, workload, environ, trace=trace)
    return read if named.note is None else replace(read, notes=(named.note, *read.notes))


def count_model(text: str | None, named: Named | None) -> ReadModel:
    """The model of a config, or of a size; `text` is None for one that is built anew."""
    notes = () if named is None or named.note is None else (named.note,)
    return ReadModel(model=model_of(text, named), notes=notes)


def check_model(text: str, environ: Mapping[str, str], *, trace: bool | None) -> None:
    """Whether `read_and_trace` would take this answer, as far as that is known without a trace.

    Raises:
        ZerowizError: It would not.
    """
    named = read_config(text, environ=environ)
    if named is None or not is_unknown(named.config):
        model_of(text, named)
        return
    from zerowiz.app.resolve.trace import check_unknown  # noqa: PLC0415 - takes long to load

    check_unknown(text, named, trace=trace)


def read_near(text: str, environ: Mapping[str, str], *, trace: bool | None) -> ReadModel | None:
    """The model that `--model` names; None where reading it takes the network, or a trace.

    Raises:
        ZerowizError: It cannot be read.
    """
    if trace or not text.strip() or not is_near(text, environ):
        return None
    named = read_config(text, environ=environ)
    is_counted = named is None or not is_unknown(named.config)
    return count_model(text, named) if is_counted else None


# Read the model of a config that a script makes in its code.


def made_for(model: str | None, settings: ScriptSettings) -> ModelConfig | None:
    """The config that the script makes, also where it starts from the model that is named.

    None where it makes none, or where the name, or the size, stands for all of it.

    Args:
        model: The value of `--model`; None for none.
        settings: What the script says.
    """
    config = settings.model_config
    if config is not None and model is not None:
        is_base = config.family is None and parse_size(model) is None
        config = replace(config, base=model) if is_base else None
    return config if config is not None and config.is_whole else None


def read_made(
    built: ModelConfig,
    workload: Workload,
    environ: Mapping[str, str],
    reporter: Reporter,
    *,
    trace: bool | None,
) -> ReadModel:
    """The model that a script builds; arguments and errors as of `read_and_trace`."""
    named = _name(built, environ)
    return count_or_trace(None, named, workload, environ, reporter, trace=trace)


def read_made_near(built: ModelConfig, environ: Mapping[str, str]) -> ReadModel | None:
    """The same; None where reading it takes the network, or a trace.

    Raises:
        ZerowizError: It cannot be read.
    """
    if built.base is not None and not is_near(built.base, environ):
        return None
    named = _name(built, environ)
    return None if is_unknown(named.config) else count_model(None, named)


def _name(built: ModelConfig, environ: Mapping[str, str]) -> Named:
    base = None if built.base is None else read_config(built.base, environ=environ)
    named = Named(built.name, {"model_type": built.family}) if base is None else base
    config = change_config(named.config, built.values)
    family = FAMILIES.get(str(config.get("model_type")))
    defaults = {} if family is None else family.defaults
    assumed = {key: config.get(key, defaults.get(key)) for key in built.assumed}
    notes = () if named.note is None else (named.note,)
    notes_of_defaults = (
        assumptions.taken(key, value, built.assumed[key]) for key, value in assumed.items()
    )
    return Named(
        named.name,
        config,
        "; ".join((*notes, assumptions.built(built.source), *notes_of_defaults)),
    )
