"""List every rule of `check`, with its code and what happens if nobody heeds it."""

from zerowiz.core.rule import Rule, Severity, rule

_ERROR, _WARNING, _INFO = Severity.ERROR, Severity.WARNING, Severity.INFO


# Rule: a code never changes its meaning, and is never used again for another.
UNREADABLE = rule("ZW001", "unreadable", _ERROR, "nobody can read the config")
DUPLICATE_KEY = rule(
    "ZW002",
    "duplicate-key",
    _ERROR,
    "DeepSpeed refuses a key that stands twice; the Trainer and Accelerate take the last one",
)
NOT_AN_OBJECT = rule(
    "ZW003", "not-an-object", _ERROR, "DeepSpeed looks for keys, and there are none"
)
NOT_A_CONFIG = rule(
    "ZW004",
    "not-a-config",
    _WARNING,
    "most keys are another program's: DeepSpeed ignores them, and may find none of its own",
)
UNKNOWN_KEY = rule(
    "ZW101",
    "unknown-key",
    _WARNING,
    "DeepSpeed refuses an unknown key in some sections and ignores it in the others",
)
MISPLACED_KEY = rule(
    "ZW102",
    "misplaced-key",
    _WARNING,
    "DeepSpeed refuses the key here or ignores it, and its default counts",
)
DEPRECATED_KEY = rule(
    "ZW103", "deprecated-key", _WARNING, "a later version of DeepSpeed will refuse the key"
)
REMOVED_KEY = rule(
    "ZW104", "removed-key", _ERROR, "this version of DeepSpeed refuses a config with the key"
)
WRONG_TYPE = rule(
    "ZW201", "wrong-type", _ERROR, "DeepSpeed refuses the value, or reads something else"
)
NUMBER_IN_QUOTES = rule(
    "ZW202",
    "number-in-quotes",
    _WARNING,
    "not every reader turns the word into what it looks like: a word counts as true",
)
OUT_OF_RANGE = rule("ZW203", "out-of-range", _ERROR, "DeepSpeed refuses the value")
NOT_A_CHOICE = rule("ZW204", "not-a-choice", _ERROR, "DeepSpeed refuses the value")
AUTO_NOT_FILLED = rule(
    "ZW301",
    "auto-not-filled",
    _ERROR,
    "the Trainer and Accelerate refuse an `auto` that they cannot fill; DeepSpeed by itself "
    "takes its default or fails",
)
AUTO_OUT_OF_PLACE = rule(
    "ZW302",
    "auto-out-of-place",
    _ERROR,
    "only the exact word `auto`, right behind a key, is ever filled",
)
BATCH_EQUATION = rule(
    "ZW401",
    "batch-equation",
    _ERROR,
    "DeepSpeed wants train_batch_size = train_micro_batch_size_per_gpu * "
    "gradient_accumulation_steps * number of ranks",
)
BATCH_MISSING = rule(
    "ZW402",
    "batch-missing",
    _ERROR,
    "DeepSpeed refuses a config without train_batch_size and train_micro_batch_size_per_gpu",
)
TWO_PRECISIONS = rule("ZW501", "two-precisions", _ERROR, "DeepSpeed refuses fp16 with bf16")
OFFLOAD_WITHOUT_STAGE = rule(
    "ZW502",
    "offload-without-stage",
    _WARNING,
    "the offload does nothing at this stage, or fails in the first step",
)
OPTIMIZER_UNDER_OFFLOAD = rule(
    "ZW503",
    "optimizer-under-offload",
    _WARNING,
    "an optimizer that is not made for the CPU is refused there, or slow",
)
SCHEDULER_WITHOUT_OPTIMIZER = rule(
    "ZW504",
    "scheduler-without-optimizer",
    _INFO,
    "the scheduler needs an optimizer that the script brings",
)
STATES_WITHOUT_MASTER = rule(
    "ZW505",
    "states-without-master",
    _ERROR,
    "DeepSpeed refuses 16-bit states whose conditions are not met",
)
ZERO_WITHOUT_16_BIT = rule(
    "ZW506",
    "zero-without-16-bit",
    _INFO,
    "the model trains in fp32, in twice the memory",
)
UNTESTED_OPTIMIZER = rule(
    "ZW507",
    "untested-optimizer",
    _ERROR,
    "DeepSpeed refuses an optimizer that it has not tried with ZeRO, unless it is told",
)
UNKNOWN_OPTIMIZER = rule(
    "ZW508", "unknown-optimizer", _ERROR, "DeepSpeed refuses a name that it cannot look up"
)
NVME_WITHOUT_STAGE_3 = rule(
    "ZW509", "nvme-without-stage-3", _WARNING, "below stage 3 `nvme` means the CPU's memory"
)
NVME_WITHOUT_PATH = rule(
    "ZW510", "nvme-without-path", _ERROR, "DeepSpeed fails when it joins the path that is not there"
)
SUM_REFUSED = rule(
    "ZW511", "sum-refused", _ERROR, "DeepSpeed refuses to sum gradients with what stands beside it"
)
PARTIAL_OFFLOAD = rule(
    "ZW512", "partial-offload", _ERROR, "DeepSpeed offloads a part of the states at stage 3 only"
)
CLIPPING_IN_OPTIMIZER = rule(
    "ZW513",
    "clipping-in-optimizer",
    _ERROR,
    "DeepSpeed refuses max_grad_norm as an argument of the optimizer",
)
PRESCALE_REFUSED = rule(
    "ZW514",
    "prescale-refused",
    _ERROR,
    "DeepSpeed refuses to scale gradients before it scatters them",
)
LEGACY_STAGE_1 = rule("ZW515", "legacy-stage-1", _ERROR, "DeepSpeed refuses the old stage 1")
NO_ZERO_SECTION = rule(
    "ZW516", "no-zero-section", _ERROR, "Accelerate refuses a config without zero_optimization"
)
NO_GRAD_NORM = rule(
    "ZW517",
    "no-grad-norm",
    _ERROR,
    "DeepSpeed leaves the norm out at stage 1 and 2 only, without clipping and offload",
)
WARMUP_REFUSED = rule("ZW518", "warmup-refused", _ERROR, "DeepSpeed refuses to build the scheduler")
ANOTHER_PARAM_DTYPE = rule(
    "ZW519",
    "another-param-dtype",
    _ERROR,
    "DeepSpeed refuses a param_dtype that is not the precision in use",
)
UNKNOWN_SCHEDULER = rule(
    "ZW520", "unknown-scheduler", _ERROR, "DeepSpeed refuses a name that it cannot look up"
)
KEY_OF_ANOTHER_STAGE = rule(
    "ZW601", "key-of-another-stage", _WARNING, "DeepSpeed reads the key at another stage only"
)
KEY_DOES_NOTHING = rule(
    "ZW602", "key-does-nothing", _WARNING, "nothing in this version of DeepSpeed reads the key"
)
SECTION_DISABLED = rule(
    "ZW603", "section-disabled", _WARNING, "a section is off until its `enabled` is true"
)
SCRIPT_DISAGREES = rule(
    "ZW701",
    "script-disagrees",
    _ERROR,
    "the Trainer refuses a value that is not the one of its TrainingArguments",
)
BUCKET_TOO_LARGE = rule(
    "ZW801",
    "bucket-too-large",
    _WARNING,
    "the buffer is allocated in full, however small the model is",
)
BF16_EMULATED = rule(
    "ZW802",
    "bf16-emulated",
    _WARNING,
    "GPUs below compute capability 8.0 have no units for bf16: torch emulates it, and neither "
    "DeepSpeed nor the Trainer says so",
)
FP16_ON_NEW_GPU = rule(
    "ZW803",
    "fp16-on-new-gpu",
    _INFO,
    "bf16 has the range of fp32, so it needs no loss scale",
)
FP16_REFUSED = rule(
    "ZW804",
    "fp16-refused",
    _ERROR,
    "DeepSpeed refuses fp16 on GPUs below compute capability 7.0",
)
KEPT_WHOLE = rule(
    "ZW805",
    "kept-whole",
    _INFO,
    "stage 3 shards the parameters, and may hold so many of them whole on each GPU again",
)
SMALL_PIECES = rule(
    "ZW806",
    "small-pieces",
    _INFO,
    "each piece takes a start of its own, and waiting for them takes longer than the work",
)
NOTHING_PREFETCHED = rule(
    "ZW807",
    "nothing-prefetched",
    _INFO,
    "stage 3 then gathers parameters when they are needed, and the GPU waits for the link",
)

RULES = tuple(value for value in tuple(globals().values()) if isinstance(value, Rule))
