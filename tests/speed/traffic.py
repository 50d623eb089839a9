"""Count the bytes that small kernels move, in traces of real models.

    python tests/speed/traffic.py llama-3.2-1b pythia-1.4b

The operations of a model of tests/models run on torch's meta device, which computes nothing; what an
operation reads and writes is counted, but for products of matrices, attention and views. One layer
is the difference between two layers and one. The table says how many times the bytes are that
forward keeps for backward: zerowiz/core/speed/step_time.py has the means.
"""

import argparse
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

# Its siblings are `speed.…`, as they are to the tests.
if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).parents[1])

import torch
from measured.rows import read_config, read_model
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import AutoConfig, AutoModelForCausalLM

from zerowiz.core.memory.activations import activations
from zerowiz.core.speed.step_time import Moved
from zerowiz.core.workload import Workload

TOKENS = 1024
_PRODUCTS = frozenset({"mm", "addmm", "bmm", "baddbmm"})
_VIEWS = frozenset(
    {
        *("view", "t", "transpose", "expand", "slice", "select", "split", "unsqueeze", "squeeze"),
        *("as_strided", "detach", "permute", "alias", "_unsafe_view", "unbind", "lift_fresh"),
        *("split_with_sizes", "empty", "empty_like", "new_empty", "new_empty_strided"),
        *("empty_strided", "_reshape_alias", "is_same_size"),
    }
)


class Traffic(NamedTuple):
    """How many times the bytes are moved that forward keeps."""

    blocks: Moved
    ends: Moved
    operations: int
    """That forward of one layer calls torch for, views included."""


class _Attention(torch.autograd.Function):  # type: ignore[misc]
    """A fused kernel for traces: it keeps its inputs, and moves nothing that is counted."""

    @staticmethod
    def forward(ctx: Any, *inputs: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(*inputs)
        return torch.empty_like(inputs[0])

    @staticmethod
    def backward(ctx: Any, *_: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(torch.empty_like(each) for each in ctx.saved_tensors)


class _Counter(TorchDispatchMode):  # type: ignore[misc]
    """Adds up what operations read and write."""

    def __init__(self) -> None:
        super().__init__()
        self.moved_bytes = self.operations = 0

    def __torch_dispatch__(
        self,
        func: Any,
        _types: Any,
        args: Any = (),
        kwargs: Any = None,
    ) -> Any:
        found = func(*args, **(kwargs or {}))
        self.operations += 1
        name = func._schema.name.partition("::")[2]
        if name not in _PRODUCTS | _VIEWS:
            tensors = (t for t in tree_leaves((args, kwargs, found)) if isinstance(t, torch.Tensor))
            # What is expanded is read once.
            self.moved_bytes += sum(min(t.nbytes, t.untyped_storage().nbytes()) for t in tensors)
        return found


def _count(config: Mapping[str, Any], layers: int) -> tuple[Moved, int]:
    """The bytes that forward and backward of so many layers move, and forward's operations."""
    # All layers are alike.
    said = {**config, "num_hidden_layers": layers, "layer_types": None, "use_cache": False}
    made = AutoConfig.for_model(said.pop("model_type"), **said)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(
            made, dtype=torch.bfloat16, attn_implementation="sdpa"
        )
    model.train()
    tokens = torch.zeros(1, TOKENS, dtype=torch.long, device="meta")
    with ExitStack() as patched:
        attend = lambda query, key, value, **_: _Attention.apply(query, key, value)  # noqa: E731
        patched.enter_context(
            patch("torch.nn.functional.scaled_dot_product_attention", side_effect=attend)
        )
        # It reads a value, and the meta device has none.
        patched.enter_context(
            patch("transformers.masking_utils.find_packed_sequence_indices", return_value=None)
        )
        counter = patched.enter_context(_Counter())
        loss = model(input_ids=tokens, labels=tokens).loss
        forward, operations = counter.moved_bytes, counter.operations
        loss.backward()
    return Moved(forward, counter.moved_bytes - forward), operations


def count_traffic(name: str) -> Traffic:
    """Of a model of tests/models, full fine-tuning in bf16."""
    config = read_config(name)
    (one, fewer), (two, more) = _count(config, 1), _count(config, 2)
    model = read_model(name)
    kept = activations(model.architecture, Workload(sequence_tokens=TOKENS), sharded=False)
    block_bytes = kept.saved_bytes / model.architecture.layers
    blocks = Moved(two.forward - one.forward, two.backward - one.backward)
    ends = Moved(one.forward - blocks.forward, one.backward - blocks.backward)
    return Traffic(
        blocks=Moved(blocks.forward / block_bytes, blocks.backward / block_bytes),
        ends=Moved(
            ends.forward / (kept.head_bytes + kept.loss_forward_bytes),
            ends.backward / (kept.head_bytes + kept.loss_backward_bytes),
        ),
        operations=more - fewer,
    )


def main() -> None:
    """Print a line for each model."""
    parser = argparse.ArgumentParser(description="How many bytes small kernels move")
    parser.add_argument("models", nargs="+", help="of tests/models")
    sys.stdout.write(
        f"{'':16}{'blocks: forward':>16}{'backward':>10}{'ends: forward':>15}{'backward':>10}{'operations':>12}\n"
    )
    for name in parser.parse_args().models:
        blocks, ends, operations = count_traffic(name)
        figures = f"{blocks.forward:16.2f}{blocks.backward:10.2f}{ends.forward:15.2f}{ends.backward:10.2f}"
        sys.stdout.write(f"{name:16}{figures}{operations:12}\n")


if __name__ == "__main__":
    main()
