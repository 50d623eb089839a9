"""`zerowiz.toml`: what it says is as if it were typed, and every setting says where it comes from."""

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from cli.harness import ENTER, HF_IN_CODE, HF_PARSER, Open, Result, Run, answers_of

from zerowiz.app.options import lasting, rows, variable_of

RunIn = Callable[..., Result]
"""Run the tool in a folder, with these words."""


@pytest.fixture
def here_in(here: Run, monkeypatch: pytest.MonkeyPatch) -> RunIn:
    def run(folder: Path, *words: str) -> Result:
        monkeypatch.chdir(folder)
        return here(*words)

    return run


# A value for each setting, as one types it and as the file says it; those of one line go together.
SAID: tuple[Mapping[str, object], ...] = (
    {"model": "7b", "machine": "8xH100-80GB-SXM", "seq-len": 4096, "micro-batch": 2, "stage": "2"}
    | {"eval-batch": 8, "sequence-parallel": 1},
    {"model": "7b", "machine": "4xA100-40GB", "method": "lora", "lora-rank": 8, "stage": 3}
    | {"lora-target-modules": "q_proj,v_proj", "gradient-checkpointing": True, "allow-slow": True},
    {"model": "llama-3.1-8b", "machine": "8xH200", "nodes": 2, "interconnect": "infiniband:400Gb/s"}
    | {"hpz": True, "stage": "zero3", "host-memory": "1TiB", "offload": "optimizer"},
    {"model": "1b", "machine": "2xRTX4090", "optimizer": "lion", "precision": "fp16"}
    | {"grad-accum": 4, "attention": "flash", "loss": "liger", "packing": False},
    {"model": "1b", "machine": "8xH100", "trainer": "grpo", "completion-tokens": 128}
    | {"generation-batch": 8, "vllm-memory-fraction": 0.3, "vllm-sleeps": True, "trace": False},
    {"model": "1b", "machine": "4xH100", "memory-budget": 0.5, "global-batch": 64}
    | {"objective": "fastest", "calibration": False, "accounting": "real", "output-dir": "out"}
    | {"optimizer-state-dtype": "bf16", "allow-slow": True, "integration": "deepspeed"},
    {"model": "1b", "machine": "4xH100", "torch-autocast": "bf16", "precision": "fp32"}
    | {"reference": "precomputed", "trainer": "dpo", "gpus-per-node": 2, "probe-timeout": 5},
    {"model": "1b", "machine": "4xH100", "integration": "deepspeed", "lr": 6e-4}
    | {"weight-decay": 0.1, "warmup-steps": 20, "max-grad-norm": 0.5},
    {"model": "1b", "machine": "4xH100", "stage": "3", "quantized-weights": True}
    | {"offload": "all", "nvme-path": "nvme"},
)
# Those that mean something with other files or machines alone, tried below.
ELSEWHERE = {"accelerator", "gpus", "hostfile", "config", "config-via"}


def as_toml(values: Mapping[str, object]) -> str:
    return "".join(f"{key} = {json.dumps(value)}\n" for key, value in values.items())


def as_words(values: Mapping[str, object]) -> list[str]:
    words: list[str] = []
    for key, value in values.items():
        row = rows()[lasting()[key]]
        spelled = [row.on] if value is True else [row.off] if value is False else None
        words += spelled or [row.on, str(value)]
    return words


def test_every_lasting_setting_is_tried_here() -> None:
    assert set(lasting()) == {key for values in SAID for key in values} | ELSEWHERE


@pytest.mark.parametrize("values", SAID, ids=lambda values: ",".join(list(values)[2:4]))
def test_a_plan_is_the_same_byte_for_byte_by_file_flags_or_variables(
    here: Run, process: Run, folder: Path, values: Mapping[str, object]
) -> None:
    flags = here("plan", "--json", *as_words(values))
    assert flags.code in {0, 4}, flags.stderr
    (folder / "zerowiz.toml").write_text(as_toml(values))
    by_file = here("plan", "--json")
    assert (flags.code, flags.stdout) == (by_file.code, by_file.stdout), by_file.stderr
    variables = {str(variable_of(lasting()[key])): str(value) for key, value in values.items()}
    by_variables = process("plan", "--json", "--isolated", **variables)
    assert (flags.code, flags.stdout) == (by_variables.code, by_variables.stdout)
    with_origins = json.loads(here("plan", "--json", "--origins").stdout)
    origins = with_origins.pop("origins")
    assert json.loads(flags.stdout) == with_origins
    for line, key in enumerate(values, start=1):
        assert f"zerowiz.toml line {line}" == origins[lasting()[key]]["origin"], key


def origin_of(name: str, shown: str) -> tuple[str, str]:
    found = re.search(rf"^--{name} +(\S+) +(\S.*?)$", shown, re.MULTILINE)
    assert found is not None, shown
    return found[1], found[2]


def test_a_flag_counts_before_a_variable_before_the_file_before_what_is_detected(
    process: Run, folder: Path
) -> None:
    (folder / "zerowiz.toml").write_text(
        'model = "1b"\nmachine = "8xH100"\nobjective = "fastest"\nseq-len = 512\n'
    )
    words = ("plan", "--origins", "--objective", "flowchart")
    shown = process(*words, ZEROWIZ_SEQ_LEN="256", ZEROWIZ_MODEL="").stdout
    # A flag counts also where it says the default.
    assert ("flowchart", "--objective") == origin_of("objective", shown)
    assert ("256", "ZEROWIZ_SEQ_LEN") == origin_of("seq-len", shown)
    # A variable that is empty says nothing.
    assert ("1b", "zerowiz.toml line 1") == origin_of("model", shown)
    assert ("8", "machine spec") == origin_of("gpus-per-node", shown)
    assert ("bf16", "default") == origin_of("precision", shown)


def test_what_was_chosen_is_neither_a_default_nor_assumed(here: Run) -> None:
    words = ("plan", "--model", "8b", "--machine", "8xH100-80GB-SXM", "--objective", "fastest")
    alone = here(*words, "--origins")
    assert ("1", "default") == origin_of("micro-batch", alone.stdout)
    assert ("no", "chosen") == origin_of("gradient-checkpointing", alone.stdout)
    (assumed,) = (line for line in alone.stdout.splitlines() if line.startswith("assumed: "))
    assert "`--micro-batch 1 " in assumed
    assert "checkpointing" not in assumed
    split = here(*words, "--global-batch", "256", "--origins").stdout
    assert ("1", "chosen") == origin_of("micro-batch", split)
    assert ("32", "chosen") == origin_of("grad-accum", split)
    said = here(*words, "--no-gradient-checkpointing", "--origins").stdout
    assert ("no", "--gradient-checkpointing") == origin_of("gradient-checkpointing", said)


def test_what_the_script_decides_says_where(here: Run, folder: Path) -> None:
    (folder / "train.py").write_text(HF_IN_CODE)
    (folder / "zerowiz.toml").write_text(
        'script = "train.py"\nmodel = "10m"\naccelerator = "cpu"\n'
    )
    shown = here("plan", "--origins").stdout
    value, origin = origin_of("micro-batch", shown)
    assert "4" == value
    assert "train.py" in origin
    assert ("cpu", "zerowiz.toml line 3") == origin_of("accelerator", shown)


def test_isolated_ignores_the_file_and_not_the_variables(process: Run, folder: Path) -> None:
    (folder / "zerowiz.toml").write_text("not TOML at all")
    words = ("plan", "--machine", "8xH100", "--json")
    assert 2 == process(*words, "--model", "1b").code
    assert 0 == process(*words, "--isolated", ZEROWIZ_MODEL="1b").code
    assert 0 == process(*words, "--model", "1b", ZEROWIZ_ISOLATED="1").code


@pytest.mark.parametrize(
    ("text", "problem", "hint"),
    [
        ("seq_len = 4\n", "line 1: there is no setting `seq_len`", "did you mean `seq-len`?"),
        ("\nno-packing = true\n", "line 2: there is no setting", "did you mean `packing`?"),
        ('modle = "7b"\n', "line 1: there is no setting `modle`", "did you mean `model`?"),
        (
            'seq-len = "4x"\n',
            "line 1: `--seq-len` must be a whole number, such as 4096 or 4k, not '4x'",
            "",
        ),
        ("nodes = 1\nseq-len = true\n", "line 2: `--seq-len` must be a whole number", ""),
        ("packing = 1\n", "line 1: `--packing` must be true or false, not 1", ""),
        ("model = [1]\n", "line 1: `model` cannot be [1]", ""),
        ("model = 2026-11-23\n", 'line 1: `model` cannot be "2026-11-23"', ""),
        ('model = ""\n', 'line 1: `model` cannot be ""', ""),
        ("hostfile = true\n", "line 1: `hostfile` cannot be true", ""),
        ('vllm-memory-fraction = "x"\n', 'line 1: `vllm-memory-fraction` cannot be "x"', ""),
        ('offload = "optimiser"\n', "line 1: `--offload` must be one of auto", ""),
        ("stage = 4\n", "line 1: `--stage` must be one of auto, 0, 1, 2, 3, not '4'", ""),
        ("micro-batch = 0\n", "line 1: `--micro-batch 0` must be a whole number", ""),
        ("yes = true\n", "line 1: `yes` is for one run", "`--yes`"),
        ("force = true\n", "line 1: `force` is for one run", "`--force`"),
        ("isolated = true\n", "line 1: `isolated` is for one run", "`--isolated`"),
        ('price = "3"\n', "line 1: `price` is for one run", "`--price`"),
        ('[launch]\nmodel = "7b"\n', "line 1: there are no tables, and `launch` is one", ""),
        ('script-args = "--lr 1"\n', "line 1: `script-args` takes a list of texts", ""),
        ("model = \n", "is not TOML: Invalid value (at line 1,", ""),
    ],
)
def test_what_cannot_stand_there_is_one_line_with_its_place(
    here: Run, folder: Path, text: str, problem: str, hint: str
) -> None:
    (folder / "zerowiz.toml").write_text(text)
    result = here("plan", "--model", "10m", "--machine", "cpu")
    assert 2 == result.code, result.stderr
    assert problem in result.problem
    assert hint in result.hints


@pytest.mark.parametrize("command", ["plan", "launch", "doctor", "measure", "init"])
def test_every_command_with_a_job_reads_the_file(here: Run, folder: Path, command: str) -> None:
    (folder / "zerowiz.toml").write_bytes(b'model = "\xff"\n')
    result = here(command)
    assert 2 == result.code
    assert result.problem.startswith("`zerowiz.toml` is not TOML: 'utf-8' codec")


def test_an_error_says_where_its_setting_comes_from(process: Run, folder: Path) -> None:
    (folder / "zerowiz.toml").write_text('model = "1b"\nmachine = "8xH100"\nhpz = true\n')
    result = process("plan", ZEROWIZ_STAGE="2")
    assert 2 == result.code, result.stderr
    assert "`--hpz` is set by zerowiz.toml line 3" in result.hints
    assert "to leave the answers file out: `--isolated`" in result.hints
    here_only = process("plan", "--hpz", "--isolated", "--model", "1b", "--machine", "8xH100")
    assert 2 == here_only.code
    assert "--isolated" not in here_only.hints
    wrong = process("plan", ZEROWIZ_SEQ_LEN="long")
    said = "invalid value for '--seq-len': must be a whole number, such as 4096 or 4k, not 'long'"
    assert (2, said) == (wrong.code, wrong.problem)
    assert "`ZEROWIZ_SEQ_LEN` is set to `long`" in wrong.hints


def test_one_line_says_which_variables_were_read_and_what_they_set(process: Run) -> None:
    variables = {"ZEROWIZ_MODEL": "1b", "ZEROWIZ_SEQ_LEN": "512"}
    result = process("plan", "--machine", "8xH100-80GB-SXM", "--stage", "2", **variables)
    said = [line for line in result.stderr.splitlines() if "ZEROWIZ" in line]
    names = "ZEROWIZ_MODEL, ZEROWIZ_SEQ_LEN"
    assert [f"note: from {names}: `--model 1b --seq-len 512`"] == said
    quiet = process("plan", "--quiet", "--machine", "8xH100", **variables)
    assert "ZEROWIZ" not in quiet.stderr


def test_the_nearest_file_counts_and_none_above_the_repository(
    here_in: RunIn, folder: Path
) -> None:
    project = folder / "project"
    inner = project / "jobs" / "a"
    inner.mkdir(parents=True)
    (inner / "train.py").write_text(HF_PARSER)
    base = 'machine = "8xH100"\n'
    (folder / "zerowiz.toml").write_text(f'{base}model = "1b"\n')

    def model(cwd: Path, *words: str) -> str:
        result = here_in(cwd, "plan", "--json", *words)
        return "" if result.code else str(json.loads(result.stdout)["model"]["name"])

    # A stray file far up changes nothing.
    assert "" == model(project)
    (folder / ".git").mkdir()
    assert "1b" == model(project)
    (project / ".git").mkdir()
    assert "" == model(project)
    of_project = (project / "pyproject.toml", '[project]\nname = "x"\nmodel = 3\n')
    of_project[0].write_text(f"{of_project[1]}\n[tool.zerowiz.check]\nstrict = true\n")
    assert "" == model(project)
    of_project[0].write_text(
        f'{of_project[1]}\n[tool.zerowiz]\n{base}model = "2b"\n[tool.x]\nmodel = 4'
    )
    assert ["2b", "2b"] == [model(project), model(inner)]
    shown = here_in(inner, "plan", "--origins").stdout
    assert "../../pyproject.toml line 7" in " ".join(shown.split())
    (project / "zerowiz.toml").write_text(f'{base}model = "4b"\n')
    assert ["4b", "4b"] == [model(project), model(inner)]
    (inner / "zerowiz.toml").write_text(f'{base}model = "3b"\n')
    assert ["4b", "3b", "3b"] == [
        model(project),
        model(inner),
        model(project, "jobs/a/train.py"),
    ]


def test_paths_in_a_file_are_relative_to_it(here_in: RunIn, folder: Path) -> None:
    (folder / ".git").mkdir()
    (folder / "sub").mkdir()
    (folder / "train.py").write_text(HF_PARSER)
    (folder / "zerowiz.toml").write_text(
        'script = "train.py"\nmodel = "10m"\naccelerator = "cpu"\noutput-dir = "out"\n'
    )
    plan = here_in(folder / "sub", "launch", "--dry-run", "--json").content
    assert "../out/ds_config_zero0.json" == plan["config_path"]
    assert "../train.py" in plan["command"]


def test_a_file_of_one_script_says_nothing_of_another(here: Run, folder: Path) -> None:
    (folder / "train.py").write_text(HF_PARSER)
    (folder / "other.py").write_text(HF_IN_CODE)
    (folder / "zerowiz.toml").write_text('script = "train.py"\nmodel = "10m"\nstage = 3\n')
    words = ("launch", "--dry-run", "--json", "--machine", "cpu", "--model", "10m")
    other = here(*words, "other.py")
    assert "ddp" == json.loads(other.stdout)["chosen"]
    assert "`zerowiz.toml` is for `train.py`, and sets nothing for `other.py`" in other.stderr
    for same in ("./train.py", "train.py"):
        assert "zero3" == json.loads(here(*words, same).stdout)["chosen"]
    (folder / "zerowiz.toml").write_text("stage = 3\n")
    assert "zero3" == json.loads(here(*words, "other.py").stdout)["chosen"]


def test_the_next_command_leaves_the_script_of_the_file_to_the_file(
    here: Run, folder: Path
) -> None:
    (folder / "train.py").write_text(HF_PARSER)
    (folder / "zerowiz.toml").write_text('script = "train.py"\nmodel = "10m"\n')
    for machine, command in (("8xH100", "init --machine 8xH100"), ("cpu", "launch --machine cpu")):
        planned = here("plan", "--machine", machine)
        *_others, following = planned.stdout.splitlines()
        assert f"zerowiz {command}" == following.partition(": ")[2]
        assert 0 == here(*command.split(), "--yes", "--dry-run").code, command


def test_a_word_after_the_script_counts_before_the_file(here: Run, folder: Path) -> None:
    (folder / "train.py").write_text(HF_PARSER)
    (folder / "zerowiz.toml").write_text(
        'model = "10m"\naccelerator = "cpu"\nmicro-batch = 2\ngpus-per-node = 4\n'
    )
    words = ("--gpus-per-node", "2", "train.py", "--per_device_train_batch_size", "8")
    for command in (("plan", "--json"), ("launch", "--dry-run", "--json")):
        plan = here(*command, *words).content
        assert (8, 2) == (plan["workload"]["micro_batch"], len(plan["machine"]["gpus"]))


@pytest.mark.parametrize("words", [(), ("--accelerator", "cpu", "--memory-budget", "1MiB")])
def test_what_cannot_run_here_names_the_machine_that_it_was_planned_for(
    here: Run, folder: Path, words: tuple[str, ...]
) -> None:
    (folder / "train.py").write_text(HF_PARSER)
    done = here("init", "--yes", "--machine", "4xA100-40GB", "--model", "10m")
    assert 0 == done.code, done.stderr
    launched = here("launch", "--yes", *words)
    assert launched.code in {4, 5}, launched.stderr
    assert "`4xA100-40GB`" in launched.hints
    assert "copy this folder there, and run `zerowiz launch`" in launched.hints
    assert "`4xA100-40GB`" not in here("launch", "--isolated", *words, "--model", "10m").hints


def test_a_dry_run_plans_for_the_machine_of_the_file_and_says_so_first_without_a_secret(
    here: Run, folder: Path
) -> None:
    (folder / "train.py").write_text(HF_PARSER)
    (folder / "zerowiz.toml").write_text(
        'script = "train.py"\nscript-args = ["--hub_token", "mine"]\n'
        'machine = "4xA100-40GB"\nmodel = "10m"\nseq-len = 64\n'
    )
    done = here("launch", "--dry-run", "--force")
    # DeepSpeed's launcher would log all words.
    assert " --log_level critical " in done.stdout
    said, told, *_others = done.stderr.splitlines()
    assert said.startswith(
        "note: no GPU is here: this is the plan for `4xA100-40GB` of zerowiz.toml"
    )
    assert told.endswith('train.py --hub_token "$HUB_TOKEN"`')


def test_init_keeps_what_a_person_wrote(here: Run, folder: Path) -> None:
    (folder / "train.py").write_text(HF_PARSER)
    path = folder / "zerowiz.toml"
    path.write_text('# Mine.\noptimizer = "lion"  # tuned\nstage = 2 # for now\nseq-len = 64\n')
    path.chmod(0o640)
    words = ("init", "--yes", "--machine", "cpu", "--model", "10m", "--stage", "3")
    shown = here(*words, "--dry-run")
    assert "# writes zerowiz.toml\n# Mine.\n" in shown.stdout
    assert path.read_text().startswith("# Mine.")
    done = here(*words).good
    assert "wrote zerowiz.toml\n" in done.stdout
    assert (
        '# Mine.\noptimizer = "lion"  # tuned\nstage = "3" # for now\nseq-len = 64\n'
        'script = "train.py"\nmodel = "10m"\nmachine = "cpu"\n' == path.read_text()
    )
    assert 0o640 == path.stat().st_mode & 0o777
    # Hand-written settings count for what init writes, too.
    plan = json.loads((folder / "ds_config_zero3.plan.json").read_text())
    assert ("lion", 64) == (plan["workload"]["optimizer"], plan["workload"]["sequence_tokens"])
    before = path.read_bytes()
    assert 0 == here(*words).code
    assert before == path.read_bytes()


def test_a_conversation_asks_anew_and_points_at_what_was_answered(
    terminal: Open, folder: Path
) -> None:
    (folder / "train.py").write_text(HF_PARSER)
    (folder / "zerowiz.toml").write_text(
        'model = "10m" # small\nseq-len = 128\noptimizer = "lion"\nallow-slow = true\n'
    )
    person = terminal("init", "--machine", "4xA100-40GB")
    person.finish(
        ("> 10m", ENTER),
        ("What is your goal?", ENTER),
        ("(128)", "64" + ENTER),
        ("Which precision?", ENTER),
        ("yes, write the files", ENTER),
    )
    said = {"model": "10m", "seq-len": 64, "optimizer": "lion", "allow-slow": True}
    said |= {"precision": "bf16"}
    new = {"script": "train.py", "machine": "4xA100-40GB"}
    assert {**said, **new} == answers_of(folder)
    assert (folder / "zerowiz.toml").read_text().startswith('model = "10m" # small\n')


def test_init_writes_no_secret_and_nothing_that_was_detected(here: Run, folder: Path) -> None:
    (folder / "train.py").write_text(HF_PARSER)
    words = ("--accelerator", "cpu", "--model", "10m", "train.py")
    secret = ("--lr", "1e-4", "--hub_token", "mine", "--api-key=mine", "hf_" + "a" * 30)
    done = here("init", "--yes", "--slurm", *words, *secret)
    assert 0 == done.code, done.stderr
    assert '--hub_token "$HUB_TOKEN" --api-key="$API_KEY" "$SECRET"' in (
        (folder / "job.sbatch").read_text()
    )
    said = {"script": "train.py", "script-args": ["--lr", "1e-4"]}
    assert {**said, "model": "10m", "accelerator": "cpu"} == answers_of(folder)
