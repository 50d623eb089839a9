"""Beside a config lies why it is so; and nobody's own lines in either are lost unseen."""

import hashlib
import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from cli.harness import (
    ENTER,
    ESCAPE,
    HF_IN_CODE,
    Open,
    Result,
    Run,
    clean_environ,
    make_interpreter,
)
from paths import ROOT
from recorded import library

from zerowiz import __version__

Json = dict[str, Any]
# A spec is the same at every look; the machine that the tests run on is not.
STEADY = ("--machine", "4xH100-80GB-SXM", "--model", "1b", "--stage", "2")
BF16 = ("--precision", "bf16")
# What other programs leave free of this host decides nothing.
CPU = ("--machine", "cpu", "--model", "10m", "--seq-len", "64", "--memory-budget", "8GiB")
CONFIG, PLAN = "ds_config_zero2.json", "ds_config_zero2.plan.json"

# What stands where `deepspeed` would: it ends with a status of its own.
SPY = "#!/bin/sh\nexit 7\n"


@pytest.fixture
def spied(folder: Path, tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start with an interpreter beside which lies the spy."""
    started: list[subprocess.Popen[str]] = []
    python, needed = make_interpreter(tmp_path / "bin", SPY)

    def start(*words: str) -> subprocess.Popen[str]:
        job = subprocess.Popen(
            [python, "-m", "zerowiz", *words],
            cwd=folder,
            env=clean_environ(**needed),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(job)
        return job

    yield start
    for job in started:
        job.kill()
        job.communicate()


def end(job: subprocess.Popen[str]) -> Result:
    stdout, stderr = job.communicate(timeout=60)
    return Result(stdout=stdout, stderr=stderr, code=job.returncode)


def written(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.glob("ds_config*")}


def plan_of(folder: Path, name: str = PLAN) -> Json:
    content: Json = json.loads((folder / name).read_text())
    return content


def steady(value: Any) -> Any:
    """A plan without what the memory that happens to be free decides, and the hash of it all."""
    live = re.compile(r"(free|available|budget|headroom|have)_bytes|plan_sha256")
    match value:
        case dict():
            return {key: steady(each) for key, each in value.items() if not live.fullmatch(key)}
        case list():
            return [steady(each) for each in value]
        case _:
            return value


def diff_of(stderr: str) -> list[str]:
    """What stands between the error and its hints, once the three are seen to stand so."""
    shape = r"(?s:.*?)(?:^|(?<=\n))error: \S[^\n]*\n(?P<diff>(?s:.*?))\n(?:hint: \S[^\n]*\n)+"
    match = re.fullmatch(shape, stderr)
    assert match is not None, stderr
    return match["diff"].splitlines()


def test_the_plan_says_why_on_what_for_what_and_with_what(here: Run, script: Path) -> None:
    result = here("init", "--yes", *STEADY).good
    assert f"wrote {PLAN}\nwrote {CONFIG}\n" in result.stdout
    content = plan_of(script.parent)
    assert (1, __version__) == (content["schema_version"], content["zerowiz_version"])
    asked = ["you asked for it, and it fits", "the flowchart would choose DDP"]
    assert ("zero2", asked) == (content["chosen"], content["reasons"])
    assert 4 == len(content["machine"]["gpus"])
    assert "1b" == content["model"]["name"]
    assert 2048 == content["workload"]["sequence_tokens"]
    assert {"fits"} == {s["verdict"] for s in content["strategies"] if s["name"] == "zero2"}
    text = (script.parent / CONFIG).read_bytes()
    sha256 = hashlib.sha256(text).hexdigest()
    assert {"name": CONFIG, "sha256": sha256, "written": json.loads(text)} == content["config"]
    assert "zero_optimization" in content["config"]["written"]


def test_the_plan_file_is_the_object_of_plan_json(here: Run, script: Path) -> None:
    assert 0 == here("init", "--yes", *STEADY).code
    content = plan_of(script.parent)
    shown = json.loads(here("init", "--dry-run", "--json", *STEADY).stdout)
    assert shown == {key: content[key] for key in shown}
    assert {"config", "plan_sha256", "reproduce", "versions"} == set(content) - set(shown)


def test_versions_are_those_installed_and_none_where_there_is_none(
    process: Run, script: Path, tmp_path: Path
) -> None:
    told = ("deepspeed", "torch", "transformers", "accelerate")
    metadata = tmp_path / "libraries" / "torch-9.8.7+cu99.dist-info" / "METADATA"
    metadata.parent.mkdir(parents=True)
    metadata.write_text("Metadata-Version: 2.1\nName: torch\nVersion: 9.8.7+cu99\n")
    assert 0 == process("init", "--yes", *STEADY, PYTHONPATH=f"{ROOT}:{metadata.parents[1]}").code
    versions = plan_of(script.parent)["versions"]
    assert [*told] == [name for name in versions if name not in {"zerowiz", "python"}]
    assert (__version__, ".".join(map(str, sys.version_info[:3])), "9.8.7+cu99") == (
        versions["zerowiz"],
        versions["python"],
        versions["torch"],
    )
    for name in ("deepspeed", "transformers", "accelerate"):
        try:
            expected = version(name)
        except ModuleNotFoundError:
            expected = None
        assert expected == versions[name]


def test_nothing_heavy_is_loaded_for_the_versions(script: Path) -> None:
    code = """
import sys
from zerowiz.cli.commands import main
try:
    main()
except SystemExit:
    pass
sys.stderr.write("\\n" + " ".join({"torch", "transformers", "deepspeed"} & set(sys.modules)))
"""
    done = subprocess.run(
        [sys.executable, "-c", code, "init", "--yes", *STEADY],
        cwd=script.parent,
        env=clean_environ(),
        capture_output=True,
        text=True,
        check=True,
    )
    assert "" == done.stderr.splitlines()[-1]
    assert (script.parent / PLAN).exists()


@pytest.mark.parametrize(
    "words",
    [
        STEADY,
        (*STEADY, "--output-dir", "runs/a b", "--no-trace", "--offload", "none"),
        ("--machine", "1xRTX4090", "--model", "7b", "--stage", "3", "--force"),
    ],
    ids=["plain", "folder", "forced"],
)
def test_the_command_in_the_plan_makes_the_same_bytes_again(
    here: Run, script: Path, tmp_path: Path, words: tuple[str, ...]
) -> None:
    assert 0 == here("init", "--yes", *words).code
    work = script.parent
    [path] = work.rglob("*.plan.json")
    config = Path(str(path).replace(".plan.json", ".json"))
    reproduce = json.loads(path.read_text())["reproduce"]
    tool, *again = shlex.split(reproduce["shell"])
    assert ("zerowiz", [tool, *again]) == (tool, reproduce["argv"])
    shown = here(again[0], "--dry-run", *again[1:]).good
    names = [str(each.relative_to(work)) for each in (path, config)]
    expected = f"# writes {names[0]}\n# writes {names[1]}\n{config.read_text()}"
    assert shown.stdout.startswith(expected)
    before = {each: each.read_bytes() for each in (path, config)}
    for moved in (True, False):
        for each in before if moved else ():
            each.rename(tmp_path / each.name)
        done = here(*again)
        assert 0 == done.code, done.stderr
        assert before == {each: each.read_bytes() for each in (path, config)}


def test_the_command_of_a_launch_launches_the_same_again(
    spied: Callable[..., subprocess.Popen[str]], process: Run, script: Path
) -> None:
    words = (*CPU, "--stage", "2", "train.py", "--run_name", "a b", "--lr", "$x")
    assert 7 == end(spied("launch", "--quiet", *words)).code
    first, plan = written(script.parent), plan_of(script.parent)
    argv = plan["reproduce"]["argv"]
    assert ["zerowiz", "launch", "--yes"] == argv[:3]
    assert list(words[-5:]) == argv[-5:]
    shown = process("launch", "--dry-run", *argv[2:])
    *_, config = shown.stdout.partition(f"# writes {CONFIG}\n")
    assert config.startswith(first[CONFIG].decode())
    assert 7 == end(spied(*argv[1:])).code
    assert first[CONFIG] == written(script.parent)[CONFIG]
    # The memory of this host is read anew, and its plan is rewritten without a word.
    assert steady(plan) == steady(plan_of(script.parent))


def test_a_plan_of_other_free_memory_replaces_the_old_one_silently(here: Run, script: Path) -> None:
    seen = script.parent / "node.json"
    words = ("--machine", "node.json", "--model", "1b", "--stage", "2")
    spec = ("--machine", "4xH100-80GB-SXM")
    assert 0 == here("machine", *spec, "--save", "node.json").code
    assert 0 == here("init", "--yes", *words).code
    first = written(script.parent)
    content = json.loads(seen.read_text())
    content["machine"]["gpus"][0]["free_bytes"] -= 2**30
    seen.write_text(json.dumps(content))
    assert 0 == here("init", "--yes", *words).code
    after = written(script.parent)
    assert first[CONFIG] == after[CONFIG]
    assert first[PLAN] != after[PLAN]
    assert steady(json.loads(first[PLAN])) == steady(json.loads(after[PLAN]))


def test_init_and_launch_write_the_same_plan(
    spied: Callable[..., subprocess.Popen[str]], process: Run, script: Path
) -> None:
    assert 0 == process("init", "--yes", *CPU).code
    first = plan_of(script.parent, "ds_config_zero0.plan.json")
    assert 7 == end(spied("launch")).code
    again = plan_of(script.parent, "ds_config_zero0.plan.json")
    # A launch looks for the accelerator by itself; the record says `cpu`, so it is said again.
    assert steady(first) == steady(again)


def test_a_plan_file_is_a_machine_file(here: Run, script: Path) -> None:
    assert 0 == here("init", "--yes", *STEADY).code
    content = plan_of(script.parent)
    again = json.loads(
        here("plan", "--json", "--machine", PLAN, "--model", "1b", "--stage", "2").stdout
    )
    assert len(content["machine"]["gpus"]) == len(again["machine"]["gpus"])
    assert [s["gpu"]["budget_bytes"] for s in content["strategies"]] == [
        s["gpu"]["budget_bytes"] for s in again["strategies"]
    ]


def test_a_persons_own_config_gets_no_plan(here: Run, script: Path) -> None:
    own = script.parent / "ds_config_zero2.json"
    own.write_text(
        '{"zero_optimization": {"stage": 2}, "bf16": {"enabled": "auto"},'
        ' "train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto"}'
    )
    before = own.read_bytes()
    words = ("--yes", *STEADY[:-2], "--config", own.name)
    assert 0 == here("init", *words).code
    shown = here("launch", "--dry-run", *words, "train.py")
    assert "# writes" not in shown.stdout
    assert {CONFIG: before} == written(script.parent)


def test_nobodys_gpus_processes_and_passwords_are_told(
    here: Run, script: Path, driver: Callable[[object], None]
) -> None:
    driver(library("h200-x4-busy"))
    script.write_text(HF_IN_CODE)
    seen = json.loads(here("machine", "--json").stdout)["machine"]["gpus"]
    assert any(gpu["processes"] for gpu in seen)
    assert 0 == here("init", "--yes", "--model", "10m", "--stage", "2").code
    text = (script.parent / PLAN).read_text()
    assert [] == [gpu["uuid"] for gpu in seen if gpu["uuid"] in text]
    gpus = json.loads(text)["machine"]["gpus"]
    assert 4 == len({gpu["uuid"] for gpu in gpus} - {None})
    assert [[]] * 4 == [gpu["processes"] for gpu in gpus]
    assert [gpu["free_bytes"] for gpu in seen] == [gpu["free_bytes"] for gpu in gpus]


def test_a_password_after_the_script_is_not_written_down(
    spied: Callable[..., subprocess.Popen[str]], script: Path
) -> None:
    words = ("launch", *CPU, "--stage", "2", "train.py", "--hub_token", "s3cr3t", "--seed", "1")
    assert 7 == end(spied(*words)).code
    assert b"s3cr3t" not in b"".join(written(script.parent).values())
    again = plan_of(script.parent)["reproduce"]
    assert ["--hub_token", "***", "--seed", "1"] == again["argv"][-4:]
    assert again["shell"].endswith(' --hub_token "$HUB_TOKEN" --seed 1')


def edit(path: Path) -> None:
    text = path.read_text()
    assert '"stage": 2,' in text
    path.write_text(text.replace('"stage": 2,', '"stage": 3,'))


def test_a_hand_edit_stops_a_launch_and_is_shown(
    spied: Callable[..., subprocess.Popen[str]], script: Path
) -> None:
    words = (*CPU, "--stage", "2", "train.py")
    assert 7 == end(spied("launch", *words)).code
    edit(script.parent / CONFIG)
    before = written(script.parent)
    refused = end(spied("launch", *words))
    assert 1 == refused.code
    assert "" == refused.stdout
    conflict = "`zero_optimization.stage` is 3, and the plan needs 2"
    assert f"error: you edited what the plan decides: `{CONFIG}`: {conflict}\n" in refused.stderr
    found = diff_of(refused.stderr)
    assert ["", f"--- {CONFIG}", f"+++ {CONFIG} (by zerowiz)"] == found[:3]
    changes = [line for line in found[3:] if line.startswith(("-", "+"))]
    assert ['-    "stage": 3,', '+    "stage": 2,'] == changes
    assert "\x1b" not in refused.stderr
    assert before == written(script.parent)
    forced = end(spied("launch", "--force", *words))
    assert 7 == forced.code
    assert before[CONFIG] != (script.parent / CONFIG).read_bytes()
    assert 7 == end(spied("launch", *words)).code


@pytest.mark.parametrize(
    "command", [("init", "--yes"), ("launch", "--dry-run"), ("launch", "--dry-run", "--json")]
)
def test_every_command_refuses_a_hand_edit_and_shows_the_diff(
    here: Run, script: Path, command: tuple[str, ...]
) -> None:
    assert 0 == here("init", "--yes", *STEADY).code
    edit(script.parent / CONFIG)
    before = written(script.parent)
    words = (*command, *STEADY, "train.py")
    result = here(command[0], "--quiet", *words[1:])
    assert 1 == result.code
    assert "" == result.stdout or "--json" in words
    assert "\nhint: take the plan's values with `--force`: your edits" in result.stderr
    assert before == written(script.parent)
    assert '-    "stage": 3,' in diff_of(result.stderr)
    assert result.stderr.startswith("error: ")


@pytest.mark.parametrize("command", [("init", "--yes"), ("launch", "--dry-run")])
def test_notes_in_a_plan_file_are_kept_and_its_config_stays_too(
    here: Run, script: Path, command: tuple[str, ...]
) -> None:
    assert 0 == here("init", "--yes", *STEADY).code
    plan, config = script.parent / PLAN, script.parent / CONFIG
    plan.write_text(plan.read_text().replace("you asked for it", "Ann asked for it"))
    config_before = config.stat().st_mtime_ns
    refused = here(*command, *STEADY, "--seq-len", "1024", "train.py")
    assert 1 == refused.code, refused.stderr
    assert f"`{PLAN}`" in refused.stderr
    assert "Ann asked for it" in "\n".join(diff_of(refused.stderr))
    assert "move it away, and zerowiz writes a new one" in refused.stderr
    assert "--config" not in refused.stderr
    assert config_before == config.stat().st_mtime_ns
    plan.rename(script.parent / "notes.json")
    assert 0 == here("init", "--yes", *STEADY).code


@pytest.fixture
def clone(here: Run, script: Path) -> Path:
    """A folder as a fresh clone of the repository has it: the files of a launch, no records."""
    assert 0 == here("init", "--yes", "--isolated", *STEADY).code
    shutil.rmtree(script.parent / ".zerowiz")
    return script.parent


def test_a_fresh_clone_knows_its_config_and_its_plan_by_their_hashes(
    here: Run, clone: Path
) -> None:
    before = written(clone)
    # Another plan file would no longer say of the old config that it is zerowiz's.
    changed = here("init", "--yes", "--isolated", *STEADY, "--seq-len", "1024", "train.py")
    assert 0 == changed.code, changed.stderr
    assert 1024 == plan_of(clone)["workload"]["sequence_tokens"]
    assert 0 == here("init", "--yes", "--isolated", *STEADY).code
    assert before == {name: written(clone)[name] for name in before}


@pytest.mark.parametrize("name", [CONFIG, PLAN])
def test_in_a_fresh_clone_a_hand_edit_is_kept_all_the_same(
    here: Run, clone: Path, name: str
) -> None:
    path = clone / name
    path.write_text(path.read_text().replace(": 2,", ": 3,", 1))
    before = written(clone)
    refused = here("init", "--yes", "--isolated", *STEADY, "--seq-len", "1024", "train.py")
    assert 1 == refused.code, refused.stderr
    said = {CONFIG: f"you edited what the plan decides: `{CONFIG}`", PLAN: f"`{PLAN}` exists and"}
    assert said[name] in refused.stderr
    assert before == written(clone)


def test_edits_of_what_the_plan_does_not_decide_stay_at_every_stage(
    here: Run, script: Path
) -> None:
    words = ("init", "--yes", *STEADY[:-2], "--integration", "deepspeed", "--no-script")
    assert 0 == here(*words, "--stage", "2").code
    path = script.parent / CONFIG
    config = json.loads(path.read_text())
    edited = {**config, "gradient_clipping": 0.3, "wall_clock_breakdown": True}
    path.write_text(json.dumps(edited))
    again = here(*words, "--stage", "2").good
    kept = f"`{CONFIG}` keeps your edits: `gradient_clipping` 0.3, `wall_clock_breakdown` true"
    assert kept in again.stderr
    assert f"clipping 0.3 ({CONFIG})" in again.stderr
    assert edited == json.loads(path.read_text())
    other = here(*words, "--stage", "3")
    assert f"`ds_config_zero3.json` keeps your edits of `{CONFIG}`: " in other.stderr
    found = json.loads((script.parent / "ds_config_zero3.json").read_text())
    assert (0.3, True) == (found["gradient_clipping"], found["wall_clock_breakdown"])
    # With what the plan decides edited too, the plan's value comes back, and the others stay.
    path.write_text(path.read_text().replace('"stage": 2', '"stage": 1'))
    assert 1 == here(*words, "--stage", "2").code
    assert 0 == here(*words, "--stage", "2", "--force").code
    assert edited == json.loads(path.read_text())


def test_both_edits_are_shown_before_force_takes_both(here: Run, script: Path) -> None:
    assert 0 == here("init", "--yes", *STEADY).code
    edit(script.parent / CONFIG)
    plan = script.parent / PLAN
    plan.write_text(plan.read_text().replace("you asked for it", "Ann asked for it"))
    refused = here("init", "--yes", *STEADY)
    assert f"error: `{CONFIG}` and `{PLAN}` exist" in refused.stderr
    heads = [line for line in diff_of(refused.stderr) if line.startswith("---")]
    assert [f"--- {CONFIG}", f"--- {PLAN}"] == heads
    assert 0 == here("init", "--yes", "--force", *STEADY).code
    assert 0 == here("init", "--yes", *STEADY).code


@pytest.mark.parametrize(
    ("there", "said"),
    [
        (b"\xff\xfe{\0}\0", f"{CONFIG}: it is not UTF-8 text"),
        (b"x" * 300_000, "too large to compare"),
        (b"", "@@ -0,0 +1,"),
        (b"{}", "\\ No newline at end of file"),
        (b"[\x1b[31mred\x1b[0m]\n", "-[\\x1b[31mred\\x1b[0m]"),
        (b"y" * 5_000 + b"\n", " ... 4801 more characters"),
        (b"".join(b"%d\n" % n for n in range(500)), " more lines of this diff"),
        (None, f"{CONFIG}: only its line endings differ (CRLF)"),
    ],
    ids=[
        *("utf-16", "huge", "empty", "no end", "escapes", "long line", "many lines"),
        "line ends of Windows",
    ],
)
def test_whatever_lies_there_is_refused_kindly(
    here: Run, script: Path, there: bytes | None, said: str
) -> None:
    path = script.parent / CONFIG
    if there is None:
        assert 0 == here("init", "--yes", *STEADY).code
        there = path.read_bytes().replace(b"\n", b"\r\n")
    path.write_bytes(there)
    refused = here("init", "--yes", *STEADY)
    assert 1 == refused.code
    found = diff_of(refused.stderr)
    assert any(said in line for line in found), found
    assert len(found) <= 62
    assert all(len(line) < 250 and line.isprintable() for line in found)
    assert there == path.read_bytes()


# What the wizard says of the lines of a diff above its question.
LEGEND = "Lines with a minus are in the file now."


def test_the_wizard_shows_the_edit_before_it_asks(terminal: Open, script: Path) -> None:
    words = ("init", *STEADY, *BF16, "--seq-len", "2048", "--micro-batch", "8")
    person = terminal(*words)
    person.reply("Write the files?", ENTER)
    assert 0 == person.end()
    assert {CONFIG, PLAN} == set(written(script.parent))
    edit(script.parent / CONFIG)
    before = written(script.parent)
    person = terminal(*words)
    person.reply("Write the files?", ENTER)
    person.wait_for("not written by zerowiz. Overwrite it?")
    shown = [place for place, line in enumerate(person.lines) if '"stage":' in line]
    asked = next(place for place, line in enumerate(person.lines) if "Overwrite it?" in line)
    assert ['-    "stage": 3,', '+    "stage": 2,'] == [person.lines[place] for place in shown]
    assert max(shown) < asked
    assert LEGEND in person.text
    # In red and green, as at every terminal.
    assert ["red", "green"] == [person.screen.buffer[place][0].fg for place in shown]
    # Esc leads back to the question before.
    person.reply("Overwrite it?", ESCAPE)
    person.reply("stop here", "stop" + ENTER)
    assert 0 == person.end()
    assert before == written(script.parent)
    person = terminal(*words)
    person.reply("Write the files?", ENTER)
    person.reply("Overwrite it?", "yes" + ENTER)
    assert 0 == person.end()
    assert '"stage": 2,' in (script.parent / CONFIG).read_text()


def test_a_quiet_wizard_asks_without_the_diff(terminal: Open, script: Path) -> None:
    (script.parent / CONFIG).write_text("mine\n")
    person = terminal("init", "--quiet", *STEADY, *BF16, "--seq-len", "2048", "--micro-batch", "8")
    person.reply("Write the files?", ENTER)
    person.wait_for("Overwrite it?")
    assert LEGEND not in person.text
    person.reply("Overwrite it?", ESCAPE)
    person.reply("stop here", "stop" + ENTER)
    assert 0 == person.end()
    assert "mine" not in person.text


def test_no_colour_is_wanted_where_a_person_says_so(terminal: Open, script: Path) -> None:
    (script.parent / CONFIG).write_text("mine\n")
    for extra, expected in (({}, "red"), ({"NO_COLOR": "1"}, "default")):
        person = terminal("init", "--yes", *STEADY, **extra)
        assert 1 == person.end()
        place = person.lines.index("-mine")
        assert expected == person.screen.buffer[place][0].fg


@pytest.mark.parametrize("is_clone", [False, True], ids=["new", "fresh clone"])
def test_jobs_that_start_at_once_in_one_folder_all_start(
    spied: Callable[..., subprocess.Popen[str]], script: Path, is_clone: bool
) -> None:
    tokens = ("64", "128", "256", "512")
    shared = ("launch", "--stage", "2", *CPU, "--seq-len")
    if is_clone:
        assert 7 == end(spied(*shared, "32", "train.py")).code
        shutil.rmtree(script.parent / ".zerowiz")
    jobs = [spied(*shared, each, "train.py") for each in tokens]
    ended = [end(job) for job in jobs]
    assert [7] * len(jobs) == [result.code for result in ended], [r.stderr for r in ended]
    content = plan_of(script.parent)
    assert str(content["workload"]["sequence_tokens"]) in tokens
    assert "zero_optimization" in json.loads((script.parent / CONFIG).read_text())
