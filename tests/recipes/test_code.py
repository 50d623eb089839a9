"""The recipes of code: rules, checks, settings, strategies, remedies, members of an enum."""

import json

import pytest
from cli.harness import Result
from recipes.copying import PYTEST, Copy, read_recipes

MODULE = "zerowiz/core/lint/offload.py"
TABLE = "tests/lint/rows.py"
PAGE = "docs/reference/errors.md"

RULE = """\
    Rule(
        code="ZW808",
        name="prints-each-step",
        severity=Severity.INFO,
        why="a line a step hides what else is written, and each one waits for the GPU",
    ): (
        Relation(
            at="steps_per_print",
            when=lambda config, entry: config.number(entry.known_path) == 1,
            says="DeepSpeed prints a line for each step",
            fix="write 100",
        ),
    ),
"""
FOUND = """\
    has(
        "prints-each-step",
        top('"steps_per_print": 1'),
        "steps_per_print",
        2,
        INFO,
        truth=Truth.WORKS,
    ),
"""
SILENT = """\
    ("prints-each-step", top('"steps_per_print": 2'), DEEPSPEED),
"""


def codes(copied: Copy) -> list[str]:
    (copied.root.parent / "ds.json").write_text(
        '{"train_batch_size": 8, "steps_per_print": 1}', encoding="utf-8"
    )
    (file,) = copied.zerowiz("check", "--json", "../ds.json").content["files"]
    return [finding["code"] for finding in file["findings"]]


@pytest.mark.slow
def test_a_lint_rule_touches_its_module_and_the_table_of_cases(copied: Copy) -> None:
    recipe = read_recipes()["a lint rule"]

    copied.insert(MODULE, RULE, before='    Rule(\n        code="ZW801",\n')
    assert "ZW808" in codes(copied)
    assert set(recipe.tests) == copied.unfinished(recipe)

    copied.edit(TABLE, "\nFOUND = (\n", "\nFOUND = (\n" + FOUND)
    copied.edit(TABLE, "\nSILENT = (\n", "\nSILENT = (\n" + SILENT)
    copied.make_blocks(PAGE)
    copied.finish(recipe, "tests/lint", "tests/core/lint/test_linter.py")


# The recipe `a preflight check`.

PREFLIGHT_CHECK_MODULE = "zerowiz/core/preflight/hardware.py"
PREFLIGHT_CHECK_TABLE = "tests/core/preflight/cases.py"
CHECK = """\
DISTRIBUTED_DEBUG = Rule(
    code="PF606",
    name="distributed-debug",
    severity=Severity.WARNING,
    why="the ranks compare every collective before it starts, which takes a round of its own",
    when="`TORCH_DISTRIBUTED_DEBUG=DETAIL`",
)


def _distributed_debug(inputs: PreflightInput) -> Iterator[Finding]:
    if inputs.environ.get("TORCH_DISTRIBUTED_DEBUG") == "DETAIL":
        yield found(
            DISTRIBUTED_DEBUG,
            "`TORCH_DISTRIBUTED_DEBUG=DETAIL` checks every collective",
            "unset TORCH_DISTRIBUTED_DEBUG",
        )


"""
CASE = """\
    case(
        "distributed-debug",
        given(TORCH_DISTRIBUTED_DEBUG="DETAIL"),
        given(TORCH_DISTRIBUTED_DEBUG="INFO"),
    ),
"""


def codes_preflight_check(copied: Copy) -> list[str]:
    here = ("--accelerator", "cpu", "--gpus-per-node", "1")
    done = copied.zerowiz("doctor", "--json", *here, TORCH_DISTRIBUTED_DEBUG="DETAIL")
    assert done.code in {0, 5}, done.stderr
    return [finding["code"] for finding in json.loads(done.stdout)["findings"]]


@pytest.mark.slow
def test_a_preflight_check_touches_its_module_and_the_table_of_cases(copied: Copy) -> None:
    recipe = read_recipes()["a preflight check"]

    copied.insert(PREFLIGHT_CHECK_MODULE, CHECK, before="def check_host(inputs: PreflightInput)")
    copied.edit(
        PREFLIGHT_CHECK_MODULE,
        "    on_nvme = planned is not None",
        "    yield from _distributed_debug(inputs)\n    on_nvme = planned is not None",
    )
    assert "PF606" in codes_preflight_check(copied)
    assert set(recipe.tests) == copied.unfinished(recipe)

    copied.edit(PREFLIGHT_CHECK_TABLE, "\nCASES = (\n", "\nCASES = (\n" + CASE)
    copied.make_blocks(PAGE)
    copied.finish(recipe, "tests/core/preflight")


# The recipe `a remedy`: a reference that is run before training, and not held while it trains.

REMEDY_MODULE = "zerowiz/core/decision/remedies.py"
CASES = "tests/core/decision/test_remedies.py"

REMEDY = """\
def precompute(job: Job, _: Constraints) -> Iterator[Patch]:
    \"\"\"The reference's log-probabilities from before training.\"\"\"
    w = job.workload
    if w.trainer is Trainer.DPO and w.resolved_reference is Reference.MODEL:
        yield _step(reference=Reference.PRECOMPUTED)


"""
REMEDY_CASE = """\
    "preferences": partial(
        refused,
        parse_spec("8xA100-40GB", TABLE),
        Workload(trainer=Trainer.DPO, sequence_tokens=512, gradient_checkpointing=True),
        Constraints(stage=2),
        model=model_from_size("7b", 7 * 10**9),
    ),
"""
LEANER = "    share_sequences,\n)\n"
LEANER_WITH_IT = "    share_sequences,\n    precompute,\n)\n"
PLAN = (
    *("plan", "--machine", "8xA100-40GB", "--model", "7b", "--trainer", "dpo", "--stage", "2"),
    *("--seq-len", "512", "--gradient-checkpointing", "--json"),
)


def changes(copied: Copy) -> list[dict[str, object]]:
    """What would help a job that does not fit."""
    done = copied.zerowiz(*PLAN)
    assert 4 == done.code, done.stderr
    return [remedy["change"] for remedy in json.loads(done.stdout)["remedies"]]


@pytest.mark.slow
def test_a_remedy_touches_its_module_and_its_case(copied: Copy) -> None:
    recipe = read_recipes()["a remedy"]

    assert {"--reference": "precomputed"} not in changes(copied)
    copied.insert(REMEDY_MODULE, REMEDY, before="def split_batch(")
    copied.edit(REMEDY_MODULE, LEANER, LEANER_WITH_IT)
    copied.edit(REMEDY_MODULE, "    Precision,\n", "    Precision,\n    Reference,\n")
    assert {"--reference": "precomputed"} in changes(copied)
    assert set(recipe.tests) == copied.unfinished(recipe)

    copied.insert(CASES, REMEDY_CASE, before='    "rule of thumb": partial(')
    copied.edit(CASES, "    StateDtype,\n", "    StateDtype,\n    Trainer,\n")
    copied.finish(recipe, CASES)


# The recipe `a script convention`: a config that OmegaConf reads from an option's file.

READER = "zerowiz/probe/script/reader.py"
SCRIPTS = "tests/probe/scripts.txt"
CONVENTIONS = "tests/probe/script/test_engine_config.py"

TEXT = """\
import argparse

import deepspeed
from omegaconf import OmegaConf

parser = argparse.ArgumentParser()
parser.add_argument("--ds_config", default="conf/ds.yaml")
args = parser.parse_args()
lr = 1e-4
config = OmegaConf.to_container(OmegaConf.load(args.ds_config), resolve=True)
engine, _, _, _ = deepspeed.initialize(model=build_model(), config=config)
"""
ROW = """\
    "raw_omegaconf": (Convention.OWN_FLAG, RAW),
"""


def launch(copied: Copy) -> str:
    """What a launch of the script would start, or why it would not."""
    script = copied.root.parent / "raw_omegaconf.py"
    script.write_text(TEXT, encoding="utf-8")
    done = copied.zerowiz(
        *("launch", "--dry-run", "--accelerator", "cpu", "--gpus-per-node", "2"),
        *("--model", "templates/model", "--micro-batch", "1", "--force", str(script)),
    )
    return done.stdout + done.stderr


@pytest.mark.slow
def test_a_script_convention_touches_its_script_its_row_and_the_reader(copied: Copy) -> None:
    recipe = read_recipes()["a script convention"]

    copied.insert(SCRIPTS, f"#### raw_omegaconf.py\n{TEXT}", before="#### raw_own_flag.py\n")
    without_row = copied.unfinished(recipe)
    assert without_row
    copied.insert(CONVENTIONS, ROW, before='    "raw_own_flag": (')
    assert set(recipe.tests) - without_row == copied.unfinished(recipe)
    assert "raw_omegaconf.py --ds_config ds_config_zero0.json" not in launch(copied)

    copied.insert(READER, '        "to_container",\n', before="    }\n)\n_PATH_METHODS")
    assert "raw_omegaconf.py --ds_config ds_config_zero0.json" in launch(copied)
    copied.finish(recipe, "tests/probe/script")


# What asks of all optimizers, and of all precisions, at once.
EVERY_OPTIMIZER = (
    *("tests/core/decision/test_unsupported.py", "tests/core/dsconfig/test_write.py"),
    *("tests/measured/test_trials.py", "tests/core/script/test_programs.py"),
    "tests/core/test_laws.py",
)
EVERY_PRECISION = (
    *("tests/core/decision/test_unsupported.py", "tests/core/dsconfig/test_write.py"),
    "tests/core/script/test_programs.py",
)

# The recipe `a setting`: a second copy of the weights, averaged over the steps.

WORKLOAD = "zerowiz/core/workload.py"
OPTIONS = "zerowiz/app/options.py"
TYPED = "tests/docs/test_pages.py::test_the_options_of_a_step_are_made_of_its_rows"
KINDS = "zerowiz/core/memory/allocations.py"
FORMULA = "zerowiz/core/memory/estimate.py"
STEPS = "tests/changed_settings.py"
JSON = "tests/core/test_plan_json.py"
FLAGS = "tests/cli/test_options.py"

FIELD = """\
    average_weights: Annotated[
        bool,
        SettingRow(
            flag="--average-weights/--no-average-weights",
            help="A second copy of the weights, averaged",
            panel=Panel.JOB,
            trainer_fields=("average_weights",),
            program_keys={"axolotl": "average_weights"},
        ),
    ] = False
    \"\"\"Whether the script keeps an average of what trains on each GPU.\"\"\"
"""
BARE = """\
            help="A second copy of the weights, averaged",
            panel=Panel.JOB,
            trainer_fields=("average_weights",),
"""
WHOLE = f"""\
{BARE}            shown="averaged",
"""
AVERAGING = """\
from dataclasses import dataclass
from transformers import HfArgumentParser, Trainer, TrainingArguments

@dataclass
class Mine(TrainingArguments):
    average_weights: bool = False

(args,) = HfArgumentParser(Mine).parse_args_into_dataclasses()
Trainer(args=args).train()
"""
AVERAGE = """\
def _with_average(moments: Moments, r: RankSizes) -> Moments:
    \"\"\"torch/optim/swa_utils.py, AveragedModel: a deep copy of what a rank has of the model.\"\"\"
    if not r.workload.average_weights:
        return moments
    params = r.share if Part.PARAMETERS in r.strategy.sharded else r.trainable
    average = Allocation(AllocationKind.AVERAGED_WEIGHTS, r.weight_bytes * params, "w N")
    return {
        phase: competing
        if phase is Phase.MODEL
        else tuple((*moment, average) for moment in competing)
        for phase, competing in moments.items()
    }


"""
CALLED = """\
    moments = _with_average(moments, r)
"""
CHANGED = """\
    "average_weights": (_PLAIN, replace(_PLAIN, average_weights=True)),
"""


def plan(copied: Copy, *words: str) -> tuple[dict[str, int], dict[str, int]]:
    """What DDP holds in backward, by what it is for, and in the phases of the first iteration."""
    plan = copied.zerowiz("plan", "--machine", "4xH200", "--model", "1b", "--json", *words).content
    ddp = plan["strategies"][0]["gpu"]
    lines = [line for line in ddp["lines"] if line["phase"] == "backward"]
    return {line["part"]: line["bytes"] for line in lines}, ddp["first_iteration"]


@pytest.mark.slow
def test_a_setting_touches_its_row_and_its_formula(copied: Copy) -> None:
    recipe = read_recipes()["a setting"]

    copied.insert(WORKLOAD, FIELD, before="    zero_init: bool = True\n")
    assert TYPED in copied.unfinished(recipe)
    copied.make_blocks(OPTIONS)
    (copied.root.parent / "train.py").write_text(AVERAGING, encoding="utf-8")
    train = str(copied.root.parent / "train.py")
    for words in (("--average-weights",), (train, "--average_weights", "true")):
        done = copied.zerowiz("plan", "--machine", "4xH200", "--model", "1b", "--json", *words)
        assert json.loads(done.stdout)["workload"]["average_weights"], done.stderr
    assert "averaged weights" not in plan(copied, "--average-weights")[0]
    without_rows = copied.unfinished(recipe)
    assert without_rows

    copied.insert_all(
        (STEPS, CHANGED, '}\n"""By the setting: a step'),
        (JSON, '            "average_weights": "bool",\n', '            "accounting": "str",\n'),
        (
            FLAGS,
            '    *("--average-weights", "--no-average-weights"),\n',
            '    *("--calibration", "--no-calibration"),\n',
        ),
    )
    assert set(recipe.tests) - without_rows - {TYPED} == copied.unfinished(recipe)

    copied.edit(WORKLOAD, BARE, WHOLE)
    copied.insert_all(
        (KINDS, '    AVERAGED_WEIGHTS = "averaged weights"\n', "    DEQUANTIZED_LAYER ="),
        (
            KINDS,
            "            AllocationKind.AVERAGED_WEIGHTS,\n",
            "            AllocationKind.DEQUANTIZED_LAYER,",
        ),
        (FORMULA, AVERAGE, "def _with_all(\n"),
        (FORMULA, CALLED, "    return _with_workspaces(moments, single) if "),
    )
    (held, first), (averaged, averaged_first) = plan(copied), plan(copied, "--average-weights")
    copy_bytes = held["parameters"]
    assert held | {"averaged weights": copy_bytes} == averaged
    assert {phase: size + copy_bytes for phase, size in first.items()} == averaged_first
    copied.insert(TRIALS, '        "average_weights",\n', before='    }\n)\n"""Settings of a step')
    copied.finish(recipe, *recipe.tests, "tests/core/memory/test_evaluation.py")


# The recipe `an optimizer`: Muon, as DeepSpeed 0.19.8 makes it, at stages 1 and 2.

UNSUPPORTED = "zerowiz/core/decision/unsupported.py"
OPS = "zerowiz/core/preflight/facts.py"
TRIALS = "tests/measured/trials.py"
REFUSED = "tests/core/decision/test_unsupported.py"
TRAINED = "tests/core/decision/test_unsupported_really.py"
MUON_CONFIG = "tests/golden/features/optimizer-muon.json"
FEATURES = "tests/core/dsconfig/test_write.py::test_a_feature_is_the_golden_one"

KERNEL = """\
    MUON = "Muon via config"
"""
KERNEL_ROW = """\
    OptimizerKernel.MUON: KernelRow(
        optimizer=Optimizer.MUON,
        by_trainer=False,
        section={"type": "Muon", "params": {"lr": 1e-5}},
    ),
"""
OPTIMIZER_ROW = """\
    # deepspeed/__init__.py, set_optimizer_flags: embeddings and vectors have Adam, whose moments
    # take as much as the momentum of a matrix and its copy (runtime/zero/stage_1_and_2.py,
    # _muon_staging_momentum), which are no larger than fp32.
    Optimizer.MUON: OptimizerRow(
        title="Muon",
        detail="a momentum and its copy for each matrix",
        state_bytes={StateDtype.FP32: 8, StateDtype.BF16: 4},
        flat_state_bytes={StateDtype.FP32: 8, StateDtype.BF16: 4},
        scales_bytes=0,
        stepping_bytes=0,
        ds_type="Muon",
        params={"muon_lr": 2e-2, "adam_lr": 1e-4, "momentum": 0.95},
        # runtime/zero/utils.py, is_zero_supported_optimizer.
        tested=True,
        measured=False,
        trainer_names=(),
        classes={},
        axolotl_names=(),
        program_name="muon",
        words=("muonwithauxadam",),
    ),
"""
COMBINATION = """\
    Combination(
        name="muon-at-stage-3",
        message="`$optimizer muon` does not work with `{strategy}`: DeepSpeed refuses it there",
        hints=("use `$stage 2`",),
        outcome=Effect.RAISES,
        # zero/stage3.py, __init__: not beside `reduce_scatter`, which is on
        is_asked=lambda a: a.job.workload.optimizer is Optimizer.MUON and a.strategy.shards_weights,
    ),
"""
# runtime/engine.py, get_optimizer_configuration: without FusedAdam, Muon has an Adam of its own.
OP = """\
    "muon": (None, CPU_ADAM),
"""
MUON_REFUSED = """\
    "muon-at-stage-3": (Case(job=stepping(Optimizer.MUON), strategy=ZERO3),),
"""
MUON_TRAINED = """\
    "muon-at-stage-3": (
        Try(
            run=Run(
                config=config(3, BF16, {"optimizer": {"type": "Muon", "params": {"lr": 0.01}}}),
                optimizer=None,
            ),
            raises="ValueError: Muon and reduce scatter cannot be used together",
        ),
    ),
"""
ON_CPU = ("--accelerator", "cpu", "--gpus-per-node", "2", "--model", "templates/model")
PLAIN_LOOP = """\
import argparse

import deepspeed

parser = deepspeed.add_config_arguments(argparse.ArgumentParser())
engine, _, _, _ = deepspeed.initialize(args=parser.parse_args(), model=build_model())
"""


def muon(copied: Copy, *words: str) -> Result:
    """A command about a plain loop that leaves its optimizer to the config."""
    script = copied.root.parent / "plain.py"
    script.write_text(PLAIN_LOOP, encoding="utf-8")
    asked = ("--micro-batch", "1", "--seq-len", "128", "--optimizer", "muon")
    return copied.zerowiz(*words, *ON_CPU, *asked, str(script))


@pytest.mark.slow
def test_an_optimizer_touches_its_row_its_refusal_its_op_and_its_kernel(copied: Copy) -> None:
    recipe = read_recipes()["an optimizer"]

    copied.insert(WORKLOAD, '    MUON = "muon"\n', before="\n\nclass OptimizerRow(")
    done = copied.python(*PYTEST, "tests/test_architecture.py", "-k", "member")
    assert "<Optimizer.MUON: 'muon'>" in done.stdout
    without_row = copied.unfinished(recipe)

    copied.insert_all(
        (WORKLOAD, OPTIMIZER_ROW, "}\nTRAINER_OPTIMIZERS: "),
        (UNSUPPORTED, COMBINATION, '    Combination(\n        name="8-bit-adam-by'),
        (OPS, OP, '    "adagrad": ('),
        (TRIALS, KERNEL, "\n\nclass KernelRow("),
        (TRIALS, KERNEL_ROW, '}\n"""A launch without offload'),
    )
    with_row = copied.unfinished(recipe)
    assert set(recipe.tests) == without_row | with_row

    copied.insert_all(
        (REFUSED, MUON_REFUSED, '    "8-bit-adam-by-name": ('),
        (TRAINED, MUON_TRAINED, '    "8-bit-adam-by-name": ('),
    )
    copied.make_golden(FEATURES)
    assert set() == copied.failed(*recipe.tests, *EVERY_OPTIMIZER)
    written = json.loads((copied.root / MUON_CONFIG).read_text(encoding="utf-8"))
    assert "Muon" == written["optimizer"]["type"]
    assert "zero_allow_untested_optimizer" not in written
    for stage in ("1", "2"):
        said = ("--lr", "1e-2", "--stage", stage)
        launched = muon(copied, "launch", "--dry-run", "--force", *said)
        assert '"type": "Muon"' in launched.stdout, launched.stderr
        planned = json.loads(muon(copied, "plan", "--json", "--stage", stage).stdout)
        assert ("muon", f"zero{stage}") == (planned["workload"]["optimizer"], planned["chosen"])
    refused = muon(copied, "plan", "--stage", "3")
    assert "`--optimizer muon` does not work with `zero3`" in refused.stderr
    copied.check_files(recipe)


# The recipe `a precision`: weights in fp32, whose products a GPU computes in TF32.

RATES = "zerowiz/core/machine/names.py"
RANKS = "tests/measured/models.py"
PRECISION_ROW = """\
    Precision.TF32: PrecisionRow(
        size_bytes=FP32_BYTES,
        detail="4 bytes, with products in TF32, which the script allows",
        dtype_names=("float32",),
        lightning_names=(),
        section="bf16",
        enabled=False,
        section_values={},
        mixed_precision=None,
        program_lines={
            "axolotl": ("bf16: false", "fp16: false", "tf32: true"),
            "LLaMA-Factory": ("bf16: false", "fp16: false", "tf32: true"),
            "ms-swift": ("torch_dtype: float32", "fp16: false", "tf32: true"),
        },
        words=("tensorfloat32",),
    ),
"""
DTYPES = """\
{
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "fp32": torch.float32,
    "tf32": torch.float32,
}"""
# NVIDIA's A100 and H100 datasheets: half of what bf16 has; older GPUs compute it as fp32.
RATE = """\
            Precision.TF32: max(self.fp32_flop_per_s, (self.bf16_flop_per_s or 0) // 2),
"""


@pytest.mark.slow
def test_a_precision_touches_its_row_its_rate_and_the_ranks_that_measure(copied: Copy) -> None:
    recipe = read_recipes()["a precision"]

    copied.insert(WORKLOAD, '    TF32 = "tf32"\n', before="\n    @property\n    def size_bytes")
    done = copied.python(*PYTEST, "tests/test_architecture.py", "-k", "member")
    assert "<Precision.TF32: 'tf32'>" in done.stdout
    assert set(recipe.tests) == copied.unfinished(recipe)

    copied.insert_all(
        (WORKLOAD, PRECISION_ROW, "}\nSWITCHED = "),
        (RATES, RATE, "        }[precision]\n"),
    )
    copied.edit(
        RANKS, '{"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}', DTYPES
    )
    assert set() == copied.failed(*recipe.tests, *EVERY_PRECISION)
    asked = ("plan", "--machine", "8xH100", "--model", "1b", "--micro-batch", "1", "--json")
    plans = [
        json.loads(copied.zerowiz(*asked, "--precision", precision).stdout)["strategies"]
        for precision in ("fp32", "tf32")
    ]
    assert [each["gpu"] for each in plans[0]] == [each["gpu"] for each in plans[1]]
    assert plans[0][0]["step_seconds"] > plans[1][0]["step_seconds"]
    launched = copied.zerowiz(
        *("launch", "--dry-run", "--force", "--micro-batch", "1", "--precision", "tf32"),
        *(*ON_CPU, "templates/train_deepspeed.py"),
    )
    assert '"bf16": {\n    "enabled": false\n  }' in launched.stdout, launched.stderr
    copied.check_files(recipe)


# The recipe `a strategy`: a stage 1 whose optimizer is on the host.

STRATEGY_TABLE = "zerowiz/core/strategies.py"
FORMULAS = "zerowiz/core/memory/zero012.py"
TEMPLATE = "templates/ds_config_zero1_offload.json"
GOLDEN = "tests/core/dsconfig/test_write.py::test_a_config_is_the_golden_one"
STRATEGY_PAGE = "docs/reference/configs.md"
# What asks of all strategies at once.
EVERY_STRATEGY = (
    *(
        "tests/test_architecture.py",
        "tests/core/test_plan_json.py",
        "tests/measured/test_trials.py",
    ),
    *("tests/core/decision/test_flowchart.py", "tests/core/speed"),
)

MOMENTS = """\
def zero1_offload_moments(r: RankSizes) -> Moments:
    \"\"\"The moments of stage 1 with the optimizer on the host: all gradients stay until the step.\"\"\"
    offloaded = zero2_offload_moments(r)
    full = _gradients(r)
    backward = tuple((*moment, full) for moment in offloaded[Phase.BACKWARD])
    return {**offloaded, Phase.BACKWARD: backward}


"""
STRATEGY_ROW = """\
ZERO1_OFFLOAD = StrategyRow(
    name="zero1-offload",
    words="ZeRO-1 with the optimizer offloaded",
    short_words="ZeRO-1 offload",
    stage=1,
    config_name="ds_config_zero1_offload.json",
    sharded=frozenset({Part.OPTIMIZER}),
    offload=Offload.OPTIMIZER,
    zero_keys=_REDUCING_KEYS,
    buffer_sizes=REDUCING_OFFLOAD_BUFFERS,
    ring=RingPasses(per_step=3, per_micro_step=0),
    measured=False,
    lasting=zero2_offload_lasting,
    moments=zero1_offload_moments,
    host_allocations=zero2_host_allocations,
)
"""
STRATEGY_PLAN = (
    *("plan", "--accelerator", "cpu", "--gpus-per-node", "2", "--model", "templates/model"),
    *("--micro-batch", "1", "--stage", "1", "--offload", "optimizer", "--json"),
)


def add_row(copied: Copy) -> None:
    copied.insert(FORMULAS, MOMENTS, before="def zero2_moments(")
    copied.edit(
        STRATEGY_TABLE, "    zero1_moments,\n", "    zero1_moments,\n    zero1_offload_moments,\n"
    )
    copied.insert(
        STRATEGY_TABLE, f"{STRATEGY_ROW}\n", before="# In this order the flowchart comes to them."
    )
    copied.edit(
        STRATEGY_TABLE, "ZERO3_OFFLOAD_OPTIMIZER)", "ZERO3_OFFLOAD_OPTIMIZER, ZERO1_OFFLOAD)"
    )


@pytest.mark.slow
def test_a_strategy_touches_its_row_and_its_formulas(copied: Copy) -> None:
    recipe = read_recipes()["a strategy"]

    add_row(copied)
    plan = copied.zerowiz(*STRATEGY_PLAN).content
    (own,) = (each for each in plan["strategies"] if each["name"] == "zero1-offload")
    assert "zero1-offload" == plan["chosen"]
    assert own["gpu"]["interval"]["low_bytes"] < own["gpu"]["peak_bytes"]
    assert own["host"]["peak_bytes"] > 0
    assert own["wire_bytes_per_step"] > 0
    assert ["reduce_bucket_size"] == [cost["key"] for cost in own["buffers"]]
    assert set(recipe.tests) == copied.unfinished(recipe)

    copied.make_golden(GOLDEN)
    copied.make_blocks(STRATEGY_PAGE)
    config = json.loads((copied.root / TEMPLATE).read_text(encoding="utf-8"))
    assert {"stage", "offload_optimizer"} < set(config["zero_optimization"])
    assert set() == copied.failed(*recipe.tests, *EVERY_STRATEGY)
    made = {path for path in copied.rewritten if not path.startswith("tests/")}
    assert {TEMPLATE, STRATEGY_PAGE} == made
    copied.check_files(recipe)


@pytest.mark.slow
def test_a_row_without_a_piece_is_refused_as_the_table_is_read(copied: Copy) -> None:
    add_row(copied)
    lines = STRATEGY_ROW.splitlines(keepends=True)
    pieces = ("words", "ring", "measured", "lasting", "moments", "host_allocations", "zero_keys")
    for piece in pieces:
        (line,) = (line for line in lines if line.startswith(f"    {piece}="))
        without = STRATEGY_ROW.replace(line, "")
        copied.edit(STRATEGY_TABLE, STRATEGY_ROW, without)
        # Rows of one length, written within a second, have the same bytecode to Python.
        done = copied.python("-B", "-c", "import zerowiz.core.strategies")
        assert 1 == done.returncode
        assert f"'{piece}'" in done.stderr.splitlines()[-1]
        copied.edit(STRATEGY_TABLE, without, STRATEGY_ROW)


# A member of an enum: each has one row of what is known of it.

MEMBER_PLAN = ("plan", "--machine", "4xH200", "--model", "llama-3.2-1b", "--stage", "0", "--json")


def backward(copied: Copy, *words: str) -> dict[str, int]:
    """What a plan says that DDP holds in backward, by what it is for."""
    plan = copied.zerowiz(*MEMBER_PLAN, *words).content
    (ddp,) = (each for each in plan["strategies"] if each["name"] == "ddp")
    lines = [line for line in ddp["gpu"]["lines"] if line["phase"] == "backward"]
    return {line["part"]: line["bytes"] for line in lines}


# The recipe `a trainer`: ORPO, whose loss takes pairs and no reference.

TRAINER_ROW = """\
    Trainer.ORPO: TrainerRow(
        runs=_PAIRS,
        in_pairs=True,
        head=Head.LOG_PROBABILITIES,
        generates=False,
        averages=True,
        compares=False,
        reference=Reference.NONE,
        in_groups=False,
        takes_vllm=False,
        has_value_model=False,
        measured=False,
    ),
"""
CLASSES = "zerowiz/core/script/trainers.py"
CLASS = '    "ORPOTrainer": TrainerClass(trainer=Trainer.DPO, refers=False, uncounted=_OWN_LOSS),\n'


@pytest.mark.slow
def test_a_trainer_touches_its_row_and_its_class(copied: Copy) -> None:
    recipe = read_recipes()["a trainer"]

    copied.insert(WORKLOAD, '    ORPO = "orpo"\n', before='    REWARD = "reward"\n')
    assert set(recipe.tests) == copied.unfinished(recipe)

    copied.insert(WORKLOAD, TRAINER_ROW, before="    Trainer.REWARD: TrainerRow(")
    copied.edit(CLASSES, CLASS, CLASS.replace("Trainer.DPO, refers=False", "Trainer.ORPO"))
    pairs = backward(copied, "--trainer", "dpo", "--reference", "none")
    assert pairs == backward(copied, "--trainer", "orpo")
    copied.finish(recipe, *recipe.tests)


# The recipe `an attention kernel`: torch's flex attention.

ATTENTION_ROW = """\
    Attention.FLEX: AttentionRow(
        names=("flex_attention",),
        detail="that of torch, compiled",
        keeps_scores=False,
        takes_masks=False,
        traced_as=(TRACED_FLASH, "sdpa", "eager"),
    ),
"""


@pytest.mark.slow
def test_an_attention_kernel_touches_its_row_and_its_ranks(copied: Copy) -> None:
    recipe = read_recipes()["an attention kernel"]

    copied.insert(WORKLOAD, '    FLEX = "flex"\n', before='    EAGER = "eager"\n')
    assert set(recipe.tests) == copied.unfinished(recipe)

    copied.insert(WORKLOAD, ATTENTION_ROW, before="    Attention.EAGER: AttentionRow(")
    copied.edit(RANKS, '"eager": "eager"}', '"flex": "flex_attention", "eager": "eager"}')
    fused = backward(copied, "--attention", "flash")
    assert fused == backward(copied, "--attention", "flex")
    copied.finish(recipe, *recipe.tests)


# The recipe `a loss`: Apple's cut cross-entropy, which never holds the logits.

LOSSES = "zerowiz/core/memory/losses.py"
MEMBER_FORMULA = """\
def _cut(a: Architecture, workload: Workload, tokens: int) -> LossBytes:
    # cut_cross_entropy/cce.py: of a token its log-sum-exp; then both gradients.
    hidden_bytes = workload.precision.size_bytes * a.hidden_size * tokens
    return LossBytes(
        kept_bytes=FP32_BYTES * tokens,
        kept_formula="4 t + ",
        forward_bytes=0,
        backward_bytes=hidden_bytes + _head_gradient_bytes(a, workload),
    )


"""
LOSS_ROW = """\
    Loss.CUT: LossRow(
        holds=_cut,
        has_liger=False,
        package="cut_cross_entropy",
        needs="needs cut-cross-entropy",
        edit="let cut-cross-entropy compute the loss",
    ),
"""
BUILDER = """\
def _cut(model: Any) -> None:
    try:
        from cut_cross_entropy.transformers import (
            cce_patch,
        )
    except ImportError as error:
        raise MissingLibraryError(f"cut-cross-entropy cannot be loaded: {error}") from error
    cce_patch(model)


"""


@pytest.mark.slow
def test_a_loss_touches_its_member_its_formula_and_its_ranks(copied: Copy) -> None:
    recipe = read_recipes()["a loss"]

    copied.insert(WORKLOAD, '    CUT = "cut"\n', before='    LIGER = "liger"\n')
    assert set(recipe.tests) == copied.unfinished(recipe)

    copied.insert_all(
        (LOSSES, MEMBER_FORMULA, "class LossRow("),
        (LOSSES, LOSS_ROW, "    Loss.CHUNKED: LossRow("),
        (RANKS, BUILDER, "LOSSES: Mapping["),
        (RANKS, '    "cut": _cut,\n', '    "liger": _liger,\n'),
    )
    chunked, cut = (backward(copied, "--loss", loss) for loss in ("chunked", "cut"))
    assert sum(cut.values()) < sum(chunked.values())
    copied.finish(recipe, *recipe.tests)


# The recipe `an integration`: PyTorch Lightning, whose strategy hands DeepSpeed the config as is.

INTEGRATION_ROW = """\
    Integration.FABRIC: IntegrationRow(
        as_written=True,
        libraries={"lightning": "the script uses its Fabric"},
        gathers="call `convert_zero_checkpoint_to_fp32_state_dict(...)` after training",
    ),
"""
AUTO = "zerowiz/core/lint/batch.py"


@pytest.mark.slow
def test_an_integration_touches_its_row_and_what_it_fills(copied: Copy) -> None:
    recipe = read_recipes()["an integration"]

    copied.insert(WORKLOAD, '    FABRIC = "fabric"\n', before='    ACCELERATE = "accelerate"\n')
    assert set(recipe.tests) == copied.unfinished(recipe)

    copied.insert_all(
        (WORKLOAD, INTEGRATION_ROW, "    Integration.ACCELERATE: IntegrationRow("),
        (
            AUTO,
            "    Integration.FABRIC: frozenset[str](),\n",
            "    Integration.ACCELERATE: _ACCELERATE,\n",
        ),
    )
    (copied.root.parent / "ds.json").write_text('{"train_batch_size": "auto"}', encoding="utf-8")
    done = copied.zerowiz("check", "--integration", "fabric", "../ds.json")
    assert "nothing replaces `auto` of `train_batch_size`" in done.stdout, done.stderr
    copied.finish(recipe, *recipe.tests)


# The recipe `an accelerator`: Intel's GPUs, whose kernel driver shows the memory of a card.

ACCELERATORS = "zerowiz/core/machine/types.py"
PROBE = "zerowiz/probe/machine/host.py"
READERS = "zerowiz/app/machines/this_machine.py"
ACCELERATOR_ROW = """\
    Accelerator.XPU: AcceleratorRow(on_host=False, libraries="SYCL and oneCCL"),
"""
CARDS = """\
def xpu_machine(host: Host, files: Files) -> Machine:
    \"\"\"A machine with Intel's GPUs.\"\"\"
    cards = [files.text(f"sys/class/drm/{name}/lmem") for name in files.names("sys/class/drm")]
    sizes = [int(text) for text in cards if text is not None]
    if not sizes:
        raise UsageError("there is no Intel GPU here")
    gpus = tuple(
        Gpu(index=index, name="Intel GPU", total_bytes=size_bytes, free_bytes=size_bytes)
        for index, size_bytes in enumerate(sizes)
    )
    return Machine(source=MachineSource.FILE, accelerator=Accelerator.XPU, gpus=gpus, host=host)


"""
MEMBER_READER = """\
def _read_cards(options: Options, world: World) -> Machine:
    return with_count(xpu_machine(read_here(world), world.files), options)


"""


@pytest.mark.slow
def test_an_accelerator_touches_its_row_its_probe_and_its_reader(copied: Copy) -> None:
    recipe = read_recipes()["an accelerator"]

    copied.insert(ACCELERATORS, '    XPU = "xpu"\n', before='    CPU = "cpu"\n\n    @property')
    assert set(recipe.tests) == copied.unfinished(recipe)

    copied.insert_all(
        (ACCELERATORS, ACCELERATOR_ROW, "    Accelerator.CPU: AcceleratorRow("),
        (PROBE, CARDS, "def with_number_formats("),
    )
    copied.edit(READERS, "with_number_formats\n", "with_number_formats, xpu_machine\n")
    copied.insert_all(
        (READERS, MEMBER_READER, "READERS: Mapping["),
        (READERS, "    Accelerator.XPU: _read_cards,\n", "    Accelerator.CPU: _read_ranks,\n"),
    )
    none = copied.zerowiz("machine", "--accelerator", "xpu")
    assert "there is no Intel GPU here" in none.stderr
    plan = json.loads(copied.zerowiz(*MEMBER_PLAN).stdout)
    plan["machine"]["accelerator"] = "xpu"
    (copied.root.parent / "cards.json").write_text(json.dumps(plan), encoding="utf-8")
    planned = copied.zerowiz("plan", "--machine", "../cards.json", "--model", "llama-3.2-1b").good
    assert planned.stdout.startswith("4 x H200, NVLink 450 GB/s (machine file)")
    assert "s a step" not in planned.stdout
    copied.finish(recipe, *recipe.tests)
