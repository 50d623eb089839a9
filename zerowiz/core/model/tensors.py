"""List the tensors that transformers builds for an architecture."""

import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache

from zerowiz.core.model.blocks import NEVER, Slot, Spec
from zerowiz.core.model.families import FAMILIES
from zerowiz.core.model.types import Architecture, Tensor

# The sizes that the symbols in the rows of blocks.py stand for.
SYMBOLS: Mapping[str, Callable[[Architecture], int]] = {
    "h": lambda a: a.hidden_size,
    "q": lambda a: a.query_size,
    "kv": lambda a: a.kv_size,
    "i": lambda a: a.intermediate_size,
    "dense_i": lambda a: a.dense_intermediate_size,
    "shared_i": lambda a: a.shared_expert_intermediate_size,
    "V": lambda a: a.vocab_size,
    "head_dim": lambda a: a.head_dim,
    "heads": lambda a: a.heads,
    "experts": lambda a: a.experts,
    "positions": lambda a: a.positions,
    "embedding": lambda a: a.embedding_size,
    "types": lambda a: a.type_vocab_size,
    "buckets": lambda a: a.relative_attention_num_buckets,
    "image_tokens": lambda a: a.image_tokens,
    "labels": lambda a: a.labels,
}
_TERM = re.compile(r"(\d*)([A-Za-z_]*)")

COPIES: Mapping[Slot, Callable[[Architecture], int]] = {
    Slot.ENDS: lambda _: 1,
    Slot.BLOCK: lambda a: a.layers,
    Slot.DENSE: lambda a: a.layers - a.expert_layers,
    Slot.EXPERTS: lambda a: a.expert_layers,
    Slot.DECODER: lambda a: a.layers - a.encoder_layers,
}

# Where some blocks have experts, the others are counted as the first ones (as in DeepSeek-V3).
_IN_LAST_BLOCKS = frozenset({Slot.EXPERTS, Slot.DECODER})


def holds(architecture: Architecture, when: str) -> bool:
    """Whether a condition of blocks.py holds for an architecture."""
    return when != NEVER and all(
        (name.lstrip("!") in architecture.switches) is not name.startswith("!")
        for name in when.split()
    )


def _term(architecture: Architecture, text: str) -> int:
    """The value of a term such as `2`, `h` or `2h`."""
    match = _TERM.fullmatch(text)
    if match is None:
        raise ValueError(text)
    times = int(match[1] or 1)
    return times * SYMBOLS[match[2]](architecture) if match[2] else times


def _shape(architecture: Architecture, text: str) -> Iterator[int]:
    for word in text.split():
        if word == "patch":
            yield from architecture.patch
        else:
            yield sum(_term(architecture, term) for term in word.split("+"))


def _tensor(architecture: Architecture, spec: Spec) -> Tensor:
    own = (spec.name,) if spec.linear else ()
    copies = COPIES[spec.slot](architecture)
    return Tensor(
        name=spec.name,
        shape=tuple(_shape(architecture, spec.shape)),
        copies=copies,
        linear=spec.linear,
        transposed=spec.transposed,
        targets=FAMILIES[architecture.family].lora_targets.get(spec.name, own),
        in_block=spec.slot is not Slot.ENDS,
        is_output=spec.is_output,
        first_block=architecture.layers - copies if spec.slot in _IN_LAST_BLOCKS else 0,
    )


@cache
def list_tensors_by_slot(architecture: Architecture) -> tuple[tuple[Slot, Tensor], ...]:
    """Every tensor of the model that transformers builds, with the blocks that have it."""
    return tuple(
        (spec.slot, _tensor(architecture, spec))
        for spec in FAMILIES[architecture.family].tensors
        if holds(architecture, spec.when) and COPIES[spec.slot](architecture)
    )


def list_tensors(architecture: Architecture) -> tuple[Tensor, ...]:
    """Every tensor of the model that transformers builds; tied weights once."""
    return tuple(tensor for _, tensor in list_tensors_by_slot(architecture))
