"""`--config` with a stage or an offload: a person's config is the base of another one."""

import json
from pathlib import Path
from typing import Any

import pytest
from cli.harness import HF_IN_CODE, HF_PARSER, Run

CPU = ("--accelerator", "cpu", "--gpus-per-node", "2", "--model", "10m", "--seq-len", "64")
DRY = ("launch", "--dry-run", *CPU)
INIT = ("init", "--yes", *CPU)
LOOP = """\
import argparse
import deepspeed
import torch

parser = deepspeed.add_config_arguments(argparse.ArgumentParser())
args = parser.parse_args()
model = torch.nn.Linear(2, 2)
engine, *_ = deepspeed.initialize(args=args, model=model, model_parameters=model.parameters())
"""
BASE: dict[str, Any] = {
    "train_micro_batch_size_per_gpu": 8,
    "gradient_accumulation_steps": 2,
    "gradient_clipping": 0.5,
    "optimizer": {"type": "AdamW", "params": {"lr": 6e-4, "weight_decay": 0.1}},
    "scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": 6e-4, "warmup_num_steps": 200}},
    "bf16": {"enabled": True},
    "zero_optimization": {"stage": 1, "round_robin_gradients": True},
}
ZERO = "zero_optimization"


@pytest.fixture
def loop(folder: Path) -> Path:
    (folder / "train.py").write_text(LOOP)
    (folder / "mine.json").write_text("# mine\n" + json.dumps(BASE))
    return folder


def config_of(here: Run, *words: str, name: str | None = None) -> dict[str, Any]:
    """What is written for these words, by `init`."""
    result = here(*INIT, *words).good
    lines = [line.removeprefix("wrote ") for line in result.stdout.splitlines()]
    path = name or next(
        line for line in lines if line.startswith("ds_config") and ".plan." not in line
    )
    config: dict[str, Any] = json.loads(Path(path).read_text())
    return config


@pytest.mark.parametrize("stage", ["auto", "0", "1", "2", "3"])
def test_all_but_zero_and_the_batch_stays_at_each_stage(here: Run, loop: Path, stage: str) -> None:
    config = config_of(here, "--config", "mine.json", "--stage", stage, "train.py")
    assert list(BASE) == list(config)
    assert {**BASE, ZERO: None} == {**config, ZERO: None}
    assert (0 if stage == "auto" else int(stage)) == config[ZERO]["stage"]
    assert "# mine" in (loop / "mine.json").read_text()


@pytest.mark.parametrize("said", ["stage", "offload"])
def test_a_file_of_answers_makes_a_base_of_it_too(here: Run, loop: Path, said: str) -> None:
    value = {"stage": '"2"', "offload": '"none"'}[said]
    (loop / "zerowiz.toml").write_text(f'config = "mine.json"\n{said} = {value}\n')
    config = config_of(here, "train.py")
    assert (2 if said == "stage" else 0) == config[ZERO]["stage"]


@pytest.mark.usefixtures("loop")
def test_alone_it_runs_as_it_is(here: Run) -> None:
    result = here(*DRY, "--config", "mine.json", "train.py")
    assert "--deepspeed_config mine.json" in result.stdout
    assert "ds_config_zero" not in result.stdout


@pytest.mark.usefixtures("loop")
def test_what_stays_and_what_leaves_is_said(here: Run) -> None:
    words = ("--config", "mine.json", "--stage", "2", "train.py")
    result = here(*DRY, "--show-removed", "--diff", *words)
    built = "`ds_config_zero2.json` is built on `mine.json`: zerowiz replaces ZeRO and the batch"
    kept = ", and keeps `optimizer`, `scheduler`, `gradient_clipping`, `bf16`\n"
    assert built + kept in result.stderr
    assert "`zero_optimization.round_robin_gradients` true is left out" in result.stderr
    assert "--- mine.json\n+++ ds_config_zero2.json (by zerowiz)" in result.stderr
    assert '\n-    "stage": 1,\n' in result.stderr
    assert "--- mine.json" not in here(*DRY, *words).stderr


@pytest.mark.usefixtures("loop")
def test_one_line_names_what_the_plan_cannot_have(here: Run) -> None:
    zero = {"stage": 3, "stage3_max_live_parameters": 9, "offload_param": {"device": "cpu"}}
    Path("three.json").write_text(json.dumps({**BASE, ZERO: zero}))
    stderr = here(*DRY, "--config", "three.json", "--stage", "2", "train.py").stderr
    [line] = [line for line in stderr.splitlines() if "cannot have" in line]
    assert "`zero_optimization.stage3_max_live_parameters`" in line
    assert "`zero_optimization.offload_param.device`" in line


@pytest.mark.usefixtures("loop")
def test_a_base_is_never_overwritten(here: Run) -> None:
    Path("mine.json").rename("ds_config_zero2.json")
    before = Path("ds_config_zero2.json").read_text()
    words = ("--config", "ds_config_zero2.json", "--stage", "2", "train.py")
    config_of(here, *words, name="ds_config_zero2_on_base.json")
    assert before == Path("ds_config_zero2.json").read_text()
    assert "--deepspeed_config ds_config_zero2_on_base.json" in here(*DRY, *words).stdout
    fixed = ("--config-via", "file:ds_config_zero2.json", *words)
    shown = here(*DRY, *fixed).stdout
    assert "ZEROWIZ_BASE_FILE=ds_config_zero2.json" in shown
    assert "ZEROWIZ_CONFIG_FILE=ds_config_zero2_on_base.json" in shown
    assert "rank.py" in shown


@pytest.mark.usefixtures("loop")
def test_a_micro_batch_that_is_typed_splits_the_batch_of_the_base(here: Run) -> None:
    words = ("--config", "mine.json", "--stage", "2", "--micro-batch", "4", "train.py")
    config = config_of(here, *words)
    assert (4, 4) == (
        config["train_micro_batch_size_per_gpu"],
        config["gradient_accumulation_steps"],
    )


@pytest.mark.parametrize(
    ("left_out", "options", "status", "said"),
    [
        ((), ("--micro-batch", "3"), 2, "use `--micro-batch 2` or `--micro-batch 4`"),
        ((), ("--grad-accum", "4"), 0, "the global batch rises from 32 to 64; keep it with"),
        # DeepSpeed takes 1 where a config does not say it.
        (("gradient_accumulation_steps",), ("--micro-batch", "2"), 0, "2 x accumulation 4 x 2 CPU"),
        (("gradient_accumulation_steps",), ("--grad-accum", "4"), 0, "rises from 16 to 64"),
    ],
)
def test_the_global_batch_of_a_base_never_changes_in_silence(
    here: Run,
    loop: Path,
    left_out: tuple[str, ...],
    options: tuple[str, ...],
    status: int,
    said: str,
) -> None:
    base = {key: value for key, value in BASE.items() if key not in left_out}
    (loop / "mine.json").write_text(json.dumps(base))
    result = here("plan", *CPU, "--config", "mine.json", "--stage", "2", *options, "train.py")
    assert (status, True) == (
        result.code,
        said in " ".join((result.stdout + result.stderr).split()),
    )


DRAWS = LOOP.replace(
    "args =", 'parser.add_argument("--batch_size", type=int, default=12)\nargs ='
).replace("Linear(2, 2)", "Linear(2, 2)\ndraw = torch.randint(9, (args.batch_size,))")
BY_ACCELERATE = """\
import argparse
from accelerate import Accelerator
from torch.utils.data import DataLoader

parser = argparse.ArgumentParser()
parser.add_argument("--batch_size", type=int, default=12)
args = parser.parse_args()
accelerator = Accelerator()
loader = DataLoader(rows, batch_size=args.batch_size)
model, loader = accelerator.prepare(model, loader)
"""
DIFFERS = (
    "`mine.json` and the script differ (micro-batch 8 there, 12 by the default of `--batch_size`"
)
GPUS = ("--machine", "2xA100-80GB-SXM", "--model", "10m", "--seq-len", "64")
BY_WORDS = ("--per_device_train_batch_size", "3", "--gradient_accumulation_steps", "5")


@pytest.mark.parametrize(
    ("script", "options", "words", "step", "said"),
    [
        *((DRAWS, options, (), (12, 2), DIFFERS) for options in ((), ("--stage", "2"))),
        *((BY_ACCELERATE, options, (), (12, 2), DIFFERS) for options in ((), ("--stage", "2"))),
        (DRAWS, (), ("--batch_size", "6"), (6, 2), "6 by `--batch_size 6` after the script"),
        (DRAWS, ("--stage", "2"), ("--batch_size", "8"), (8, 2), ""),
        (DRAWS, ("--stage", "2", "--micro-batch", "4"), (), (4, 6), "adds after the script"),
        (DRAWS, ("--micro-batch", "8"), (), (8, 2), "the global batch falls from 48 to 32"),
        (DRAWS, ("--stage", "2", "--grad-accum", "4"), (), (12, 4), "rises from 48 to 96"),
        # The Trainer refuses a batch other than its arguments'; what nobody says is the config's.
        *((HF_PARSER, options, (), (8, 2), "not 16") for options in ((), ("--stage", "2"))),
        (HF_PARSER, ("--stage", "2"), BY_WORDS, (3, 5), "the global batch is 30, not 32"),
    ],
)
def test_a_stage_changes_no_batch_and_one_note_has_the_scripts_and_the_configs(
    here: Run,
    loop: Path,
    script: str,
    options: tuple[str, ...],
    words: tuple[str, ...],
    step: tuple[int, int],
    said: str,
) -> None:
    (loop / "train.py").write_text(script)
    base = {key: BASE[key] for key in list(BASE)[:2]}
    precision = {} if script is HF_PARSER else {"bf16": {"enabled": True}}
    (loop / "mine.json").write_text(json.dumps({**base, **precision, ZERO: {"stage": 1}}))
    job = ("--lr", "1e-3") if script is DRAWS and "--stage" in options else ()
    result = here(
        "plan", *GPUS, "--json", *job, "--config", "mine.json", *options, "train.py", *words
    ).good
    planned = json.loads(result.stdout)["workload"]
    assert step == (planned["micro_batch"], planned["accumulation_steps"])
    assert said in " ".join(result.stderr.split())
    assert bool(said) is ("global batch" in result.stderr or "adds after" in result.stderr)


@pytest.mark.parametrize("precision", [{}, {"fp16": {"enabled": False}}])
def test_a_loop_whose_base_names_no_precision_trains_in_fp32(
    here: Run, loop: Path, precision: dict[str, Any]
) -> None:
    base = {key: value for key, value in BASE.items() if key != "bf16"} | precision
    (loop / "mine.json").write_text(json.dumps(base))
    words = ("--config", "mine.json", "--stage", "2")
    plain = config_of(here, *words, "train.py")
    assert not any(plain.get(name, {}).get("enabled") for name in ("bf16", "fp16"))
    asked = config_of(here, *words, "--precision", "fp16", "train.py")
    assert asked["fp16"]["enabled"]


def test_a_precision_that_the_base_names_cannot_be_typed_otherwise(here: Run, loop: Path) -> None:
    del loop
    words = ("--config", "mine.json", "--stage", "2", "--precision", "fp16", "train.py")
    refused = here(*DRY, *words)
    assert 2 == refused.code
    assert "`--precision fp16` conflicts with `mine.json`, which says bf16" in refused.problem


@pytest.mark.usefixtures("loop")
def test_what_deepspeed_refuses_of_both_together_is_refused_by_its_key(here: Run) -> None:
    Path("mine.json").write_text(
        json.dumps({**BASE, "bf16": {"enabled": True, "bf16_master_weights_and_grads": True}})
    )
    words = ("--config", "mine.json", "train.py")
    refused = here(*DRY, "--stage", "0", *words)
    assert 6 == refused.code
    assert "bf16_master_weights_and_grads" in refused.problem
    assert "change it in `mine.json`" in refused.hints


def test_the_words_of_a_trainer_stay_open_in_its_base(here: Run, folder: Path) -> None:
    (folder / "train.py").write_text(HF_PARSER)
    auto = {**BASE, **dict.fromkeys(list(BASE)[:3], "auto"), "bf16": {"enabled": "auto"}}
    del auto["optimizer"], auto["scheduler"]
    (folder / "mine.json").write_text(json.dumps({**auto, "train_batch_size": "auto"}))
    words = ("--config", "mine.json", "--stage", "3", "--model", "10m", "train.py")
    config = config_of(here, *words)
    assert {**auto, ZERO: None} == {**config, ZERO: None}
    assert 3 == config[ZERO]["stage"]


LEARNS = "--learning_rate 0.0006 --weight_decay 0.1 --warmup_steps 200 --max_grad_norm 0.5"
DUMMY = """\
from accelerate import Accelerator
from accelerate.utils import DummyOptim, DummyScheduler

model, accelerator = make_model(), Accelerator()
optimizer = DummyOptim(model.parameters(), lr=1e-3)
accelerator.prepare(model, optimizer, DummyScheduler(optimizer))
"""
TORCH = DUMMY.replace("= DummyOptim", "= torch.optim.AdamW").replace(
    "from acc", "import torch\nfrom acc", 1
)


@pytest.mark.parametrize(
    ("script", "words", "code", "said"),
    [
        (HF_PARSER, (), 0, LEARNS),
        (HF_PARSER, (), 0, f"{LEARNS} --adam_beta2 0.97"),
        (HF_PARSER, (), 0, "the global batch is 32"),
        (
            HF_PARSER,
            (),
            0,
            "`total_num_steps` is 300, and the Trainer counts the steps by its data",
        ),
        (HF_PARSER, ("--max_steps", "7"), 6, "is 300 here and 7 in `--max_steps 7`"),
        (HF_PARSER, ("--learning_rate", "1e-4"), 6, "put `--learning_rate 0.0006` after train.py"),
        (HF_IN_CODE, (), 6, "`optimizer.params.lr` is 0.0006 here and 5e-05 in the default of"),
        (HF_IN_CODE, (), 6, "set `weight_decay=0.1` in train.py line 3"),
        (HF_IN_CODE, (), 6, "`scheduler.params.warmup_num_steps` is 200 here and 1 in"),
        (HF_IN_CODE, (), 6, "`optimizer.params.betas` is [0.9, 0.97] here and [0.9, 0.999] in"),
        (DUMMY, (), 0, ""),
        (TORCH, (), 6, "an `optimizer` is here, and one is in `torch.optim.AdamW"),
    ],
)
def test_a_base_says_how_a_trainer_learns_or_the_plan_ends(
    here: Run, loop: Path, script: str, words: tuple[str, ...], code: int, said: str
) -> None:
    (loop / "train.py").write_text(script)
    base = {**BASE, "gradient_accumulation_steps": 2 if script is HF_PARSER else 1}
    params = {**BASE["optimizer"]["params"], "betas": [0.9, 0.97]}
    base["optimizer"] = {"type": "AdamW", "params": params}
    steps = {**BASE["scheduler"]["params"], "total_num_steps": 300}
    base["scheduler"] = {"type": "WarmupDecayLR", "params": steps}
    base["train_micro_batch_size_per_gpu"] = 8 if script is HF_PARSER else 4
    (loop / "mine.json").write_text(json.dumps(base))
    result = here("plan", *CPU, "--config", "mine.json", "--stage", "2", "train.py", *words)
    shown = " ".join((result.stdout + result.stderr).split())
    assert code == result.code
    assert said in shown
    assert "not 32" not in shown
    assert (code == 0) is ("lr 0.0006, schedule WarmupDecayLR" in shown)


@pytest.mark.usefixtures("loop")
def test_the_plan_file_says_the_command_that_builds_it_again(here: Run) -> None:
    config_of(here, "--config", "mine.json", "--stage", "auto", "train.py")
    plan = json.loads(Path("ds_config_zero0.plan.json").read_text())
    words = plan["reproduce"]["shell"]
    assert "--stage auto" in words
    assert "--config mine.json" in words


@pytest.mark.usefixtures("loop")
def test_each_attempt_of_escalate_is_built_on_the_base(here: Run) -> None:
    words = ("--escalate", "--config", "mine.json", "--stage", "auto", "train.py")
    assert 0 == here(*DRY, *words).code
    refused = here(*DRY, "--escalate", "--config", "mine.json", "train.py")
    assert 2 == refused.code
    assert "--config mine.json --stage auto" in refused.hints


def test_a_base_without_an_optimizer_leaves_the_learning_rate_open(here: Run, loop: Path) -> None:
    base = {key: value for key, value in BASE.items() if key not in {"optimizer", "scheduler"}}
    (loop / "mine.json").write_text(json.dumps(base))
    words = ("--config", "mine.json", "--stage", "2")
    refused = here(*INIT, *words, "train.py")
    assert 3 == refused.code
    assert "`--lr`" in refused.hints
    config = config_of(here, *words, "--lr", "1e-3", "train.py")
    assert (1e-3, 0.5) == (config["optimizer"]["params"]["lr"], config["gradient_clipping"])
    (loop / "mine.json").write_text(json.dumps(BASE))
    assert 2 == here(*INIT, *words, "--lr", "1e-3", "train.py").code
