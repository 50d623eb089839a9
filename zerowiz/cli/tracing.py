"""Read a model; trace it where that was asked for or where nothing else can count it."""

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

from zerowiz.core.codec import encode
from zerowiz.core.guess import is_unknown
from zerowiz.core.hfconfig import read_architecture
from zerowiz.core.model import Model
from zerowiz.core.traced import Traced
from zerowiz.core.workload import Workload
from zerowiz.emit.files import replace_file
from zerowiz.errors import PreflightError, UsageError, ZerowizError
from zerowiz.probe.hf import Named, model_of, read_config
from zerowiz.probe.trace import cache_path, can_trace, read_cached, trace_model
from zerowiz.probe.trace.build import is_buildable
from zerowiz.ui import sentences

_NEEDS = "`pip install 'zerowiz[train]'` brings torch and transformers"


@dataclass(frozen=True, kw_only=True, slots=True)
class Read:
    """A model, and the trace of it if there was one."""

    model: Model
    traced: Traced | None = None
    notes: tuple[str, ...] = ()


def read_and_trace(
    text: str, workload: Workload, environ: Mapping[str, str], *, trace: bool | None
) -> Read:
    """The model that `--model` names.

    Args:
        text: What was said.
        workload: The micro-step that a trace takes.
        environ: Where caches and the hub are told.
        trace: Whether to trace; None traces what is not known otherwise, if that is possible.

    Raises:
        ZerowizError: There is no such model, or it can be neither counted, traced nor guessed.
    """
    named = read_config(text, environ=environ)
    if named is None:
        notes = (sentences.size_untraced(text),) if trace else ()
        return Read(model=model_of(text, None), notes=notes)
    return count_or_trace(text, named, workload, environ, trace=trace)


def count_or_trace(
    text: str, named: Named, workload: Workload, environ: Mapping[str, str], *, trace: bool | None
) -> Read:
    """The same for a model whose config.json was read already.

    Raises:
        ZerowizError: It can be neither counted, traced nor guessed.
    """
    name, config = named
    unknown = is_unknown(config)
    if trace and not can_trace():
        raise PreflightError("`--trace` needs torch and transformers", _NEEDS)
    wanted = unknown if trace is None else trace
    if not (wanted and can_trace()):
        return _guess(text, named, _exact(trace)) if unknown else Read(model=model_of(text, named))
    try:
        traced = _trace(config, workload, environ)
    except UsageError as error:
        if trace:
            raise
        return _guess(text, named, error.message)
    architecture = None if unknown else read_architecture(name, config)
    family = str(config["model_type"]) if unknown else None
    return Read(
        model=traced.model(name, architecture),
        traced=traced,
        notes=(sentences.traced(family, traced.built, traced.took_milliseconds),),
    )


def check_model(text: str, environ: Mapping[str, str], *, trace: bool | None) -> None:
    """Whether `read_and_trace` would take this answer, as far as that is known without a trace.

    Raises:
        ZerowizError: It would not.
    """
    named = read_config(text, environ=environ)
    if named is None or not is_unknown(named[1]):
        model_of(text, named)
        return
    try:
        _guess(text, named, _exact(trace))
    except UsageError:
        if trace is False or not can_trace() or not is_buildable(named[1]):
            raise


def _exact(trace: bool | None) -> str:
    """How a model of an unknown family is counted exactly."""
    if not can_trace():
        return f"where torch and transformers are installed it is traced: {_NEEDS}"
    return "without `--no-trace` it is traced" if trace is False else "it cannot be traced either"


def _guess(text: str, named: Named, exact: str) -> Read:
    """The model by the sizes in its config, and a note that this is a guess."""
    try:
        model = model_of(text, named)
    except UsageError as error:
        raise UsageError(error.message, exact, *error.hints) from error
    family, wraps = str(named[1]["model_type"]), "text_config" in named[1]
    return Read(model=model, notes=(sentences.guess(family, exact, wraps=wraps),))


def _trace(config: Mapping[str, object], workload: Workload, environ: Mapping[str, str]) -> Traced:
    """The trace of an earlier time, or a new one, which is kept."""
    path = cache_path(config, workload, environ)
    known = read_cached(path)
    if known is not None:
        return known
    traced = trace_model(config, workload)
    # A home that cannot be written costs the next trace some seconds, nothing else.
    with suppress(ZerowizError):
        replace_file(path, json.dumps(encode(traced)) + "\n")
    return traced
