"""Whether a model can be traced, and the traces of earlier times; `traced_step` takes a new one."""

import hashlib
import json
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

from zerowiz import __version__
from zerowiz.core.memory.activations import value_bytes
from zerowiz.core.memory.micro_step import Traced
from zerowiz.core.structs import decode, parse_json
from zerowiz.core.workload import Method, Workload
from zerowiz.errors import UsageError
from zerowiz.probe.files import cache_folder, read_named, read_version

# Raised when a trace counts something else, so that no old trace is read from the cache.
_FORMAT = 2
_NEEDED = ("torch", "transformers")


def can_trace() -> bool:
    """Whether torch and transformers are installed."""
    return all(find_spec(name) for name in _NEEDED)


def is_buildable(content: Mapping[str, object]) -> bool:
    """Whether transformers knows a model of this type; loads transformers."""
    from transformers import CONFIG_MAPPING

    return content.get("model_type") in CONFIG_MAPPING


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
    adapters = [w.lora_rank, w.lora_target_modules, value_bytes(w, sharded=True)]
    key = {
        "config": content,
        "step": [w.micro_batch, w.sequence_tokens, w.precision, w.attention],
        "adapters": None if w.method is Method.FULL else adapters,
        "gradient_checkpointing": w.gradient_checkpointing,
        **({} if w.every_n_layers == 1 else {"every_n_layers": w.every_n_layers}),
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
