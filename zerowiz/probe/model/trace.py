"""Take one micro-step of the real model on tensors without data: the module that loads torch."""

import re
import warnings
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from inspect import signature
from itertools import accumulate, pairwise
from typing import Any

import torch
import transformers
from torch._dispatch.python import enable_python_dispatcher
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import masking_utils
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from zerowiz.core.memory.activations import Activations, value_bytes
from zerowiz.core.memory.micro_step import Traced, TracedRun, TracedTensor
from zerowiz.core.model.types import names_one_of
from zerowiz.core.structs import replace
from zerowiz.core.workload import FP32_BYTES, PRECISIONS, TRACED_FLASH, Method, Workload
from zerowiz.errors import UsageError

# Replace operations of torch by stand-ins that keep the tensors that CUDA's kernels keep.
#
# Theory: attention, dropout and RMSNorm have fused CUDA kernels, which keep other tensors for
# backward than the CPU's implementation. On tensors without data, all that matters of a kernel is
# the shapes that it keeps and returns. These are kept:
#
#     flash, efficient   q, k, v, output, 4 bytes per head and query, the seed, the mask in w
#     dropout            one byte per value
#     RMSNorm            its input, 4 bytes per row
#
# (w is the precision of the weights.)

# ruff: noqa: A002, ANN401, ARG001, ARG004, FBT003, SLF001 -- torch need not be installed, so it has
# no types; the signatures are torch's.


# aten/src/ATen/native/transformers/cuda/sdp_utils.cpp, check_head_dim_size_flash.
_FLASH_HEAD_DIM = 256
# flash_attn/flash_api.cpp: q, k, v are padded to this; mha_bwd rounds queries to 128 in its sums.
_FLASH_ALIGNMENT, _FLASH_ROWS = 8, 128
# The dimensions that the fused kernels take: batch, head, row, dim.
_BATCHED = 4


class _Attention(torch.autograd.Function):  # type: ignore[misc]
    """Flash and efficient attention, which differ only in the mask."""

    @staticmethod
    def forward(ctx: Any, q: Any, k: Any, v: Any, mask: Any) -> Any:
        batch, heads, rows, _ = q.shape
        if q.dtype in (torch.float16, torch.bfloat16):
            # flash_attn/flash_api.cpp, mha_fwd, and cudnn/MHA.cpp,
            # alloc_with_matching_layout: the output lies as the queries do.
            out = torch.empty_like(q)
        else:
            # attention.cu: (batch, row, head, dim), and a view of it is returned.
            out = q.new_empty(batch, rows, heads, v.shape[-1]).transpose(1, 2)
        sums = q.new_empty(batch, heads, rows, dtype=torch.float32)
        seed = q.new_empty(2, dtype=torch.int64)
        ctx.save_for_backward(q, k, v, out, sums, seed, *(() if mask is None else (mask,)))
        ctx.mask_needs_gradient = mask is not None and mask.requires_grad
        return out

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        q, k, v, _, _, _, *masks = ctx.saved_tensors
        batch, heads, rows, dim = q.shape
        dq = torch.empty_like(q)
        rounded = -(-rows // _FLASH_ROWS) * _FLASH_ROWS
        sums = q.new_empty(batch, heads, rounded, dtype=torch.float32)
        accumulated = sums.new_empty(*sums.shape, dim)
        # With grouped heads each query head gets a gradient, which are then summed (mha_bwd,
        # dk_expanded).
        wide = [x.new_empty(batch, heads, x.shape[2], x.shape[3]) for x in (k, v)]
        dk, dv = (
            w if heads == x.shape[1] else torch.empty_like(x)
            for w, x in zip(wide, (k, v), strict=True)
        )
        del accumulated, sums, wide
        return dq, dk, dv, torch.empty_like(masks[0]) if ctx.mask_needs_gradient else None


def _padded(tensor: Any) -> Any:
    missing = -tensor.shape[-1] % _FLASH_ALIGNMENT
    return functional.pad(tensor, (0, missing)) if missing else tensor


def flash_attention(q: Any, k: Any, v: Any, mask: Any = None) -> Any:
    """Attention over (batch, head, row, dim) by a fused kernel."""
    out = _Attention.apply(_padded(q), _padded(k), _padded(v), mask)
    return out[..., : v.shape[-1]]


def _as_bias(mask: Any, q: Any, k: Any) -> Any:
    """The mask as a bias, which is a new tensor in w for each call.

    Source: attention.cpp, convert_boolean_attn_mask. Then preprocess_mask expands the bias, and
    with it its gradient, to the shape of the scores.
    """
    if mask is None:
        return None
    bias = q.new_zeros(mask.shape) if mask.dtype is torch.bool else mask
    return bias.expand(*q.shape[:-1], k.shape[-2])


def _scaled_dot_product_attention(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """Choose flash, then efficient, then plain matmuls (sdp_utils.cpp, _select_sdp_backend).

    Flash takes no mask. Efficient takes no grouped heads, and no mask whose rows are not
    contiguous, such as T5's position bias. Neither takes fewer key heads than query heads without
    `enable_gqa`, as in Falcon (sdp_utils_cpp.h, check_last_dim_stride_equals_1_dense and
    check_batch_size_and_num_heads_dense).
    """
    half = query.dtype in (torch.float16, torch.bfloat16)
    narrow = query.shape[-1] == value.shape[-1] <= _FLASH_HEAD_DIM
    flash = half and narrow and attn_mask is None
    efficient = not enable_gqa and (attn_mask is None or attn_mask.stride(-1) == 1)
    matched = enable_gqa or query.shape[1] == key.shape[1]
    if query.dim() == _BATCHED and matched and (flash or efficient):
        return flash_attention(query, key, value, _as_bias(attn_mask, query, key))
    # torch/_decomp/decompositions.py: the decomposition in Python calls the fused dropout.
    with enable_python_dispatcher():
        return torch.ops.aten._scaled_dot_product_attention_math(
            query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )[0]


def _dropout(input: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
    """Keep a mask of one byte per value (Dropout.cpp, is_fused_kernel_acceptable)."""
    if not training or p in (0, 1):
        return input
    return torch.ops.aten.native_dropout(input, p, True)[0]


class _RmsNorm(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, x: Any, weight: Any) -> Any:
        rows = x.new_empty(*x.shape[:-1], 1, dtype=torch.float32)
        ctx.save_for_backward(x, weight, rows)
        return torch.empty_like(x)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        x, weight, _ = ctx.saved_tensors
        return torch.empty_like(x), None if weight is None else torch.empty_like(weight)


_linear = functional.linear


class _Linear(torch.autograd.Function):  # type: ignore[misc]
    """Keep the input, whatever is frozen (deepspeed/runtime/zero/linear.py)."""

    @staticmethod
    def forward(ctx: Any, x: Any, weight: Any, bias: Any) -> Any:
        ctx.save_for_backward(x, weight)
        return _linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        x, weight = ctx.saved_tensors
        reads, trains, shifts = ctx.needs_input_grad
        rows = grad.reshape(-1, grad.shape[-1])
        return (
            grad.matmul(weight) if reads else None,
            rows.t().matmul(x.reshape(-1, x.shape[-1])) if trains else None,
            rows.sum(0) if shifts else None,
        )


def _linear_of_zero3(x: Any, weight: Any, bias: Any = None) -> Any:
    return _Linear.apply(x, weight, bias)


def _rms_norm(input: Any, shape: Any, weight: Any = None, eps: float | None = None) -> Any:
    return _RmsNorm.apply(input, weight)


@contextmanager
def fused_kernels(*, sharded: bool = False) -> Iterator[None]:
    """In this block, these functions of torch keep what their CUDA kernels keep.

    And transformers looks for no packed sequences, which it would find without data.

    Args:
        sharded: Whether linear layers are those that DeepSpeed puts in their place at ZeRO-3.
    """
    stand_ins = (
        (functional, "scaled_dot_product_attention", _scaled_dot_product_attention),
        (functional, "dropout", _dropout),
        (torch, "dropout", _dropout),
        (functional, "rms_norm", _rms_norm),
        (torch, "rms_norm", _rms_norm),
        (masking_utils, "find_packed_sequence_indices", lambda *_: None),
        *(((functional, "linear", _linear_of_zero3),) if sharded else ()),
    )
    with ExitStack() as originals:
        for module, name, stand_in in stand_ins:
            originals.callback(setattr, module, name, getattr(module, name))
            setattr(module, name, stand_in)
        yield


# Build the model that a config names, and inputs for it, on tensors without data.

# The usual crop of ImageNet, for a config that leaves the size to the preprocessor.
IMAGE_SIZE = 224
# Where config.json names no class: the first head that transformers has for its config. An encoder
# has a causal head as well, and an encoder-decoder has all three.
HEADS = (
    "AutoModelForSeq2SeqLM",
    "AutoModelForMaskedLM",
    "AutoModelForCausalLM",
    "AutoModelForImageClassification",
    "AutoModelForImageTextToText",
    "AutoModel",
)


def _model_class(config: Any) -> Any:
    for name in config.architectures or ():
        if (model_class := getattr(transformers, name, None)) is not None:
            return model_class
    for name in HEADS:
        mapping = getattr(transformers, name)._model_mapping
        if type(config) in mapping:
            model_class = mapping[type(config)]
            return model_class[0] if isinstance(model_class, tuple) else model_class
    raise UsageError(f"transformers has no model for `{config.model_type}`")


def _register_flash() -> None:
    """Register a kernel that keeps what flash-attn keeps, which need not be installed.

    It takes no mask, and keys and values without repeated heads.
    """

    def forward(_module: Any, query: Any, key: Any, value: Any, *_: Any, **_options: Any) -> Any:
        return flash_attention(query, key, value).transpose(1, 2), None

    ALL_ATTENTION_FUNCTIONS.register(TRACED_FLASH, forward)
    masking_utils.ALL_MASK_ATTENTION_FUNCTIONS.register(
        TRACED_FLASH, masking_utils.flash_attention_mask
    )


def build_model(content: Mapping[str, object], workload: Workload) -> Any:
    """The model on the meta device, in training mode, with the workload's attention kernel.

    A model that does not support that kernel gets the one that transformers falls back to.

    Args:
        content: The content of config.json.
        workload: Names the attention kernel and the precision.

    """
    transformers.logging.set_verbosity_error()
    _register_flash()
    config = transformers.AutoConfig.for_model(**content)
    # transformers/trainer.py: TrainingArguments.use_cache is false; a cache would copy the tensors.
    config.use_cache = False
    model_class = _model_class(config)
    dtype = getattr(torch, PRECISIONS[workload.precision].dtype_names[0])
    *preferred, last = workload.attention.row.traced_as
    with torch.device("meta"), warnings.catch_warnings(action="ignore"):
        for kernel in preferred:
            with suppress(ValueError, ImportError):
                return model_class._from_config(config, dtype=dtype, attn_implementation=kernel)
        return model_class._from_config(config, dtype=dtype, attn_implementation=last)


def _linear_layers(model: Any) -> Iterator[tuple[str, Any]]:
    """Those that peft adapts, by name: all but the head."""
    _, head = _ends(model)
    for name, module in model.named_modules():
        is_linear = isinstance(module, torch.nn.Linear) or type(module).__name__ == "Conv1D"
        if is_linear and module is not head:
            yield name, module


def add_adapters(model: Any, workload: Workload, *, sharded: bool) -> None:
    """Freeze the model, and add LoRA's adapters to its linear layers, as peft does.

    Source: peft/tuners/lora/layer.py, Linear.forward; dropout is 0 by default.

    Args:
        model: It must be made of fake tensors.
        workload: Says the rank, and the names of the layers.
        sharded: Whether ZeRO-3 holds the weights.
    """
    size_bytes = value_bytes(workload, sharded=sharded)
    dtype = torch.float32 if size_bytes == FP32_BYTES else model.dtype
    model.requires_grad_(requires_grad=False)

    def adapt(layer: Any) -> None:
        transposed = type(layer).__name__ == "Conv1D"
        wide, read = reversed(layer.weight.shape) if transposed else layer.weight.shape
        narrow = torch.nn.Linear(read, workload.lora_rank, bias=False, dtype=dtype)
        widen = torch.nn.Linear(workload.lora_rank, wide, bias=False, dtype=dtype)
        layer.add_module("lora_A", narrow)
        layer.add_module("lora_B", widen)

        def added(_layer: object, inputs: Any, output: Any) -> Any:
            scaling = 0.5
            return (output + widen(narrow(inputs[0].to(dtype))) * scaling).to(output.dtype)

        layer.register_forward_hook(added)

    for name, layer in list(_linear_layers(model)):
        if names_one_of(name, workload.lora_target_modules or (name,)):
            adapt(layer)


def move_to_fake_cpu(model: Any) -> None:
    """Replace each parameter and buffer by a fake one on the CPU; a fake mode must be active.

    Tied weights become separate ones. Their gradients would be added at the end of backward, for
    which the ledger has a line of its own.
    """
    for module in model.modules():
        for name, tensor in module._parameters.items():
            if tensor is not None:
                fake = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")
                module._parameters[name] = torch.nn.Parameter(fake, tensor.requires_grad)
        for name, tensor in module._buffers.items():
            if tensor is not None:
                module._buffers[name] = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")


def find_blocks(model: Any) -> list[Any]:
    """The model's blocks: the outermost modules that transformers can checkpoint.

    A model without such modules has the items of its outermost ModuleLists instead.
    """
    if blocks := _outermost(model, lambda m: isinstance(m, GradientCheckpointingLayer)):
        return blocks
    lists = _outermost(model, lambda m: isinstance(m, torch.nn.ModuleList))
    return [block for modules in lists for block in modules]


def _outermost(module: Any, wanted: Callable[[Any], bool]) -> list[Any]:
    if wanted(module):
        return [module]
    return [block for child in module.children() for block in _outermost(child, wanted)]


def _image_shape(config: Any) -> tuple[int, ...]:
    vision = getattr(config, "vision_config", None) or config
    size = getattr(vision, "image_size", None) or IMAGE_SIZE
    height, width = (size, size) if isinstance(size, int) else tuple(size)
    frames = (vision.num_frames,) if getattr(vision, "num_frames", None) else ()
    return (*frames, getattr(vision, "num_channels", 3), height, width)


# Heads with one label per sequence.
_ONE_LABEL = ("SequenceClassification", "ImageClassification", "VideoClassification")


def make_inputs(model: Any, workload: Workload) -> dict[str, Any]:
    """A micro-batch for this model on the fake CPU, with labels.

    Raises:
        UsageError: The model reads a kind of input that is not known here.
    """
    config, batch = model.config, workload.micro_batch
    names = signature(model.forward).parameters
    shape_of: Mapping[str, Callable[[Any], tuple[int, ...]]] = {
        "pixel_values": _image_shape,
        # transformers, models/whisper/modeling_whisper.py: two frames of the spectrum per position.
        "input_features": lambda c: (c.num_mel_bins, 2 * c.max_source_positions),
    }
    tokens = (batch, workload.sequence_tokens)
    main = model.main_input_name
    if main in shape_of:
        inputs = {main: torch.empty(batch, *shape_of[main](config), dtype=model.dtype)}
        tokens = (batch, min(tokens[1], getattr(config, "max_target_positions", tokens[1])))
    elif main == "input_ids":
        inputs = {main: torch.zeros(tokens, dtype=torch.int64)}
    else:
        raise UsageError(
            f"`{type(model).__name__}` reads `{main}`, for which zerowiz cannot make an input"
        )
    takes_one_label = any(word in type(model).__name__ for word in _ONE_LABEL)
    labels = {
        "labels": (batch,) if takes_one_label else tokens,
        "start_positions": (batch,),
        "end_positions": (batch,),
    }
    shapes = {name: shape for name, shape in labels.items() if name in names}
    return inputs | {n: torch.zeros(shape, dtype=torch.int64) for n, shape in shapes.items()}


# Log every storage that is made and freed while a model runs; the log says what was live when.

# torch/c10/cuda/CUDACachingAllocator.cpp, kMinBlockSize.
_ROUNDED_TO_BYTES = 512


class StorageLog:
    """The allocations and frees of storages, in order; a moment is an index in that order."""

    def __init__(self) -> None:
        self.events: list[tuple[int, int]] = []
        """The number of a storage, and 1 for its allocation or -1 for its free."""
        self._sizes_bytes: list[int] = []
        self._gradients: set[int] = set()
        self._numbers: dict[int, int | None] = {}
        self._watched: list[weakref.ref[Any]] = []

    @property
    def now(self) -> int:
        """The present moment."""
        return len(self.events)

    def leave_out(self, tensor: Any) -> None:
        """Do not log this tensor: the ledger has lines of its own for parameters and buffers."""
        self._numbers[tensor.untyped_storage()._cdata] = None

    def _allocate(self, size_bytes: int) -> int:
        number = len(self._sizes_bytes)
        self._sizes_bytes.append(-(-size_bytes // _ROUNDED_TO_BYTES) * _ROUNDED_TO_BYTES)
        self.events.append((number, 1))
        return number

    @contextmanager
    def scratch(self, size_bytes: int) -> Iterator[None]:
        """Log temporary memory of a kernel, for the length of the block."""
        number = self._allocate(size_bytes)
        yield
        self.events.append((number, -1))

    def add(self, tensor: Any) -> None:
        """Log a tensor that a kernel returned, unless its storage is logged already."""
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._numbers:
            return
        number = self._numbers[key] = self._allocate(storage.nbytes())

        def freed(_: object) -> None:
            del self._numbers[key]
            self.events.append((number, -1))

        self._watched.append(weakref.ref(storage, freed))

    def set_aside(self, tensor: Any) -> None:
        """Do not count this gradient of a parameter: the ledger has a line of its own for them."""
        number = self._numbers.get(tensor.untyped_storage()._cdata)
        if number is not None:
            self._gradients.add(number)

    def live_bytes(self, *, made_before: int | None = None) -> list[int]:
        """The live bytes at every moment, without the gradients of parameters.

        Args:
            made_before: Counts only storages that were allocated before this moment; None counts
                all.
        """
        storages = {number for number, step in self.events[:made_before] if step == 1}
        counted = storages - self._gradients
        sizes_bytes = self._sizes_bytes
        steps = (step * sizes_bytes[n] if n in counted else 0 for n, step in self.events)
        return list(accumulate(steps, initial=0))

    def kept_bytes(self, begin: int, end: int, until: int) -> int:
        """The bytes that were allocated from `begin` to `end` and live at `until`."""
        kept = {number for number, step in self.events[begin:end] if step == 1}
        kept -= {number for number, step in self.events[begin:until] if step == -1}
        return sum(self._sizes_bytes[number] for number in kept - self._gradients)


# aten/src/ATen/native/cuda/SoftMax.cu, softmax_backward_cuda_out: `tmp = grad * output`
# (acts-043 of tests/measured/h200.jsonl).
_WITH_SCRATCH = frozenset({torch.ops.aten._softmax_backward_data.default})


class LoggingMode(TorchDispatchMode):  # type: ignore[misc]
    """Logs every tensor that a kernel returns."""

    def __init__(self, log: StorageLog) -> None:
        super().__init__()
        self.log = log

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with self.log.scratch(args[0].nbytes) if func in _WITH_SCRATCH else nullcontext():
            returned = func(*args, **(kwargs or {}))
            for leaf in tree_leaves(returned):
                if isinstance(leaf, torch.Tensor):
                    self.log.add(leaf)
        return returned


# Run one micro-step of a model on tensors without data, and count the activations it held.


class MicroStep:
    """One forward, loss and backward; a moment is an index in the log of storages."""

    def __init__(self) -> None:
        self.log = StorageLog()
        self.forward_ends: list[int] = []
        """The moments at which the forward of each block ended, in the order in which they ran."""
        self.backward_begins: list[int] = []
        """The moments at which the backward of each block began; the last block comes first."""
        self.forward_end: int | None = None
        """The moment at which the forward of the model ended."""

    def run(
        self, model: Any, blocks: list[Any], inputs: Mapping[str, Any], *, sharded: bool = False
    ) -> None:
        """Take the step; a fake mode must be active. ZeRO-3 has linear layers of its own."""
        for tensor in (*model.parameters(), *model.buffers()):
            self.log.leave_out(tensor)
        for parameter in model.parameters():
            if parameter.requires_grad:
                self._watch_parameter(parameter)
        for block in blocks:
            self._watch_block(block)
        with fused_kernels(sharded=sharded), LoggingMode(self.log):
            output = model(**inputs)
            loss = output.loss if getattr(output, "loss", None) is not None else output[0].sum()
            del output
            self.forward_end = self.log.now
            torch.autograd.backward([loss])

    def _watch_parameter(self, parameter: Any) -> None:
        def accumulated(parameter: Any) -> None:
            self.log.set_aside(parameter.grad)
            parameter.grad = None

        parameter.register_hook(self.log.set_aside)
        parameter.register_post_accumulate_grad_hook(accumulated)

    def _watch_block(self, block: Any) -> None:
        def ends(_block: object, _inputs: object, output: object) -> None:
            # With checkpointing it runs again in backward, where it does not count.
            if self.forward_end is not None:
                return
            self.forward_ends.append(self.log.now)
            for leaf in tree_leaves(output):
                if isinstance(leaf, torch.Tensor) and leaf.requires_grad:
                    leaf.register_hook(lambda _: self.backward_begins.append(self.log.now))
                    return

        block.register_forward_hook(ends)

    def activations(self) -> Activations:
        """The live bytes at the moments that the ledger has lines for."""
        log = self.log
        end = log.now if self.forward_end is None else self.forward_end
        live = log.live_bytes()
        of_forward = log.live_bytes(made_before=end)
        last = self.forward_ends[-1] if self.forward_ends else end
        begins = [*(self.backward_begins or [end]), log.now]
        over_saved = [
            max(live[begin : following + 1]) - of_forward[begin]
            for begin, following in pairwise(begins)
        ]
        return Activations(
            saved_bytes=log.kept_bytes(0, last, end),
            saved_formula=f"traced: {len(self.forward_ends)} blocks and what is in front of them",
            head_bytes=log.kept_bytes(last, end, end),
            head_formula="traced: behind the last block",
            loss_forward_bytes=max(live[: end + 1]) - live[end],
            loss_backward_bytes=max(live[end : begins[0] + 1]) - live[end],
            block_bytes=max(0, *over_saved),
        )


def trace_model(content: Mapping[str, object], workload: Workload) -> Traced:
    """Build the model of a config.json and take one micro-step, on tensors without data.

    Where gradient checkpointing is off, a second step is taken with it, because it is the first
    remedy. Where adapters train, each step is also taken as ZeRO-3 runs it.

    Args:
        content: The content of config.json.
        workload: What a micro-step is.

    Raises:
        UsageError: The model cannot be run so.
        Exception: The code of a model may raise anything, as where it reads values of its tensors.
    """
    runs = (_trace(content, workload), *_more_runs(content, workload))
    return _describe(build_model(content, workload), runs)


def _more_runs(content: Mapping[str, object], asked: Workload) -> Iterator[TracedRun]:
    """The same step with checkpointing, if it is off, and all of that at ZeRO-3, if adapters train.

    Without those with which the model fails.
    """
    checkpointed = replace(asked, gradient_checkpointing=True)
    adapts = asked.method is not Method.FULL
    steps = [(checkpointed, False)] if checkpointed != asked else []
    steps += [(step, True) for step in dict.fromkeys((asked, checkpointed)) if adapts]
    for step, sharded in steps:
        with suppress(Exception):  # the code of a model may raise anything
            yield _trace(content, step, sharded=sharded)


def _trace(
    content: Mapping[str, object], workload: Workload, *, sharded: bool = False
) -> TracedRun:
    """The memory of one micro-step."""
    model = build_model(content, workload).train()
    if workload.gradient_checkpointing:
        if not model.supports_gradient_checkpointing:
            raise UsageError(f"`{type(model).__name__}` has no gradient checkpointing")
        enable = getattr(
            model, "activation_checkpointing_enable", model.gradient_checkpointing_enable
        )
        named = {} if workload.every_n_layers == 1 else {"every_n_layers": workload.every_n_layers}
        # The fake device has no state of random numbers.
        enable({"use_reentrant": False, "preserve_rng_state": False}, **named)
    step = MicroStep()
    with FakeTensorMode(allow_non_fake_inputs=True):
        move_to_fake_cpu(model)
        if workload.method is not Method.FULL:
            add_adapters(model, workload, sharded=sharded)
        inputs = make_inputs(model, workload)
        step.run(model, find_blocks(model), inputs, sharded=sharded)
    return TracedRun(
        micro_batch=workload.micro_batch,
        sequence_tokens=workload.sequence_tokens,
        precision=workload.precision,
        gradient_checkpointing=workload.gradient_checkpointing,
        sharded=sharded,
        activations=step.activations(),
    )


def _describe(model: Any, runs: tuple[TracedRun, ...]) -> Traced:
    """The model as it was built, with the traces of its steps."""
    embedding, head = _ends(model)
    text = model.config.get_text_config()
    shape = tuple(embedding.weight.shape) if isinstance(embedding, torch.nn.Embedding) else ()
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
    blocks = find_blocks(model)
    inside = {id(p) for block in blocks for p in block.parameters()}
    linears = {id(layer.weight) for _, layer in _linear_layers(model)}
    counted = Counter(
        TracedTensor(
            name=re.sub(r"(?<=\.)\d+(?=\.)", "*", name),
            shape=tuple(parameter.shape),
            linear=id(parameter) in linears,
            in_block=id(parameter) in inside or not blocks,
        )
        for name, parameter in model.named_parameters()
    )
    return tuple(replace(tensor, copies=copies) for tensor, copies in counted.items())
