"""Compute what forward saves less, and what more, where adapters train and the base is frozen.

Theory: a frozen linear layer does not keep its input, as its weight has no gradient; a frozen norm
does not keep its normalised copy. An adapter keeps its own input and the narrow vector
between its halves. The first block's input has no gradient, so its first norm keeps nothing.

Under ZeRO-3 that is undone in part. DeepSpeed replaces torch's linear by its own function, which
keeps its input whatever is frozen (runtime/zero/linear.py, LinearFunctionForZeroStage3), and
peft's adapters stay in fp32 (`value_bytes`), so each reads a fp32 copy of its own
(peft/tuners/lora/layer.py, _cast_input_dtype).
Held against autograd by tests/core/memory/forward/test_activations.py, with peft 0.21.
"""

from collections.abc import Collection, Iterator, Mapping
from enum import StrEnum

from msgspec import Struct

from zerowiz.core.model.blocks import Slot
from zerowiz.core.model.families import FAMILIES
from zerowiz.core.model.tensors import list_tensors_by_slot
from zerowiz.core.model.types import Architecture, Tensor
from zerowiz.core.workload.choices import FP32_BYTES, Method, Trainer
from zerowiz.core.workload.workload import Workload


class Input(StrEnum):
    """What the linear layers of a block read."""

    HIDDEN = "hidden"
    """Before attention."""
    ATTENDED = "attended"
    """What attention gives."""
    SECOND = "second"
    """Before the MLP."""
    PRODUCT = "product"
    """Before the MLP's last layer."""


# blocks.py lists them all.
_READS: Mapping[str, Input] = {
    **dict.fromkeys(("q_proj", "k_proj", "v_proj", "qkv_proj", "c_attn"), Input.HIDDEN),
    **dict.fromkeys(("query_key_value", "query", "key", "value", "q", "k", "v"), Input.HIDDEN),
    **dict.fromkeys(("o_proj", "attn.c_proj", "dense", "out_proj", "o"), Input.ATTENDED),
    "attention.output.dense": Input.ATTENDED,
    **dict.fromkeys(("gate_proj", "up_proj", "gate_up_proj", "c_fc", "fc1"), Input.SECOND),
    **dict.fromkeys(("dense_h_to_4h", "intermediate.dense", "wi", "wi_0", "wi_1"), Input.SECOND),
    **dict.fromkeys(("shared_expert_gate", "mlp.gate"), Input.SECOND),
    **dict.fromkeys(("down_proj", "mlp.c_proj", "dense_4h_to_h", "fc2"), Input.PRODUCT),
    **dict.fromkeys(("output.dense", "wo"), Input.PRODUCT),
}
_EXPERTS = "experts."


class Adapters(Struct, frozen=True, kw_only=True):
    """The adapters of one model."""

    rank: int
    placed: tuple[tuple[Slot, Tensor], ...]
    """The tensors that have one."""
    value_bytes: int
    """Of one value of theirs, and of the activations between them."""
    copied: bool
    """Whether each reads a copy of its own."""
    inputs_kept: bool
    """Whether a block's frozen linear layers keep their input all the same."""
    head_kept: bool
    """Whether the frozen head does."""

    def read(self, place: Slot, *inputs: Input) -> bool:
        """Whether any layer in these blocks keeps one of these inputs."""
        places = {place} if place is Slot.DECODER else {place, Slot.BLOCK}
        read = {_READS[t.name] for p, t in self.placed if p in places and t.name in _READS}
        return self.inputs_kept or (not self.copied and not read.isdisjoint(inputs))

    def reads_encoder(self) -> bool:
        """Whether a decoder's keys and values keep what the encoder gave."""
        names = {t.name for place, t in self.placed if place is Slot.DECODER}
        return self.inputs_kept or (not self.copied and not names.isdisjoint({"k", "v"}))

    def reads_last(self, hidden_size: int) -> bool:
        """Whether a layer of the head keeps the last hidden state."""
        read = {t.input_size for place, t in self.placed if place is Slot.ENDS}
        return self.head_kept or hidden_size in read

    def adapts(self, name: str) -> bool:
        """Whether this tensor has an adapter."""
        return any(t.name == name for _, t in self.placed)

    def own_bytes(self, place: Slot) -> int:
        """Per token, kept by the adapters of one block."""
        return sum(
            self.value_bytes * (self.rank + (t.input_size if self.copied else 0))
            for t in self._linear(place)
        )

    def stack_bytes(self, weight_bytes: int) -> int:
        """Of one layer's experts with their adapters added, which backward reads.

        peft/tuners/lora/layer.py, ParamWrapper._activate_lora: the sum is made in every forward,
        of adapters that are cast to the weights' format.
        """
        stacks = [t for _, t in self.placed if t.name.startswith(_EXPERTS)]
        cast = self.rank * sum(t.adapter_size for t in stacks) if self.copied else 0
        return weight_bytes * (sum(t.numel for t in stacks) + cast)

    def _linear(self, place: Slot) -> Iterator[Tensor]:
        return (t for p, t in self.placed if p is place and t.linear)


def value_bytes(workload: Workload, *, sharded: bool) -> int:
    """Of one value of a weight that trains, once the engine has it.

    peft makes adapters in fp32 (tuners_utils.py, cast_adapter_dtype) and DeepSpeed casts them
    (runtime/engine.py, _cast_module_mixed_precision), but no model that zero.Init built (f3-006);
    for that TRL's trainers make them in the model's format (trl 1.16, dpo_trainer.py, __init__).
    """
    kept = sharded and workload.resolved_zero_init and workload.method is not Method.FULL
    kept = kept and workload.trainer is Trainer.SFT
    return FP32_BYTES if kept else workload.precision.size_bytes


def lay_adapters(
    architecture: Architecture, workload: Workload, *, sharded: bool
) -> Adapters | None:
    """The adapters of this workload, None where it trains the model itself.

    Args:
        architecture: The model.
        workload: What is trained.
        sharded: Whether ZeRO-3 holds the weights.
    """
    if workload.method is Method.FULL:
        return None
    modules: Collection[str] = workload.lora_target_modules
    placed = list_tensors_by_slot(architecture)
    own_bytes = value_bytes(workload, sharded=sharded)
    return Adapters(
        rank=workload.lora_rank,
        placed=tuple((place, t) for place, t in placed if t.is_adapted(modules)),
        value_bytes=own_bytes,
        copied=own_bytes != workload.precision.size_bytes,
        inputs_kept=sharded and FAMILIES[architecture.family].torch_linear,
        head_kept=sharded,
    )
