"""Lay out the modules that stage 3 gathers, in the order in which forward runs them."""

from collections.abc import Iterator
from functools import lru_cache

from zerowiz.core.memory.buffers import Buffers
from zerowiz.core.memory.gathering.replay import Layout, Module
from zerowiz.core.model.types import Architecture, Model, Tensor
from zerowiz.core.workload.choices import Method, Trainer
from zerowiz.core.workload.workload import Workload

_EXPERTS = "experts."
_MIXTURE = (_EXPERTS, "mlp.gate")
_NORMED = ("q_proj", "k_proj")
# The settings that a layout depends on.
_SHAPING = (
    *("precision", "method", "lora_rank", "lora_target_modules", "gradient_checkpointing"),
    "trainer",
)
# Modules whose parameters are none, or too small to be released.
_BLOCK = _NORM = _ATTENTION = _MLP = _ACTIVATION = ()


class _Builder:
    """Numbers the parameters as it comes to them."""

    def __init__(self, workload: Workload, threshold: int) -> None:
        self._workload, self._threshold = workload, threshold
        self.sizes: list[int] = []
        self.kept: set[int] = set()
        self.mixtures: set[int] = set()
        self.small = 0

    def module(self, *tensors: Tensor) -> Module:
        """A module with these parameters."""
        return tuple(
            self._number(tensor) for tensor in tensors if not self._stays(self._numel(tensor))
        )

    def _stays(self, numel: int) -> bool:
        # parameter_offload.py, mark_persistent_parameters.
        if numel <= self._threshold:
            self.small += numel
            return True
        return False

    def _number(self, tensor: Tensor) -> int:
        self.sizes.append(self._numel(tensor))
        number = len(self.sizes) - 1
        # transformers' experts multiply with slices of one tensor, and bitsandbytes with a view of
        # the gathered one (autograd/_functions.py, MatMul4Bit): autograd keeps slices and views,
        # which no partitioning frees (h1-002, i1-003). A checkpoint keeps none.
        viewed = tensor.name.startswith(_EXPERTS) or self._is_4_bit(tensor)
        if viewed and not self._workload.gradient_checkpointing:
            self.kept.add(number)
        return number

    def _is_4_bit(self, tensor: Tensor) -> bool:
        return self._workload.method is Method.QLORA and tensor.linear

    def _numel(self, tensor: Tensor) -> int:
        """Elements, as many as its bytes would be in the model's precision."""
        elements_each = 2 * self._workload.precision.size_bytes if self._is_4_bit(tensor) else 1
        return tensor.numel // elements_each

    def adapters(self, tensor: Tensor) -> Iterator[Module]:
        """The two layers of its adapters."""
        w = self._workload
        if w.method is Method.FULL or not tensor.is_adapted(w.lora_target_modules):
            return
        for width in tensor.shape[-2:]:
            numel = w.lora_rank * tensor.adapters * width
            if numel > self._threshold:
                self.sizes.append(numel)
                yield (len(self.sizes) - 1,)


def _modules(tensors: list[Tensor]) -> list[list[Tensor]]:
    """Weights with their biases; a mixture with its router is gathered whole.

    DeepSpeed 0.19.8, runtime/zero/leaf_module_config.py: its block is a leaf.
    """
    modules: list[list[Tensor]] = []
    for tensor in tensors:
        before = modules[-1][0].name if modules else ""
        mixed = before.startswith(_MIXTURE) and (tensor.linear or tensor.name.startswith(_MIXTURE))
        if tensor.name == f"{before}.bias" or mixed:
            modules[-1].append(tensor)
        else:
            modules.append([tensor])
    return modules


def _block(build: _Builder, a: Architecture, tensors: list[Tensor]) -> tuple[Module, ...]:
    """One block; DeepSpeed asks for more at modules without parameters of their own, too."""
    groups = _modules(tensors)
    wide = {a.intermediate_size, a.dense_intermediate_size, 2 * a.intermediate_size}
    of_mlp = (
        place
        for place, group in enumerate(groups)
        if group[0].name.startswith(_MIXTURE) or wide & set(group[0].shape)
    )
    mlp = next(of_mlp, len(groups))
    normed = any(tensor.name == "q_norm" for tensor in tensors)
    modules: list[Module] = [_BLOCK, _NORM, _ATTENTION]
    for place, group in enumerate(groups):
        mixed = group[0].name.startswith(_MIXTURE)
        if place == mlp:
            # A mixture is gathered whole, and OPT's layers are the block's own.
            modules += [_NORM] if mixed or group[0].name == "fc1" else [_NORM, _MLP]
        of_block = build.module(*group)
        build.mixtures.update(of_block if mixed else ())
        own = (of_block, *(m for tensor in group for m in build.adapters(tensor)))
        modules += [module for module in own if module]
        if place == mlp and not mixed:
            modules.append(_ACTIVATION)
        if normed and group[0].name in _NORMED:
            modules.append(_NORM)
    return tuple(modules)


def _is_in(tensor: Tensor, place: int, a: Architecture) -> bool:
    """Whether the block at this place has the tensor: dense ones come before mixtures."""
    is_dense = a.expert_layers and tensor.copies == a.layers - a.expert_layers
    return place < tensor.copies if is_dense else place >= a.layers - tensor.copies


def _models(inside: list[Tensor], a: Architecture) -> int:
    """How many models the trainer runs one after the other, each with all blocks."""
    return max(1, min((tensor.copies for tensor in inside), default=1) // a.layers)


def lay_out(model: Model, workload: Workload, buffers: Buffers) -> Layout:
    """The modules of this model as this job trains them; one value for jobs that share it."""
    alike = Workload(**{name: getattr(workload, name) for name in _SHAPING})
    return _lay_out(model, alike, buffers.stage3_param_persistence_threshold)


@lru_cache(maxsize=64)
def _lay_out(model: Model, workload: Workload, threshold: int) -> Layout:
    a = model.architecture
    build = _Builder(workload, threshold)
    ends = [tensor for tensor in model.tensors if not tensor.in_block]
    inside = [tensor for tensor in model.tensors if tensor.in_block]
    places = [place for place, tensor in enumerate(model.tensors) if tensor.in_block]
    before = places[0] if places else len(model.tensors)
    first = [build.module(*group) for group in _modules(ends[:before])]
    blocks = [
        _block(build, a, [tensor for tensor in inside if _is_in(tensor, place, a)])
        for _ in range(_models(inside, a))
        for place in range(a.layers)
    ]
    last = [build.module(*group) for group in _modules(ends[before:])]
    tied = a.tied_embeddings and workload.trainer is not Trainer.REWARD
    head = [first[0]] if tied and first else []
    return Layout(
        sizes=tuple(build.sizes),
        first=tuple(first),
        blocks=tuple(blocks),
        last=(*last, *head),
        mixtures=frozenset(build.mixtures),
        kept=frozenset(build.kept),
        small=build.small,
    )
