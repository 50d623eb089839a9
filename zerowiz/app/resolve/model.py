"""Read the model that `--model` names."""

from collections.abc import Mapping

from zerowiz.app.reporter import Reporter
from zerowiz.core.memory.micro_step import ReadModel
from zerowiz.core.model.from_name import config_of_gpt, is_unknown, made_for
from zerowiz.core.structs import replace
from zerowiz.core.workload import Workload
from zerowiz.probe.model.hf import Named, is_near, model_of, read_config
from zerowiz.ui import assumptions


def read_and_trace(
    text: str,
    workload: Workload,
    environ: Mapping[str, str],
    reporter: Reporter,
    *,
    trace: bool | None,
    length_is_open: bool = False,
) -> ReadModel:
    """The model that `--model` names.

    Args:
        text: What was said.
        workload: The micro-step that a trace takes.
        environ: Names the caches and the hub.
        reporter: Hears what is waited for.
        trace: Whether to trace; None traces what is not known otherwise, if that is possible.
        length_is_open: Whether a trace takes no more tokens than the model was made for.

    Raises:
        ZerowizError: There is no such model, or it can be neither counted, traced nor guessed.
    """
    with reporter.wait(f"reading config.json of `{text}`"):
        named = read_config(text, environ=environ)
    if named is None:
        notes = (assumptions.size_untraced(text),) if trace else ()
        return ReadModel(model=model_of(text, None), notes=notes)
    longest = made_for(named.config)
    if length_is_open and longest is not None:
        tokens = min(longest, workload.sequence_tokens)
        workload = replace(workload, sequence_tokens=tokens)
    return count_or_trace(text, named, workload, environ, reporter, trace=trace)


def count_or_trace(
    text: str,
    named: Named,
    workload: Workload,
    environ: Mapping[str, str],
    reporter: Reporter,
    *,
    trace: bool | None,
) -> ReadModel:
    """The same for a model whose config is known.

    Raises:
        ZerowizError: It can be neither counted, traced nor guessed.
    """
    if config_of_gpt(text) is not None or not (trace or is_unknown(named.config)):
        return count_model(text, named)
    from zerowiz.app.resolve.trace import trace_or_guess  # noqa: PLC0415 - takes long to load

    with reporter.wait(f"tracing `{named.name}` on the meta device"):
        read = trace_or_guess(text, named, workload, environ, trace=trace)
    return read if named.note is None else replace(read, notes=(named.note, *read.notes))


def count_model(text: str, named: Named | None) -> ReadModel:
    """The model of a config, or of a size."""
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
    by_sizes = config_of_gpt(text) is not None
    is_counted = named is None or by_sizes or not is_unknown(named.config)
    return count_model(text, named) if is_counted else None
