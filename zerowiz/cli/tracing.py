"""Read a model, and trace it where that was asked for or where nothing else can count it."""

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

from zerowiz.core.codec import encode
from zerowiz.core.families import FAMILIES
from zerowiz.core.hfconfig import read_architecture
from zerowiz.core.model import Model
from zerowiz.core.traced import Traced
from zerowiz.core.workload import Workload
from zerowiz.emit.files import replace_file
from zerowiz.errors import PreflightError, UsageError, ZerowizError
from zerowiz.probe.hf import model_of, read_config
from zerowiz.probe.trace import cache_path, can_trace, read_cached, trace_model

_INSTALL = "`pip install 'zerowiz[train]'` brings torch and transformers"


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
        ZerowizError: There is no such model, or it can be neither counted nor traced.
    """
    named = read_config(text, environ=environ)
    if named is None:
        by_formulas = (f"`{text}` is a size, which is counted by formulas and not traced",)
        return Read(model=model_of(text, None), notes=by_formulas if trace else ())
    name, config = named
    unknown = _is_unknown(config)
    if not (unknown if trace is None else trace):
        return Read(model=model_of(text, named))
    if not can_trace():
        raise _cannot_trace(text, named, unknown=unknown)
    traced = _trace(config, workload, environ)
    architecture = None if unknown else read_architecture(name, config)
    said = f"`{config.get('model_type')}` has no formulas yet: " if unknown else ""
    took = f"{traced.took_milliseconds / 1000:.1f} s"
    return Read(
        model=traced.model(name, architecture),
        traced=traced,
        notes=(f"{said}`{traced.built}` was traced without memory ({took}, kept for next time)",),
    )


def _is_unknown(config: Mapping[str, object]) -> bool:
    """Whether only transformers knows this model."""
    wraps = isinstance(config.get("text_config"), dict)
    model_type = config.get("model_type")
    return isinstance(model_type, str) and (wraps or model_type not in FAMILIES)


def _cannot_trace(
    text: str, named: tuple[str, Mapping[str, object]], *, unknown: bool
) -> ZerowizError:
    """Say what is missing; for an unknown model after what would be said without a trace."""
    if unknown:
        try:
            model_of(text, named)
        except UsageError as error:
            hint = f"where torch and transformers are installed it is traced: {_INSTALL}"
            return UsageError(error.message, hint, *error.hints)
    return PreflightError("`--trace` needs torch and transformers", _INSTALL)


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
