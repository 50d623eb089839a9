"""Trace a model where that was asked for, or where nothing else can count it; else guess."""

import json
import time
from collections.abc import Mapping
from contextlib import suppress

from zerowiz.core.memory.micro_step import ReadModel, Traced
from zerowiz.core.model.from_name import is_unknown
from zerowiz.core.model.hf_config import read_architecture
from zerowiz.core.structs import encode, replace
from zerowiz.core.workload import Workload
from zerowiz.emit.files import replace_file
from zerowiz.errors import PreflightError, UsageError, ZerowizError
from zerowiz.probe.files import read_kept
from zerowiz.probe.model.hf import Named, can_trace, is_buildable, model_of, trace_path

_NEEDS = "`pip install 'zerowiz[train]'`"


def trace_or_guess(
    text: str,
    named: Named,
    workload: Workload,
    environ: Mapping[str, str],
    *,
    trace: bool | None,
) -> ReadModel:
    """A model of an unknown family, or any that `trace` asks for.

    Raises:
        ZerowizError: It can be neither traced nor guessed.
    """
    name, config, _note = named
    unknown = is_unknown(config)
    if trace and not can_trace():
        raise PreflightError("`$trace` needs torch and transformers", _NEEDS)
    if trace is False or not can_trace():
        return _guess(text, named, _exact(trace))
    try:
        traced = _trace(config, workload, environ)
    except UsageError as error:
        if trace:
            raise
        return _guess(text, named, error.message)
    architecture = None if unknown else read_architecture(name, config)
    new = f"zerowiz does not know `{config['model_type']}` yet: " if unknown else ""
    took = f"{traced.took_milliseconds / 1000:.1f} s"
    note = f"{new}traced `{traced.built}` on the meta device ({took}; the result is cached)"
    return ReadModel(model=traced.model(name, architecture), traced=traced, notes=(note,))


def check_unknown(text: str, named: Named, *, trace: bool | None) -> None:
    """As `model.check_model`, for a model of an unknown family.

    Raises:
        ZerowizError: It can be neither traced nor guessed.
    """
    try:
        _guess(text, named, _exact(trace))
    except UsageError:
        if trace is False or not can_trace() or not is_buildable(named.config):
            raise


def _exact(trace: bool | None) -> str:
    """How a model of an unknown family is counted exactly."""
    if not can_trace():
        return f"to count it exactly, install torch and transformers: {_NEEDS}"
    return (
        "remove `$no_trace` to count it exactly"
        if trace is False
        else "zerowiz cannot trace it either"
    )


def _guess(text: str, named: Named, exact: str) -> ReadModel:
    """The model by the sizes in its config, and a note that this is a guess."""
    try:
        model = model_of(text, named)
    except UsageError as error:
        raise UsageError(error.message, exact, *error.hints) from error
    wraps = "text_config" in named.config
    counted = "its language model only" if wraps else "a Llama of the same sizes"
    family = named.config["model_type"]
    note = f"zerowiz does not know `{family}` yet, and estimates it as {counted}; {exact}"
    return ReadModel(model=model, notes=(note,))


def _trace(config: Mapping[str, object], workload: Workload, environ: Mapping[str, str]) -> Traced:
    """The trace of an earlier time, or a new one, which is kept."""
    path = trace_path(config, workload, environ)
    known = read_kept(Traced, path)
    if known is not None:
        return known
    began = time.monotonic()
    try:
        # Before all that takes long to load.
        if not is_buildable(config):
            raise UsageError(f"transformers has no model for `{config['model_type']}`")  # noqa: TRY301
        from zerowiz.probe.model.trace import trace_model

        traced = trace_model(config, workload)
    except ZerowizError:
        raise
    except Exception as error:  # an installation may be broken, the code of a model raise anything
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise UsageError(
            f"`{config['model_type']}` cannot be traced: {reason}",
            "or plan with a Llama of about the same size: `$model 7b`",
        ) from error
    traced = replace(traced, took_milliseconds=int(1000 * (time.monotonic() - began)))
    # A home that cannot be written costs the next trace some seconds, nothing else.
    with suppress(ZerowizError):
        replace_file(path, json.dumps(encode(traced)) + "\n")
    return traced
