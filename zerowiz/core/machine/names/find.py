"""Find the GPU that a name means; where none has it, names like it, or whose hardware it is."""

import re
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from itertools import chain

from zerowiz.core.machine.names.gpus import (
    GpuModel,
    mean_models,
    normalize_name,
    own_name,
    same_base,
    same_series,
)
from zerowiz.core.machine.names.instances import Instance, normalize_instance
from zerowiz.core.machine.names.phrase import Phrase
from zerowiz.errors import UsageError
from zerowiz.words import _, listing

# Rule: accelerators that people name and that are not NVIDIA's, by their names or an instance's.
_OTHERS = tuple(
    (re.compile(pattern), what)
    for what, pattern in (
        (_("an AMD GPU"), r"(?:amd|radeon)\b.*|(?:instinct\W*)?mi\d{2,3}\w*|rx\W*\d{4}.*"),
        (_("a Google TPU"), r"(?:\w+\W*)?tpu.*|v[2-6](?:[ep]|litepod)?\W\d+|trillium|ct\d\w+\W.*"),
        (_("an Intel accelerator"), r"gaudi.*|hl\W?\d{3}|(?:intel\W*)?(?:arc|max\W*1\d{3}).*"),
        (_("an AWS accelerator"), r"trainium.*|inferentia.*|(?:trn|inf)\d.*"),
        (_("a Huawei NPU"), r"ascend.*|9[15]0[bcd]\d?"),
        (_("an Apple GPU"), r"(?:apple\W*)?m[1-9](?:\W*(?:pro|max|ultra))?|mps|apple.*"),
        (_("an instance with AMD GPUs"), r"(?:standard\W*)?nd\w+\W*mi\d+.*"),
        (_("an instance with Intel Gaudi"), r"dl\dq?\W.*"),
    )
)

_LIST = _("to see names that it knows: `zerowiz plan --machine all --model 7b`")
_NODE_FILE = _("to plan for another GPU, describe it in a file: `$machine node.json`")
_MAKERS = re.compile(r"NVIDIA |Tesla |GeForce ")
_MOST = 3


def find_model(name: str, table: Sequence[GpuModel]) -> GpuModel:
    """The only row that a name means.

    Raises:
        UsageError: No row has that name, or several rows have it.
    """
    models = mean_models(name, table)
    if len(models) == 1:
        return models[0]
    if models:
        choices = listing(f"`{own_name(model, table)}`" for model in models)
        raise UsageError(
            _("`{name}` matches more than one GPU", name=name),
            _("use one of {choices}", choices=choices),
        )
    raise refuse_name(Phrase(name=name), table, ())


def refuse_name(
    phrase: Phrase, table: Sequence[GpuModel], instances: Sequence[Instance]
) -> UsageError:
    """The error for a phrase whose name is in no table; the names in its hint are accepted."""
    name = phrase.name.lower().replace("_", " ")
    other = next((what for pattern, what in _OTHERS if pattern.fullmatch(name)), None)
    if other is not None:
        return UsageError(
            _(
                "`{phrase}` is {other}; zerowiz plans for NVIDIA GPUs only",
                phrase=phrase.name,
                other=other,
            ),
            _(
                "name an NVIDIA GPU, such as `$machine 8xH100`, or plan for CPU ranks:"
                " `$machine cpu`"
            ),
        )
    close = listing(f"`{phrase.of(name)}`" for name in close_names(phrase.name, table, instances))
    return UsageError(
        _("`{phrase}` is not a GPU or an instance that zerowiz knows", phrase=phrase.name),
        *((_("similar names: {close}", close=close),) if close else ()),
        _LIST,
        _NODE_FILE,
    )


def close_names(
    name: str, table: Sequence[GpuModel], instances: Sequence[Instance]
) -> tuple[str, ...]:
    """Names of GPUs, then of instances, that are like this one; each means one machine."""
    gpus = {normalize_name(row.name): _MAKERS.sub("", row.name).replace(" ", "-") for row in table}
    gpus |= {normalize_name(alias): alias for row in table for alias in row.aliases}
    nodes = {
        normalize_instance(alias): row.name
        for row in instances
        for alias in (row.name, *row.aliases)
    }
    wanted, node = normalize_name(name), normalize_instance(name)
    return (
        *_first(
            (own_name(row, table) for row in same_base(name, table)),
            (gpus[key] for key in get_close_matches(wanted, gpus, n=2 * _MOST)),
            (own_name(row, table) for row in same_series(name, table)),
        ),
        *_first(
            # `p5` is a family of instances.
            (row for key, row in nodes.items() if node and key.startswith(node)),
            (nodes[key] for key in get_close_matches(node, nodes, n=2 * _MOST, cutoff=0.8)),
        ),
    )


def _first(*found: Iterable[str]) -> tuple[str, ...]:
    """The first few of them, each name once."""
    return tuple(dict.fromkeys(chain(*found)))[:_MOST]
