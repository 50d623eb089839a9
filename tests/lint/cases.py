"""List configs with one mistake each, and configs with none, with what becomes of each."""

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lint.rows import FOUND, Row, Truth

from zerowiz.core.findings import BadRelease, Severity
from zerowiz.core.lint.config import Context
from zerowiz.core.script.facts import ScriptValue, State
from zerowiz.core.script.settings import ScriptSettings
from zerowiz.core.workload import Integration, Precision

FOLDER = Path(__file__).parent
BROKEN = FOLDER / "broken"
GOOD = FOLDER / "good"
HF, DEEPSPEED, ACCELERATE = Integration.HF, Integration.DEEPSPEED, Integration.ACCELERATE


SEVERITIES: Mapping[Truth, frozenset[Severity]] = {
    Truth.RAISES: frozenset({Severity.ERROR}),
    Truth.TRAINS_SOMETHING_ELSE: frozenset({Severity.ERROR}),
    Truth.IGNORED: frozenset({Severity.WARNING}),
    Truth.DEPRECATED: frozenset({Severity.WARNING}),
    Truth.DEPENDS: frozenset({Severity.ERROR, Severity.WARNING}),
    Truth.WORKS: frozenset({Severity.WARNING, Severity.INFO}),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """One file."""

    path: Path
    integration: Integration
    """Who reads it."""
    rule: str | None = None
    """The name of the rule that finds its mistake."""
    line: int | None = None
    truth: Truth = Truth.WORKS
    world_size: int | None = None
    key: str | None = None
    """What can be left out without a difference, where the truth is that it is ignored."""
    asked: tuple[str, object] | None = None
    """What would be in DeepSpeed's hands if it did as it was asked: the fact, the value."""
    gpu_bytes: int | None = None
    compute_capability: tuple[int, int] | None = None
    bad_releases: tuple[BadRelease, ...] = ()
    row_text: str | None = None
    """The text of a row of `rows.py`, which has no file."""

    @property
    def text(self) -> str:
        """The config."""
        return self.path.read_text(encoding="utf-8") if self.row_text is None else self.row_text

    @property
    def context(self) -> Context:
        """What the check is told."""
        return Context(
            integration=self.integration,
            world_size=self.world_size,
            settings=SETTINGS if self.integration is HF else None,
            gpu_bytes=self.gpu_bytes,
            compute_capability=self.compute_capability,
            bad_releases=self.bad_releases,
        )

    @property
    def config_only(self) -> bool:
        """Whether one CPU rank cannot train it: a world, a disk or a buffer that is not there."""
        needs_world = self.world_size is not None and self.rule not in OF_GROUPS
        return needs_world or self.path.stem in NOT_ON_ONE_CPU

    def __str__(self) -> str:
        return self.path.stem


# DeepSpeed finds these mistakes as it makes its groups of ranks.
OF_GROUPS = frozenset({"refused-together"})
NOT_ON_ONE_CPU = frozenset({"offload_nvme", "zero_plus_plus"})
# What every Trainer here is told, and so what every script of the Trainer here says.
ARGUMENTS: Mapping[str, Any] = {
    "bf16": True,
    "per_device_train_batch_size": 2,
    "gradient_accumulation_steps": 4,
}
SETTINGS = ScriptSettings(
    values={
        "micro_batch": ScriptValue(
            value=2, source="the script", change="{value}", state=State.FIXED
        ),
        "accumulation_steps": ScriptValue(
            value=4, source="the script", change="{value}", state=State.FIXED
        ),
        "precision": ScriptValue(
            value=Precision.BF16, source="the script", change="{value}", state=State.FIXED
        ),
    }
)


def _broken(  # one row of the table
    name: str,
    rule: str,
    line: int,
    truth: Truth,
    integration: Integration = DEEPSPEED,
    *,
    world_size: int | None = None,
    key: str | None = None,
    asked: tuple[str, object] | None = None,
    gpu_bytes: int | None = None,
    compute_capability: tuple[int, int] | None = None,
) -> Case:
    return Case(
        path=BROKEN / name,
        rule=rule,
        line=line,
        truth=truth,
        integration=integration,
        world_size=world_size,
        key=key,
        asked=asked,
        gpu_bytes=gpu_bytes,
        compute_capability=compute_capability,
    )


def _of_rows() -> Iterator[Case]:
    """The rows with a truth; the second one of a rule and a key has a number."""
    seen: Counter[str] = Counter()
    for row in FOUND:
        if row.truth is not None:
            name = f"{row.rule} {row.key}"
            seen[name] += 1
            yield _of_row(row, row.truth, name if seen[name] == 1 else f"{name} {seen[name]}")


def _of_row(row: Row, truth: Truth, name: str) -> Case:
    assert row.context.integration is not None
    return Case(
        path=BROKEN / f"{name}.json",
        rule=row.rule,
        line=row.line,
        truth=truth,
        integration=row.context.integration,
        world_size=row.context.world_size,
        key=row.key,
        asked=row.asked,
        gpu_bytes=row.context.gpu_bytes,
        compute_capability=row.context.compute_capability,
        bad_releases=row.context.bad_releases,
        row_text=row.text,
    )


RAISES, ELSE, IGNORED = Truth.RAISES, Truth.TRAINS_SOMETHING_ELSE, Truth.IGNORED
DEPRECATED, DEPENDS, WORKS = Truth.DEPRECATED, Truth.DEPENDS, Truth.WORKS
FILE_CASES = (
    _broken("brace_never_closed.json", "unreadable", 1, RAISES),
    _broken("colon_forgotten.json", "unreadable", 4, RAISES),
    _broken("comment_for_the_trainer.json", "unreadable", 7, RAISES, HF),
    _broken("trailing_comma_for_the_trainer.json", "unreadable", 9, RAISES, HF),
    _broken("python_true_for_the_trainer.json", "unreadable", 9, RAISES, HF),
    _broken("single_quotes_for_the_trainer.json", "unreadable", 7, RAISES, HF),
    _broken("duplicate_stage.json", "duplicate-key", 7, RAISES),
    _broken("duplicate_for_the_trainer.json", "duplicate-key", 11, IGNORED, HF),
    _broken("list_of_configs.json", "not-an-object", 1, RAISES),
    _broken("model_config.json", "not-a-config", 1, RAISES),
    _broken("gpt_neox.json", "not-a-config", 1, WORKS),
    _broken(
        "misplaced_at_its_default.json",
        "misplaced-key",
        4,
        IGNORED,
        key="ignore_unused_parameters",
    ),
    _broken("typo_at_its_default.json", "unknown-key", 3, IGNORED, key="gradient_cliping"),
    _broken(
        "typo_gradient_acumulation_steps.json",
        "unknown-key",
        4,
        ELSE,
        asked=("gradient_accumulation_steps", 8),
    ),
    _broken("typo_gradient_cliping.json", "unknown-key", 5, ELSE, asked=("gradient_clipping", 0.5)),
    _broken(
        "typo_zero_optimisation.json", "unknown-key", 5, ELSE, asked=("zero_optimization_stage", 2)
    ),
    _broken(
        "typo_micro_batch_size_per_device.json",
        "unknown-key",
        3,
        ELSE,
        asked=("train_micro_batch_size_per_gpu", 2),
    ),
    _broken("typo_schedular.json", "unknown-key", 4, ELSE, asked=("scheduler_name", "WarmupLR")),
    _broken(
        "typo_partition_activation.json",
        "unknown-key",
        5,
        ELSE,
        asked=("activation_checkpointing_config.partition_activations", True),
    ),
    _broken("typo_reduce_bucket_sise.json", "unknown-key", 6, RAISES),
    _broken("cpu_offload_params.json", "unknown-key", 6, RAISES),
    _broken("fp16_opt_level.json", "unknown-key", 6, RAISES),
    _broken("fp16_dynamic_loss_scale.json", "unknown-key", 6, RAISES),
    _broken("compile_backend.json", "unknown-key", 5, RAISES),
    _broken("aio_thread_count.json", "unknown-key", 6, IGNORED, key="aio.thread_count"),
    _broken("note_to_self.json", "unknown-key", 4, IGNORED, key="my_experiment"),
    _broken("optimizer_learning_rate.json", "unknown-key", 6, DEPENDS),
    _broken("optimizer_name_for_type.json", "unknown-key", 4, DEPENDS),
    _broken("scheduler_total_num_steps_of_warmup_lr.json", "scheduler-refused", 8, DEPENDS),
    _broken(
        "stage_at_the_top.json", "misplaced-key", 5, ELSE, asked=("zero_optimization_stage", 2)
    ),
    _broken(
        "offload_at_the_top.json",
        "misplaced-key",
        5,
        ELSE,
        asked=("basic_optimizer", "DeepSpeedCPUAdam"),
    ),
    _broken(
        "overlap_comm_at_the_top.json",
        "misplaced-key",
        5,
        ELSE,
        asked=("zero_config.overlap_comm", True),
    ),
    _broken("loss_scale_under_bf16.json", "misplaced-key", 6, RAISES),
    _broken("untested_optimizer_in_zero.json", "misplaced-key", 6, RAISES),
    _broken("accumulation_in_zero.json", "misplaced-key", 6, RAISES),
    _broken("buffer_size_in_offload_optimizer.json", "misplaced-key", 8, RAISES),
    _broken("offload_param_fields_of_optimizer.json", "misplaced-key", 8, RAISES),
    _broken("zero_in_bf16.json", "misplaced-key", 9, RAISES, HF),
    _broken("max_grad_norm_in_optimizer.json", "clipping-in-optimizer", 7, DEPENDS),
    _broken("cpu_offload.json", "deprecated-key", 6, DEPRECATED),
    _broken("cpu_offload_use_pin_memory.json", "deprecated-key", 6, DEPRECATED),
    _broken("gather_fp16_weights.json", "deprecated-key", 6, DEPRECATED),
    _broken("zero_optimization_true.json", "deprecated-key", 4, DEPRECATED),
    _broken("cpu_offload_twice.json", "deprecated-key", 6, RAISES),
    _broken("amp.json", "removed-key", 4, RAISES),
    _broken("elasticity.json", "removed-key", 4, RAISES),
    _broken("sparse_attention.json", "removed-key", 4, RAISES),
    _broken("curriculum_learning.json", "removed-key", 4, RAISES),
    _broken("sparse_gradients.json", "removed-key", 4, RAISES),
    _broken("mics_shard_size.json", "removed-key", 6, RAISES),
    _broken("stage_in_words.json", "wrong-type", 5, RAISES),
    _broken("fractional_bucket.json", "wrong-type", 6, RAISES),
    _broken("fractional_min_loss_scale.json", "wrong-type", 6, RAISES),
    _broken("offload_as_a_word.json", "wrong-type", 6, RAISES),
    _broken("bf16_true.json", "wrong-type", 4, RAISES),
    _broken("scheduler_as_a_word.json", "wrong-type", 4, RAISES),
    _broken("bucket_in_quotes.json", "number-in-quotes", 6, RAISES),
    _broken("accumulation_in_quotes.json", "number-in-quotes", 4, RAISES),
    _broken("micro_batch_in_quotes_for_the_trainer.json", "number-in-quotes", 3, RAISES, HF),
    _broken("clipping_in_quotes.json", "number-in-quotes", 4, RAISES),
    _broken("lr_in_quotes.json", "number-in-quotes", 5, DEPENDS),
    _broken("stage_in_quotes.json", "number-in-quotes", 5, WORKS),
    _broken("bucket_of_nothing.json", "out-of-range", 6, RAISES),
    _broken("micro_batch_of_nothing.json", "out-of-range", 2, RAISES),
    _broken("negative_live_parameters.json", "out-of-range", 6, RAISES),
    _broken("warmup_of_nothing.json", "scheduler-refused", 7, DEPENDS),
    _broken("stage_four.json", "not-a-choice", 5, RAISES),
    _broken("offload_to_gpu.json", "not-a-choice", 7, RAISES),
    _broken("optimizer_of_the_trainer.json", "unknown-optimizer", 4, DEPENDS),
    _broken("one_bit_adam_under_zero.json", "unknown-optimizer", 4, DEPENDS),
    _broken("scheduler_in_small_letters.json", "unknown-scheduler", 5, DEPENDS),
    _broken("scheduler_of_the_trainer.json", "unknown-scheduler", 5, DEPENDS),
    _broken("communication_in_float16.json", "not-a-choice", 4, RAISES),
    _broken("tag_validation_off.json", "not-a-choice", 5, RAISES),
    _broken("warmup_type_cosine.json", "not-a-choice", 8, Truth.WORKS),
    _broken("auto_batch.json", "auto-not-filled", 2, RAISES),
    _broken(
        "auto_bf16.json",
        "auto-not-filled",
        5,
        ELSE,
        asked=("bfloat16_config.enabled", True),
    ),
    _broken(
        "auto_fp16.json",
        "auto-not-filled",
        5,
        ELSE,
        asked=("float16_config.enabled", True),
    ),
    _broken("auto_lr.json", "auto-not-filled", 5, RAISES),
    _broken("auto_clipping.json", "auto-not-filled", 4, RAISES),
    _broken("auto_warmup.json", "auto-not-filled", 6, RAISES),
    _broken(
        "auto_offload_device.json",
        "auto-not-filled",
        7,
        ELSE,
        asked=("basic_optimizer", "DeepSpeedCPUAdam"),
    ),
    _broken(
        "auto_bucket.json",
        "auto-not-filled",
        6,
        IGNORED,
        key="zero_optimization.reduce_bucket_size",
    ),
    _broken("auto_live_parameters.json", "auto-not-filled", 9, RAISES, HF),
    _broken("auto_overlap.json", "auto-not-filled", 9, RAISES, HF),
    _broken("auto_allgather_bucket.json", "auto-not-filled", 9, RAISES, HF),
    _broken("auto_loss_scale.json", "auto-not-filled", 9, RAISES, HF),
    _broken("auto_sub_group.json", "auto-not-filled", 9, RAISES, HF),
    _broken("auto_pin_memory.json", "auto-not-filled", 11, RAISES, HF),
    _broken("auto_bfloat16.json", "auto-not-filled", 8, RAISES, HF),
    _broken("auto_betas_for_accelerate.json", "auto-not-filled", 11, RAISES, ACCELERATE),
    _broken("auto_in_capitals.json", "auto-out-of-place", 9, RAISES, HF),
    _broken("auto_for_a_section.json", "auto-out-of-place", 9, RAISES, HF),
    _broken("auto_betas_apart.json", "auto-out-of-place", 10, RAISES, HF),
    _broken("batch_of_another_world.json", "batch-equation", 2, RAISES, world_size=4),
    _broken("batch_smaller_than_the_world.json", "batch-equation", 2, RAISES, world_size=4),
    _broken("batch_that_does_not_divide.json", "batch-equation", 2, RAISES),
    _broken("no_batch.json", "batch-missing", 1, RAISES),
    _broken("accumulation_alone.json", "batch-missing", 1, RAISES),
    _broken("no_batch_for_the_trainer.json", "batch-missing", 1, RAISES, HF),
    _broken("no_zero_for_the_trainer.json", "no-zero-section", 1, RAISES, HF),
    _broken("two_precisions.json", "two-precisions", 8, RAISES),
    _broken(
        "offload_at_stage_0.json",
        "offload-without-stage",
        6,
        ELSE,
        asked=("wrapper", "DeepSpeedZeroOptimizer"),
    ),
    _broken(
        "offload_param_at_stage_2.json",
        "offload-without-stage",
        6,
        IGNORED,
        key="zero_optimization.offload_param",
    ),
    _broken(
        "nvme_at_stage_2.json",
        "nvme-without-stage-3",
        7,
        IGNORED,
        key="zero_optimization.offload_optimizer.nvme_path",
    ),
    _broken("nvme_without_a_path.json", "nvme-without-path", 6, RAISES),
    _broken("half_offload_at_stage_2.json", "partial-offload", 8, RAISES),
    _broken("untested_optimizer.json", "untested-optimizer", 4, DEPENDS),
    _broken("states_without_master.json", "states-without-master", 6, RAISES),
    _broken("states_at_stage_0.json", "states-without-master", 6, RAISES),
    _broken("sum_at_stage_3.json", "sum-refused", 4, RAISES),
    _broken("no_norm_at_stage_3.json", "no-grad-norm", 6, RAISES),
    _broken("no_norm_but_clipping.json", "no-grad-norm", 7, RAISES),
    _broken("prescale_at_stage_2.json", "prescale-refused", 4, RAISES),
    _broken("legacy_stage_1.json", "legacy-stage-1", 6, RAISES),
    _broken("odd_allgather_bucket.json", "out-of-range", 6, RAISES),
    _broken("param_dtype.json", "another-param-dtype", 6, RAISES),
    _broken("old_bf16_for_the_trainer.json", "key-does-nothing", 5, IGNORED, HF, key="bfloat16"),
    _broken(
        "typo_micro_batch_for_the_trainer.json",
        "unknown-key",
        3,
        IGNORED,
        HF,
        key="micro_batch_size_per_gpu",
    ),
    _broken("two_words_for_bf16.json", "key-does-nothing", 5, IGNORED, key="bfloat16"),
    _broken(
        "live_parameters_at_stage_2.json",
        "key-of-another-stage",
        6,
        IGNORED,
        key="zero_optimization.stage3_max_live_parameters",
    ),
    _broken(
        "persistence_at_stage_1.json",
        "key-of-another-stage",
        6,
        IGNORED,
        key="zero_optimization.stage3_param_persistence_threshold",
    ),
    _broken(
        "gather_at_stage_2.json",
        "key-of-another-stage",
        6,
        IGNORED,
        key="zero_optimization.stage3_gather_16bit_weights_on_model_save",
    ),
    _broken(
        "hpz_at_stage_2.json",
        "key-of-another-stage",
        6,
        IGNORED,
        key="zero_optimization.zero_hpz_partition_size",
    ),
    _broken(
        "allgather_partitions.json",
        "key-does-nothing",
        6,
        IGNORED,
        key="zero_optimization.allgather_partitions",
    ),
    _broken("another_accumulation_than_the_script.json", "script-disagrees", 4, RAISES, HF),
    _broken("another_micro_batch_than_the_script.json", "script-disagrees", 3, RAISES, HF),
    _broken("another_precision_than_the_script.json", "script-disagrees", 6, RAISES, HF),
    _broken(
        "bucket_of_ten_billion.json",
        "bucket-too-large",
        7,
        WORKS,
        world_size=2,
        gpu_bytes=24 * 2**30,
    ),
    _broken("bf16_on_a_v100.json", "bf16-emulated", 5, WORKS, compute_capability=(7, 0)),
    _broken("fp16_on_a_p100.json", "fp16-refused", 5, RAISES, compute_capability=(6, 0)),
    _broken("live_parameters_on_8_gib.json", "kept-whole", 7, WORKS, gpu_bytes=8 * 2**30),
    _broken("persistence_of_a_billion.json", "kept-whole", 7, WORKS),
    _broken("sub_group_of_nothing.json", "small-pieces", 7, WORKS),
    _broken("bucket_of_a_thousand.json", "small-pieces", 7, WORKS),
    _broken("live_parameters_of_nothing.json", "nothing-prefetched", 7, WORKS),
    _broken("adagrad_betas.json", "unknown-key", 7, DEPENDS),
    _broken("lion_of_the_gpu_under_offload.json", "unknown-key", 7, RAISES),
    _broken("sgd_nesterow_for_the_trainer.json", "unknown-key", 12, RAISES, HF),
    _broken("muon_nesterov.json", "unknown-key", 7, IGNORED, key="optimizer.params.nesterov"),
    _broken("sgd_under_offload.json", "optimizer-under-offload", 8, RAISES, HF),
    _broken("torch_adam_under_offload.json", "optimizer-under-offload", 7, WORKS),
    _broken("disabled_profiler.json", "section-disabled", 4, WORKS),
    _broken("cpu_offload_for_the_trainer.json", "deprecated-key", 9, RAISES, HF),
    _broken("optimizer_for_the_trainer.json", "unknown-optimizer", 8, RAISES, HF),
    _broken("max_grad_norm_for_the_trainer.json", "clipping-in-optimizer", 11, RAISES, HF),
    _broken("untested_optimizer_for_the_trainer.json", "untested-optimizer", 8, RAISES, HF),
    _broken("learning_rate_for_the_trainer.json", "unknown-key", 10, RAISES, HF),
    _broken("scheduler_for_the_trainer.json", "unknown-scheduler", 8, RAISES, HF),
    _broken("warmup_of_nothing_for_the_trainer.json", "scheduler-refused", 9, RAISES, HF),
    _broken("zero_in_fp32.json", "zero-without-16-bit", 4, WORKS),
    _broken("scheduler_without_optimizer.json", "scheduler-without-optimizer", 5, WORKS),
)
BROKEN_CASES = (
    *FILE_CASES,
    *_of_rows(),
)

# The first word of a name says who reads it; DeepSpeed by itself, otherwise.
_READERS = {"trainer": HF, "factory": HF, "axolotl": HF, "accelerate": ACCELERATE}


def _good(path: Path) -> Case:
    return Case(
        path=path,
        integration=_READERS.get(path.stem.partition("_")[0], DEEPSPEED),
        world_size=8 if path.stem == "world_of_eight" else None,
    )


GOOD_CASES = tuple(_good(path) for path in sorted(GOOD.iterdir()))


# Ask the readers of configs what they do, in a process that has the real libraries.


def ask_readers(
    questions: Sequence[Mapping[str, Any]], folder: Path, patience_s: float
) -> dict[str, Any]:
    """The answers of `ask.py`, by the id of each question.

    Args:
        questions: As `ask.py` takes them.
        folder: Where both are written.
        patience_s: How long all of them may take.
    """
    asked, answered = folder / "questions", folder / "answers"
    asked.write_text(json.dumps(questions), encoding="utf-8")
    command = [sys.executable, str(Path(__file__).with_name("ask.py")), str(asked), str(answered)]
    done = subprocess.run(
        command,
        check=False,
        capture_output=True,
        text=True,
        timeout=patience_s,
        env={"TORCH_EXTENSIONS_DIR": str(Path(sys.prefix) / "torch_extensions"), **os.environ},
    )
    assert 0 == done.returncode, f"{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return {one["id"]: one for one in json.loads(answered.read_text(encoding="utf-8"))}
