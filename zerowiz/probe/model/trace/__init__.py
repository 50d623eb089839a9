"""Trace one micro-step of the real model on tensors without data, and count what it held."""
# ruff: noqa: ANN401 -- torch need not be installed, so it has no types

import hashlib
import json
import re
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from zerowiz import __version__
from zerowiz.core.codec import decode, parse_json
from zerowiz.core.memory.forward.traced import Traced, TracedRun, TracedTensor
from zerowiz.core.values import replace
from zerowiz.core.workload.workload import Workload
from zerowiz.errors import UsageError, ZerowizError
from zerowiz.probe.cache import cache_folder
from zerowiz.probe.model.libraries import read_version
from zerowiz.probe.model.trace.build import (
    build_model,
    checkpoint_blocks,
    find_blocks,
    make_inputs,
    move_to_fake_cpu,
)
from zerowiz.probe.model.trace.step import MicroStep
from zerowiz.probe.named_file import read_named
from zerowiz.words import _

# Raised when a trace counts something else, so that no old trace is read from the cache.
_FORMAT = 2
_NEEDED = ("torch", "transformers")


def can_trace() -> bool:
    """Whether torch and transformers are installed."""
    return all(find_spec(name) for name in _NEEDED)


def cache_path(
    content: Mapping[str, object], workload: Workload, environ: Mapping[str, str]
) -> Path:
    """The path of this micro-step's trace in the cache; torch is not loaded.

    Args:
        content: The content of config.json.
        workload: What a micro-step is.
        environ: The environment, which names the cache folder.
    """
    w = workload
    key = {
        "config": content,
        "step": [w.micro_batch, w.sequence_tokens, w.precision, w.attention],
        "gradient_checkpointing": w.gradient_checkpointing,
        "versions": [_FORMAT, __version__, *map(read_version, _NEEDED)],
    }
    name = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()
    return cache_folder(environ) / "zerowiz" / "trace" / f"{name}.json"


def read_cached(path: Path) -> Traced | None:
    """The trace in this file; None where it is missing or cannot be read."""
    try:
        return decode(Traced, parse_json(read_named(path)), "trace")
    except (OSError, ValueError, UsageError):
        return None


def trace_model(content: Mapping[str, object], workload: Workload) -> Traced:
    """Build the model of a config.json and take one micro-step, on tensors without data.

    Where gradient checkpointing is off, a second step is taken with it, because it is the first
    remedy.

    Args:
        content: The content of config.json.
        workload: What a micro-step is.

    Raises:
        UsageError: transformers does not know the model, or the model reads values of its tensors.
    """
    began = time.monotonic()
    try:
        model, run = _trace(content, workload)
        traced = _describe(model, (run, *_checkpointed(content, workload)))
    except ZerowizError:
        raise
    except Exception as error:  # the code of a model may raise anything
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise UsageError(
            _(
                "`{model_type}` cannot be traced: {reason}",
                model_type=content.get("model_type"),
                reason=reason,
            ),
            _("or plan with a Llama of about the same size: `$model 7b`"),
        ) from error
    return replace(traced, took_milliseconds=int(1000 * (time.monotonic() - began)))


def _checkpointed(content: Mapping[str, object], workload: Workload) -> tuple[TracedRun, ...]:
    """The same step with gradient checkpointing.

    Empty where it is on already, or where the model fails with it.
    """
    if workload.gradient_checkpointing:
        return ()
    try:
        return (_trace(content, replace(workload, gradient_checkpointing=True))[1],)
    except Exception:  # noqa: BLE001 -- the code of a model may raise anything
        return ()


def _trace(content: Mapping[str, object], workload: Workload) -> tuple[Any, TracedRun]:
    """The model on the meta device, and the memory of one micro-step."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    model = build_model(content, workload)
    stepping = build_model(content, workload).train()
    if workload.gradient_checkpointing:
        checkpoint_blocks(stepping)
    step = MicroStep()
    with FakeTensorMode(allow_non_fake_inputs=True):
        move_to_fake_cpu(stepping)
        step.run(stepping, find_blocks(stepping), make_inputs(stepping, workload))
    return model, TracedRun(
        micro_batch=workload.micro_batch,
        sequence_tokens=workload.sequence_tokens,
        precision=workload.precision,
        attention=workload.attention,
        gradient_checkpointing=workload.gradient_checkpointing,
        activations=step.activations(),
        saved_by_block_bytes=step.saved_by_block_bytes(),
    )


def _describe(model: Any, runs: tuple[TracedRun, ...]) -> Traced:
    """The model as it was built, with the traces of its steps."""
    from torch.nn import Embedding

    embedding, head = _ends(model)
    text = model.config.get_text_config()
    shape = tuple(embedding.weight.shape) if isinstance(embedding, Embedding) else ()
    return Traced(
        family=model.config.model_type,
        built=type(model).__name__,
        layers=max(1, len(find_blocks(model))),
        hidden_size=getattr(text, "hidden_size", None) or (shape[-1] if shape else 1),
        embedding=shape,
        tied_embeddings=head is not None and head.weight is getattr(embedding, "weight", None),
        tensors=_list_tensors(model),
        runs=runs,
        took_milliseconds=0,
    )


def _ends(model: Any) -> tuple[Any, Any]:
    """The input embedding and the head; None where the model has none."""
    with suppress(NotImplementedError, AttributeError):
        return model.get_input_embeddings(), model.get_output_embeddings()
    return None, None


def _list_tensors(model: Any) -> tuple[TracedTensor, ...]:
    """The parameters; equal ones of several blocks are one, a tied weight has its first name."""
    from torch.nn import Linear

    blocks = find_blocks(model)
    inside = {id(p) for block in blocks for p in block.parameters()}
    _, head = _ends(model)
    linears = {
        id(module.weight)
        for module in model.modules()
        if module is not head and (isinstance(module, Linear) or type(module).__name__ == "Conv1D")
    }
    counted = Counter(
        TracedTensor(
            name=re.sub(r"(?<=\.)\d+(?=\.)", "*", name),
            shape=tuple(parameter.shape),
            trainable=parameter.requires_grad,
            linear=id(parameter) in linears,
            in_block=id(parameter) in inside or not blocks,
        )
        for name, parameter in model.named_parameters()
    )
    return tuple(replace(tensor, copies=copies) for tensor, copies in counted.items())
