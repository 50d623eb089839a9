"""Say how far off a predicted peak may be, what that rests on, and what would settle it."""

from collections.abc import Mapping

from zerowiz.core.decision.measured_together import Pair, PairedSetting
from zerowiz.core.decision.plan_input import Uncounted
from zerowiz.core.decision.uncertainty import Assumption, Interval, SettledBy
from zerowiz.core.model.types import Model
from zerowiz.ui.remedies import STRATEGIES
from zerowiz.ui.sentences.models import shape
from zerowiz.ui.text.units import gib, with_bounds
from zerowiz.words import _, listing

ROUGH_ON_CPU = _(
    "The memory of CPU ranks is predicted only roughly: a process also holds Python and its"
    " libraries"
)
"""What stands below a predicted and a measured memory of CPU ranks."""
_SETTLED_BY: Mapping[SettledBy, str] = {
    SettledBy.CONFIG: _("to be sure, pass your model's config.json (`--model FOLDER`)"),
    SettledBy.TRACE: _("to be sure, add `--trace` (it needs torch)"),
    SettledBy.MEASURE: _("to be sure, run `zerowiz measure` on these GPUs"),
    SettledBy.RUN: _("only a few steps of the job itself can show it"),
}
_ASSUMPTIONS: Mapping[Assumption, str] = {
    Assumption.STAND_IN: _("a Llama of that size"),
    Assumption.GUESSED: _("a Llama of the config's sizes"),
    Assumption.TRACED: _("the model as it was traced"),
    Assumption.NEW_FAMILY: _("a family that was never measured"),
    Assumption.NEW_STRATEGY: _("a strategy that was never measured"),
    Assumption.MIXTURE: _("experts that share the tokens evenly"),
    Assumption.ENCODER_DECODER: _("an encoder-decoder (measured a few times)"),
    Assumption.NEVER_TOGETHER: _("settings that were never measured together"),
    Assumption.SEPARATE: _("gradients that are not contiguous, measured twice"),
    Assumption.IMAGES: _("an image encoder (measured a few times)"),
    Assumption.QUANTIZED: _("4-bit weights (measured a few times)"),
    Assumption.RARE_OPTIMIZER: _("an optimizer that was measured a few times"),
    Assumption.FOREACH: _("an Adam that copies lists of tensors"),
    Assumption.SHARDED_ADAPTERS: _("adapters recomputed under ZeRO-3, measured twice"),
    Assumption.AUTOCAST: _("torch's autocast (measured a few times)"),
    Assumption.EAGER: _("eager attention (measured a few times)"),
    Assumption.OTHER_LOSS: _("a loss that was measured a few times"),
    Assumption.OTHER_TRAINER: _("another trainer than SFT (measured a few times)"),
    Assumption.NEW_TRAINER: _("a trainer that was never measured with these settings"),
    Assumption.OFFLOADED: _("offload (measured a few times)"),
    Assumption.FIXED_SEGMENTS: _("an allocator whose segments cannot expand"),
    Assumption.GATHERED: _("as much gathered as on the measured machines"),
    Assumption.ON_CPU: _("the CPU (never measured)"),
    Assumption.CUT: _("shards that split tensors"),
    Assumption.FUSED_OPTIMIZER: _("a fused Adam"),
    Assumption.FUSED_ATTENTION: _("a fused attention kernel"),
    Assumption.UNPADDED: _("a batch without padding"),
}
_UNCOUNTED: Mapping[Uncounted, str] = {
    Uncounted.WRAPPED_MODEL: _("the parts of the model besides its language model"),
    Uncounted.TRAINER_OF_ANOTHER_MODEL: _("what this trainer adds to this model"),
    Uncounted.PPO_ROLLOUT: _("the logits that PPO keeps while it generates"),
    Uncounted.TRAINER: _("what its trainer adds"),
    Uncounted.OWN_LOSS: _("the loss that the script computes itself"),
    Uncounted.JUDGE: _("the model that judges completions"),
    Uncounted.ENGINE: _("what generates completions"),
    Uncounted.VLLM: _("what vLLM holds beyond its fraction"),
    Uncounted.OPTIMIZER_ON_GPU: _(
        "the master weights and optimizer states, which stay on the GPU without `offload_optimizer`"
    ),
    Uncounted.STAGE1_GRADIENTS: _(
        "the gradients that stage 1 keeps with offload (planned as ZeRO-2 with offload)"
    ),
    Uncounted.NVME: _("the host buffers of the NVMe offload in your config"),
    Uncounted.CONFIG: _("keys of your config"),
    Uncounted.ADAPTERS: _("what the script adds to its adapters"),
    Uncounted.PLAIN_LAYERS: _("the layers that `every_n_layers` does not checkpoint"),
}
_PAIRED: Mapping[PairedSetting, Mapping[str, str]] = {
    PairedSetting.STRATEGY: STRATEGIES,
    PairedSetting.ACCUMULATION: {
        "1": _("no accumulation"),
        "2": _("2 to 7 micro-steps"),
        "8": _("8 or more micro-steps"),
    },
    PairedSetting.CHECKPOINTING: {"on": _("gradient checkpointing"), "off": _("no checkpointing")},
    PairedSetting.METHOD: {"full": _("full training"), "lora": "LoRA", "qlora": "QLoRA"},
    PairedSetting.GPUS: {"1": _("one GPU"), "2": _("several GPUs")},
}


def settles(value: SettledBy) -> str:
    """What would show whether an uncertain strategy fits."""
    return _SETTLED_BY[value]


def uncounted(value: Uncounted) -> str:
    """What a job holds besides what is predicted."""
    return _UNCOUNTED[value]


def assumption(value: Assumption) -> str:
    """What an interval rests on."""
    return _ASSUMPTIONS[value]


def never_together(pair: Pair) -> str:
    """Two settings that no measured run had at once."""
    one, other = (_PAIRED.get(name, {}).get(value, value) for name, value in pair)
    return _("{one} and {other}", one=one, other=other)


def interval(value: Interval, of: Model) -> str:
    """The expected peak, its bounds and what they rest on."""
    expected, low, high = with_bounds(value.expected_bytes, value.low_bytes, value.high_bytes)
    said = _(
        "torch allocates {expected_bytes}, {low} to {high} on any rank",
        expected_bytes=expected,
        low=low,
        high=high,
    )
    # A trainer of which nothing was measured is not one of which a little was.
    never = Assumption.NEW_TRAINER in value.assumptions
    assumed = listing(
        assumption(each)
        for each in value.assumptions
        if not (never and each is Assumption.OTHER_TRAINER)
    )
    besides = listing(map(uncounted, value.uncounted))
    apart = listing(map(never_together, value.never_together))
    parts = (
        said,
        value.heaviest_bytes and of.heaviest and _heaviest(value.heaviest_bytes, of.heaviest),
        assumed and _("assumes {assumed}", assumed=assumed),
        besides and _("not counted: {besides}", besides=besides),
        apart and _("never measured together: {apart}", apart=apart),
    )
    return "; ".join(part for part in parts if part)


def _heaviest(size_bytes: int, of: Model) -> str:
    return _(
        "another model of that size may need up to {size_bytes}, such as {shape}",
        size_bytes=gib(size_bytes),
        shape=shape(of),
    )
