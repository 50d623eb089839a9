"""Find what lies near: training scripts, model folders, models in the cache of the Hub."""

import re
from collections.abc import Iterator, Mapping
from itertools import chain, islice
from pathlib import Path

from zerowiz.core.codec import parse_json
from zerowiz.core.script.facts import ScriptFacts
from zerowiz.errors import ZerowizError
from zerowiz.probe.model.hf import cached_models
from zerowiz.probe.named_file import LONGEST_SCRIPT_BYTES, read_named
from zerowiz.probe.script.read import read_script
from zerowiz.words import _

# What a script that trains with one of the libraries names somewhere.
_TRAINS = re.compile(rb"\bTrainer\b|Trainer\(|TrainingArguments|deepspeed|Accelerator\(")
# A folder of a dataset or of a site holds more.
_MOST_FILES, _MOST_READ = 200, 12


def find_scripts(folder: Path) -> Iterator[ScriptFacts]:
    """The scripts of a folder that a config can reach, by name.

    Args:
        folder: Its own files are looked at, not those of folders in it.
    """
    paths = sorted(islice(folder.glob("*.py"), _MOST_FILES))
    for path in islice(filter(_may_train, paths), _MOST_READ):
        try:
            facts = read_script(path)
        except ZerowizError:
            continue
        if facts.obstacle is None and facts.integration is not None:
            yield facts


def _may_train(path: Path) -> bool:
    """Whether it is worth while to parse a file, which takes some milliseconds."""
    try:
        return path.is_file() and _TRAINS.search(read_named(path, LONGEST_SCRIPT_BYTES)) is not None
    except OSError:
        return False


_MOST_FOLDERS, _MOST_SHOWN = 300, 8


def find_models(folder: Path, environ: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """The models that lie near, each as `--model` names it, and where it is.

    Args:
        folder: It, its folders and theirs are looked at.
        environ: Names the cache of Hugging Face.
    """
    configs = chain(folder.glob("*/config.json"), folder.glob("*/*/config.json"))
    here = sorted(path.parent for path in islice(configs, _MOST_FOLDERS) if _is_model(path))
    folders = ((str(path), _("folder here")) for path in here)
    cached = ((name, _("in the cache of the Hub")) for name in cached_models(environ))
    return tuple(islice(_once(chain(folders, cached)), _MOST_SHOWN))


def _once(found: Iterator[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    yield from dict(found).items()


def _is_model(path: Path) -> bool:
    """Whether it describes a model, and none that a run saved on its way."""
    if path.parent.name.startswith((".", "checkpoint-")):
        return False
    try:
        config = path.is_file() and parse_json(read_named(path))
    except (OSError, ValueError):
        return False
    return isinstance(config, dict) and "model_type" in config
