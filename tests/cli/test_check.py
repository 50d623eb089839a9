"""`zerowiz check`, as people, hooks and CI run it."""

import json
import os
import random
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from cli.harness import HF_IN_CODE, Run, clean_environ

from zerowiz.core.lint.linter import RULES

# One key too few letters in a section that refuses it, one letter too few at the top.
WRONG = """\
{
  "gradient_acumulation_steps": 4,
  "train_micro_batch_size_per_gpu": 2,
  "bf16": {"enabled": true},
  "zero_optimization": {
    "stage": 2,
    "contiguous_gradiens": true
  }
}
"""
RIGHT = WRONG.replace("acumulation", "accumulation").replace("gradiens", "gradients")

ACCELERATE = """\
compute_environment: LOCAL_MACHINE
distributed_type: DEEPSPEED
deepspeed_config:
  gradient_accumulation_steps: 4
  zero_stage: {stage}
  offload_optimizer_device: cpu
  zero3_init_flag: false
mixed_precision: bf16
"""
INLINE = """\
base_model: some/model
deepspeed:
  zero_optimization:
    stage: 2
    contiguous_gradiens: true
  train_micro_batch_size_per_gpu: 1
"""


@pytest.fixture
def configs(folder: Path) -> Path:
    """A folder with a config that is wrong, one that is right, and things that are no configs."""
    (folder / "wrong.json").write_text(WRONG)
    (folder / "right.json").write_text(RIGHT)
    (folder / "package.json").write_text('{"name": "x", "optimizer": 1}')
    (folder / "trainer_state.json").write_text('{"train_batch_size": 8, "epoch": 1}')
    return folder


def found(stdout: str) -> list[tuple[str, str, str, int, int]]:
    """Path, code, key, line and column of everything in `--json`."""
    content = json.loads(stdout)
    assert 1 == content["schema_version"]
    return [
        (file["path"], each["code"], each["key"], each["line"], each["column"])
        for file in content["files"]
        for each in file["findings"]
        if each["severity"] == "error"
    ]


def by_code(stdout: str) -> dict[str, str]:
    """The severity of each code in the only file of `--json`."""
    (file,) = json.loads(stdout)["files"]
    return {each["code"]: each["severity"] for each in file["findings"]}


ERRORS = [
    ("wrong.json", "ZW101", "gradient_acumulation_steps", 2, 3),
    ("wrong.json", "ZW101", "zero_optimization.contiguous_gradiens", 7, 5),
]


@pytest.mark.usefixtures("configs")
def test_errors_are_shown_with_their_places_and_end_in_code_6(here: Run) -> None:
    result = here("check", "wrong.json")
    assert 6 == result.code
    assert "wrong.json:2:3 error ZW101 unknown-key: " in result.stdout
    assert "did you mean `gradient_accumulation_steps`?" in result.stdout
    assert "wrong.json:7:5 error ZW101 unknown-key: " in result.stdout
    assert "2 errors" in result.stdout.splitlines()[-2]
    assert "" == result.stderr


@pytest.mark.usefixtures("configs")
def test_a_config_without_mistakes_is_one_line_and_code_0(here: Run) -> None:
    result = here("check", "right.json")
    assert (0, "no findings\n", "") == (result.code, result.stdout, result.stderr)


@pytest.mark.usefixtures("configs")
def test_json_is_the_contract(here: Run) -> None:
    result = here("check", "--json", "right.json", "wrong.json")
    assert 6 == result.code
    assert ERRORS == found(result.stdout)
    content = json.loads(result.stdout)
    assert ["right.json", "wrong.json"] == [file["path"] for file in content["files"]]
    keys = ["code", "name", "severity", "key", "line", "column", "message", "why", "fix"]
    keys.append("url")
    assert keys == list(content["files"][1]["findings"][0])


@pytest.mark.usefixtures("configs")
def test_sarif_has_every_finding(here: Run) -> None:
    result = here("check", "--sarif", "wrong.json")
    assert 6 == result.code
    (run,) = json.loads(result.stdout)["runs"]
    assert len(RULES) == len(run["tool"]["driver"]["rules"])
    assert {"ZW101"} == {each["ruleId"] for each in run["results"] if each["level"] == "error"}


def test_fix_fixes_and_leaves_all_else_as_it_was(here: Run, configs: Path) -> None:
    path = configs / "wrong.json"
    path.chmod(0o640)
    with path.open("w", newline="") as stream:
        stream.write(WRONG.replace("\n", "\r\n"))
    result = here("check", "--fix", "wrong.json")
    assert (0, "no findings\n") == (result.code, result.stdout)
    assert (
        "note: fixed 2 findings in wrong.json\n"
        "    line 2: `gradient_acumulation_steps`: rename it to `gradient_accumulation_steps`\n"
        "    line 7: `zero_optimization.contiguous_gradiens`: rename it to `contiguous_gradients`\n"
    ) == result.stderr
    assert RIGHT.replace("\n", "\r\n").encode() == path.read_bytes()
    assert 0o640 == stat.S_IMODE(path.stat().st_mode)
    again = here("check", "--fix", "wrong.json")
    assert (0, "") == (again.code, again.stderr)


def test_without_fix_nothing_is_written(here: Run, configs: Path) -> None:
    before = {path: path.read_bytes() for path in configs.rglob("*")}
    here("check", ".")
    assert before == {path: path.read_bytes() for path in configs.rglob("*")}


def test_fix_follows_a_link_and_leaves_it(here: Run, configs: Path) -> None:
    (configs / "link.json").symlink_to("wrong.json")
    assert 0 == here("check", "--fix", "link.json").code
    assert (configs / "link.json").is_symlink()
    assert RIGHT == (configs / "wrong.json").read_text()


def test_a_folder_means_what_looks_like_a_config(here: Run, configs: Path) -> None:
    (configs / "ds_config_broken.json").write_text("{")
    (configs / "zero3.json").write_text("{}")
    content = json.loads(here("check", "--json", str(configs)).stdout)
    names = [Path(file["path"]).name for file in content["files"]]
    assert ["ds_config_broken.json", "right.json", "wrong.json", "zero3.json"] == names


def test_folders_are_read_with_those_in_them_but_for_hidden_ones_and_packages(
    here: Run, configs: Path
) -> None:
    for place in ("runs/7b", ".git", "node_modules/x", "venv/lib/site-packages/y"):
        (configs / place).mkdir(parents=True)
        (configs / place / "ds_config.json").write_text(RIGHT)
    content = json.loads(here("check", "--json", ".").stdout)
    names = ["right.json", "wrong.json", "runs/7b/ds_config.json"]
    assert names == [file["path"] for file in content["files"]]


def test_a_pattern_that_no_shell_has_read_means_its_files_once(here: Run, configs: Path) -> None:
    (configs / "runs").mkdir()
    (configs / "runs/wrong.json").write_text(WRONG)
    (configs / "odd[1].json").write_text(RIGHT)
    content = json.loads(
        here("check", "--json", "**/wrong.json", "wrong.json", "odd[1].json").stdout
    )
    names = ["runs/wrong.json", "wrong.json", "odd[1].json"]
    assert names == [file["path"] for file in content["files"]]


def test_a_dash_reads_stdin(configs: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "zerowiz", "check", "--json", "-"],
        input=WRONG,
        cwd=configs,
        env=clean_environ(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert 6 == done.returncode
    assert [("-", *each[1:]) for each in ERRORS] == found(done.stdout)


@pytest.mark.usefixtures("configs")
def test_quiet_says_errors_alone(here: Run) -> None:
    assert "" == here("check", "--quiet", "right.json").stdout
    shown = here("check", "--quiet", "wrong.json").stdout
    assert 2 == shown.count(" error ")
    assert "2 errors" not in shown


@pytest.mark.parametrize(
    ("words", "problem", "hint"),
    [
        ((), "no config to check", "zerowiz check ds_config.json"),
        (
            ("--schema", "right.json"),
            "`--schema` takes no file argument",
            "zerowiz check right.json",
        ),
        (("--json", "--sarif", "right.json"), "`--json` and `--sarif`", "remove one"),
        (("--fix", "-"), "`--fix` changes files", "remove `--fix`"),
        (("--deepspeed-version", "new", "right.json"), "`--deepspeed-version new`", "`0.19.8`"),
        (("--world-size", "0", "right.json"), "'--world-size'", "--help"),
        (("--integration", "keras", "right.json"), "'--integration'", "--help"),
    ],
)
@pytest.mark.usefixtures("configs")
def test_a_command_line_that_makes_no_sense_is_refused(
    here: Run, words: tuple[str, ...], problem: str, hint: str
) -> None:
    result = here("check", *words)
    assert 2 == result.code
    assert problem in result.problem
    assert hint in result.hints
    assert "" == result.stdout or "--json" in words


NO_CONFIGS = [
    ("qqq", "`qqq` does not exist", "`-` for stdin"),
    ("wrong.jsn", "`wrong.jsn` does not exist", "did you mean `wrong.json`?"),
    ("right.json/x", "`right.json/x` does not exist", ""),
    ("empty", "no DeepSpeed config in the folder `empty`", "pass it by name"),
    ("none*.json", "no file matches `none*.json`", "`**` stands for folders"),
    ("no_config.yaml", "no DeepSpeed config in `no_config.yaml`", "`deepspeed_config`"),
    ("names.yaml", "`gone.json` does not exist", "`names.yaml` names it"),
    ("train.py", "`train.py` is a script", "`zerowiz check --script train.py ds_config.json`"),
    ("run.sh", "`run.sh` is a script, not a DeepSpeed config", "`zerowiz check .`"),
]


@pytest.fixture
def without_configs(configs: Path) -> Path:
    """The same folder, with paths that mean no config."""
    (configs / "empty").mkdir()
    (configs / "train.py").write_text("import torch\n")
    (configs / "run.sh").write_text("deepspeed train.py\n")
    (configs / "no_config.yaml").write_text("a: 1\n")
    (configs / "names.yaml").write_text("deepspeed: gone.json\n")
    return configs


@pytest.mark.parametrize(("word", "problem", "hint"), NO_CONFIGS)
@pytest.mark.usefixtures("without_configs")
def test_a_path_without_a_config_is_an_error_and_the_others_are_checked(
    here: Run, word: str, problem: str, hint: str
) -> None:
    alone = here("check", word)
    assert (1, "") == (alone.code, alone.stdout)
    assert problem in alone.problem
    assert hint in alone.hints
    beside = here("check", word, "right.json")
    assert (1, "no findings\n", alone.stderr) == (beside.code, beside.stdout, beside.stderr)
    assert 6 == here("check", word, "wrong.json").code


def test_a_pipe_is_read_and_one_without_a_writer_ends(here: Run, configs: Path) -> None:
    os.mkfifo(configs / "pipe")
    with subprocess.Popen(["/bin/sh", "-c", "sleep 0.2; cat wrong.json > pipe"], cwd=configs):
        assert [("pipe", *each[1:]) for each in ERRORS] == found(
            here("check", "--json", "pipe").stdout
        )
    os.mkfifo(configs / "silent")
    silent = here("check", "silent")
    assert 1 == silent.code
    assert "config `silent` cannot be read: nothing was written to it" in silent.problem


@pytest.mark.usefixtures("without_configs")
def test_programs_are_told_which_paths_were_not_checked(here: Run) -> None:
    result = here("check", "--json", "qqq", "wrong.json", "none*.json")
    assert ERRORS == found(result.stdout)
    messages = [each["message"] for each in json.loads(result.stdout)["unreadable"]]
    assert ["config `qqq` does not exist", "no file matches `none*.json`"] == messages
    (run,) = json.loads(here("check", "--sarif", "qqq", "wrong.json").stdout)["runs"]
    (invocation,) = run["invocations"]
    assert invocation["executionSuccessful"] is False
    assert 1 == len(invocation["toolExecutionNotifications"])


@pytest.mark.usefixtures("configs")
def test_a_script_that_is_not_there_is_said_before_anything_is_checked(here: Run) -> None:
    result = here("check", "--script", "none.py", "wrong.json")
    assert (5, "") == (result.code, result.stdout)
    assert "there is no script `none.py`" in result.problem


def test_what_accelerate_builds_of_its_yaml_is_checked_where_it_stands(
    here: Run, configs: Path
) -> None:
    (configs / "good.yaml").write_text(ACCELERATE.format(stage=3))
    (configs / "bad.yaml").write_text(ACCELERATE.format(stage=7))
    result = here("check", "--json", "good.yaml", "bad.yaml")
    (error,) = found(result.stdout)
    assert ("bad.yaml", "deepspeed_config.zero_stage", 5) == (error[0], error[2], error[3])


def test_what_is_found_in_a_yaml_file_stands_in_the_order_of_its_lines(
    here: Run, configs: Path
) -> None:
    text = ACCELERATE.format(stage=7).replace(
        "  zero3_init_flag", "  clipping: 1\n  zero3_init_flag"
    )
    (configs / "bad.yaml").write_text(text)
    report = json.loads(here("check", "--json", "bad.yaml").stdout)
    assert [5, 7] == [each["line"] for each in report["files"][0]["findings"]]


def test_a_yaml_file_that_cannot_be_read_is_not_called_json(here: Run, configs: Path) -> None:
    (configs / "broken.yaml").write_text("a: 1\n b: 2\n")
    (finding,) = json.loads(here("check", "--json", "broken.yaml").stdout)["files"][0]["findings"]
    assert ("ZW001", "a YAML reader refuses the whole file") == (finding["code"], finding["why"])


def test_a_config_inside_a_yaml_file_is_checked_where_it_stands(here: Run, configs: Path) -> None:
    (configs / "axolotl.yml").write_text(INLINE)
    result = here("check", "--json", "axolotl.yml")
    path = "zero_optimization.contiguous_gradiens"
    assert [("axolotl.yml", "ZW101", path, 5, 5)] == found(result.stdout)


def test_fix_leaves_yaml_as_it_is(here: Run, configs: Path) -> None:
    (configs / "axolotl.yml").write_text(INLINE)
    result = here("check", "--fix", "axolotl.yml")
    assert 6 == result.code
    assert "note: `--fix` changes JSON only: fix axolotl.yml by hand" in result.stderr
    assert INLINE == (configs / "axolotl.yml").read_text()
    assert "" == here("check", "--fix", "--quiet", "axolotl.yml").stderr


@pytest.mark.parametrize(
    "text", ["deepspeed: wrong.json\n", "deepspeed_config: {deepspeed_config_file: wrong.json}\n"]
)
def test_a_config_that_a_yaml_file_names_is_checked(here: Run, configs: Path, text: str) -> None:
    (configs / "run.yaml").write_text(text)
    assert ERRORS == found(here("check", "--json", "run.yaml").stdout)


def test_a_yaml_file_with_an_empty_deepspeed_has_no_config(here: Run, configs: Path) -> None:
    text = "base_model: x\ngradient_accumulation_steps: 4\noptimizer: adamw_torch\ndeepspeed:\n"
    (configs / "axolotl.yml").write_text(text)
    result = here("check", "axolotl.yml")
    assert (1, "") == (result.code, result.stdout)
    assert "`axolotl.yml`: its `deepspeed` is empty" in result.problem


@pytest.mark.parametrize("yaml", ["wrong.yaml", "runs/a.yaml", "runs/deep/a.yaml"])
def test_a_path_in_a_yaml_file_is_looked_for_beside_it_and_above(
    here: Run, configs: Path, yaml: str
) -> None:
    path = configs / "project" / yaml
    path.parent.mkdir(parents=True)
    path.write_text("deepspeed: ds/seven.json\n")
    (configs / "project" / "ds").mkdir()
    (configs / "project" / "ds" / "seven.json").write_text(WRONG)
    result = here("check", "--json", f"project/{yaml}")
    assert [("project/ds/seven.json", *each[1:]) for each in ERRORS] == found(result.stdout)


def test_a_config_of_ms_swifts_own_is_no_file_that_is_missing(here: Run, configs: Path) -> None:
    (configs / "swift.yaml").write_text("model: x\ndeepspeed: zero3_offload\n")
    result = here("check", "swift.yaml")
    assert (1, "") == (result.code, result.stdout)
    assert "`swift.yaml` names ms-swift's own config `zero3_offload`" in result.problem
    (configs / "zero3_offload").write_text(WRONG)
    assert 6 == here("check", "swift.yaml").code


def test_a_key_that_accelerate_does_not_have_is_found_where_it_stands(
    here: Run, configs: Path
) -> None:
    text = ACCELERATE.format(stage=3) + "num_processes: 2\n"
    (configs / "a.yaml").write_text(
        text.replace("zero_stage", "zero_stagee: 3\n  bf16: 1\n  zero_stage")
    )
    (file,) = json.loads(here("check", "--json", "a.yaml").stdout)["files"]
    found = [(each["key"], each["line"], each["fix"]) for each in file["findings"]]
    assert ("deepspeed_config.zero_stagee", 5, "rename it to `zero_stage`") in found
    assert ("deepspeed_config.bf16", 6) in [each[:2] for each in found]


def test_yaml_without_pyyaml_says_what_is_needed(
    here: Run, configs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (configs / "axolotl.yml").write_text(INLINE)
    monkeypatch.setitem(sys.modules, "yaml", None)
    result = here("check", "axolotl.yml")
    assert 1 == result.code
    assert "PyYAML" in result.problem
    assert "pip install pyyaml" in result.hints


@pytest.mark.parametrize(
    ("data", "line", "column", "reason"),
    [
        (b'{\n "a\xff": 1}', 2, 4, "0xff"),
        ('{"a": 1}'.encode("utf-16"), 1, 1, "UTF-16"),
        (b" " * 250_001, 1, 1, "250000 bytes"),
    ],
)
def test_bytes_that_are_no_text_are_a_finding(
    here: Run, folder: Path, data: bytes, line: int, column: int, reason: str
) -> None:
    (folder / "x.json").write_bytes(data)
    result = here("check", "--json", "x.json")
    assert 6 == result.code
    assert [("x.json", "ZW001", "", line, column)] == found(result.stdout)
    assert reason in json.loads(result.stdout)["files"][0]["findings"][0]["message"]


OPTIMIZER_ARGUMENT = (
    '{"train_batch_size": 8, "optimizer": {"type": "AdamW", "params": {"learning_rate": 1e-5}}}'
)


@pytest.mark.parametrize(
    ("argument", "code", "severity"),
    [("", 6, "error"), (", optimizer=mine", 0, "warning")],
)
def test_a_script_decides_whether_the_optimizer_of_a_config_counts(
    here: Run, folder: Path, argument: str, code: int, severity: str
) -> None:
    (folder / "x.json").write_text(OPTIMIZER_ARGUMENT)
    (folder / "loop.py").write_text(
        f"import deepspeed\ndeepspeed.initialize(model=model, config='x.json'{argument})\n"
    )
    result = here("check", "--json", "--script", "loop.py", "x.json")
    assert (code, severity) == (result.code, by_code(result.stdout)["ZW101"])


# What is only wrong for one run, and the option that tells of it.
OF_A_RUN = {
    "ZW001": (("--integration", "hf"), '{"bf16": {"enabled": true} // comment\n}'),
    "ZW401": (
        ("--world-size", "3"),
        (
            '{"train_batch_size": 8, "train_micro_batch_size_per_gpu": 2,'
            ' "gradient_accumulation_steps": 1}'
        ),
    ),
    "ZW701": (
        ("--script", "in_code.py"),
        (
            '{"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": "auto",'
            ' "train_batch_size": "auto", "zero_optimization": {"stage": 2}}'
        ),
    ),
    "ZW802": (
        ("--machine", "4xV100-16GB"),
        '{"train_micro_batch_size_per_gpu": 2, "bf16": {"enabled": true}}',
    ),
    "ZW803": (
        ("--machine", "4xA100-40GB"),
        '{"train_micro_batch_size_per_gpu": 2, "fp16": {"enabled": true}}',
    ),
    "ZW805": (
        ("--machine", "V100-16GB"),
        (
            '{"train_micro_batch_size_per_gpu": 2, "zero_optimization":'
            ' {"stage": 3, "stage3_max_live_parameters": 2000000000}}'
        ),
    ),
    "ZW801": (
        ("--machine", "4xRTX4090"),
        (
            '{"train_micro_batch_size_per_gpu": 2, "bf16": {"enabled": true},'
            ' "zero_optimization": {"stage": 2, "reduce_bucket_size": 2000000000}}'
        ),
    ),
}


@pytest.mark.parametrize("code", OF_A_RUN)
def test_what_is_said_of_the_run_is_weighed(here: Run, folder: Path, code: str) -> None:
    words, text = OF_A_RUN[code]
    (folder / "in_code.py").write_text(HF_IN_CODE)
    (folder / "x.json").write_text(text)
    with_words = here("check", "--json", *words, "x.json").stdout
    without = here("check", "--json", "x.json").stdout
    assert code in by_code(with_words)
    assert by_code(without).get(code) != by_code(with_words)[code]


def test_the_version_decides_which_keys_are_known(here: Run, folder: Path) -> None:
    (folder / "old.json").write_text('{"train_batch_size": 8, "elasticity": {"enabled": true}}')
    codes = {
        version: [
            each[1]
            for each in found(
                here("check", "--json", "--deepspeed-version", version, "old.json").stdout
            )
        ]
        for version in ("0.16.9", "0.19.8")
    }
    assert {"0.16.9": [], "0.19.8": ["ZW104"]} == codes


def test_new_defaults_of_another_version_are_said(here: Run, folder: Path) -> None:
    (folder / "x.json").write_text('{"train_micro_batch_size_per_gpu": 1, "zero_optimization": {}}')
    result = here("check", "--from", "0.18", "--to", "0.19", "x.json")
    assert (0, "") == (result.code, result.stderr)
    assert (
        "the default of `gradient_clipping` was 0.0 in DeepSpeed 0.18.9, and is 1.0 in 0.19.8"
    ) in " ".join(result.stdout.split())
    assert 'fix: write `"gradient_clipping": 0.0` to keep what it was' in result.stdout
    back = here("check", "--from", "0.19", "--to", "0.18.9", "x.json").stdout
    assert "was 1.0 in DeepSpeed 0.19.8, and is 0.0 in 0.18.9" in " ".join(back.split())
    assert "no findings\n" == here("check", "--from", "0.19", "x.json").stdout


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("--from", "new"), "`--from new` is not a version"),
        (("--to", "new"), "`--to new` is not a version"),
        (("--to", "0.19", "--deepspeed-version", "0.18"), "`--to` and `--deepspeed-version`"),
    ],
)
@pytest.mark.usefixtures("configs")
def test_versions_that_make_no_sense_are_refused(
    here: Run, words: tuple[str, ...], problem: str
) -> None:
    result = here("check", *words, "right.json")
    assert (2, "") == (result.code, result.stdout)
    assert problem in result.problem


@pytest.mark.usefixtures("configs")
def test_a_version_that_is_not_known_says_which_is_taken(here: Run) -> None:
    result = here("check", "--deepspeed-version", "0.17.99", "right.json")
    assert (
        "note: zerowiz has no list of the keys of DeepSpeed 0.17.99, and uses that of 0.17.6\n"
    ) == result.stderr


def test_the_schema_is_one_json_object(here: Run) -> None:
    result = here("check", "--schema", "--deepspeed-version", "0.16.9")
    assert 0 == result.code
    assert "urn:zerowiz:ds_config:0.16.9" == json.loads(result.stdout)["$id"]


SNIPPETS = (
    b'{"zero_optimization": {"stage": ', b"3", b"}}", b'"auto"', b",", b"\n", b"#", b"'''", b"[",
    b'"train_batch_size": ', b"1e999", b"\x00", b"\xef\xbb\xbf", b"\xff", b"\\ud800", b"null",
    b"deepspeed: ", b"&a ", b"*a", b"<<: ", b"!!python/object:os.system ", b"- ", b"{", b"}",
)  # fmt: skip


@pytest.mark.parametrize("name", ["x.json", "x.yaml"])
@pytest.mark.parametrize("seed", range(3))
def test_no_bytes_end_in_a_traceback(here: Run, folder: Path, seed: int, name: str) -> None:
    """`here` would see an exception that nobody catches."""
    pick = random.Random(seed)  # noqa: S311 - the same cases on every run
    for _ in range(40):
        data = b"".join(pick.choices(SNIPPETS, k=pick.randint(0, 12))) + pick.randbytes(
            pick.randint(0, 3)
        )
        (folder / name).write_bytes(data)
        result = here("check", pick.choice(["--fix", "--json", "--quiet"]), name)
        assert result.code in {0, 1, 6}, data


# `zerowiz check` of a file of `accelerate config` speaks of the keys that stand in the file.

HEAD = "distributed_type: DEEPSPEED\ndeepspeed_config:\n"


def findings(here: Run, folder: Path, text: str, *options: str) -> list[dict[str, Any]]:
    """What is found in a file of Accelerate itself."""
    (folder / "acc.yaml").write_text(HEAD + text)
    files = json.loads(here("check", "--json", *options, "acc.yaml").stdout)["files"]
    return [each for file in files if file["path"] == "acc.yaml" for each in file["findings"]]


@pytest.mark.parametrize(
    ("text", "options", "key", "line", "says"),
    [
        (
            "  zero_stage: 7\n",
            (),
            "deepspeed_config.zero_stage",
            3,
            ("`zero_stage` must be one of 0, 1, 2, 3, not `7`", "write one of 0, 1, 2, 3"),
        ),
        (
            "  zero_stage: 2\n  offload_optimizer_device: gpu\n",
            (),
            "deepspeed_config.offload_optimizer_device",
            4,
            ("`offload_optimizer_device` must be one of", "write one of"),
        ),
        (
            "  zero_stage: 0\n  offload_optimizer_device: cpu\n",
            (),
            "deepspeed_config.offload_optimizer_device",
            4,
            ("`offload_optimizer_device` needs stage 1, 2 or 3", "write stage 1, 2 or 3"),
        ),
        (
            "  offload_param_device: cpu\n  zero_stage: 2\n",
            (),
            "deepspeed_config.offload_param_device",
            3,
            ("`offload_param_device` has no effect at stage 2", "write stage 3"),
        ),
        (
            "  offload_param_device: nvme\n  zero_stage: 3\n",
            (),
            "deepspeed_config.offload_param_device",
            3,
            (
                "`offload_param_device` has no `offload_param_nvme_path`",
                "write `offload_param_nvme_path`",
            ),
        ),
        (
            "  zero3_save_16bit_model: true\n  zero_stage: 2\n",
            (),
            "deepspeed_config.zero3_save_16bit_model",
            3,
            ("`zero3_save_16bit_model` has no effect at stage 2", "remove it"),
        ),
        (
            "  gradient_accumulation_steps: 0\n",
            (),
            "deepspeed_config.gradient_accumulation_steps",
            3,
            ("`gradient_accumulation_steps` must be more than 0", "write more than 0"),
        ),
        (
            "  zero_stage: 2\nmixed_precision: bf16\n",
            ("--machine", "2xV100"),
            "mixed_precision",
            4,
            ("7.0, which does not support bf16", "write `mixed_precision: fp16` instead"),
        ),
        (
            "  zero_stage: 2\nfp16: true\n",
            ("--machine", "2xH100"),
            "fp16",
            4,
            ("9.0, which supports bf16", "write `mixed_precision: bf16` instead"),
        ),
        (
            "  zero_stage: 2\nmixed_precision: fp16\n",
            ("--script", "train.py", "--integration", "hf"),
            "mixed_precision",
            4,
            ("`mixed_precision` is fp16 here and bf16 in", "set both to the same value"),
        ),
        (
            "  zero_stage: 2\nmixed_precision: bf16\n",
            ("--from", "0.18", "--to", "0.19.8"),
            "bf16.check_grad_overflow",
            4,
            ("was false in", "in a file that `deepspeed_config_file` names"),
        ),
    ],
)
def test_a_finding_names_the_key_of_the_file_at_its_line(
    here: Run,
    folder: Path,
    text: str,
    options: tuple[str, ...],
    key: str,
    line: int,
    says: tuple[str, str],
) -> None:
    (folder / "train.py").write_text(HF_IN_CODE)
    (found,) = (each for each in findings(here, folder, text, *options) if each["line"] == line)
    column = 3 if key.startswith("deepspeed_config") else 1
    assert (key, column) == (found["key"], found["column"])
    assert says[0] in found["message"]
    assert says[1] in found["fix"]


def test_a_path_that_accelerate_loses_is_found_and_a_launch_that_writes_it_is_silent(
    here: Run, folder: Path
) -> None:
    text = "  zero_stage: 3\n  offload_param_device: nvme\n  offload_param_nvme_path: nvme\n"
    (found,) = findings(here, folder, text)
    assert ("warning", "deepspeed_config.offload_param_nvme_path", 5) == (
        found["severity"],
        found["key"],
        found["line"],
    )
    assert "does not pass `offload_param_nvme_path` to the ranks" in found["message"]
    assert "set `ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_NVME_PATH`" in found["fix"]
    (folder / "nvme").mkdir()
    (folder / "train.py").write_text(HF_IN_CODE)
    words = ("--accelerator", "cpu", "--model", "10m", "--config", "acc.yaml", "train.py")
    launched = here("launch", "--dry-run", "--force", *words)
    assert '"nvme_path": "nvme"' in launched.stdout
    assert "does not pass" not in launched.stderr


def test_a_key_of_the_file_itself_that_accelerate_rejects_is_found_and_a_launch_goes_on(
    here: Run, folder: Path
) -> None:
    text = "  zero_stage: 2\nmixed_precision: bf16\nnum_machine: 1\nfoo: 1\ndynamo_backend: 'NO'\n"
    found = findings(here, folder, text)
    assert [("error", "num_machine", 5), ("warning", "foo", 6)] == [
        (each["severity"], each["key"], each["line"]) for each in found
    ]
    assert ["rename it to `num_machines`", "remove it"] == [each["fix"] for each in found]
    (folder / "train.py").write_text(HF_IN_CODE)
    words = ("--accelerator", "cpu", "--model", "10m", "--config", "acc.yaml", "train.py")
    launched = here("launch", "--dry-run", *words)
    assert (0, False) == (launched.code, "does not know" in launched.stderr)


NAMING = (
    "  deepspeed_config_file: my z.json\n  zero_stage: 2\n  gradient_clipping:\n"
    "  zero3_init_flag: tru\nmixed_precision: bf16\n"
)


def test_what_accelerate_rejects_beside_a_named_config_is_found_in_the_file(
    here: Run, folder: Path
) -> None:
    (folder / "my z.json").write_text('{"zero_optimization": {"stage": 2}}')
    found = findings(here, folder, NAMING)
    assert [
        ("ZW521", "deepspeed_config.zero_stage", 4),
        ("ZW521", "deepspeed_config.gradient_clipping", 5),
        ("ZW201", "deepspeed_config.zero3_init_flag", 6),
        ("ZW521", "mixed_precision", 7),
    ] == [(each["code"], each["key"], each["line"]) for each in found]
    assert "Accelerate rejects `zero_stage` beside `deepspeed_config_file`" == found[0]["message"]
    assert "remove it, and set it in `my z.json`" == found[0]["fix"]
    assert "`zero3_init_flag` must be true or false, not `tru`" == found[2]["message"]
    assert "Accelerate cannot read the value, and fails" == found[2]["why"]
    assert {"error"} == {each["severity"] for each in found}
    assert 6 == here("check", "acc.yaml").code


def test_two_files_that_name_one_config_are_both_checked(here: Run, folder: Path) -> None:
    (folder / "z.json").write_text('{"zero_optimization": {"stage": 2}}')
    for name in ("a.yaml", "b.yaml"):
        (folder / name).write_text(HEAD + "  deepspeed_config_file: z.json\n  zero_stage: 2\n")
    result = here("check", "--json", "a.yaml", "b.yaml")
    paths = [file["path"] for file in json.loads(result.stdout)["files"] if file["findings"]]
    assert ["a.yaml", "b.yaml"] == [path for path in paths if path != "z.json"]


def test_fix_says_that_it_leaves_a_naming_file_as_it_is(here: Run, folder: Path) -> None:
    (folder / "my z.json").write_text('{"zero_optimization": {"stage": 2}}')
    (folder / "acc.yaml").write_text(HEAD + NAMING)
    result = here("check", "--fix", "acc.yaml")
    assert "fix acc.yaml by hand" in result.stderr
    assert HEAD + NAMING == (folder / "acc.yaml").read_text()


def test_a_value_is_found_once_where_deepspeed_would_reject_it_too(here: Run, folder: Path) -> None:
    found = findings(here, folder, "  zero_stage: two\n")
    assert [("ZW201", "deepspeed_config.zero_stage")] == [
        (each["code"], each["key"]) for each in found
    ]


def test_a_number_that_python_cannot_write_is_a_finding(here: Run, folder: Path) -> None:
    (found,) = findings(here, folder, f"  zero3_init_flag: 0x{'f' * 9000}\n")
    assert ("ZW001", 3, 20) == (found["code"], found["line"], found["column"])


def test_a_no_without_quotes_is_found(here: Run, folder: Path) -> None:
    (found,) = findings(here, folder, "  zero_stage: 2\nmixed_precision: no\n")
    assert "not `false`" in found["message"]
    assert "write `bf16`, `fp16`, `fp8` or `'no'`" == found["fix"]


@pytest.mark.parametrize(
    ("text", "code", "keys"),
    [
        ("  zero_stage: 2\n", 6, ["deepspeed_config.zero_stage"]),
        ("other: 1\n", 1, ["other"]),
        ("", 1, []),
    ],
)
def test_a_file_that_names_a_missing_config_is_checked_itself(
    here: Run, folder: Path, text: str, code: int, keys: list[str]
) -> None:
    names = "  deepspeed_config_file: missing.json\n"
    assert keys == [each["key"] for each in findings(here, folder, names + text)]
    result = here("check", "acc.yaml")
    assert (code, "config `missing.json` does not exist") == (result.code, result.problem)
    assert "`acc.yaml` names it" in result.hints
