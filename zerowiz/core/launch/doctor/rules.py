"""List every rule of `doctor`, with its code and what becomes of a job that breaks it."""

from zerowiz.core.rule import Rule, Severity, rule

_ERROR, _WARNING, _INFO = Severity.ERROR, Severity.WARNING, Severity.INFO


# Rule: a code never changes its meaning, and is never used again for another.
# What an earlier step of a launch refuses, `doctor` lists under the first of each hundred.
SCRIPT_REFUSED = rule("PF101", "script-refused", _ERROR, "`launch` refuses the script")
IMPORT_MISSING = rule(
    "PF102", "import-missing", _ERROR, "every rank ends at that line of the script"
)
SHADOWED = rule(
    "PF103",
    "shadowed",
    _WARNING,
    "Python looks in the script's folder first, so the file is loaded in the library's place",
)
PLAN_REFUSED = rule("PF104", "plan-refused", _ERROR, "`launch` refuses the job")
NO_PLAN = rule("PF105", "no-plan", _INFO, "what depends on the plan was not looked at")

NO_DEEPSPEED = rule("PF201", "no-deepspeed", _ERROR, "there is nothing to launch with")
PACKAGE_MISSING = rule("PF202", "package-missing", _ERROR, "the ranks end when they import it")
OLD_DEEPSPEED = rule(
    "PF203",
    "old-deepspeed",
    _WARNING,
    "configs and predictions are tested with 0.19.8; other keys and other memory are likely",
)
OTHER_ENVIRONMENT = rule(
    "PF204",
    "other-environment",
    _WARNING,
    "the ranks run with that Python and its packages, not with those beside zerowiz",
)
NO_INTERPRETER = rule("PF205", "no-interpreter", _ERROR, "the kernel cannot start `deepspeed`")

NO_MACHINE = rule("PF301", "no-machine", _ERROR, "there is nothing to train on")
TORCH_WITHOUT_CUDA = rule("PF302", "torch-without-cuda", _ERROR, "torch sees none of the GPUs")
OLD_DRIVER = rule(
    "PF303",
    "old-driver",
    _ERROR,
    "a driver runs programs of its own major version of CUDA and of older ones",
)
NO_CODE_FOR_GPU = rule(
    "PF304", "no-code-for-gpu", _ERROR, "the first kernel ends with `no kernel image is available`"
)
BUSY_GPU = rule("PF305", "busy-gpu", _INFO, "the plan is for what is free now")
HALF_PRECISION = rule(
    "PF306", "half-precision", _ERROR, "DeepSpeed refuses the format on this device"
)
ACCELERATOR = rule(
    "PF307", "accelerator", _ERROR, "DeepSpeed takes the device that the variable names"
)

NO_COMPILER = rule("PF401", "no-compiler", _ERROR, "DeepSpeed builds the op when it starts")
NO_NINJA = rule("PF402", "no-ninja", _ERROR, "torch asks ninja even for an op that is built")
NO_PYTHON_HEADERS = rule("PF403", "no-python-headers", _ERROR, "the op includes `Python.h`")
NO_CUDA_TOOLKIT = rule("PF404", "no-cuda-toolkit", _ERROR, "nvcc builds the op")
OTHER_CUDA_TOOLKIT = rule(
    "PF405",
    "other-cuda-toolkit",
    _WARNING,
    "the op is linked with another CUDA runtime than torch's",
)
ARCH_LIST = rule("PF406", "arch-list", _ERROR, "DeepSpeed takes `8.0;9.0+PTX` and nothing else")
ARCH_LIST_LACKS = rule(
    "PF407", "arch-list-lacks", _ERROR, "the op would hold no code that this GPU runs"
)
STALE_LOCK = rule(
    "PF408",
    "stale-lock",
    _WARNING,
    "torch waits for as long as the file is there, and a killed build leaves it",
)
EXTENSIONS_FOLDER = rule(
    "PF409", "extensions-folder", _ERROR, "DeepSpeed has nowhere to build its ops"
)
EXTENSIONS_ON_NETWORK = rule(
    "PF410",
    "extensions-on-network",
    _INFO,
    "builds are slow there, and nodes that share it wait for each other's lock",
)
NO_LIBAIO = rule("PF411", "no-libaio", _ERROR, "DeepSpeed reads and writes NVMe through libaio")

NVME_FOLDER = rule("PF501", "nvme-folder", _ERROR, "the offloaded states have nowhere to go")
NVME_FULL = rule("PF502", "nvme-full", _ERROR, "the states do not fit on the drive")
SMALL_SHM = rule(
    "PF503",
    "small-shm",
    _WARNING,
    "ranks exchange through it, and data loaders hand over batches there: a rank ends with a"
    " signal (bus error, segmentation fault)",
)
MEMLOCK = rule("PF504", "memlock", _WARNING, "memory that an adapter or a drive reads is locked")
CHECKPOINT_ROOM = rule(
    "PF505", "checkpoint-room", _WARNING, "the run ends when it saves, hours later"
)
HOST_MEMORY = rule(
    "PF506",
    "host-memory",
    _WARNING,
    "below stage 3 every rank builds the whole model in host memory before the GPU gets it",
)

PORT_TAKEN = rule("PF601", "port-taken", _ERROR, "the ranks meet there, and cannot listen")
NO_SUCH_INTERFACE = rule(
    "PF602", "no-such-interface", _ERROR, "the ranks find no interface to meet over"
)
NO_SUCH_ADAPTER = rule(
    "PF603", "no-such-adapter", _WARNING, "NCCL goes over TCP, many times slower"
)
SLOW_BY_CHOICE = rule("PF604", "slow-by-choice", _WARNING, "the job runs, slower than it could")
FRAGMENTS = rule(
    "PF605",
    "fragments",
    _INFO,
    "torch reserves up to a third more than it uses, which the plan leaves room for",
)

RULES = tuple(value for value in tuple(globals().values()) if isinstance(value, Rule))
