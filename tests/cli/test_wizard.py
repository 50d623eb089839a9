"""The wizard, at a real pseudo-terminal of 80 columns."""

import json
import re
import shlex
import sys
from pathlib import Path

import pytest
from cli.harness import (
    COLUMNS,
    CTRL_C,
    CTRL_D,
    DOWN,
    ENTER,
    ESCAPE,
    HF_IN_CODE,
    HF_PARSER,
    UP,
    Open,
    Run,
    answers_of,
)

CPU = ("--accelerator", "cpu", "--gpus-per-node", "2")
TINY = (*CPU, "--model", "10m", "--seq-len", "64")

# `Launch now?` offers the launch first, then the files alone.
WRITE = DOWN + ENTER
GOAL, LENGTH = "What is your goal?", "How many tokens per sequence?"

# A raw script of which little can be seen, so that much is asked.
SILENT = """\
import argparse

import deepspeed
from loaders import build_loader, build_model

parser = deepspeed.add_config_arguments(argparse.ArgumentParser())
args = parser.parse_args()
engine, *_ = deepspeed.initialize(args=args, model=build_model())
"""
# It recomputes no activations, and no option makes it.
RAW = """\
import deepspeed
from transformers import AutoModelForCausalLM

model = AutoModelForCausalLM.from_pretrained("x")
engine, *_ = deepspeed.initialize(model=model, config="ds_config.json")
"""


@pytest.fixture
def script(folder: Path) -> Path:
    path = folder / "train.py"
    path.write_text(HF_PARSER)
    return path


def files(script: Path) -> set[str]:
    return {path.name for path in script.parent.iterdir()}


def test_enter_alone_leads_from_a_script_to_a_config(terminal: Open, script: Path) -> None:
    person = terminal("init", *CPU)
    person.reply("Which model?", "10m" + ENTER)
    person.reply("How many tokens per sequence?", ENTER)
    person.reply("Launch now?", WRITE)
    assert 0 == person.end()
    # How much of this host is free decides which.
    assert re.search(r"Does a replica fit on one CPU rank\?  (yes|uncertain)", person.text)
    assert "Chosen   DDP" in person.text
    assert "wrote ds_config_zero0.json\nwrote zerowiz.toml\nnext: zerowiz launch\n" in person.text
    written = {"ds_config_zero0.json", "ds_config_zero0.plan.json"}
    assert {"train.py", *written, "zerowiz.toml", ".zerowiz"} == files(script)
    record = answers_of(script.parent)
    said = {"accelerator": "cpu", "gpus-per-node": 2, "model": "10m", "seq-len": 2048}
    assert {"script": "train.py", **said} == record


@pytest.mark.usefixtures("script")
def test_only_what_is_open_is_asked(terminal: Open) -> None:
    person = terminal("init", *TINY)
    person.reply("Launch now?", WRITE)
    assert 0 == person.end()
    assert 1 == len(re.findall(r"^\? ", person.text, re.MULTILINE))


def test_what_a_script_does_not_show_is_asked_and_choices_are_taken_by_arrows(
    terminal: Open, script: Path
) -> None:
    script.write_text(SILENT)
    person = terminal("init", *CPU)
    person.reply("Which model?", "10m" + ENTER)
    person.reply("How many sequences per rank at a time?", "4" + ENTER)
    person.reply("How many tokens per sequence?", "64" + ENTER)
    person.reply("Does the job use gradient checkpointing?", DOWN + ENTER)
    person.reply("Launch now?", WRITE)
    assert 0 == person.end()
    assert "Step     4 x 64 tokens per CPU rank" in person.text
    assert "with gradient checkpointing" in " ".join(person.text.split())


def test_the_last_line_gives_the_same_config(terminal: Open, here: Run, script: Path) -> None:
    person = terminal("init", *CPU)
    person.reply("Which model?", "10m" + ENTER)
    person.reply("How many tokens per sequence?", "96" + ENTER)
    person.reply("Launch now?", WRITE)
    assert 0 == person.end()
    line = person.text.partition("the same in a job script: ")[2].replace("\\\n", " ")
    tool, command, *rest = shlex.split(line)
    assert ("zerowiz", "launch", "--yes") == (tool, command, rest[0])
    again = here("launch", "--dry-run", *rest).stdout
    config = "\n".join(again.splitlines()[2:]).partition("\n}\n")[0] + "\n}\n"
    assert (script.parent / "ds_config_zero0.json").read_text() == config


@pytest.mark.usefixtures("script")
def test_a_launch_after_the_wizard_asks_nothing(terminal: Open) -> None:
    person = terminal("init", *TINY)
    person.reply("Launch now?", WRITE)
    assert 0 == person.end()
    after = terminal("launch", "--dry-run")
    assert 0 == after.end()
    assert "--deepspeed ds_config_zero0.json" in " ".join(after.text.replace("\\\n", "").split())
    assert "?" not in {line[:1] for line in after.lines}


@pytest.mark.parametrize("keys", [CTRL_C, CTRL_D], ids=["Ctrl-C", "EOF"])
@pytest.mark.parametrize("answered", [0, 1, 2, 3])
def test_ctrl_c_ends_with_130_and_nothing_written(
    terminal: Open, script: Path, answered: int, keys: str
) -> None:
    person = terminal("init", "--machine", "4xA100-40GB")
    questions = ("Which model?", GOAL, LENGTH, "Write the files?")
    for question, answer in zip(questions[:answered], ("10m", "", ""), strict=False):
        person.reply(question, answer + ENTER)
    person.reply(questions[answered], keys)
    assert 130 == person.end()
    assert "interrupted; nothing was written" in person.text
    assert "Traceback" not in person.text
    assert {"train.py"} == files(script)


def test_a_wrong_answer_is_asked_again(terminal: Open, script: Path) -> None:
    person = terminal("init", *CPU)
    person.reply("Which model?", "no-such-model-7x" + ENTER)
    person.reply("`no-such-model-7x`", "10m" + ENTER)
    person.reply("How many tokens per sequence?", "many" + ENTER)
    person.reply("a whole number from 1 on", "64" + ENTER)
    person.reply("stop here", "stop" + ENTER)
    assert 0 == person.end()
    assert "nothing was written" in person.text
    assert {"train.py"} == files(script)


@pytest.mark.parametrize(
    ("words", "question"),
    [
        (CPU, "Which training script?"),
        ((*CPU, "train.py"), "Which model?"),
        (("train.py",), "Plan for which machine?"),
    ],
)
def test_a_name_that_no_file_can_have_is_asked_again(
    terminal: Open, script: Path, words: tuple[str, ...], question: str
) -> None:
    script.with_name("other.py").write_text(HF_PARSER)
    person = terminal("init", *words)
    person.reply(question, "x" * 300)
    person.settle()
    person.child.send(ENTER)
    person.wait_for("ile name too long")
    person.settle()
    person.child.send(CTRL_C)
    assert 130 == person.end()
    assert "Traceback" not in person.text


@pytest.mark.parametrize("quiet", [(), ("--quiet",)])
@pytest.mark.parametrize(
    ("typed", "code"), [(("--model", "./gone", "train.py"), 2), (("gone.py",), 5)]
)
def test_what_was_typed_and_cannot_be_used_is_refused_before_any_question(
    terminal: Open, script: Path, typed: tuple[str, ...], code: int, quiet: tuple[str, ...]
) -> None:
    (script.parent / "gone").mkdir()
    (script.parent / "gone" / "config.json").write_text("{")
    person = terminal("init", *CPU, *quiet, *typed)
    assert code == person.end(20)
    assert "gone" in person.text
    assert "?" not in person.text


def write_model(script: Path, name: str, **config: object) -> None:
    (script.parent / name).mkdir()
    (script.parent / name / "config.json").write_text(json.dumps(config))


SMALL = {"n_layer": 2, "hidden_size": 256, "n_head": 4, "vocab_size": 1024}


def test_an_unknown_family_is_taken_and_guessed_and_nonsense_is_not(
    terminal: Open, script: Path
) -> None:
    write_model(script, "odd", model_type="unheard_of", **SMALL)
    write_model(script, "nonsense", model_type="unheard_of")
    person = terminal("init", *CPU, "--seq-len", "64", "--no-trace")
    person.reply("Which model?", "nonsense" + ENTER)
    person.reply("`hidden_size`", "odd" + ENTER)
    person.reply("Launch now?", WRITE)
    assert 0 == person.end()
    assert "parameters (guess)" in person.text
    assert 1 == " ".join(person.text.split()).count("and estimates it as")


@pytest.mark.slow
@pytest.mark.parametrize("config", [{"model_type": "bloom", **SMALL}, {"model_type": "clip"}])
def test_what_can_be_traced_is_taken_and_traced_once(
    terminal: Open, script: Path, config: dict[str, object]
) -> None:
    pytest.importorskip("transformers")
    write_model(script, "odd", **config)
    cache = script.parent.parent / "cache"
    person = terminal("init", *CPU, "--seq-len", "64", XDG_CACHE_HOME=str(cache))
    person.reply("Which model?", "odd" + ENTER)
    person.reply("Launch now?", WRITE)
    assert 0 == person.end()
    assert 1 == " ".join(person.text.split()).count("on the meta device")
    assert "parameters (trace)" in person.text
    assert 1 == len(list((cache / "zerowiz" / "trace").iterdir()))


@pytest.mark.slow
def test_nonsense_is_refused_where_models_are_traced(terminal: Open, script: Path) -> None:
    pytest.importorskip("transformers")
    write_model(script, "nonsense", model_type="unheard_of")
    person = terminal("init", *CPU, "--seq-len", "64")
    person.reply("Which model?", "nonsense" + ENTER)
    person.reply("`hidden_size`", "10m" + ENTER)
    person.reply("Launch now?", WRITE)
    assert 0 == person.end()


@pytest.mark.usefixtures("script")
def test_without_a_gpu_the_wizard_asks_for_the_machine(terminal: Open) -> None:
    person = terminal("init", "--model", "10m", "--seq-len", "512")
    # Ranks on this CPU can train, and need no other machine.
    person.wait_for("> cpu")
    person.reply("Plan for which machine?", "8xH900" + ENTER)
    person.reply("similar names", "\x15" + "8xH100-80GB-SXM" + ENTER)
    person.reply(GOAL, ENTER)
    person.wait_for("The job is for 8 x NVIDIA H100 80GB HBM3")
    person.reply("Write the files?", ENTER)
    assert 0 == person.end()
    assert person.text.endswith("Run it on 8 x NVIDIA H100 80GB HBM3, in a copy of this folder")


def test_a_length_that_the_model_has_no_positions_for_is_asked_again(
    terminal: Open, script: Path
) -> None:
    person = terminal("init", *CPU, "--model", "openai-community/gpt2")
    person.reply("(1024)", "2048" + ENTER)
    person.wait_for("has only 1024 learned positions")
    person.reply("(1024)", ENTER)
    person.reply("Launch now?", WRITE)
    assert 0 == person.end()
    assert 1024 == answers_of(script.parent)["seq-len"]


def test_enter_alone_leads_to_a_config_where_the_cpu_is_too_small(
    terminal: Open, script: Path
) -> None:
    person = terminal("init", "--model", "20b", "--seq-len", "512")
    person.wait_for("> 8xH100-80GB-SXM")
    person.reply("-> ZeRO-", ENTER)
    person.reply(GOAL, ENTER)
    person.reply("> yes, write the files", ENTER)
    assert 0 == person.end()
    assert "zerowiz.toml" in files(script)


def test_the_one_script_that_trains_is_taken(terminal: Open, script: Path) -> None:
    script.rename(script.with_name("finetune.py"))
    (script.parent / "plots.py").write_text("print(1)\n")
    person = terminal("init", *TINY)
    person.reply("Launch now?", WRITE)
    assert 0 == person.end()
    assert "finetune.py" in person.text.partition("the same in a job script")[2]


def test_scripts_and_models_nearby_are_menus_and_others_can_be_typed(
    terminal: Open, script: Path
) -> None:
    (script.parent / "finetune.py").write_text(HF_IN_CODE)
    write_model(script, "tiny", model_type="bloom", **SMALL)
    person = terminal("init", *CPU, "--seq-len", "64")
    person.wait_for("finetune.py")
    # train.py is where the menu starts; the other stands before it.
    person.reply("Which training script?", UP + ENTER)
    person.wait_for("folder here")
    person.reply("Which model?", "10m" + ENTER)
    person.reply("Launch now?", WRITE)
    assert 0 == person.end()
    line = person.text.partition("the same in a job script")[2]
    assert "--model 10m" in line
    assert "finetune.py" in line


def test_a_changed_file_is_kept_unless_the_person_says_otherwise(
    terminal: Open, script: Path
) -> None:
    config = script.parent / "ds_config_zero0.json"
    config.write_text("{}\n")
    person = terminal("init", *TINY)
    person.reply("Launch now?", WRITE)
    person.reply("not written by zerowiz. Overwrite it?", ESCAPE)
    person.reply("> no, only write the files", ENTER)
    person.reply("> no, use another folder", ENTER)
    person.reply("Which folder? (zerowiz)", ENTER)
    assert 0 == person.end()
    assert "{}\n" == config.read_text()
    assert {"train.py", "ds_config_zero0.json", "zerowiz"} == files(script)
    assert "next: zerowiz launch --output-dir zerowiz\n" in person.text
    person = terminal("init", *TINY)
    person.reply("Launch now?", WRITE)
    person.reply("Overwrite it?", "yes" + ENTER)
    assert 0 == person.end()
    assert (script.parent / "zerowiz" / config.name).read_bytes() == config.read_bytes()


@pytest.mark.parametrize(
    ("words", "env"), [(("--yes",), {}), ((), {"CI": "1"}), ((), {"ZEROWIZ_NO_INPUT": "1"})]
)
@pytest.mark.usefixtures("script")
def test_who_wants_no_questions_gets_none(
    terminal: Open, words: tuple[str, ...], env: dict[str, str]
) -> None:
    full = terminal("init", *CPU, *words, "--model", "10m", **env)
    assert 0 == full.end()
    bare = terminal("init", "--isolated", *CPU, *words, **env)
    assert 3 == bare.end()
    assert "? " not in {line[:2] for line in (*full.lines, *bare.lines)}


def test_declining_a_launch_writes_nothing(terminal: Open, script: Path) -> None:
    person = terminal("launch", *TINY, "train.py")
    person.reply("Launch?", "n" + ENTER)
    assert 0 == person.end()
    assert "not launched; nothing was written" in person.text
    assert {"train.py"} == files(script)


REMEDY = "What do you want to change?"
TOO_BIG = ("init", "--machine", "4xA100-40GB", "--model", "7b", "--seq-len", "2048")


def test_where_nothing_fits_a_remedy_can_be_chosen(terminal: Open, script: Path) -> None:
    script.write_text(HF_IN_CODE)
    person = terminal(*TOO_BIG)
    person.reply(REMEDY, "4xB200" + ENTER)
    person.reply("Write the files?", ENTER)
    assert 0 == person.end()
    written = json.loads((script.parent / "ds_config_zero2.plan.json").read_text())
    assert "NVIDIA B200" == written["machine"]["gpus"][0]["name"]


def test_enter_alone_states_no_hardware_that_nobody_checked(terminal: Open, script: Path) -> None:
    script.write_text(RAW)
    words = ("--machine", "4xA100-40GB", "--model", "13b", "--seq-len", "2048")
    person = terminal("init", *words, "--micro-batch", "1", "--precision", "bf16")
    person.wait_for("stop here")
    menu = person.text.rpartition(REMEDY)[2]
    [preselected] = re.findall(r"^ +> (\S+)", menu, re.MULTILINE)
    assert preselected not in {"--machine", "--host-memory", "--interconnect"}
    assert re.search(r"^ +--host-memory 310GiB", menu, re.MULTILINE)
    assert "only if each node has that much free" in " ".join(menu.split())


def test_stopping_at_the_remedies_is_no_error_and_writes_nothing(
    terminal: Open, script: Path
) -> None:
    script.write_text(HF_IN_CODE)
    for command in ("init", "launch"):
        person = terminal(command, *TOO_BIG[1:], *(("--dry-run",) if command == "launch" else ()))
        person.reply(REMEDY, "stop here" + ENTER)
        assert 0 == person.end()
        assert "nothing was written" in person.text.rpartition("stop here")[2]
        assert {"train.py"} == files(script)


def test_what_only_the_script_can_change_is_shown_and_is_no_choice(
    terminal: Open, script: Path
) -> None:
    script.write_text(HF_IN_CODE)
    person = terminal(*TOO_BIG)
    person.wait_for("stop here")
    before, _, menu = person.text.partition(REMEDY)
    assert "set `gradient_checkpointing=True` in train.py" in " ".join(before.split())
    assert "--machine" in menu
    assert "--gradient-checkpointing" not in menu
    person.reply(REMEDY, CTRL_C)
    assert 130 == person.end()


@pytest.mark.parametrize(
    "words",
    [
        ("plan", "--machine", "4xA100-40GB", "--model", "7b"),
        ("plan", "--machine", "1xRTX4090", "--model", "70b", "--micro-batch", "64"),
        ("plan", "--machine", "4xA100-40GB", "--model", "7b", "--accounting", "textbook"),
        ("plan", "--machine", "2xRTX4090", "--model", "3b", "--gradient-checkpointing"),
        ("machine", "--machine", "4xA100-40GB"),
        ("launch", "--dry-run", *TINY, "train.py"),
        ("launch", "--dry-run", *TINY, "--bogus", "train.py"),
    ],
)
@pytest.mark.usefixtures("script")
def test_no_line_is_cut_inside_a_word_at_80_columns(
    terminal: Open,
    process: Run,
    monkeypatch: pytest.MonkeyPatch,
    words: tuple[str, ...],
) -> None:
    # No folder of this host, however long, stands in what is shown.
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:/usr/bin:/bin")
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", "ext")
    person = terminal(*words)
    person.end()
    piped = process(*words)
    whole = set((piped.stdout + piped.stderr).split())
    # A bar is as long as the terminal lets it be.
    lines = [line for line in person.lines if "│" not in line]
    shown = [word for line in lines for word in line.split() if word != "\\"]
    # The port, temporary names and what is free just now differ from run to run.
    broken = [word for word in shown if word not in whole and not re.search(r"\d", word)]
    assert [] == broken
    assert all(len(line) <= COLUMNS for line in person.lines)
    assert "…" not in person.text


@pytest.mark.usefixtures("script")
def test_a_folded_command_can_be_copied(terminal: Open) -> None:
    person = terminal("launch", "--dry-run", "--quiet", *TINY, "train.py", "a b", "$x")
    assert 0 == person.end()
    command = person.text.rpartition("\n}\n")[2]
    words = shlex.split(command.replace("\\\n", " "))
    assert ["train.py", "a b", "$x", "--deepspeed", "ds_config_zero0.json"] == words[-5:]
