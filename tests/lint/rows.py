"""List for each rule configs that have its mistake, and configs that nearly have it."""

from dataclasses import dataclass
from enum import StrEnum

from zerowiz.core.findings import Severity
from zerowiz.core.lint.config import Context
from zerowiz.core.script.facts import ScriptValue, State
from zerowiz.core.script.settings import ScriptSettings
from zerowiz.core.workload import Integration, Precision
from zerowiz.probe.files import read_bad_releases


class Truth(StrEnum):
    """What becomes of a config."""

    RAISES = "raises"
    TRAINS_SOMETHING_ELSE = "trains something else"
    """DeepSpeed takes it, and what was asked for is not in what it builds."""
    IGNORED = "ignored"
    """Without the key everything is the same."""
    DEPRECATED = "deprecated"
    """Does what was asked, and DeepSpeed warns."""
    DEPENDS = "depends"
    """Raises, unless the script brings an optimizer and a scheduler of its own."""
    WORKS = "works"


HF = Context(integration=Integration.HF)
DEEPSPEED = Context(integration=Integration.DEEPSPEED)
ACCELERATE = Context(integration=Integration.ACCELERATE)
NOBODY = Context()
RANKS = Context(integration=Integration.DEEPSPEED, world_size=4)
SMALL_GPU = Context(integration=Integration.DEEPSPEED, gpu_bytes=8 * 2**30)
LARGE_GPU = Context(integration=Integration.DEEPSPEED, gpu_bytes=80 * 2**30)
P100 = Context(integration=Integration.DEEPSPEED, compute_capability=(6, 0))
V100 = Context(integration=Integration.DEEPSPEED, compute_capability=(7, 0))
A100 = Context(integration=Integration.DEEPSPEED, compute_capability=(8, 0))
SCRIPT = Context(
    integration=Integration.HF,
    world_size=2,
    settings=ScriptSettings(
        values={
            "micro_batch": ScriptValue(
                value=2, source="`batch=2`", change="edit it", state=State.FIXED
            ),
            "accumulation_steps": ScriptValue(
                value=4, source="`steps=4`", change="edit it", state=State.FIXED
            ),
            "precision": ScriptValue(
                value=Precision.BF16, source="`bf16=True`", change="edit it", state=State.FIXED
            ),
        }
    ),
)
OF_0_18_2, OF_0_19_3 = (
    Context(
        integration=Integration.DEEPSPEED,
        bad_releases=tuple(row for row in read_bad_releases() if row.affects("deepspeed", version)),
    )
    for version in ("0.18.2", "0.19.3")
)
ERROR, WARNING, INFO = Severity.ERROR, Severity.WARNING, Severity.INFO


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """A config that has the mistake, and where."""

    rule: str
    text: str
    key: str
    line: int
    severity: Severity
    context: Context
    truth: Truth | None = None
    """What the reader of the context really makes of it; None where `make truth` does not ask."""
    asked: tuple[str, object] | None = None
    """What would be in DeepSpeed's hands if it did as it was asked: the fact, the value."""


def has(
    rule: str,
    text: str,
    key: str,
    line: int,
    severity: Severity,
    context: Context = DEEPSPEED,
    *,
    truth: Truth | None = None,
    asked: tuple[str, object] | None = None,
) -> Row:
    return Row(
        rule=rule,
        text=text,
        key=key,
        line=line,
        severity=severity,
        context=context,
        truth=truth,
        asked=asked,
    )


def zero(stage: int, *members: str) -> str:
    """A config of this stage; the members begin on line 3."""
    inner = "".join(f",\n{member}" for member in members)
    return f'{{"train_batch_size": 8,\n"zero_optimization": {{"stage": {stage}{inner}}}}}'


def top(*members: str) -> str:
    """A config; the members begin on line 2."""
    return "{" + ",\n".join(['"train_batch_size": 8', *members]) + "}"


OFFLOAD = '"offload_optimizer": {"device": "cpu"}'
ZERO_2 = '"zero_optimization": {"stage": 2}'
EXPERTS = '"expert_parallel": {"enabled": true}'
ZERO_2_OFFLOADED = '"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}'


def optimizer(name: str, params: str = "{}") -> str:
    return f'"optimizer": {{"type": "{name}", "params": {params}}}'


def scheduler(name: str, params: str) -> str:
    return f'"scheduler": {{"type": "{name}",\n"params": {params}}}'


OLD_BF16 = top('"bfloat16": {"loss_scale": 0}')
ACCUMULATES = top('"gradient_accumulation_steps": 2', ZERO_2)
MODEL_CONFIG = '{"model_type": "llama", "hidden_size": 8, "vocab_size": 16}'
# A hyphen is a letter wrong to DeepSpeed, and GPT-NeoX's own spelling.
GPT_NEOX = """{"train_micro_batch_size_per_gpu": 4, "zero_optimization": {"stage": 1},
"gradient-accumulation-steps": 2, "num-layers": 12, "hidden-size": 768, "pos-emb": "rotary",
"train-iters": 100}"""

FOUND = (
    has("unreadable", '{"a": 1', "", 1, ERROR),
    has("unreadable", '{\n# a comment\n"train_batch_size": "auto"}', "", 2, ERROR, HF),
    has("unreadable", '{\n# a comment\n"train_batch_size": 8}', "", 2, INFO, NOBODY),
    has(
        *("unknown-code", top("# zerowiz: ignore ZW999", '"bf16": {}'), "", 2, WARNING),
        truth=Truth.WORKS,
    ),
    has("unknown-code", top("// zerowiz: ignore zw101", '"bf16": {}'), "", 2, WARNING),
    has("unknown-code", top('"//zerowiz": "ignore ZW4, ZW999"'), "", 2, WARNING, HF),
    has("duplicate-key", top('"bf16": {}', '"bf16": {}'), "bf16", 3, ERROR),
    has("duplicate-key", top('"bf16": {}', '"bf16": {}'), "bf16", 3, WARNING, HF),
    has("not-an-object", "[]", "", 1, ERROR),
    has("not-a-config", MODEL_CONFIG, "", 1, ERROR),
    has("not-a-config", MODEL_CONFIG, "", 1, WARNING, NOBODY),
    has("not-a-config", GPT_NEOX, "", 1, WARNING),
    has("unknown-key", top('"gradient_cliping": 0.5'), "gradient_cliping", 2, ERROR),
    has("unknown-key", top('"notes": 1'), "notes", 2, WARNING),
    has("unknown-key", top('"model_parallel_size": 1'), "model_parallel_size", 2, WARNING),
    has("unknown-key", zero(2, '"notes": 1'), "zero_optimization.notes", 3, ERROR),
    has("unknown-key", top('"aio": {"thread_count": 1}'), "aio.thread_count", 2, WARNING),
    has("unknown-key", top('"optimizer": {"name": "AdamW"}'), "optimizer.name", 2, ERROR),
    has("unknown-key", top(optimizer("AdamW", '{"rate": 1}')), "optimizer.params.rate", 2, ERROR),
    has("misplaced-key", top('"overlap_comm": true'), "overlap_comm", 2, ERROR),
    has("misplaced-key", top('"bf16": {"loss_scale": 0}'), "bf16.loss_scale", 2, ERROR),
    has("misplaced-key", OLD_BF16, "bfloat16.loss_scale", 2, ERROR),
    has("misplaced-key", OLD_BF16, "bfloat16.loss_scale", 2, WARNING, NOBODY),
    has(
        "misplaced-key",
        zero(2, '"gradient_clipping": 1'),
        "zero_optimization.gradient_clipping",
        3,
        ERROR,
    ),
    has(
        "deprecated-key",
        zero(2, '"cpu_offload": true'),
        "zero_optimization.cpu_offload",
        3,
        WARNING,
    ),
    has(
        "deprecated-key",
        zero(2, '"cpu_offload": true'),
        "zero_optimization.cpu_offload",
        3,
        ERROR,
        HF,
    ),
    has(
        "deprecated-key",
        zero(2, '"cpu_offload": true', OFFLOAD),
        "zero_optimization.cpu_offload",
        3,
        ERROR,
    ),
    has("deprecated-key", top('"zero_optimization": true'), "zero_optimization", 2, WARNING),
    has("removed-key", top('"amp": {"enabled": false}'), "amp", 2, ERROR),
    has("wrong-type", top('"bf16": true'), "bf16", 2, ERROR),
    has("wrong-type", top('"steps_per_print": [10]'), "steps_per_print", 2, ERROR),
    has(
        "wrong-type",
        zero(2, '"reduce_bucket_size": 1.5'),
        "zero_optimization.reduce_bucket_size",
        3,
        ERROR,
    ),
    has(
        "number-in-quotes",
        zero(2, '"reduce_bucket_size": "5e8"'),
        "zero_optimization.reduce_bucket_size",
        3,
        ERROR,
    ),
    has("number-in-quotes", top('"dump_state": "false"'), "dump_state", 2, ERROR),
    has("number-in-quotes", top('"dump_state": "true"'), "dump_state", 2, INFO),
    has("wrong-type", zero(2, '"overlap_comm": "yes"'), "zero_optimization.overlap_comm", 3, INFO),
    has("wrong-type", top('"dump_state": "Off"'), "dump_state", 2, ERROR),
    has("wrong-type", top('"wall_clock_breakdown": "on"'), "wall_clock_breakdown", 2, ERROR),
    has("number-in-quotes", top('"steps_per_print": "10"'), "steps_per_print", 2, ERROR),
    has("number-in-quotes", top('"bf16": {"enabled": "true"}'), "bf16.enabled", 2, INFO),
    has("number-in-quotes", top('"gradient_clipping": "1.0"'), "gradient_clipping", 2, ERROR),
    has(
        "number-in-quotes",
        top(optimizer("AdamW", '{"lr": "1e-4"}')),
        "optimizer.params.lr",
        2,
        ERROR,
    ),
    has(
        "out-of-range",
        zero(2, '"reduce_bucket_size": 0'),
        "zero_optimization.reduce_bucket_size",
        3,
        ERROR,
    ),
    has(
        "out-of-range",
        zero(2, '"allgather_bucket_size": 5'),
        "zero_optimization.allgather_bucket_size",
        3,
        ERROR,
    ),
    has(
        "not-a-choice",
        top('"zero_optimization": {"stage": 4}'),
        "zero_optimization.stage",
        2,
        ERROR,
    ),
    has(
        "not-a-choice",
        top('"checkpoint": {"tag_validation": "off"}'),
        "checkpoint.tag_validation",
        2,
        ERROR,
    ),
    *(
        has(
            "out-of-range",
            top(f'"fp16": {{"enabled": true,\n"{name}": {value}}}'),
            f"fp16.{name}",
            3,
            ERROR,
        )
        for name, value in (("min_loss_scale", 0), ("loss_scale_window", -1))
    ),
    has(
        "number-in-quotes",
        top(optimizer("AdamW", '{"betas": ["0.9", "0.95"]}')),
        "optimizer.params.betas",
        2,
        ERROR,
    ),
    *(
        has("wrong-type", top(member), key, 2, ERROR, ACCELERATE)
        for member, key in (
            ('"bf16": null, "zero_optimization": {"stage": 2}', "bf16"),
            (
                '"gradient_accumulation_steps": null, "zero_optimization": {"stage": 2}',
                "gradient_accumulation_steps",
            ),
        )
    ),
    has(
        "number-in-quotes", top('"bf16": {"enabled": "true"}', ZERO_2), "bf16.enabled", 2, ERROR, HF
    ),
    has(
        "not-a-choice",
        top(scheduler("WarmupLR", '{"warmup_type": "cosine"}')),
        "scheduler.params.warmup_type",
        3,
        WARNING,
    ),
    has("auto-not-filled", top('"bf16": {"enabled": "auto"}'), "bf16.enabled", 2, ERROR),
    has(
        "auto-not-filled",
        zero(2, '"reduce_bucket_size": "auto"'),
        "zero_optimization.reduce_bucket_size",
        3,
        WARNING,
    ),
    has(
        "auto-not-filled",
        zero(2, '"overlap_comm": "auto"'),
        "zero_optimization.overlap_comm",
        3,
        ERROR,
        HF,
    ),
    has(
        "auto-not-filled",
        zero(2, '"overlap_comm": "auto"'),
        "zero_optimization.overlap_comm",
        3,
        WARNING,
        NOBODY,
    ),
    has(
        "auto-not-filled",
        top(ZERO_2, optimizer("AdamW", '{"betas": "auto"}')),
        "optimizer.params.betas",
        3,
        ERROR,
        ACCELERATE,
    ),
    has("auto-out-of-place", top('"gradient_clipping": "AUTO"'), "gradient_clipping", 2, ERROR),
    has(
        "auto-out-of-place",
        zero(2, '"offload_param": "auto"'),
        "zero_optimization.offload_param",
        3,
        ERROR,
        HF,
    ),
    has(
        "auto-out-of-place",
        top(optimizer("AdamW", '{"betas": ["auto", "auto"]}')),
        "optimizer.params.betas",
        2,
        ERROR,
        HF,
    ),
    has("batch-equation", top('"train_micro_batch_size_per_gpu": 3'), "train_batch_size", 1, ERROR),
    has(
        "batch-equation",
        top('"train_micro_batch_size_per_gpu": 4'),
        "train_batch_size",
        1,
        ERROR,
        RANKS,
    ),
    has(
        "batch-equation",
        '{\n"train_batch_size": 1, "train_micro_batch_size_per_gpu": 1,'
        ' "gradient_accumulation_steps": 1, "sequence_parallel_size": 2,'
        ' "zero_optimization": {"stage": 0}}',
        "train_batch_size",
        2,
        ERROR,
        Context(integration=Integration.HF, world_size=1),
    ),
    has("batch-missing", '{\n"bf16": {}}', "", 1, ERROR),
    has("batch-missing", '{\n"bf16": {}}', "", 1, WARNING, NOBODY),
    has(
        "two-precisions",
        top('"bf16": {"enabled": true}', '"fp16": {"enabled": true}'),
        "fp16.enabled",
        3,
        ERROR,
    ),
    has(
        "offload-without-stage",
        zero(0, OFFLOAD),
        "zero_optimization.offload_optimizer",
        3,
        ERROR,
    ),
    has(
        "offload-without-stage",
        zero(2, '"offload_param": {"device": "cpu"}'),
        "zero_optimization.offload_param",
        3,
        WARNING,
    ),
    has(
        "optimizer-under-offload",
        zero(2, OFFLOAD),
        "zero_optimization.offload_optimizer",
        3,
        WARNING,
    ),
    has(
        "optimizer-under-offload",
        top(ZERO_2_OFFLOADED, optimizer("SGD")),
        "optimizer.type",
        3,
        ERROR,
    ),
    has(
        "optimizer-under-offload",
        top(ZERO_2_OFFLOADED, optimizer("AdamW", '{"torch_adam": true}')),
        "optimizer.params.torch_adam",
        3,
        WARNING,
    ),
    has("scheduler-without-optimizer", top(scheduler("WarmupLR", "{}")), "scheduler.type", 2, INFO),
    has(
        "states-without-master",
        top(ZERO_2, '"bf16": {"enabled": true, "bf16_optimizer_states": true}'),
        "bf16.bf16_optimizer_states",
        3,
        ERROR,
    ),
    has(
        "states-without-master",
        top('"bf16": {"enabled": true, "bf16_master_weights_and_grads": true}'),
        "bf16.bf16_master_weights_and_grads",
        2,
        ERROR,
    ),
    has(
        "states-without-master",
        top(ZERO_2, '"fp16": {"enabled": true, "fp16_master_weights_and_grads": true}'),
        "fp16.fp16_master_weights_and_grads",
        3,
        ERROR,
    ),
    has("zero-without-16-bit", top(ZERO_2), "zero_optimization", 2, INFO),
    has("untested-optimizer", top(ZERO_2, optimizer("SGD")), "optimizer.type", 3, ERROR),
    has("unknown-optimizer", top(optimizer("adamw_torch")), "optimizer.type", 2, ERROR),
    has("unknown-optimizer", top(optimizer("OneBitAdam")), "optimizer.type", 2, ERROR),
    has(
        "nvme-without-stage-3",
        zero(2, '"offload_optimizer": {"device": "nvme", "nvme_path": "/x"}'),
        "zero_optimization.offload_optimizer.device",
        3,
        WARNING,
    ),
    has(
        "nvme-without-path",
        zero(3, '"offload_param": {"device": "nvme"}'),
        "zero_optimization.offload_param",
        3,
        ERROR,
    ),
    has(
        "sum-refused",
        top('"zero_optimization": {"stage": 3}', '"gradient_allreduce_op": "sum"'),
        "gradient_allreduce_op",
        3,
        ERROR,
    ),
    has(
        "partial-offload",
        zero(2, '"offload_optimizer": {"device": "cpu", "ratio": 0.5}'),
        "zero_optimization.offload_optimizer.ratio",
        3,
        ERROR,
    ),
    has(
        "clipping-in-optimizer",
        top(optimizer("AdamW", '{"max_grad_norm": 1}')),
        "optimizer.params.max_grad_norm",
        2,
        ERROR,
    ),
    has(
        "prescale-refused",
        top(ZERO_2, '"prescale_gradients": true'),
        "prescale_gradients",
        3,
        ERROR,
    ),
    has(
        "prescale-refused",
        top(ZERO_2, '"gradient_predivide_factor": 2'),
        "gradient_predivide_factor",
        3,
        ERROR,
        truth=Truth.RAISES,
    ),
    has(
        "legacy-stage-1",
        zero(1, '"legacy_stage1": true'),
        "zero_optimization.legacy_stage1",
        3,
        ERROR,
    ),
    has("no-zero-section", top('"bf16": {}'), "", 1, ERROR, ACCELERATE),
    has(
        "no-grad-norm",
        zero(2, '"compute_grad_norm": false'),
        "zero_optimization.compute_grad_norm",
        3,
        ERROR,
    ),
    has(
        "scheduler-refused",
        top(scheduler("WarmupDecayLR", "{}")),
        "scheduler.type",
        2,
        ERROR,
    ),
    has(
        "scheduler-refused",
        top(scheduler("WarmupLR", '{"warmup_num_steps": 0}')),
        "scheduler.params.warmup_num_steps",
        3,
        ERROR,
    ),
    has(
        "scheduler-refused",
        top(scheduler("WarmupLR", '{"total_num_steps": 9}')),
        "scheduler.params.total_num_steps",
        3,
        ERROR,
    ),
    has(
        "scheduler-refused",
        top(optimizer("AdamW"), '"scheduler": {"type": "OneCycle"}'),
        "scheduler.type",
        3,
        ERROR,
        truth=Truth.DEPENDS,
    ),
    has(
        "scheduler-refused",
        top(optimizer("AdamW"), scheduler("StepLR", "{}")),
        "scheduler.type",
        3,
        ERROR,
        truth=Truth.DEPENDS,
    ),
    has(
        "scheduler-refused",
        top(optimizer("AdamW"), scheduler("OneCycle", "{}")),
        "scheduler.type",
        3,
        ERROR,
        truth=Truth.DEPENDS,
    ),
    has(
        "scheduler-refused",
        top(optimizer("AdamW"), scheduler("WarmupDecayLR", "{}")),
        "scheduler.type",
        3,
        ERROR,
        truth=Truth.DEPENDS,
    ),
    has(
        "unknown-key",
        top(optimizer("AdamW", '{"maximize": true}')),
        "optimizer.params.maximize",
        2,
        ERROR,
        truth=Truth.DEPENDS,
    ),
    has(
        "unknown-optimizer",
        top('"optimizer": {"params": {"lr": 0.1}}'),
        "optimizer",
        2,
        ERROR,
        truth=Truth.DEPENDS,
    ),
    has(
        "wrong-type",
        top('"optimizer": {"type": "AdamW", "params": [1]}'),
        "optimizer.params",
        2,
        ERROR,
        truth=Truth.RAISES,
    ),
    has(
        "wrong-type",
        top(optimizer("AdamW"), scheduler("WarmupLR", "[]")),
        "scheduler.params",
        4,
        ERROR,
        truth=Truth.DEPENDS,
    ),
    has(
        "scheduler-refused",
        top(optimizer("AdamW"), '"scheduler": {"type": "WarmupLR"}'),
        "scheduler.type",
        3,
        ERROR,
        truth=Truth.DEPENDS,
    ),
    has(
        "out-of-range",
        top(optimizer("SGD", '{"lr": -0.1}')),
        "optimizer.params.lr",
        2,
        ERROR,
        truth=Truth.DEPENDS,
    ),
    has(
        "out-of-range",
        top(optimizer("AdamW", '{"lr": -0.1}')),
        "optimizer.params.lr",
        2,
        ERROR,
        truth=Truth.TRAINS_SOMETHING_ELSE,
        asked=("falls", True),
    ),
    has(
        "out-of-range",
        top(optimizer("SGD", '{"lr": 0.1, "weight_decay": -0.1}')),
        "optimizer.params.weight_decay",
        2,
        ERROR,
        truth=Truth.DEPENDS,
    ),
    has(
        "out-of-range",
        top(optimizer("AdamW", '{"betas": [0.9]}')),
        "optimizer.params.betas",
        2,
        ERROR,
        truth=Truth.DEPENDS,
    ),
    has(
        "out-of-range",
        top(optimizer("NAdam", '{"betas": [0.9, 1.5]}')),
        "optimizer.params.betas",
        2,
        ERROR,
        truth=Truth.DEPENDS,
    ),
    has(
        "out-of-range",
        top(optimizer("AdamW", '{"betas": [0.9, 1.5]}')),
        "optimizer.params.betas",
        2,
        ERROR,
        truth=Truth.TRAINS_SOMETHING_ELSE,
        asked=("finite", True),
    ),
    has(
        "out-of-range",
        top(optimizer("NAdam", '{"betas": [0.9, 1.5]}')),
        "optimizer.params.betas",
        2,
        WARNING,
        NOBODY,
    ),
    has(
        "out-of-range",
        top('"sequence_parallel_size": -1'),
        "sequence_parallel_size",
        2,
        ERROR,
        truth=Truth.RAISES,
    ),
    has(
        "out-of-range",
        top('"gradient_clipping": -1.0'),
        "gradient_clipping",
        2,
        WARNING,
        truth=Truth.WORKS,
    ),
    has(
        "out-of-range",
        top(
            optimizer("AdamW"),
            scheduler("WarmupDecayLR", '{"warmup_num_steps": 9,\n"total_num_steps": 5}'),
        ),
        "scheduler.params.total_num_steps",
        5,
        WARNING,
        truth=Truth.WORKS,
    ),
    has(
        "out-of-range",
        top(
            optimizer("AdamW"),
            scheduler("WarmupLR", '{"warmup_min_lr": 0.1, "warmup_max_lr": 0.01}'),
        ),
        "scheduler.params.warmup_min_lr",
        4,
        WARNING,
        truth=Truth.WORKS,
    ),
    has(
        "wrong-type",
        top('"gradient_clipping": "abc"'),
        "gradient_clipping",
        2,
        ERROR,
        truth=Truth.RAISES,
    ),
    has(
        "wrong-type",
        top('"gradient_clipping": null'),
        "gradient_clipping",
        2,
        ERROR,
        truth=Truth.RAISES,
    ),
    has(
        "wrong-type",
        '{"train_batch_size": 8,\n"gradient_clipping": NaN\n}',
        "gradient_clipping",
        2,
        ERROR,
        truth=Truth.RAISES,
    ),
    has(
        "wrong-type",
        top('"zero_optimization": {"stage": true}'),
        "zero_optimization.stage",
        2,
        WARNING,
        truth=Truth.WORKS,
    ),
    has(
        "not-a-choice",
        top('"data_types": {"grad_accum_dtype": "fp8"}'),
        "data_types.grad_accum_dtype",
        2,
        ERROR,
        truth=Truth.RAISES,
    ),
    has(
        "unknown-key",
        top('"pipeline": {"activation_checkpointing": true}'),
        "pipeline.activation_checkpointing",
        2,
        WARNING,
        truth=Truth.IGNORED,
    ),
    has(
        "refused-together",
        top('"zero_optimization": {"stage": 3}', optimizer("Muon", '{"lr": 0.01}')),
        "optimizer.type",
        3,
        ERROR,
        truth=Truth.DEPENDS,
    ),
    has(
        "refused-together",
        top(
            ZERO_2_OFFLOADED[:-1]
            + ', "overlap_comm": true, "zenflow": {"select_strategy": "step",\n'
            '"select_interval": 2, "update_interval": 4}}',
            optimizer("AdamW"),
        ),
        "zero_optimization.zenflow.select_interval",
        3,
        ERROR,
        truth=Truth.RAISES,
    ),
    has(
        "refused-together",
        top(ZERO_2_OFFLOADED[:-1] + ', "zenflow": {"offload": true}}', optimizer("AdamW")),
        "zero_optimization.zenflow.offload",
        2,
        ERROR,
        truth=Truth.RAISES,
    ),
    has(
        "refused-together",
        top(ZERO_2[:-1] + ', "zenflow": {"topk_ratio": 0.1}}', optimizer("AdamW")),
        "zero_optimization.zenflow",
        2,
        ERROR,
        truth=Truth.RAISES,
    ),
    has(
        "refused-together",
        top('"compile": {"deepcompile": true, "passes": ["z1", "autotp"]}'),
        "compile.passes",
        2,
        ERROR,
        truth=Truth.RAISES,
    ),
    has(
        "refused-together",
        zero(3, '"zero_hpz_partition_size": 3'),
        "zero_optimization.zero_hpz_partition_size",
        3,
        ERROR,
        RANKS,
        truth=Truth.RAISES,
    ),
    has(
        "refused-together",
        top(
            '"zero_optimization": {"stage": 3}',
            '"compile": {"deepcompile": true, "offload_activation": true,\n'
            '"offload_parameters": true}',
        ),
        "compile.offload_activation",
        3,
        ERROR,
        truth=Truth.RAISES,
    ),
    has(
        "refused-together",
        top(
            '"zero_optimization": {"stage": 3, "zero_hpz_partition_size": 2}',
            '"expert_parallel": {"enabled": true}',
        ),
        "zero_optimization.zero_hpz_partition_size",
        2,
        ERROR,
        truth=Truth.RAISES,
    ),
    has(
        "refused-together",
        top(
            '"zero_optimization": {"stage": 3, "zero_quantized_gradients": true}',
            '"expert_parallel": {"enabled": true}',
        ),
        "zero_optimization.zero_quantized_gradients",
        2,
        ERROR,
    ),
    has("refused-together", top(ZERO_2, EXPERTS), "expert_parallel.enabled", 3, ERROR, HF),
    has(
        "refused-together",
        top(ZERO_2, EXPERTS, optimizer("AdamW")),
        "expert_parallel.enabled",
        3,
        WARNING,
        HF,
    ),
    has(
        "other-parallelism",
        top('"sequence_parallel_size": 2'),
        "sequence_parallel_size",
        2,
        WARNING,
        truth=Truth.WORKS,
    ),
    has("bad-release", ACCUMULATES, "zero_optimization.stage", 3, ERROR, OF_0_18_2),
    has(
        "bad-release",
        top(ZERO_2, '"bf16": {"enabled": true}'),
        "zero_optimization.stage",
        2,
        INFO,
        OF_0_19_3,
        truth=Truth.WORKS,
    ),
    has(
        "another-param-dtype",
        top('"bf16": {"enabled": true}', '"data_types": {"param_dtype": "fp16"}'),
        "data_types.param_dtype",
        3,
        ERROR,
    ),
    has("unknown-scheduler", top(scheduler("cosine", "{}")), "scheduler.type", 2, ERROR),
    has("unknown-scheduler", top(scheduler("cosine", "{}")), "scheduler.type", 2, WARNING, NOBODY),
    has("unknown-optimizer", top(optimizer("sgdd")), "optimizer.type", 2, WARNING, NOBODY),
    has(
        "unknown-optimizer",
        top('"train_micro_batch_size_per_gpu": "auto"', optimizer("sgdd")),
        "optimizer.type",
        3,
        ERROR,
        NOBODY,
    ),
    has("untested-optimizer", top(ZERO_2, optimizer("SGD")), "optimizer.type", 3, WARNING, NOBODY),
    has(
        "optimizer-under-offload",
        top(ZERO_2_OFFLOADED, optimizer("SGD")),
        "optimizer.type",
        3,
        WARNING,
        NOBODY,
    ),
    has(
        "clipping-in-optimizer",
        top(optimizer("AdamW", '{"max_grad_norm": 1}')),
        "optimizer.params.max_grad_norm",
        2,
        WARNING,
        NOBODY,
    ),
    has(
        "unknown-key",
        top(optimizer("Lion", '{"rate": 1}')),
        "optimizer.params.rate",
        2,
        WARNING,
        NOBODY,
    ),
    has("unknown-key", top('"optimizer": {"name": "Adam"}'), "optimizer.name", 2, WARNING, NOBODY),
    has(
        "scheduler-refused",
        top(scheduler("WarmupLR", '{"warmup_num_steps": 0}')),
        "scheduler.params.warmup_num_steps",
        3,
        WARNING,
        NOBODY,
    ),
    has("unknown-key", top('"gradient_cliping": 1'), "gradient_cliping", 2, WARNING),
    has(
        "misplaced-key",
        top('"ignore_unused_parameters": true'),
        "ignore_unused_parameters",
        2,
        WARNING,
    ),
    has(
        "misplaced-key",
        top('"ignore_unused_parameters": false'),
        "ignore_unused_parameters",
        2,
        ERROR,
    ),
    has(
        "wrong-type",
        zero(2, '"overlap_comm": [true, false]').replace(
            "{", '{"autotuning": {"enabled": true}, ', 1
        ),
        "zero_optimization.overlap_comm",
        3,
        WARNING,
    ),
    has("wrong-type", zero(2, '"overlap_comm": [1]'), "zero_optimization.overlap_comm", 3, ERROR),
    has(
        "key-of-another-stage",
        zero(2, '"stage3_max_live_parameters": 1'),
        "zero_optimization.stage3_max_live_parameters",
        3,
        WARNING,
    ),
    has(
        "key-does-nothing",
        zero(2, '"allgather_partitions": false'),
        "zero_optimization.allgather_partitions",
        3,
        WARNING,
    ),
    has(
        "key-does-nothing",
        zero(2, '"allgather_partitions": true'),
        "zero_optimization.allgather_partitions",
        3,
        INFO,
    ),
    has(
        "key-does-nothing",
        top('"bf16": {"enabled": true}', '"bfloat16": {"enabled": true}'),
        "bfloat16",
        3,
        WARNING,
    ),
    has(
        "key-does-nothing",
        top('"activation_checkpointing": {}'),
        "activation_checkpointing",
        2,
        INFO,
        HF,
    ),
    has(
        "section-disabled",
        top('"wandb": {"project": "x"}'),
        "wandb",
        2,
        WARNING,
        truth=Truth.IGNORED,
    ),
    has(
        "section-disabled",
        top('"fp16": {"enabled": false, "initial_scale_power": 32}'),
        "fp16",
        2,
        INFO,
    ),
    has(
        "script-disagrees",
        '{"train_batch_size": 16,\n"train_micro_batch_size_per_gpu": 4}',
        "train_micro_batch_size_per_gpu",
        2,
        ERROR,
        SCRIPT,
    ),
    has("script-disagrees", top(), "train_batch_size", 1, ERROR, SCRIPT),
    has(
        "script-disagrees",
        '{"train_batch_size": 16,\n"fp16": {"enabled": true}}',
        "fp16.enabled",
        2,
        ERROR,
        SCRIPT,
    ),
    has(
        "script-disagrees",
        top(
            optimizer("AdamW", '{"lr": 1e-4}'),
            '"scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": 1e-3}}',
        ),
        "scheduler.params.warmup_max_lr",
        3,
        ERROR,
        HF,
    ),
    has(
        "bucket-too-large",
        zero(2, '"reduce_bucket_size": 1e9'),
        "zero_optimization.reduce_bucket_size",
        3,
        WARNING,
        SMALL_GPU,
    ),
    has("bf16-emulated", top('"bf16": {"enabled": true}'), "bf16.enabled", 2, WARNING, V100),
    has("fp16-refused", top('"fp16": {"enabled": true}'), "fp16.enabled", 2, ERROR, P100),
    has(
        "kept-whole",
        zero(3, '"stage3_max_live_parameters": 1e9'),
        "zero_optimization.stage3_max_live_parameters",
        3,
        INFO,
        SMALL_GPU,
    ),
    has(
        "small-pieces",
        zero(3, '"sub_group_size": 0'),
        "zero_optimization.sub_group_size",
        3,
        WARNING,
    ),
    has(
        "nothing-prefetched",
        zero(3, '"max_live_parameters": 0'),
        "zero_optimization.max_live_parameters",
        3,
        INFO,
    ),
)

# What is nearly the mistake.
SILENT = (
    ("unreadable", '{"train_batch_size": 8,} # as hjson takes it', DEEPSPEED),
    ("refused-together", top(ZERO_2, EXPERTS), DEEPSPEED),
    ("refused-together", top('"zero_optimization": {"stage": 3}', EXPERTS), HF),
    ("unknown-code", top("# zerowiz: ignore ZW1 ZW204", '"bf16": {}'), DEEPSPEED),
    ("duplicate-key", top('"bf16": {"enabled": true}', '"fp16": {"enabled": false}'), DEEPSPEED),
    ("not-an-object", "train_batch_size: 8", DEEPSPEED),
    ("not-a-config", "{}", DEEPSPEED),
    ("not-a-config", '{"zero_optimisation": {"stage": 2}}', DEEPSPEED),
    ("not-a-config", '{"stage": 2}', DEEPSPEED),
    ("not-a-config", top('"a": 1', '"b": 1', '"c": 1', '"d": 1'), DEEPSPEED),
    ("unknown-key", top('"_comment": "mine"', '"$schema": "https://x"', '"//": ""'), DEEPSPEED),
    ("unknown-key", GPT_NEOX, DEEPSPEED),
    ("unknown-key", top(optimizer("SGD", '{"nesterov": true}')), DEEPSPEED),
    ("unknown-key", top('"bfloat16": {"enabled": true}'), DEEPSPEED),
    ("misplaced-key", top('"seed": 1'), DEEPSPEED),
    ("out-of-range", top('"fp16": {"enabled": false, "min_loss_scale": 0}'), DEEPSPEED),
    (
        "out-of-range",
        top('"fp16": {"enabled": true, "loss_scale": 1, "loss_scale_window": 0}'),
        DEEPSPEED,
    ),
    ("misplaced-key", OLD_BF16, HF),
    ("misplaced-key", top('"pipeline": {"enabled": true}'), DEEPSPEED),
    ("deprecated-key", zero(2, OFFLOAD), DEEPSPEED),
    ("removed-key", top('"nebulae": {}'), DEEPSPEED),
    ("wrong-type", zero(2, '"reduce_bucket_size": 5e8'), DEEPSPEED),
    ("wrong-type", top('"bf16": {"enabled": 1}', '"steps_per_print": null'), DEEPSPEED),
    ("number-in-quotes", top('"communication_data_type": "fp32"'), DEEPSPEED),
    ("number-in-quotes", zero(2, '"overlap_comm": "yes"'), DEEPSPEED),
    ("number-in-quotes", top('"tensorboard": {"enabled": true, "job_name": "8"}'), DEEPSPEED),
    ("out-of-range", zero(2, '"allgather_bucket_size": 6'), DEEPSPEED),
    ("out-of-range", zero(3, '"stage3_max_live_parameters": 0'), DEEPSPEED),
    ("not-a-choice", top('"communication_data_type": "FP32"'), DEEPSPEED),
    ("auto-not-filled", top('"bf16": {"enabled": "auto"}'), HF),
    ("auto-not-filled", top('"bf16": {"enabled": "auto"}'), NOBODY),
    ("auto-not-filled", top('"data_types": {"keep_in_fp32_modules": "auto"}'), DEEPSPEED),
    ("auto-not-filled", top('"notes": {"mode": "auto"}'), NOBODY),
    ("auto-out-of-place", top('"tensorboard": {"enabled": true, "job_name": "Auto"}'), HF),
    ("batch-equation", top('"train_micro_batch_size_per_gpu": 2'), RANKS),
    ("batch-equation", top('"train_micro_batch_size_per_gpu": "auto"'), HF),
    ("batch-equation", '{"train_batch_size": 3, "sequence_parallel_size": 2}', RANKS),
    ("batch-missing", '{"train_micro_batch_size_per_gpu": "auto"}', HF),
    ("two-precisions", top('"bf16": {"enabled": "auto"}', '"fp16": {"enabled": "auto"}'), HF),
    ("offload-without-stage", zero(1, OFFLOAD), DEEPSPEED),
    ("offload-without-stage", zero(0, '"offload_optimizer": {"device": "none"}'), DEEPSPEED),
    ("optimizer-under-offload", top(ZERO_2_OFFLOADED, optimizer("AdamW")), DEEPSPEED),
    ("optimizer-under-offload", top(ZERO_2_OFFLOADED), HF),
    ("scheduler-without-optimizer", top(scheduler("WarmupLR", "{}")), HF),
    (
        "states-without-master",
        top(
            ZERO_2,
            '"bf16": {"bf16_master_weights_and_grads": true, "bf16_optimizer_states": true}',
        ),
        DEEPSPEED,
    ),
    ("zero-without-16-bit", top(ZERO_2), HF),
    ("zero-without-16-bit", top(ZERO_2, '"bf16": {"enabled": true}'), DEEPSPEED),
    (
        "untested-optimizer",
        top(ZERO_2, optimizer("SGD"), '"zero_allow_untested_optimizer": true'),
        DEEPSPEED,
    ),
    ("untested-optimizer", top(optimizer("SGD")), DEEPSPEED),
    ("unknown-optimizer", top(optimizer("ADAMW")), DEEPSPEED),
    (
        "nvme-without-stage-3",
        zero(3, '"offload_optimizer": {"device": "nvme", "nvme_path": "/x"}'),
        DEEPSPEED,
    ),
    ("nvme-without-path", zero(3, '"offload_param": {"device": "cpu"}'), DEEPSPEED),
    ("sum-refused", top(ZERO_2, '"gradient_allreduce_op": "sum"'), DEEPSPEED),
    (
        "partial-offload",
        zero(3, '"offload_optimizer": {"device": "cpu", "ratio": 0.5}'),
        DEEPSPEED,
    ),
    ("clipping-in-optimizer", top('"gradient_clipping": 1'), DEEPSPEED),
    (
        "prescale-refused",
        top(
            '"zero_optimization": {"stage": 2, "reduce_scatter": false}',
            '"prescale_gradients": true',
        ),
        DEEPSPEED,
    ),
    ("legacy-stage-1", zero(1, '"legacy_stage1": false'), DEEPSPEED),
    ("no-zero-section", top('"bf16": {}'), DEEPSPEED),
    ("no-zero-section", top('"bf16": {}'), NOBODY),
    (
        "no-grad-norm",
        top(
            '"zero_optimization": {"stage": 2, "compute_grad_norm": false}',
            '"gradient_clipping": 0',
        ),
        DEEPSPEED,
    ),
    ("scheduler-refused", top(scheduler("WarmupLR", '{"warmup_num_steps": 1}')), DEEPSPEED),
    (
        "scheduler-refused",
        top(scheduler("WarmupDecayLR", '{"warmup_num_steps": "auto", "total_num_steps": "auto"}')),
        HF,
    ),
    ("scheduler-refused", top(scheduler("OneCycle", '{"cycle_min_lr": 0, "cycle_max_lr": 1}')), HF),
    ("scheduler-refused", top(scheduler("LRRangeTest", "{}")), DEEPSPEED),
    ("unknown-key", top(optimizer("AdamW", '{"maximize": true, "torch_adam": true}')), DEEPSPEED),
    ("refused-together", zero(3, '"zero_hpz_partition_size": 2'), RANKS),
    ("refused-together", top(ZERO_2, optimizer("Muon", '{"lr": 0.01}')), DEEPSPEED),
    (
        "refused-together",
        top('"zero_optimization": {"stage": 3, "reduce_scatter": false}', optimizer("Muon")),
        DEEPSPEED,
    ),
    (
        "refused-together",
        top(
            ZERO_2_OFFLOADED[:-1] + ', "zenflow": {"select_strategy": "step",'
            ' "select_interval": 4, "update_interval": 4}}'
        ),
        DEEPSPEED,
    ),
    (
        "refused-together",
        top('"compile": {"deepcompile": true, "passes": ["z1", "autosp"]}'),
        DEEPSPEED,
    ),
    ("refused-together", top('"compile": {"passes": ["z1", "autotp"]}'), DEEPSPEED),
    ("other-parallelism", top('"tensor_parallel": {"autotp_size": 4}'), DEEPSPEED),
    ("unknown-optimizer", top('"optimizer": {"name": "AdamW", "params": {}}'), DEEPSPEED),
    ("out-of-range", top(optimizer("AdamW", '{"betas": [0.9, 0], "lr": 0}')), DEEPSPEED),
    ("out-of-range", top('"sequence_parallel_size": 1', '"gradient_clipping": 0'), DEEPSPEED),
    (
        "out-of-range",
        top(scheduler("WarmupDecayLR", '{"total_num_steps": 5, "warmup_num_steps": 5}')),
        DEEPSPEED,
    ),
    ("wrong-type", top('"optimizer": {"type": "AdamW", "params": null}'), DEEPSPEED),
    ("not-a-choice", top('"data_types": {"grad_accum_dtype": "bfloat16"}'), DEEPSPEED),
    ("misplaced-key", top('"pipeline": {"activation_checkpointing": true}'), DEEPSPEED),
    ("bad-release", top('"gradient_accumulation_steps": 1', ZERO_2), OF_0_18_2),
    ("bad-release", zero(1), OF_0_18_2),
    (
        "bad-release",
        top(ZERO_2, '"gradient_accumulation_steps": 1'),
        OF_0_19_3,
    ),
    ("bad-release", zero(2), DEEPSPEED),
    (
        "another-param-dtype",
        top('"bf16": {"enabled": true}', '"data_types": {"param_dtype": "bfloat16"}'),
        DEEPSPEED,
    ),
    ("unknown-scheduler", top(scheduler("CosineAnnealingLR", '{"T_max": 9}')), DEEPSPEED),
    ("key-of-another-stage", zero(3, '"stage3_max_live_parameters": 1'), DEEPSPEED),
    (
        "key-of-another-stage",
        top('"zero_optimization": {"stage": "auto", "stage3_max_live_parameters": 1}'),
        HF,
    ),
    ("key-does-nothing", zero(2, '"load_from_fp32_weights": false'), DEEPSPEED),
    (
        "section-disabled",
        top('"bf16": {"enabled": true}', '"fp16": {"enabled": false, "initial_scale_power": 32}'),
        DEEPSPEED,
    ),
    ("section-disabled", top('"wandb": {"enabled": false}'), DEEPSPEED),
    ("script-disagrees", '{"train_batch_size": 16, "bf16": {"enabled": true}}', SCRIPT),
    ("script-disagrees", '{"train_batch_size": "auto"}', SCRIPT),
    ("bucket-too-large", zero(2, '"reduce_bucket_size": 1e9'), LARGE_GPU),
    ("bucket-too-large", zero(0, '"reduce_bucket_size": 1e12'), SMALL_GPU),
    ("bf16-emulated", top('"bf16": {"enabled": true}'), A100),
    ("bf16-emulated", top('"bf16": {"enabled": true}'), DEEPSPEED),
    ("bf16-emulated", top('"bf16": {"enabled": "auto"}'), V100),
    ("fp16-refused", top('"fp16": {"enabled": true}'), V100),
    ("fp16-refused", top('"fp16": {"enabled": false}'), P100),
    ("kept-whole", zero(3, '"stage3_max_live_parameters": 1e9'), LARGE_GPU),
    ("kept-whole", zero(2, '"stage3_max_live_parameters": 1e9'), SMALL_GPU),
    ("kept-whole", zero(3, '"stage3_param_persistence_threshold": 1e6'), DEEPSPEED),
    ("small-pieces", zero(2, '"sub_group_size": 0'), DEEPSPEED),
    ("small-pieces", zero(3, '"reduce_bucket_size": 1e6'), DEEPSPEED),
    ("nothing-prefetched", zero(2, '"stage3_prefetch_bucket_size": 0'), DEEPSPEED),
)
