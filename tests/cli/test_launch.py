"""`zerowiz launch`: the job that it becomes."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from threading import Thread

import pytest
from cli.harness import (
    CONFIG_ARGUMENTS,
    HF_IN_CODE,
    HF_IN_CODE_WITH_WORDS,
    HF_LITERAL,
    HF_PARSER,
    Result,
    Run,
    clean_environ,
    make_interpreter,
    run_process,
)
from cli.shown import CPU, RANK_PROGRAM, dry, shown
from paths import TEMPLATES
from recorded import described

# What stands where `deepspeed` would: it says how it was started, and ends with a status of its own.
SPY = """\
#!/bin/sh
printf '%s\\n' "$@" > argv.txt
env > env.txt
exit 7
"""


@pytest.fixture(autouse=True)
def script(folder: Path) -> None:
    """A script, which some tests write anew."""
    (folder / "train.py").write_text(HF_IN_CODE)


@pytest.fixture
def spied(folder: Path, tmp_path: Path) -> Run:
    """Run with an interpreter beside which lies the spy."""
    python, needed = make_interpreter(tmp_path / "bin", SPY)

    def run(*words: str, **env: str) -> Result:
        return run_process(folder, *words, python=python, env={**needed, **env})

    return run


def test_a_launch_becomes_the_job_and_ends_with_its_status(spied: Run, folder: Path) -> None:
    (folder / "train.py").write_text(HF_PARSER)
    words = (*CPU, "--no-supervise", "train.py", "--run_name", "a b")
    result = spied("launch", "--yes", *words, KEPT="as it is")
    assert 7 == result.code, result.stderr
    assert "" == result.stdout
    argv = (folder / "argv.txt").read_text().splitlines()
    assert RANK_PROGRAM not in argv
    assert ["train.py", "--run_name", "a b", "--deepspeed", "ds_config_zero0.json"] == argv[-5:]
    assert ["--num_gpus", "2"] == argv[:2]
    env = dict(
        line.split("=", 1) for line in (folder / "env.txt").read_text().splitlines() if "=" in line
    )
    assert ("cpu", "as it is") == (env["DS_ACCELERATOR"], env["KEPT"])
    assert (
        0 == json.loads((folder / "ds_config_zero0.json").read_text())["zero_optimization"]["stage"]
    )


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_where_nobody_reads_any_more_the_status_and_the_record_stay(
    folder: Path, tmp_path: Path, unbuffered: str
) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    words = ("launch", "--yes", "--quiet", *CPU, "--supervise", "train.py")
    python, needed = make_interpreter(tmp_path / "bin", SPY)
    done = subprocess.run(
        [python, "-m", "zerowiz", *words],
        cwd=folder,
        env=clean_environ(**needed, PYTHONUNBUFFERED=unbuffered),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=writer,
        check=False,
    )
    os.close(writer)
    record = json.loads((folder / "zerowiz-run.json").read_text())
    assert (7, 7) == (done.returncode, record["exit"])


def test_a_supervised_launch_ends_with_the_jobs_status_and_leaves_a_record(
    spied: Run, folder: Path
) -> None:
    result = spied("launch", "--yes", *CPU, "--supervise", "train.py", "--hub_token", "s3cr3t")
    assert 7 == result.code, result.stderr
    argv = (folder / "argv.txt").read_text().splitlines()
    assert [RANK_PROGRAM, "train.py"] == argv[-4:-2]
    assert 0o600 == (folder / "zerowiz-run.json").stat().st_mode & 0o777
    assert "s3cr3t" not in (folder / "zerowiz-run.json").read_text()
    record = json.loads((folder / "zerowiz-run.json").read_text())
    [attempt] = record["attempts"]
    assert (7, "ddp", 7) == (record["exit"], attempt["strategy"], attempt["end"]["status"])
    assert "ds_config_zero0.plan.json" == attempt["plan_path"]
    assert attempt["started_at"] <= attempt["ended_at"]
    assert "attempt 1 (DDP) ended with status 7" in result.stderr


def test_each_of_two_jobs_of_a_folder_keeps_its_record(spied: Run, folder: Path) -> None:
    for run_name in ("first", "second"):
        words = ("--yes", *CPU, "--supervise", "train.py", "--run_name", run_name)
        assert 7 == spied("launch", *words).code
    runs = sorted((folder / ".zerowiz" / "runs").iterdir())
    records = {run: json.loads((run / "zerowiz-run.json").read_text()) for run in runs}
    names = {record["script_args"][-1]: run for run, record in records.items()}
    assert {"first", "second"} == names.keys()
    assert json.loads((folder / "zerowiz-run.json").read_text()) == records[names["second"]]
    shown = spied("report", "--json", str(names["first"]))
    assert [7] == [attempt["end"]["status"] for attempt in json.loads(shown.stdout)["attempts"]]


def test_what_a_dry_run_shows_is_what_a_launch_does(spied: Run, folder: Path) -> None:
    words = (*CPU, "--stage", "2", "train.py", "--x")
    dry_run = spied("launch", "--dry-run", *words)
    assert 7 == spied("launch", *words).code
    _, _, *config, _, _ = dry_run.stdout.splitlines()
    assert "\n".join(config) + "\n" == (folder / "ds_config_zero2.json").read_text()
    expected = shown(dry_run)
    argv = (folder / "argv.txt").read_text().splitlines()
    assert [*expected.options] == argv[:2]
    assert [*expected.script] == argv[-2:]


def test_a_second_launch_rewrites_what_the_first_wrote(spied: Run, folder: Path) -> None:
    for tokens in (128, 256, 128):
        words = (*CPU, "--stage", "2", "--seq-len", str(tokens), "train.py")
        result = spied("launch", *words)
        assert 7 == result.code, result.stderr
        plan = json.loads((folder / "ds_config_zero2.plan.json").read_text())
        assert tokens == plan["workload"]["sequence_tokens"]


def test_a_config_that_was_changed_by_hand_stops_the_launch(spied: Run, folder: Path) -> None:
    config = folder / "ds_config_zero0.json"
    config.write_text('{"mine": true}\n')
    refused = spied("launch", *CPU, "train.py")
    assert 1 == refused.code
    assert "ds_config_zero0.json" in refused.problem
    assert "--force" in refused.hints
    assert '{"mine": true}\n' == config.read_text()
    assert not (folder / "argv.txt").exists()
    assert 7 == spied("launch", "--force", *CPU, "train.py").code
    assert "zero_optimization" in json.loads(config.read_text())


def test_a_plan_made_elsewhere_is_made_again_where_the_job_starts(spied: Run, folder: Path) -> None:
    (folder / "train.py").write_text(HF_PARSER)
    planned = spied("init", "--yes", "--machine", "4xA100-40GB", "--model", "10m").good
    assert "--machine" not in planned.stdout
    refused = spied("launch")
    assert 5 == refused.code, refused.stderr
    assert 7 == spied("launch", "--accelerator", "cpu").code


# `zerowiz launch --dry-run`: the command, its environment, and what stops it.

SETTINGS_FILE = """\
import sys

from transformers import HfArgumentParser, Trainer, TrainingArguments

parser = HfArgumentParser(TrainingArguments)
if len(sys.argv) == 2 and sys.argv[1].endswith(".json"):
    (args,) = parser.parse_json_file(sys.argv[1])
else:
    (args,) = parser.parse_args_into_dataclasses()
Trainer(model=None, args=args).train()
"""

DEFAULTS_FILE = """\
from transformers import Trainer, TrainingArguments
from trl import TrlParser

(args,) = TrlParser(TrainingArguments).parse_args_and_config()
Trainer(model=None, args=args).train()
"""

UNSEEN = """\
from accelerate import Accelerator
from torch.utils.data import DataLoader
size = find_size()
Accelerator().prepare(DataLoader(data, batch_size=size))
"""
AS_NODE_0 = {"NNODES": "2", "NODE_RANK": "0", "MASTER_ADDR": "localhost"}
AFTER_THE_SCRIPT = ("--dry-run", "--yes", "--json", "--stage=2", "--accelerator")
TEXTBOOK = ("--accounting", "textbook", "train.py")
PLAN = ("plan", "--machine", "2xA100-80GB-SXM", "--model", "10m")
PARSE = "args = parser.parse_args()"
OWN_PARSER = CONFIG_ARGUMENTS.replace("--batch", "--batch_size").replace(
    PARSE, f'parser.add_argument("--n_layer", type=int, default=2)\n{PARSE}'
)
UNSEEN_PARTS = (
    ("parse_args()", "parse_known_args()[0]"),
    (PARSE, f"add_more(parser)\n{PARSE}"),
    (PARSE, f"for name in names:\n    parser.add_argument(name)\n{PARSE}"),
    (PARSE, f'parser.add_argument("rest", nargs=argparse.REMAINDER)\n{PARSE}'),
    ("ArgumentParser()", "ArgumentParser(parents=[common()])"),
    (
        PARSE,
        f'parser.add_subparsers().add_parser("x", parents=[common()])\n{PARSE}',
    ),
    (PARSE, f"sys.argv.remove('--n_layers')\n{PARSE}"),
)


@pytest.mark.parametrize(
    ("files", "words", "code", "said"),
    [
        ({}, ("launch", "--escalate", "--no-supervise", "train.py"), 2, "must supervise it"),
        (
            {"mine.json": "{}"},
            ("launch", "--escalate", "--config", "mine.json", "train.py"),
            2,
            "`--config mine.json` conflict",
        ),
        (
            {"train.py": UNSEEN},
            ("launch", "--dry-run", "train.py"),
            3,
            "did not follow `DataLoader(batch_size=find_size())` in train.py line 4",
        ),
        (
            {"train.py": SETTINGS_FILE, "args.json": '{"per_device_train_batch_size": 2}'},
            ("launch", "--dry-run", "--micro-batch", "4", "train.py", "args.json"),
            2,
            (
                "`--micro-batch 4` conflicts with the script: `per_device_train_batch_size` in"
                " args.json says 2"
            ),
        ),
        *(
            (
                {"train.py": HF_IN_CODE_WITH_WORDS},
                ("launch", "--dry-run", "train.py", word),
                2,
                f"`{word.partition('=')[0]}` after train.py would go to the script",
            )
            for word in AFTER_THE_SCRIPT
        ),
        *(
            ({"train.py": OWN_PARSER}, (*command, "train.py", *typed), 2, said)
            for command in (("launch", "--dry-run"), PLAN)
            for typed, said in (
                (("--n_layers", "2"), "did you mean `--n_layer`?"),
                (("--btach_size=4",), "did you mean `--batch_size`?"),
                (("--batch_size", "4", "--zzz"), "no option `--zzz`: its parser ends"),
            )
        ),
        # The beginning of an option is one, and a word with a space none.
        *(
            ({"train.py": OWN_PARSER}, (*PLAN, "train.py", *typed), 0, "")
            for typed in (("--n_lay", "2", "--local_rank=0"), ("--", "--n_layers"), ("--n s",))
        ),
        # Not all of the parser is seen, or it takes any word.
        *(
            (
                {"train.py": OWN_PARSER.replace(*change)},
                (*PLAN, "train.py", "--n_layers", "2"),
                0,
                "",
            )
            for change in UNSEEN_PARTS
        ),
        (
            {"ds_config_zero0.json": "{}"},
            ("launch", "--dry-run", "train.py"),
            1,
            "was not written by zerowiz",
        ),
        ({}, ("init", *TEXTBOOK), 2, "works with `zerowiz plan` only"),
        ({}, ("launch", *TEXTBOOK), 2, "works with `zerowiz plan` only"),
    ],
)
def test_what_stops_a_launch_is_said(
    here: Run, folder: Path, files: Mapping[str, str], words: tuple[str, ...], code: int, said: str
) -> None:
    for name, text in files.items():
        (folder / name).write_text(text)
    command, *rest = words
    result = here(command, *(() if "plan" in words else CPU), *rest)
    assert (code, True) == (result.code, said in result.stderr), result.stderr


def test_who_is_one_of_many_cannot_leave_its_ranks(
    here: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in AS_NODE_0.items():
        monkeypatch.setenv(name, value)
    result = here("launch", "--no-supervise", "--dry-run", *CPU, "train.py")
    assert (2, True) == (result.code, "works on one node only" in result.problem)


@pytest.mark.parametrize(
    ("text", "given", "expected", "env"),
    [
        (HF_PARSER, (), ("--deepspeed", "ds_config_zero0.json"), {}),
        (
            HF_IN_CODE,
            (),
            (),
            {
                "ACCELERATE_USE_DEEPSPEED": "true",
                "ACCELERATE_DEEPSPEED_CONFIG_FILE": "ds_config_zero0.json",
            },
        ),
        (HF_LITERAL, (), (), {}),
        (CONFIG_ARGUMENTS, (), ("--deepspeed", "--deepspeed_config", "ds_config_zero0.json"), {}),
        (
            CONFIG_ARGUMENTS,
            ("--batch", "3"),
            ("--deepspeed", "--deepspeed_config", "ds_config_zero0.json"),
            {},
        ),
    ],
    ids=["flag", "environment", "literal", "config arguments", "words"],
)
def test_the_config_reaches_the_script_by_its_own_convention(
    here: Run,
    folder: Path,
    text: str,
    given: tuple[str, ...],
    expected: tuple[str, ...],
    env: Mapping[str, str],
) -> None:
    (folder / "train.py").write_text(text)
    # The raw script shows no loader to read the batch from.
    micro_batch = ("--micro-batch", "1") if text is CONFIG_ARGUMENTS else ()
    result = dry(here, *CPU, *micro_batch, "train.py", *given)
    assert ("train.py", *given, *expected) == result.script
    assert env == {
        name: value for name, value in result.env.items() if name.startswith("ACCELERATE")
    }


def test_a_settings_file_is_handed_over_as_a_copy_without_a_word_beside_it(
    here: Run, folder: Path
) -> None:
    (folder / "train.py").write_text(SETTINGS_FILE)
    said = {"per_device_train_batch_size": 2, "hub_token": "hf_abcdefghijklmnopqrstuvwxyz"}
    own = json.dumps(said)
    (folder / "args.json").write_text(own)
    result = here("launch", "--dry-run", *CPU, "--grad-accum", "4", "train.py", "args.json")
    run = shown(result)
    assert ("train.py", "args.ds_config_zero0.json") == run.script
    assert ("--num_gpus", "2", "--no_local_rank") == run.options
    assert not [name for name in run.env if name.startswith("ACCELERATE")]
    copy = result.stdout.partition("# writes args.ds_config_zero0.json\n")[2]
    settled = {"gradient_accumulation_steps": 4, "use_cpu": True}
    assert {**said, "hub_token": "***", **settled, "deepspeed": "ds_config_zero0.json"} == (
        json.loads(copy.rpartition("}\n")[0] + "}")
    )
    assert "hf_abc" not in result.stdout + result.stderr
    assert own == (folder / "args.json").read_text()


def test_a_file_of_defaults_stays_where_it_is_and_words_follow_it(here: Run, folder: Path) -> None:
    (folder / "train.py").write_text(DEFAULTS_FILE)
    (folder / "x.yaml").write_text("per_device_train_batch_size: 2\n")
    # On this machine the preflight would miss trl.
    elsewhere = ("--machine", "2xA100-40GB", "--model", "10m", "--seq-len", "64")
    result = here(
        "launch", "--dry-run", *elsewhere, "--grad-accum", "4", "train.py", "--config", "x.yaml"
    )
    words = ("--config", "x.yaml", "--gradient_accumulation_steps", "4")
    assert ("train.py", *words, "--deepspeed", "ds_config_zero0.json") == shown(result).script
    assert "micro-batch 2 x accumulation 4 x 2 GPUs = 16 sequences" in result.stderr


STRICT = """\
import argparse
import deepspeed

lr = 1e-3
parser = argparse.ArgumentParser()
parser.add_argument("--ds_config")
{more}
args = parser.parse_args()
engine, *_ = deepspeed.initialize(config=args.ds_config, model=None)
"""


@pytest.mark.parametrize("supervise", ["--supervise", "--no-supervise"])
@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ("", ("--num_gpus", "2", "--no_local_rank")),
        ('parser.add_argument("--local_rank", type=int)', ("--num_gpus", "2")),
        ("extend(parser)", ("--num_gpus", "2")),
    ],
    ids=["lacks it", "has it", "not seen"],
)
def test_a_parser_that_would_die_of_local_rank_gets_none(
    here: Run, folder: Path, supervise: str, more: str, expected: tuple[str, ...]
) -> None:
    (folder / "train.py").write_text(STRICT.format(more=more))
    assert expected == dry(here, *CPU, "--micro-batch", "1", supervise, "train.py").options


@pytest.mark.parametrize("command", ["launch", "doctor"])
def test_a_parser_that_spells_local_rank_differently_is_named(
    here: Run, folder: Path, command: str
) -> None:
    (folder / "train.py").write_text(STRICT.format(more='parser.add_argument("--local-rank")'))
    result = here(command, *CPU, "--micro-batch", "1", "train.py")
    assert 5 == result.code
    said = result.stdout + result.stderr
    assert "passes `--local_rank`, and train.py line 7 takes `--local-rank`" in " ".join(
        said.split()
    )


@pytest.mark.parametrize(
    "given",
    [
        ("--help",),
        ("-h",),
        ("--overwrite", "--silent"),
        ("--", "--model", "x"),
        ("a b", "$HOME", "'", "*"),
        ("",),
    ],
)
def test_words_after_the_script_are_the_scripts_own(here: Run, given: tuple[str, ...]) -> None:
    assert ("train.py", *given) == dry(here, *CPU, "train.py", *given).script


def test_a_word_that_the_script_takes_itself_is_the_scripts(here: Run, folder: Path) -> None:
    own = 'p.add_argument("--dry-run", action="store_true")\nargs = p.parse_args()\n'
    (folder / "train.py").write_text(
        "import argparse\np = argparse.ArgumentParser()\n" + own + HF_IN_CODE
    )
    assert ("train.py", "--dry-run") == dry(here, *CPU, "train.py", "--dry-run").script


def test_a_remedy_that_the_script_must_take_says_where(here: Run) -> None:
    words = ("--machine", "4xA100-40GB", "--model", "7b", "--stage", "2", "--seq-len", "512")
    result = here("launch", "--dry-run", *words, "train.py")
    assert 4 == result.code
    hints = result.hints.splitlines()
    assert hints[0].startswith("`--stage auto --optimizer-state-dtype bf16`: ZeRO-3 may fit: ")
    [adapters] = [line for line in hints if "--method lora" in line]
    assert adapters.endswith("; first wrap the model with peft in `train.py`")


def test_what_the_script_fixes_comes_before_what_takes_back_a_word(here: Run) -> None:
    words = ("--machine", "4xA100-40GB", "--model", "7b", "--seq-len", "512")
    hints = here("launch", "-q", "--dry-run", *words, "train.py").hints.splitlines()
    edits = [line for line in hints if "; first " in line]
    taken_back = [line for line in hints if "--machine" in line or "--model" in line]
    assert edits
    assert taken_back
    assert hints[-len(edits) - len(taken_back) :] == [*edits, *taken_back]
    assert any("set `gradient_checkpointing=True` in train.py" in line for line in edits)


def test_a_remedy_names_every_line_that_the_script_must_change(here: Run, folder: Path) -> None:
    """One of two alone would train with another global batch."""
    text = HF_IN_CODE.replace(
        "bf16=True", "fp16=True, gradient_accumulation_steps=4, gradient_checkpointing=True"
    )
    (folder / "train.py").write_text(text)
    words = ("--machine", "4xA100-40GB", "--model", "7b", "--seq-len", "8192")
    hints = here("launch", "-q", "--dry-run", *words, "train.py").hints
    [line] = [line for line in hints.splitlines() if "`--micro-batch 2 --grad-accum 8`" in line]
    assert "set `per_device_train_batch_size=2` in train.py" in line
    assert "set `gradient_accumulation_steps=8` in train.py" in line


@pytest.mark.parametrize("narrowed", [("--gpus", "0,1"), ("--gpus-per-node", "2")])
def test_a_machine_that_would_be_narrowed_again_is_no_remedy(
    here: Run, narrowed: tuple[str, ...]
) -> None:
    words = ("plan", "-q", "--model", "7b", "--machine", "4xA100-40GB", "--gradient-checkpointing")
    result = here(*words, *narrowed)
    assert 4 == result.code
    assert ["2"] == re.findall(r"`--machine (\d+)x", result.hints)


def test_a_remedy_by_another_machine_leads_where_it_says(here: Run, tmp_path: Path) -> None:
    """The one that is named is idle, and not the busy one of here with more GPUs."""
    words = ("plan", "-q", "--json", "--model", "7b", "--gradient-checkpointing")
    busy = described("h200-x1-busy", tmp_path)
    remedies = json.loads(here(*words, "--machine", busy).stdout)["remedies"]
    others = [remedy for remedy in remedies if "--machine" in remedy["change"]]
    assert others
    for remedy in others:
        content = json.loads(here(*words, "--machine", remedy["change"]["--machine"]).stdout)
        assert content["chosen"] == remedy["strategy"]


def test_the_cpu_job_says_so_to_deepspeed(here: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    named = dry(here, *CPU, "train.py")
    flag = dry(here, "--accelerator", "cpu", "--gpus-per-node", "2", "--model", "10m", "train.py")
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    environ = dry(here, "--gpus-per-node", "2", "--model", "10m", "train.py")
    for result in (named, flag, environ):
        # What the caller has set already is not set again.
        assert "cpu" == result.env.get("DS_ACCELERATOR", os.environ.get("DS_ACCELERATOR"))
        assert ("--num_gpus", "2") == result.options
        assert {"CUDA_DEVICE_ORDER", "PYTORCH_CUDA_ALLOC_CONF"}.isdisjoint(result.env)


def test_quiet_leaves_stderr_empty(here: Run) -> None:
    assert "" == here("launch", "--dry-run", "--quiet", *CPU, "train.py").stderr
    assert "" == here("init", "--dry-run", "--quiet", *CPU, "train.py").stderr


def test_a_persons_own_config_is_handed_over_and_never_written(here: Run, folder: Path) -> None:
    (folder / "train.py").write_text(HF_PARSER)
    own = folder / "mine.json"
    own.write_text(
        '{"zero_optimization": {"stage": 2}, "bf16": {"enabled": "auto"},'
        ' "train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto"}'
    )
    result = here("launch", "--dry-run", "--json", *CPU, "--config", "mine.json", "train.py")
    content = json.loads(result.stdout)
    assert "zero2" == content["chosen"]
    assert "mine.json" == content["config_path"]
    assert ["--deepspeed", "mine.json"] == content["command"][-2:]
    before = own.read_text()
    assert 0 == here("init", "--yes", *CPU, "--config", "mine.json").code
    assert before == own.read_text()
    assert {"train.py", "mine.json", "zerowiz.toml"} == {path.name for path in folder.iterdir()}
    assert ("--deepspeed", "mine.json") == dry(here).script[-2:]


def _write_unread(pipe: Path, text: str) -> None:
    """Write for a reader that may leave as it sees that this is a pipe."""
    with suppress(BrokenPipeError):
        pipe.write_text(text)


def test_a_pipe_is_planned_with_and_not_handed_to_ranks(here: Run, folder: Path) -> None:
    (folder / "train.py").write_text(HF_PARSER)
    own = '{"train_micro_batch_size_per_gpu": "auto", "zero_optimization": {"stage": 2}}'
    pipe = folder / "pipe"
    os.mkfifo(pipe)
    said = {}
    for name, words in {"plan": ("plan",), "launch": ("launch", "--dry-run")}.items():
        writer = Thread(target=_write_unread, args=(pipe, own))
        writer.start()
        said[name] = here(*words, *CPU, "--config", "pipe", "train.py")
        writer.join()
    assert (0, 2) == (said["plan"].code, said["launch"].code), said["plan"].stderr
    assert "`--config pipe` is a pipe, and each rank would read it" in said["launch"].problem


# What a person does works in a folder of any name.

ZEROWIZ = (sys.executable, "-m", "zerowiz")


def unescape(word: str) -> bytes:
    """The bytes of a word between `$'` and `'`."""
    return re.sub(rb"\\x(..)", lambda found: bytes.fromhex(found[1].decode()), word.encode())


@pytest.fixture
def latin_1(tmp_path: Path) -> Path:
    """A folder with a script and a model, whose name is no UTF-8."""
    folder = tmp_path / os.fsdecode(b"caf\xe9")
    shutil.copytree(TEMPLATES, folder)
    return folder


def test_a_path_that_is_no_utf_8_reaches_json_and_a_job_script(latin_1: Path) -> None:
    options = ("--yes", "--model", latin_1 / "model", "--machine", "4xA100-40GB")
    where = ("--output-dir", latin_1 / "out")
    words = (*ZEROWIZ, "init", "--slurm", *options, *where, latin_1 / "train_deepspeed.py")
    for _ in range(2):  # the second finds what the first wrote, and is not in its way
        done = subprocess.run(words, env=clean_environ(), capture_output=True, check=False)
        assert 0 == done.returncode, done.stderr.decode()
        assert b"zerowiz.toml is not written: a path in it is not UTF-8" in done.stderr
        # What is shown can be pasted.
        *_, shown = done.stdout.decode().partition("and submit it\n")
        typed = shlex.split(shown.partition("It runs on")[0].replace("$'", "'"))
        job_file = str(latin_1 / "out" / "job.sbatch")
        assert ["sbatch", job_file] == [os.fsdecode(unescape(word)) for word in typed]
    assert not (latin_1 / "out" / "zerowiz.toml").exists()
    assert os.fsencode(latin_1) in unescape((latin_1 / "out" / "job.sbatch").read_text())

    ranks = ("--accelerator", "cpu", "--gpus-per-node", "2", *options[1:3])
    dry = (
        *ZEROWIZ,
        "launch",
        "--dry-run",
        "--json",
        "--yes",
        *ranks,
        latin_1 / "train_deepspeed.py",
    )
    done = subprocess.run(dry, env=clean_environ(), capture_output=True, check=False)
    assert 0 == done.returncode, done.stderr.decode()
    assert str(latin_1 / "model") in json.loads(done.stdout)["command"]
