"""List the tensors that transformers builds for an architecture."""

import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache

from zerowiz.core.model.blocks import NEVER, Slot, Spec
from zerowiz.core.model.families import FAMILIES
from zerowiz.core.model.types import Architecture, Tensor

# What the letters of a row of blocks.py stand for.
LETTERS: Mapping[str, Callable[[Architecture], int]] = {
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


def holds(architecture: Architecture, when: str) -> bool:
    """Whether all switches of a condition are set as it wants them."""
    return when != NEVER and all(
        (name.lstrip("!") in architecture.switches) is not name.startswith("!")
        for name in when.split()
    )


def _term(architecture: Architecture, text: str) -> int:
    """The number that `2`, `h` or `2h` stands for."""
    match = _TERM.fullmatch(text)
    if match is None:
        raise ValueError(text)
    times = int(match[1] or 1)
    return times * LETTERS[match[2]](architecture) if match[2] else times


def _shape(architecture: Architecture, text: str) -> Iterator[int]:
    for word in text.split():
        if word == "patch":
            yield from architecture.patch
        else:
            yield sum(_term(architecture, term) for term in word.split("+"))


def _tensor(architecture: Architecture, spec: Spec) -> Tensor:
    own = (spec.name,) if spec.linear else ()
    return Tensor(
        name=spec.name,
        shape=tuple(_shape(architecture, spec.shape)),
        copies=COPIES[spec.place](architecture),
        linear=spec.linear,
        transposed=spec.transposed,
        targets=FAMILIES[architecture.family].lora_targets.get(spec.name, own),
        in_block=spec.place is not Slot.ENDS,
    )


@cache
def list_placed(architecture: Architecture) -> tuple[tuple[Slot, Tensor], ...]:
    """Every trainable tensor of the model, as transformers builds it, and where it stands."""
    return tuple(
        (spec.place, _tensor(architecture, spec))
        for spec in FAMILIES[architecture.family].tensors
        if holds(architecture, spec.when) and COPIES[spec.place](architecture)
    )


def list_tensors(architecture: Architecture) -> tuple[Tensor, ...]:
    """The same without their places; tied weights once."""
    return tuple(tensor for _, tensor in list_placed(architecture))
