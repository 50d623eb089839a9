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
# What accelerate reads of a file, and what it rejects beside a config that is named.
HEAD = "distributed_type: DEEPSPEED\ndeepspeed_config:\n"
NAMING = (
    "  deepspeed_config_file: my z.json\n  zero_stage: 2\n  gradient_clipping:\n"
    "  zero3_init_flag: tru\nmixed_precision: bf16\n"
)
INLINE = """\
base_model: some/model
deepspeed:
  zero_optimization:
    stage: 2
    contiguous_gradiens: true
  train_micro_batch_size_per_gpu: 1
"""


def write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


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


WARNS = (
    '{"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 1, "sub_group_size": 8}}'
)


@pytest.mark.parametrize(
    ("words", "settings", "code", "codes"),
    [
        ((), {}, 0, {"ZW601"}),
        (("--strict",), {}, 6, {"ZW601"}),
        (("--strict", "--ignore", "ZW6"), {}, 0, set()),
        (("--ignore", "ZW6", "--select", "ZW601,ZW1", "--strict"), {}, 6, {"ZW601"}),
        (("--select", "ZW1"), {}, 0, set()),
        ((), {"zerowiz.toml": '[check]\nstrict = true\nselect = ["ALL"]'}, 6, {"ZW601"}),
        (("--select", "ZW1"), {"zerowiz.toml": "[check]\nstrict = true"}, 0, set()),
        ((), {"pyproject.toml": '[tool.zerowiz.check]\nignore = ["ZW601"]'}, 0, set()),
        (
            ("--isolated",),
            {"pyproject.toml": '[tool.zerowiz.check]\nignore = ["ZW601"]'},
            0,
            {"ZW601"},
        ),
    ],
)
def test_codes_are_chosen_by_how_they_begin_and_warnings_may_fail(
    here: Run,
    configs: Path,
    words: tuple[str, ...],
    settings: dict[str, str],
    code: int,
    codes: set[str],
) -> None:
    write(configs, {"warns.json": WARNS, **settings})
    result = here("check", "--json", *words, "warns.json")
    assert (code, codes) == (result.code, {*by_code(result.stdout)})


@pytest.mark.parametrize(
    ("file", "text", "problem"),
    [
        (
            "zerowiz.toml",
            "[check]\nselct = []",
            "`zerowiz.toml: [check]`: object contains unknown field `selct`",
        ),
        ("zerowiz.toml", "[check]\nstrict = 3", "`zerowiz.toml: [check].strict`"),
        ("pyproject.toml", '[tool.zerowiz.check]\noutput-format = "x"', "[check].output-format`"),
        ("pyproject.toml", "[tool.zerowiz]\nx\n", "`pyproject.toml` is not TOML: Expected"),
    ],
)
def test_what_a_project_says_wrongly_is_an_error(
    here: Run, configs: Path, file: str, text: str, problem: str
) -> None:
    write(configs, {file: text})
    result = here("check", "right.json")
    assert (2, "") == (result.code, result.stdout)
    assert problem in result.problem


COMMENTED = """\
{
  # zerowiz: ignore ZW101
  "gradient_acumulation_steps": 4,
  "train_micro_batch_size_per_gpu": 2,
  "zero_optimization": {"stage": 2, "contiguous_gradiens": true} // zerowiz: ignore
}
"""
BY_KEY = '{"//zerowiz": "ignore ZW1 ZW201", "gradient_acumulation_steps": 4, "train_batch_size": 4}'
IN_YAML = HEAD + "  zero_stage: two  # zerowiz: ignore ZW201\n  zero_stge: 2\n"


def test_what_a_file_ignores_is_not_found(here: Run, configs: Path) -> None:
    write(configs, {"comments.json": COMMENTED, "key.json": BY_KEY, "a.yaml": IN_YAML})
    result = here("check", "--json", "--integration", "deepspeed", "comments.json", "key.json")
    assert (0, []) == (result.code, found(result.stdout))
    assert {"ZW101": "warning"} == by_code(here("check", "--json", "a.yaml").stdout)


def test_github_gets_a_command_for_each_finding(
    here: Run, configs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    write(configs, {"a,b.json": WARNS.replace("sub", "100%")})
    result = here("check", "a,b.json", "gone.json")
    first, second, *others = result.stdout.splitlines()
    place = "file=a%2Cb.json,line=1,col=73,title=zerowiz ZW101 unknown-key"
    assert first.startswith(
        f"::error {place}::a,b.json:1:73 ZW101 `100%25_group_size` is not a key"
    )
    assert "::error::config `gone.json` does not exist" == second
    assert (6, []) == (result.code, others)
    text = here("check", "--output-format", "text", "a,b.json").stdout
    assert text.startswith("a,b.json:1:73 error ZW101")


def test_a_diff_shows_what_fix_would_change_and_writes_nothing(here: Run, configs: Path) -> None:
    result = here("check", "--diff", "wrong.json", "right.json")
    assert (6, WRONG) == (result.code, (configs / "wrong.json").read_text())
    lines = result.stdout.splitlines()
    assert ["--- wrong.json", "+++ wrong.json"] == lines[:2]
    assert '+  "gradient_accumulation_steps": 4,' in lines
    clean = here("check", "--diff", "right.json")
    assert (0, "") == (clean.code, clean.stdout)


@pytest.mark.parametrize(
    ("files", "words", "expected"),
    [
        (
            {
                "a.yaml": ACCELERATE.replace("{stage}", "2"),
                "fsdp.yaml": "distributed_type: FSDP\n",
                "job.yml": "kind: Job\n",
            },
            (".",),
            ["a.yaml", "right.json", "wrong.json"],
        ),
        (
            {"a.yaml": ACCELERATE.replace("{stage}", "2"), "fsdp.yaml": "distributed_type: FSDP\n"},
            ("*.yaml",),
            ["a.yaml"],
        ),
        (
            {"ds_config_broken.json": "{", "zero3.json": "{}"},
            (".",),
            ["ds_config_broken.json", "right.json", "wrong.json", "zero3.json"],
        ),
        (
            {
                f"{place}/ds_config.json": RIGHT
                for place in ("runs/7b", ".git", "node_modules/x", "venv/lib/site-packages/y")
            },
            (".",),
            ["right.json", "wrong.json", "runs/7b/ds_config.json"],
        ),
        (
            {"runs/wrong.json": WRONG, "odd[1].json": RIGHT},
            ("**/wrong.json", "wrong.json", "odd[1].json"),
            ["runs/wrong.json", "wrong.json", "odd[1].json"],
        ),
    ],
    ids=[
        "Accelerate's YAML",
        "no other YAML",
        "what looks like a config",
        "neither hidden nor of a package",
        "a pattern",
    ],
)
def test_a_folder_and_a_pattern_mean_their_configs_once(
    here: Run, configs: Path, files: dict[str, str], words: tuple[str, ...], expected: list[str]
) -> None:
    write(configs, files)
    content = json.loads(here("check", "--json", *words).stdout)
    assert expected == [file["path"] for file in content["files"]]


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


@pytest.mark.parametrize(
    ("words", "problem", "hint"),
    [
        ((), "no config to check", "zerowiz check ds_config.json"),
        (
            ("--schema", "right.json"),
            "`--schema` takes no file argument",
            "zerowiz check right.json",
        ),
        (("--json", "--sarif", "right.json"), "`--json`, `--sarif`, ", "keep one"),
        (("--json", "--diff", "right.json"), "and `--diff` all say", "keep one"),
        (("--select", "ZX1", "right.json"), "no code begins with `ZX1`", "--explain all"),
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
    ("*o_config.yaml", "no file that `*o_config.yaml` matches has a DeepSpeed config", ""),
    ("no_config.yaml", "no DeepSpeed config in `no_config.yaml`", "`deepspeed_config`"),
    ("names.yaml", "`gone.json` does not exist", "`names.yaml` names it"),
    ("train.py", "`train.py` is a script", "`zerowiz check --script train.py ds_config.json`"),
    ("run.sh", "`run.sh` is a script, not a DeepSpeed config", "`zerowiz check .`"),
    ("empty.yml", "`empty.yml`: its `deepspeed` is empty", ""),
    ("swift.yaml", "`swift.yaml` names ms-swift's own config `zero3_offload`", ""),
]


@pytest.fixture
def without_configs(configs: Path) -> Path:
    """The same folder, with paths that mean no config."""
    (configs / "empty").mkdir()
    (configs / "train.py").write_text("import torch\n")
    (configs / "run.sh").write_text("deepspeed train.py\n")
    (configs / "no_config.yaml").write_text("a: 1\n")
    (configs / "names.yaml").write_text("deepspeed: gone.json\n")
    (configs / "empty.yml").write_text("base_model: x\noptimizer: adamw_torch\ndeepspeed:\n")
    (configs / "swift.yaml").write_text("model: x\ndeepspeed: zero3_offload\n")
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
    assert "config `silent` cannot be read: no program has it open" in silent.problem


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


PATH = "zero_optimization.contiguous_gradiens"
# What is written, what of it is checked, and the errors that are found.
IN_FILES: dict[str, tuple[dict[str, str], tuple[str, ...], list[tuple[object, ...]]]] = {
    "of accelerate": (
        {"good.yaml": ACCELERATE.format(stage=3), "bad.yaml": ACCELERATE.format(stage=7)},
        ("good.yaml", "bad.yaml"),
        [("bad.yaml", "ZW204", "deepspeed_config.zero_stage", 5, 3)],
    ),
    "broken": (
        {"broken.yaml": "a: 1\n b: 2\n"},
        ("broken.yaml",),
        [("broken.yaml", "ZW001", "", 2, 3)],
    ),
    "inside": ({"a.yml": INLINE}, ("a.yml",), [("a.yml", "ZW101", PATH, 5, 5)]),
    "named": ({"run.yaml": "deepspeed: wrong.json\n"}, ("run.yaml",), [*ERRORS]),
    "named for accelerate": (
        {"run.yaml": "deepspeed_config: {deepspeed_config_file: wrong.json}\n"},
        ("run.yaml",),
        [*ERRORS],
    ),
    **{
        f"named in {yaml}": (
            {f"project/{yaml}": "deepspeed: ds/seven.json\n", "project/ds/seven.json": WRONG},
            (f"project/{yaml}",),
            [("project/ds/seven.json", *each[1:]) for each in ERRORS],
        )
        for yaml in ("wrong.yaml", "runs/a.yaml", "runs/deep/a.yaml")
    },
    "a file of the name that ms-swift's own has": (
        {"swift.yaml": "model: x\ndeepspeed: zero3_offload\n", "zero3_offload": WRONG},
        ("swift.yaml",),
        [("zero3_offload", *each[1:]) for each in ERRORS],
    ),
}


@pytest.mark.parametrize("name", IN_FILES)
def test_a_config_is_checked_where_it_stands(here: Run, configs: Path, name: str) -> None:
    files, words, errors = IN_FILES[name]
    write(configs, files)
    result = here("check", "--json", *words)
    assert (6, errors) == (result.code, found(result.stdout))


@pytest.mark.parametrize(
    "text", [INLINE, f"{HEAD}{NAMING}"], ids=["inside", "beside a config that is named"]
)
def test_fix_leaves_yaml_as_it_is(here: Run, configs: Path, text: str) -> None:
    write(configs, {"my z.json": '{"zero_optimization": {"stage": 2}}', "a.yml": text})
    result = here("check", "--fix", "a.yml")
    assert 6 == result.code
    assert "note: `--fix` changes JSON only: fix a.yml by hand" in result.stderr
    assert text == (configs / "a.yml").read_text()
    assert "" == here("check", "--fix", "--quiet", "a.yml").stderr


def test_yaml_without_pyyaml_says_what_is_needed(
    here: Run, configs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (configs / "axolotl.yml").write_text(INLINE)
    monkeypatch.setitem(sys.modules, "yaml", None)
    result = here("check", "axolotl.yml")
    assert 1 == result.code
    assert "PyYAML" in result.problem
    assert "pip install pyyaml" in result.hints


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
    for version, codes in (("0.16.9", []), ("0.19.8", ["ZW104"])):
        result = here("check", "--json", "--deepspeed-version", version, "old.json")
        assert codes == [each[1] for each in found(result.stdout)]


@pytest.mark.usefixtures("configs")
def test_a_version_that_is_none_is_refused(here: Run) -> None:
    result = here("check", "--deepspeed-version", "new", "right.json")
    assert (2, "") == (result.code, result.stdout)
    assert "`--deepspeed-version new` is not a version" in result.problem


@pytest.mark.usefixtures("configs")
def test_a_version_that_is_not_known_says_which_is_taken(here: Run) -> None:
    result = here("check", "--deepspeed-version", "0.17.99", "right.json")
    assert (
        "note: zerowiz has no list of the keys of DeepSpeed 0.17.99, and uses that of 0.17.6\n"
    ) == result.stderr


def test_the_schema_is_one_json_object(here: Run) -> None:
    assert (
        "urn:zerowiz:ds_config:0.16.9"
        == here("check", "--schema", "--deepspeed-version", "0.16.9").content["$id"]
    )


SNIPPETS = (
    b'{"zero_optimization": {"stage": ', b"3", b"}}", b'"auto"', b",", b"\n", b"#", b"'''", b"[",
    b'"train_batch_size": ', b"1e999", b"\x00", b"\xef\xbb\xbf", b"\xff", b"\\ud800", b"null",
    b"deepspeed: ", b"0x" + 9000 * b"f", b" " * 250_001, b"&a ", b"*a", b"<<: ", b"!!python/object:os.system ", b"- ", b"{", b"}",
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
        # DeepSpeed would reject it too, and it is found once.
        ("  zero_stage: two\n", (), "deepspeed_config.zero_stage", 3, ("not `two`", "")),
        (
            "  zero_stagee: 3\n  bf16: 1\n",
            (),
            "deepspeed_config.zero_stagee",
            3,
            ("", "rename it to `zero_stage`"),
        ),
        ("  zero_stage: 2\n  bf16: 1\n", (), "deepspeed_config.bf16", 4, ("", "")),
        (
            "  zero_stage: 3\n  offload_param_device: nvme\n  offload_param_nvme_path: nvme\n",
            (),
            "deepspeed_config.offload_param_nvme_path",
            5,
            (
                "does not pass `offload_param_nvme_path` to the ranks",
                "set `ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_NVME_PATH`",
            ),
        ),
        ("  zero_stage: 2\nnum_machine: 1\n", (), "num_machine", 4, ("", "to `num_machines`")),
        ("  zero_stage: 2\nfoo: 1\n", (), "foo", 4, ("", "remove it")),
        (
            "  zero_stage: 2\nmixed_precision: no\n",
            (),
            "mixed_precision",
            4,
            ("not `false`", "write `bf16`, `fp16`, `fp8` or `'no'`"),
        ),
        (
            "  zero_stage: 2\nmixed_precision: bf16\n",
            ("--machine", "2xV100"),
            "mixed_precision",
            4,
            ("7.0, which does not support bf16", "use fp16 on GPUs from"),
        ),
        (
            "  zero_stage: 2\nmixed_precision: fp16\n",
            ("--script", "train.py", "--integration", "hf"),
            "mixed_precision",
            4,
            ("`mixed_precision` is fp16 here and bf16 in", "set both to the same value"),
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
    assert says[1] in (found["fix"] or "")


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
