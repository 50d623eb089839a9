"""What one micro-step keeps: of the analytic model, or of a trace of the real one."""

from functools import lru_cache

from msgspec import Struct

from zerowiz.core.memory.activations import Activations, activations
from zerowiz.core.model.families import FAMILIES, Family, Norm
from zerowiz.core.model.types import Architecture, Model, ModelSource, Tensor
from zerowiz.core.structs import Count, replace
from zerowiz.core.workload import Precision, Trainer, Workload


class TracedTensor(Struct, frozen=True, kw_only=True):
    """One parameter, and how many of the same name but for numbers, shape and kind there are."""

    name: str
    """As the model names it, with `*` for each number."""
    shape: tuple[Count, ...]
    copies: Count = 1
    linear: bool = False
    """Whether it is the weight of a linear layer, other than the head."""
    in_block: bool = True


class TracedRun(Struct, frozen=True, kw_only=True):
    """One micro-step: what it was, and what it held."""

    micro_batch: Count
    sequence_tokens: Count
    precision: Precision
    gradient_checkpointing: bool
    sharded: bool = False
    """Whether ZeRO-3 held the weights, which changes what adapters keep."""
    activations: Activations

    def scaled_to(self, workload: Workload) -> Activations:
        """The same for another number of tokens and another precision.

        Exact in the micro-batch; a sequence that is shorter holds no more than this.
        """
        asked = workload.tokens * workload.precision.size_bytes
        traced = self.micro_batch * self.sequence_tokens * self.precision.size_bytes
        if asked == traced:
            return self.activations
        a = self.activations
        return replace(
            a,
            saved_bytes=a.saved_bytes * asked // traced,
            head_bytes=a.head_bytes * asked // traced,
            loss_forward_bytes=a.loss_forward_bytes * asked // traced,
            loss_backward_bytes=a.loss_backward_bytes * asked // traced,
            block_bytes=a.block_bytes * asked // traced,
        )


class Traced(Struct, frozen=True, kw_only=True):
    """A model as its own code built and ran it."""

    family: str
    """`model_type` of the config."""
    built: str
    """The class that was built, such as `LlamaForCausalLM`."""
    layers: Count
    hidden_size: Count
    embedding: tuple[Count, ...]
    """Shape of the token embedding; empty if there is none."""
    tied_embeddings: bool
    tensors: tuple[TracedTensor, ...]
    """Tied weights once."""
    runs: tuple[TracedRun, ...]
    """The requested one first; then the same with gradient checkpointing, where it was off; where
    adapters train, each of them once more as ZeRO-3 runs it."""
    took_milliseconds: Count

    def activations(self, workload: Workload, *, sharded: bool = False) -> Activations:
        """What this micro-step holds, from the run that is most similar."""
        checkpointing = workload.gradient_checkpointing
        like = [r for r in self.runs if r.gradient_checkpointing is checkpointing] or self.runs
        run = next((r for r in like if r.sharded is sharded), like[0])
        return run.scaled_to(workload)

    @property
    def params(self) -> int:
        """Elements of all parameters."""
        return sum(t.numel * t.copies for t in self._tensors)

    @property
    def _tensors(self) -> tuple[Tensor, ...]:
        family = FAMILIES.get(self.family)
        transposed = family is not None and any(spec.transposed for spec in family.tensors)
        return tuple(
            Tensor(
                name=_role(tensor.name),
                shape=tensor.shape,
                copies=tensor.copies,
                linear=tensor.linear,
                transposed=tensor.linear and transposed,
                targets=_targets(family, tensor),
                in_block=tensor.in_block,
            )
            for tensor in self.tensors
        )

    def model(self, name: str, architecture: Architecture | None = None) -> Model:
        """The model that was traced.

        Args:
            name: What the user calls it.
            architecture: What its config.json says; None where the family is not known.
        """
        return Model(
            name=name,
            source=ModelSource.TRACE,
            params=self.params,
            architecture=architecture or self._architecture,
            tensors=self._tensors,
        )

    @property
    def _architecture(self) -> Architecture:
        """What the ledger reads besides activations and tensors; the rest is zero."""
        rows, width = self.embedding or (0, self.hidden_size)
        return Architecture(
            family=self.family,
            layers=self.layers,
            hidden_size=self.hidden_size,
            intermediate_size=0,
            heads=0,
            kv_heads=0,
            head_dim=0,
            vocab_size=rows,
            embedding_size=width,
            positions=0,
            experts=0,
            experts_per_token=0,
            expert_layers=0,
            dense_intermediate_size=0,
            hidden_act="",
            switches=frozenset({"tie_word_embeddings"} if self.tied_embeddings else ()),
            dropout_rate=0,
            residual_dropout_rate=0,
            logit_softcap=False,
        )


def _targets(family: Family | None, tensor: TracedTensor) -> tuple[str, ...]:
    """The names by which peft adapts it: its module's, or what the family's table says."""
    module = tensor.name.removesuffix(".weight")
    named = {} if family is None else family.lora_targets
    last = (module.rpartition("*.")[2],) if tensor.linear else ()
    return next((names for name, names in named.items() if module.endswith(f".{name}")), last)


def _role(name: str) -> str:
    """The name within its block; fused experts keep the word, as one module holds them all."""
    before, separator, after = name.partition(".experts.")
    return f"experts.{after}" if separator else before


# Predict what a micro-step and an evaluation keep, also under autocast and of PPO's models.

# Bytes of a token, a layer and a hidden element that forward keeps under autocast beyond a model in
# 16 bits: each linear layer keeps a cast of its input of its own, and the norms work in fp32
# (j1-033 to j1-040, Llama).
_CASTS_BYTES = 10
# Of a token, a layer and an element inside the MLP: autocast computes powers in fp32, and what
# depends on them (j3-008): transformers/activations.py, NewGELUActivation, AccurateGELUActivation.
_POWERS_BYTES = 6
_WITH_POWERS = frozenset({"gelu_new", "gelu_accurate"})


def is_alike_under_autocast(a: Architecture) -> bool:
    """Whether a step over weights of 16 bits keeps the same with autocast to their format.

    torch/aten autocast_mode.h, AT_FORALL_FP32: a LayerNorm and powers are computed in fp32 then,
    and kept so; the other norms work in fp32 anyway, and cast back.
    """
    family = FAMILIES.get(a.family)
    is_layer_norm = family is None or family.norm is Norm.LAYER
    return not is_layer_norm and a.hidden_act not in _WITH_POWERS


@lru_cache(maxsize=256)
def micro_step(
    model: Model, workload: Workload, traced: Traced | None, *, sharded: bool
) -> Activations:
    """What one micro-step keeps and holds: by the trace where there is one, else by formulas.

    Args:
        model: As its trainer builds it.
        workload: The step.
        traced: A trace of the model.
        sharded: Whether ZeRO-3 holds the weights, which changes what adapters keep.
    """
    if traced is not None:
        return traced.activations(workload, sharded=sharded)
    if workload.trainer.row.has_value_model:
        # The policy and the value model run forward, then both backward.
        alone = micro_step(
            model, replace(workload, trainer=Trainer.SFT, reference=None), None, sharded=sharded
        )
        return replace(alone, saved_bytes=2 * alone.saved_bytes)
    workload = workload.of_one_rank
    if workload.torch_autocast is not None:
        halved = replace(workload, precision=workload.torch_autocast, torch_autocast=None)
        whole = replace(workload, torch_autocast=None)
        return _autocast_run(model.architecture, whole, halved, sharded=sharded)
    return activations(model.architecture, workload, sharded=sharded)


def evaluation(
    model: Model, workload: Workload, traced: Traced | None, *, sharded: bool
) -> Activations | None:
    """The sequences that are evaluated at a time, which are as long as those that train.

    Args:
        model: As for `micro_step`, as are the others.
        workload: The step; None is the answer where nothing is evaluated.
        traced: A trace of the model.
        sharded: Whether ZeRO-3 holds the weights.
    """
    if not workload.eval_batch:
        return None
    step = replace(workload, micro_batch=workload.eval_batch, sequence_parallel=1)
    return micro_step(model, step, traced, sharded=sharded)


def _autocast_run(
    a: Architecture, in_fp32: Workload, halved: Workload, *, sharded: bool
) -> Activations:
    """One micro-step that computes in 16 bits between layers whose inputs are fp32."""
    whole = activations(a, in_fp32, sharded=sharded)
    half = activations(a, halved, sharded=sharded)
    powers_bytes = _POWERS_BYTES * a.intermediate_size if a.hidden_act in _WITH_POWERS else 0
    casts_bytes = (_CASTS_BYTES * a.hidden_size + powers_bytes) * halved.tokens
    in_block_bytes = min(whole.block_bytes - half.block_bytes, casts_bytes)
    half = replace(
        half,
        block_bytes=half.block_bytes + in_block_bytes,
        # They are gone with what they are of.
        gone_bytes=half.gone_bytes + in_block_bytes,
        later_gone_bytes=half.later_gone_bytes + in_block_bytes,
    )
    if halved.gradient_checkpointing:
        return replace(half, saved_bytes=whole.saved_bytes, saved_formula=whole.saved_formula)
    saved_bytes = min(whole.saved_bytes, half.saved_bytes + casts_bytes * a.layers)
    formula = f"{half.saved_formula} + casts"
    return replace(half, saved_bytes=saved_bytes, saved_formula=formula)


# A model as it was read, and what that reading rests on.


class ReadModel(Struct, frozen=True, kw_only=True):
    """A model, and the trace of it if there was one."""

    model: Model
    traced: Traced | None = None
    notes: tuple[str, ...] = ()
