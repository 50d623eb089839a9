"""Read the model that `--model` names: a folder, a size, or a Hugging Face id."""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from zerowiz import __version__
from zerowiz.core import shell
from zerowiz.core.machine.names import TAKEN_TO_BE
from zerowiz.core.memory.activations import value_bytes
from zerowiz.core.model.from_name import (
    KnownModel,
    close_known,
    config_of_gpt,
    find_known,
    guess_model,
    is_unknown,
    model_from_size,
    parse_size,
)
from zerowiz.core.model.hf_config import model_from_config
from zerowiz.core.model.types import Model
from zerowiz.core.structs import parse_json
from zerowiz.core.workload import Method, Workload
from zerowiz.errors import UsageError, ZerowizError
from zerowiz.probe.files import (
    cache_folder,
    first_set,
    is_named_file,
    read_known_models,
    read_named,
    read_version,
    without_tilde,
)

_CONFIG, _ADAPTER = "config.json", "adapter_config.json"
_WANTED = (
    "`$model` takes a folder with config.json, a hub id like `Qwen/Qwen3-8B`, a well-known "
    "name like `llama-3.1-8b`, or a size like `7b`"
)
# How what can only be a path begins.
_OF_PATHS = ("/", "./", "../", "~")
_ELSEWHERE = (
    "to plan for a model that only another machine has, copy its config.json into a folder "
    "here, or use its hub id, a well-known name like `$model llama-3.1-8b`, or a size like "
    "`$model 7b`"
)

# huggingface_hub, utils/_validators.py, validate_repo_id.
_HUB_ID = r"(?a)(?!.*(?:--|\.\.))(?:\w[\w.-]*/)?\w[\w.-]*"
# huggingface_hub, constants.py: ENDPOINT, ENV_VARS_TRUE_VALUES, HF_HUB_OFFLINE, HF_HUB_CACHE.
_ENDPOINT = "https://huggingface.co"
_TRUE = {"1", "ON", "YES", "TRUE"}
_OFFLINE_SWITCHES = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
_CACHE_KEYS = ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE")
_TOKEN_KEYS = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")

_LISTED_KEYS = 3


class Named(NamedTuple):
    """What a value of `--model` names."""

    name: str
    """A short one."""
    config: Mapping[str, object]
    """The content of its config.json."""
    note: str | None = None
    """What was taken for granted of it."""


@contextmanager
def unreadable_refused(text: str) -> Iterator[None]:
    """Within, what cannot be read of a model raises a UsageError that names the model.

    Args:
        text: The value of `--model`.
    """
    try:
        yield
    except (OSError, RuntimeError) as error:
        # A folder without permission, a path that is too long, the home of an unknown user.
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"cannot read the model `{text}`: {reason}", _WANTED) from error


def parse_config(where: str, content: bytes) -> Mapping[str, object]:
    """The object that a JSON file holds.

    Args:
        where: What errors call the file.
        content: Its bytes.

    Raises:
        UsageError: It is no JSON object.
    """
    try:
        config = parse_json(content.decode())
    except UnicodeDecodeError as error:
        raise UsageError(f"{where} is a binary file, not text", _WANTED) from error
    except ValueError as error:
        raise UsageError(
            f"{where} is not JSON: {error}",
            "download the file again if it is incomplete, or plan with a size: `$model 7b`",
        ) from error
    if not isinstance(config, dict):
        raise UsageError(f"{where} is not a JSON object", _WANTED)
    return config


def _read_config(path: Path) -> Mapping[str, object]:
    return parse_config(f"`{path}`", read_named(path))


def _name(config_path: Path) -> str:
    """The name of the config's folder, or the hub id of the snapshot that the folder is."""
    if config_path.name != _CONFIG:
        return config_path.stem
    folder = config_path.parent.resolve()
    if folder.parent.name == "snapshots":
        return folder.parent.parent.name.rpartition("--")[2]
    return folder.name or str(folder)


def _refuse_adapter(path: Path, adapter: Mapping[str, object]) -> UsageError:
    base = adapter.get("base_model_name_or_path")
    hint = (
        f"plan with its base model: `$model {shell.quote(base)} $method lora`" if base else _WANTED
    )
    return UsageError(f"`{path}` is an adapter, not a model", hint)


def _refuse_folder(folder: Path) -> UsageError:
    """The error for a folder without a config.json."""
    adapter_path = folder / _ADAPTER
    if adapter_path.is_file():
        return _refuse_adapter(folder, _read_config(adapter_path))
    nested = sorted(path.parent for path in folder.glob(f"*/{_CONFIG}"))
    return UsageError(
        f"`{folder}` has no config.json",
        f"did you mean `$model {shell.quote(nested[-1])}`?" if nested else _WANTED,
    )


def _config_path(text: str) -> Path:
    """The config.json that a path leads to, if it leads to one."""
    path = Path(text).expanduser()
    return path if is_named_file(path) else path / _CONFIG


# Some of these stand in every config.json (transformers writes the first); a size may be enough.
_OF_MODELS = frozenset(
    ("model_type", "architectures", "hidden_size", "n_embd", "d_model", "text_config")
)


def _read_file(path: Path) -> Named:
    try:
        config = _read_config(path)
    except UsageError:
        if path.suffix == ".json":
            raise
        raise UsageError(f"`{path}` is a file, but not a model", _WANTED) from None
    if not _OF_MODELS & config.keys() and "peft_type" not in config:
        keys = ", ".join(f"`{key}`" for key in [*config][:_LISTED_KEYS]) or "no key"
        raise UsageError(
            f"`{path}` is not the config.json of a model: it has {keys}",
            _WANTED,
        )
    if "peft_type" in config:
        raise _refuse_adapter(path, config)
    return Named(_name(path), config)


def _home(environ: Mapping[str, str]) -> Path:
    """The folder of Hugging Face's caches and tokens."""
    if home := environ.get("HF_HOME"):
        return without_tilde(home)
    return cache_folder(environ) / "huggingface"


def _hub_folder(environ: Mapping[str, str]) -> Path:
    """The cache of what the Hub sent."""
    cache = first_set(environ, _CACHE_KEYS)
    return without_tilde(cache) if cache else _home(environ) / "hub"


def cached_models(environ: Mapping[str, str]) -> Iterator[str]:
    """The models whose config.json is in the cache of the Hub, by name."""
    prefix = "models--"
    for folder in sorted(_hub_folder(environ).glob(f"{prefix}*")):
        model_id = folder.name.removeprefix(prefix).replace("--", "/")
        if _find_cached(model_id, environ) is not None:
            yield model_id


def _find_cached(model_id: str, environ: Mapping[str, str]) -> Path | None:
    """The cached config.json of the revision that `main` was when it was downloaded."""
    folder = _hub_folder(environ) / f"models--{model_id.replace('/', '--')}"
    reference = folder / "refs" / "main"
    if not reference.is_file():
        return None
    path = folder / "snapshots" / reference.read_text(errors="replace").strip() / _CONFIG
    return path if path.is_file() else None


def _read_token(environ: Mapping[str, str]) -> str | None:
    if token := first_set(environ, _TOKEN_KEYS):
        return token.strip()
    token_path = environ.get("HF_TOKEN_PATH")
    path = without_tilde(token_path) if token_path else _home(environ) / "token"
    return path.read_text(errors="replace").strip() if path.is_file() else None


def _fetch(model_id: str, environ: Mapping[str, str]) -> Named:
    switch = next((s for s in _OFFLINE_SWITCHES if environ.get(s, "").upper() in _TRUE), None)
    if switch is not None:
        raise ZerowizError(
            f"`{model_id}` is not in the local cache, and `{switch}` forbids a download",
            f"download it where there is a network: `hf download {model_id} config.json`",
            _WANTED,
        )
    # Imported here: urllib takes longer to load than all else that a plan needs.
    from zerowiz.probe.model import download

    endpoint = (environ.get("HF_ENDPOINT") or _ENDPOINT).rstrip("/")
    content = download.fetch_config(model_id, endpoint=endpoint, token=_read_token(environ))
    return Named(
        model_id.rpartition("/")[2],
        parse_config(f"config.json of `{model_id}`", content),
    )


def _fetch_or_know(model_id: str, environ: Mapping[str, str]) -> Named:
    """From the hub; where it cannot be asked, or does not answer, what the table knows."""
    try:
        return _fetch(model_id, environ)
    except ZerowizError as error:
        known = find_known(model_id, read_known_models())
        if known is None:
            raise type(error)(error.message, *_close(model_id), *error.hints) from None
        note = "its shape is in zerowiz's table of models"
        if known.id != model_id:
            note = f"zerowiz plans with the shape of `{known.id}`"
        return Named(model_id.rpartition("/")[2], known.config, f"{error.message}; {note}")


def _close(text: str) -> tuple[str, ...]:
    """A hint at models of the table whose names are close; none where none is."""
    names = ", ".join(f"`$model {name}`" for name in close_known(text, read_known_models()))
    return (f"similar names: {names}",) if names else ()


def _find(text: str, environ: Mapping[str, str]) -> Path | KnownModel | Named | None:
    """What a name means without the network: a config.json, a row of the table, or sizes of a GPT.

    A folder or file here comes before the local cache, and that before the table.
    """
    path: Path | None = _config_path(text)
    if path is not None and not is_named_file(path):
        path = _find_cached(text, environ) if re.fullmatch(_HUB_ID, text) else None
    if path is not None or "/" in text:
        return path
    gpt = config_of_gpt(text)
    return find_known(text, read_known_models()) if gpt is None else Named(text, gpt)


def read_config(text: str, *, environ: Mapping[str, str]) -> Named | None:
    """The config of the model that `--model` names; None for a size.

    A folder or file here comes before the local cache, and that before the hub.

    Args:
        text: The value of `--model`.
        environ: The environment, with the variables of Hugging Face.

    Raises:
        ZerowizError: There is no such model.
    """
    if not text.strip():
        raise UsageError("`$model` is empty", _WANTED)
    with unreadable_refused(text):
        if parse_size(text) is not None and not is_named_file(_config_path(text)):
            return None
        folder = Path(text).expanduser()
        if folder.is_dir() and not is_named_file(folder / _CONFIG):
            raise _refuse_folder(folder)
        found = _find(text, environ)
        if isinstance(found, Named):
            return found
        if isinstance(found, KnownModel):
            return Named(found.name, found.config, f"`{text}`{TAKEN_TO_BE}`{found.id}`")
        if found is not None:
            return _read_file(found)
        if text.startswith(_OF_PATHS):
            raise UsageError(
                f"there is no folder `{text}` on this machine",
                *_close(text),
                _ELSEWHERE,
            )
        as_size = f"{text}b"
        is_number = bool(parse_size(as_size))
        if is_number or not re.fullmatch(_HUB_ID, text):
            meant = (f"did you mean `$model {as_size}`?",) if is_number else ()
            raise UsageError(
                f"`{text}` is not a folder, a hub id or a size",
                *(meant or _close(text)),
                _WANTED,
            )
        return _fetch_or_know(text, environ)


def is_near(text: str, environ: Mapping[str, str]) -> bool:
    """Whether a model can be read without the network: a size, a path, or what is cached."""
    return parse_size(text) is not None or _near(text, environ) is not None


def hub_name(text: str, environ: Mapping[str, str]) -> str:
    """The id on the hub of the model that a well-known name means; any other text is itself.

    A folder here and a model in the local cache have the name by which they are loaded.
    """
    known = None if parse_size(text) is not None else _near(text, environ)
    return known.id if isinstance(known, KnownModel) else text


def _near(text: str, environ: Mapping[str, str]) -> Path | KnownModel | Named | None:
    """A path that is there, else as `_find`; None where that cannot be read."""
    with suppress(OSError, RuntimeError):
        path = Path(text).expanduser()
        return path if path.exists() else _find(text, environ)
    return None


def model_of(text: str, named: Named | None) -> Model:
    """Count the model by its config, or guess it.

    Args:
        text: The value of `--model`.
        named: What `read_config` returned for it.

    Raises:
        UsageError: It can be neither counted nor guessed.
    """
    size = parse_size(text)
    if named is None and size is not None:
        return model_from_size(text.strip(), size)
    name, config, _note = named or Named(text, {})
    count = guess_model if is_unknown(config) else model_from_config
    return count(name, config)


def read_config_json(text: str) -> Mapping[str, object]:
    """The content of the config.json that a path leads to; empty where `text` is no path.

    Args:
        text: The file, or its folder.

    Raises:
        UsageError: The file cannot be read, or is no JSON object.
    """
    with unreadable_refused(text):
        path = _config_path(text)
        return _read_config(path) if path.is_file() else {}


# Find out whether a model can be traced, and where its trace is kept: `trace.py` loads torch.

# Raised when a trace counts something else, so that no old trace is read from the cache.
_TRACE_FORMAT = 2
_TRACING = ("torch", "transformers")


def can_trace() -> bool:
    """Whether torch and transformers are installed."""
    return all(find_spec(name) for name in _TRACING)


def is_buildable(content: Mapping[str, object]) -> bool:
    """Whether transformers knows a model of this type; loads transformers."""
    from transformers import CONFIG_MAPPING

    return content.get("model_type") in CONFIG_MAPPING


def trace_path(
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
        "versions": [_TRACE_FORMAT, __version__, *map(read_version, _TRACING)],
    }
    name = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()
    return cache_folder(environ) / "zerowiz" / "trace" / f"{name}.json"
