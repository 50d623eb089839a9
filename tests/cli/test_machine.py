"""`zerowiz machine`: what it shows, saves and asks; and what a plan takes from it."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cli.harness import CONFIG_ARGUMENTS, HF_IN_CODE, HF_PARSER, Result, Run
from paths import ROOT
from recorded import Install, Replay, described, library, names, recording

from zerowiz.errors import ExitCode

NO_DRIVER = {"nvmlInitWithFlags(0)": {"err": 12}}
# The torch of the tests is built for the CPU, which would stop a launch on GPUs.
FORCED = ("--yes", "--force")


@pytest.fixture(scope="module")
def file_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    """The file of a recorded machine, as `machine --save` wrote it there."""
    folder = tmp_path_factory.mktemp("machines")
    return lambda name: described(name, folder)


@pytest.mark.parametrize("name", names())
def test_a_recorded_machine_is_shown_as_it_was(
    here: Run, golden: Callable[[str, str], None], name: str, file_of: Callable[[str], str]
) -> None:
    result = here("machine", "--machine", file_of(name)).good
    golden(f"machines/{Path(name).name}.txt", result.stdout + result.stderr)


def test_the_json_holds_all_that_is_shown(here: Run, file_of: Callable[[str], str]) -> None:
    content = json.loads(here("machine", "--json", "--machine", file_of("h200-x4")).stdout)
    machine = content["machine"]
    assert 1 == content["schema_version"]
    assert 6 == len(machine["links"])
    assert {"pair": [0, 1], "nvlinks": 18, "bytes_per_s": 450_000_000_000} == {
        key: machine["links"][0][key] for key in ("pair", "nvlinks", "bytes_per_s")
    }
    assert "nvmlDeviceGetMemoryInfo_v2" == machine["gpus"][0]["memory_source"]


@pytest.mark.parametrize("name", names())
def test_the_machine_that_is_saved_is_the_machine_that_is_read(
    here: Run, name: str, driver: Install
) -> None:
    driver(library(name))
    live = json.loads(here("machine", "--json", "--save", "node.json").stdout)["machine"]
    driver(Replay(NO_DRIVER))
    replayed = json.loads(here("machine", "--json", "--machine", "node.json").stdout)["machine"]
    for machine in (live, replayed):
        machine["gpus"] = [gpu | {"uuid": None} for gpu in machine["gpus"]]
        for key in ("source", "host"):
            machine.pop(key)  # a host's memory and disk change from one second to the next
    assert live == replayed


def test_a_saved_selection_stays_selected(
    here: Run, driver: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = recording("h200-x4")["nvml"]
    driver(Replay(calls))
    uuids = [calls[f"nvmlDeviceGetUUID(gpu{index})"]["ok"] for index in range(4)]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", f"{uuids[3][:13]},{uuids[1]}")
    assert 0 == here("machine", "--save", "node.json").code
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert [3, 1] == [gpu["index"] for gpu in planned(here, "--machine", "node.json")["gpus"]]


def test_one_gpu_whose_memory_cannot_be_stops_no_command(
    here: Run, folder: Path, driver: Install
) -> None:
    content = recording("h200-x4")
    sizes = {"total": 2**30, "free": 2**31, "reserved": 0}
    for call in ("nvmlDeviceGetMemoryInfo_v2(gpu1)", "nvmlDeviceGetMemoryInfo(gpu1)"):
        content["nvml"][call] = {"ok": sizes}
    driver(Replay(content["nvml"]))
    for words in (("machine", "--save", "node.json"), ("plan", "--model", "1b")):
        done = here(*words).good
        assert "zerowiz does not use GPU 1: NVML returned that" in done.stderr
    assert (folder / "node.json").is_file()


def test_without_a_gpu_it_is_shown_what_can_be_planned_for(here: Run, driver: Install) -> None:
    driver(Replay(NO_DRIVER))
    result = here("machine")
    assert 5 == result.code
    assert "no NVIDIA driver" in result.problem
    listed = result.stdout.partition("NAME can be:\n")[2].splitlines()
    names = [name for line in listed for name in line.strip().partition("  ")[0].split(", ")]
    assert {"8xH100", "4x8xH200", "p5.48xlarge", "cpu", "all"} <= set(names)
    for name in set(names) - {"node.json", "all"}:
        assert 0 == here("machine", "--machine", name).code
    # What is for programs is no host.
    for_programs = here("machine", "--json")
    assert (5, {"schema_version", "error"}) == (
        for_programs.code,
        {*json.loads(for_programs.stdout)},
    )


def test_a_saved_file_is_not_overwritten_unasked(here: Run, folder: Path, driver: Install) -> None:
    driver(library("h200-x1"))
    (folder / "node.json").write_text("mine")
    assert 1 == here("machine", "--save", "node.json").code
    assert "mine" == (folder / "node.json").read_text()
    assert 0 == here("machine", "--save", "node.json", "--force").code


def planned(here: Run, *words: str) -> dict[str, Any]:
    machine: dict[str, Any] = here("plan", "--json", "--model", "10m", *words).content["machine"]
    return machine


def chosen(here: Run, *words: str) -> str | None:
    result = here("plan", "--json", *words)
    strategy: str | None = json.loads(result.stdout)["chosen"]
    return strategy


FLEET = ("--machine", "8xH100-80GB", "--nodes", "2", "--model", "30b", "--gradient-checkpointing")


def test_a_fast_network_lets_many_nodes_take_zero3(here: Run) -> None:
    assert chosen(here, *FLEET) is None
    assert "zero3" == chosen(here, *FLEET, "--interconnect", "infiniband:400Gb/s")
    assert chosen(here, *FLEET, "--interconnect", "ethernet:100Gb/s") is None


def test_a_scheduler_tells_how_many_nodes_there_are_and_a_launch_goes_through_srun(
    here: Run, folder: Path, driver: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver(library("h200-x4"))
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_JOB_NUM_NODES", "3")
    machine = planned(here)
    assert 3 == machine["nodes"]
    assert any("`--nodes 1` plans for this node only" in note for note in machine["notes"])
    assert 1 == planned(here, "--nodes", "1")["nodes"]
    monkeypatch.setenv("SLURM_GPUS_ON_NODE", "8")
    assert "SLURM gave the job 8 GPUs per node, but this plan is for 4" in here("machine").stderr
    (folder / "train.py").write_text(HF_IN_CODE)
    result = here("launch", "--dry-run", "--model", "1b", "train.py")
    said = "SLURM gave the job 3 nodes, but zerowiz runs without `srun`"
    assert (2, said) == (result.code, result.problem)
    assert "srun --nodes=3" in result.hints
    assert "--nodes 1" in result.hints


@pytest.mark.parametrize(
    ("name", "visible", "words", "where"),
    [
        ("h200-x4", (2, 1), (), "localhost:2,1"),
        # A lost GPU shifts CUDA's numbers.
        ("synthetic/a100-x8-lost-gpu", (), ("--gpus", "2,4"), "localhost:2,3"),
    ],
    ids=["visible by UUID", "lost"],
)
def test_gpus_are_launched_by_the_numbers_that_cuda_has(
    here: Run,
    folder: Path,
    driver: Install,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    visible: tuple[int, ...],
    words: tuple[str, ...],
    where: str,
) -> None:
    (folder / "train.py").write_text(HF_IN_CODE)
    driver(library(name))
    calls = recording(name)["nvml"]
    uuids = [calls[f"nvmlDeviceGetUUID(gpu{index})"]["ok"] for index in visible]
    if uuids:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", ",".join(uuids))
    result = here("launch", "--dry-run", "--json", *FORCED, "--model", "1b", *words, "train.py")
    plan = json.loads(result.stdout)
    assert where in plan["command"]
    assert "PCI_BUS_ID" == plan["env"]["CUDA_DEVICE_ORDER"]


def test_a_mig_slice_is_planned_for_and_its_launch_is_refused_with_a_way_out(
    here: Run, folder: Path, driver: Install, file_of: Callable[[str], str]
) -> None:
    (folder / "train.py").write_text(HF_IN_CODE)
    driver(library("synthetic/a100-mig-container"))
    [gpu] = planned(here)["gpus"]
    assert (0, 0) == (gpu["index"], gpu["mig_slice"])
    result = here("launch", "--dry-run", "--model", "10m", "train.py")
    assert 2 == result.code
    assert "MIG" in result.problem
    assert "torchrun --nproc-per-node 1" in result.hints
    (folder / "hosts").write_text("n1 slots=1\nn2 slots=1\n")
    elsewhere = ("--machine", file_of("synthetic/a100-mig-container"), "--hostfile", "hosts")
    result = here("launch", "--dry-run", "--model", "10m", *elsewhere, "train.py")
    assert "MIG" in result.problem


def test_offload_counts_shared_memory_once(here: Run, file_of: Callable[[str], str]) -> None:
    words = ("plan", "--json", "--model", "7b", "--machine", file_of("synthetic/gb10"))
    plan = json.loads(here(*words).stdout)
    available = plan["machine"]["host"]["available_bytes"]
    offloads = [strategy for strategy in plan["strategies"] if strategy["offload"] != "none"]
    assert offloads
    for strategy in offloads:
        assert available - strategy["gpu"]["device_bytes"] == strategy["host"]["budget_bytes"]


# A cluster of three: `ssh` runs the command here, as each node's own recording.
SSH = """#!/bin/sh
while [ "$1" != "--" ]; do shift; done
case $2 in
  down) echo "ssh: connect to host down port 22: Connection refused" >&2; exit 255 ;;
  odd) name=h200-x4-busy ;;
  *) name=h200-x4 ;;
esac
exec sh -c "$3 --machine {machines}/$name.json"
"""


@pytest.fixture
def cluster(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put such an `ssh` on PATH, and hostfiles into the folder."""
    programs = folder / "programs"
    programs.mkdir()
    for name in ("h200-x4", "h200-x4-busy"):
        described(name, folder)
    (programs / "ssh").write_text(SSH.format(machines=folder))
    (programs / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    (folder / "hosts").write_text("n1 slots=4\nn2 slots=4\nodd slots=4\n")
    (folder / "broken").write_text("n1 slots=4\ndown slots=4\n")
    (folder / "wide").write_text("n1 slots=8\nn2 slots=8\n")
    return folder


@pytest.mark.usefixtures("cluster")
def test_every_node_is_asked_and_the_weakest_is_planned_for(here: Run) -> None:
    result = here("machine", "--hostfile", "hosts", "--json", "--save", "fleet.json").good
    content = json.loads(result.stdout)
    machine = content["machine"]
    busy = recording("h200-x4-busy")["nvml"]["nvmlDeviceGetMemoryInfo_v2(gpu2)"]["ok"]["free"]
    assert 3 == machine["nodes"]
    assert [busy] == [gpu["free_bytes"] for gpu in machine["gpus"] if gpu["index"] == 2]
    # What a node notes of itself names the node, and stands in no file.
    assert "note: node `odd`: GPU 2 is in use by python3 (1271)" in result.stderr
    assert "odd" not in json.dumps(machine)
    assert machine["gpus"] == planned(here, "--machine", "fleet.json")["gpus"]
    assert machine["gpus"] == planned(here, "--hostfile", "hosts")["gpus"]
    refused = here("plan", "--model", "10m", "--hostfile", "hosts", "--gpus", "2,3")
    assert (2, True) == (refused.code, "--gpus 2,3" in refused.problem)


@pytest.mark.parametrize(
    ("hosts", "problem", "hint", "planned"),
    [
        ("broken", "1 of 2 nodes did not answer", "Connection refused", "`down`"),
        ("wide", "", "node `n1` has fewer GPUs than its slots: 4 of 8", "`n1` has fewer GPUs"),
    ],
)
@pytest.mark.usefixtures("cluster")
def test_a_node_that_cannot_be_used_is_named_beside_what_the_others_said(
    here: Run, hosts: str, problem: str, hint: str, planned: str
) -> None:
    result = here("machine", "--hostfile", hosts)
    assert (5, True) == (result.code, "NV18" in result.stdout)
    assert problem in result.problem
    assert hint in result.hints
    refused = here("plan", "--model", "10m", "--hostfile", hosts)
    assert (5, True) == (refused.code, planned in refused.problem)


def test_a_device_is_not_replaced_by_a_file(here: Run, folder: Path, driver: Install) -> None:
    driver(library("h200-x1"))
    os.mkfifo(folder / "pipe")
    for force in ((), ("--force",)):
        result = here("machine", "--save", "pipe", *force)
        assert (1, True) == (result.code, "it is not a regular file" in result.problem)


def test_a_file_has_the_machine_that_was_asked_for(here: Run, driver: Install) -> None:
    driver(library("h200-x4"))
    words = ("--nodes", "3", "--gpus", "1,2", "--interconnect", "infiniband:400Gb/s")
    assert 0 == here("machine", *words, "--save", "node.json").code
    machine = planned(here, "--machine", "node.json")
    assert (3, [1, 2]) == (machine["nodes"], [gpu["index"] for gpu in machine["gpus"]])
    assert "infiniband" == machine["network"]["kind"]


def test_a_launch_on_many_nodes_is_planned_for_the_weakest(
    here: Run, cluster: Path, pdsh: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (cluster / "train.py").write_text(CONFIG_ARGUMENTS)
    # The nodes are asked by the cluster's own `ssh`.
    (pdsh / "ssh").unlink()
    monkeypatch.setenv("HF_TOKEN", "hidden")
    words = ("launch", "--dry-run", "--json", "--yes", "--model", "10m", "--hostfile", "hosts")
    result = here(*words, "--micro-batch", "2", "train.py").good
    plan = json.loads(result.stdout)
    assert 3 == plan["machine"]["nodes"]
    assert ["--hostfile", "hosts"] == plan["command"][1:3]
    # A dry run notes what the launch would note.
    assert "`HF_TOKEN` is not sent to the nodes" in result.stderr


HOSTILE = "H200 [/red]\x1b[2J\x1b]0;mine\x07 [bold]\u202e\x9b"


@pytest.mark.parametrize("command", ["machine", "plan", "plan -v"])
def test_a_name_of_others_steers_no_terminal_and_is_no_markup(
    here: Run, tmp_path: Path, command: str
) -> None:
    gpus = [{"index": index, "name": HOSTILE, "free_bytes": 80 * 2**30} for index in (0, 1)]
    path = tmp_path / "evil.json"
    path.write_text(json.dumps({"schema_version": 1, "machine": {"gpus": gpus}}))
    words = [*command.split(), "--machine", str(path)]
    if "plan" in command:
        words[1:1] = ["--model", "1b"]
    done = here(*words).good
    shown = done.stdout + done.stderr
    assert "H200 [/red]?[2J?]0;mine? [bold]??" in " ".join(shown.split())
    assert not {"\x1b", "\x07", "\u202e", "\x9b"} & set(shown)


# A machine that is not what it was when the job was planned: said, with what follows.

JOB = ("--model", "1b", "--micro-batch", "8", "--force", "train.py")
CPU = ("--machine", "cpu", "--model", "10m", "--seq-len", "64", "--micro-batch", "8")


@pytest.fixture
def planned_before(here: Run, folder: Path, driver: Install) -> None:
    """The files of a job on four GPUs."""
    (folder / "train.py").write_text(HF_PARSER)
    driver(library("h200-x4"))
    done = here("init", "--yes", *JOB)
    assert done.code == 0, done.stderr


def note(result: Result) -> str:
    assert result.code == 0, result.stderr
    text = " ".join(result.stderr.split())
    return text.partition("the machine has changed")[2].partition(" note: ")[0]


@pytest.mark.usefixtures("planned_before")
def test_half_of_the_gpus_halve_the_batch_and_the_hint_keeps_it(here: Run, driver: Install) -> None:
    assert not note(here("launch", "--dry-run", *JOB)), "nothing has changed yet"
    driver(library("h200-x2"))
    said = note(here("launch", "--dry-run", *JOB))
    assert "4 -> 2 GPUs per node" in said
    assert "falls from 32 to 16; keep it with `--grad-accum 2`" in said
    kept = note(here("launch", "--dry-run", "--grad-accum", "2", *JOB))
    assert "4 -> 2 GPUs per node" in kept
    assert "batch" not in kept
    stated = note(here("plan", "--global-batch", "16", *JOB))
    assert "4 -> 2 GPUs per node" in stated
    assert "batch" not in stated


@pytest.mark.usefixtures("planned_before")
def test_a_gpu_that_is_lost_changes_the_machine_and_all_of_them_end_the_launch(
    here: Run, driver: Install
) -> None:
    calls = recording("h200-x4")["nvml"]
    driver(Replay({**calls, "nvmlDeviceGetHandleByIndex_v2(1)": {"err": 15}}))
    said = note(here("launch", "--dry-run", *JOB))
    assert "4 -> 3 GPUs per node" in said
    assert said.strip().endswith("falls from 32 to 24")
    lost = {f"nvmlDeviceGetHandleByIndex_v2({gpu})": {"err": 15} for gpu in range(4)}
    driver(Replay({**calls, **lost}))
    gone = here("launch", "--dry-run", *JOB)
    assert gone.code == ExitCode.PREFLIGHT
    assert gone.problem == "this machine has no usable GPU"
    assert "GPU 3: the driver has lost it" in gone.hints


@pytest.mark.usefixtures("planned_before")
def test_plan_and_launch_have_it_as_json(here: Run, driver: Install) -> None:
    driver(library("h200-x2"))
    for words in (("plan", "--json"), ("launch", "--dry-run", "--json")):
        change = json.loads(here(*words, *JOB).stdout)["machine_change"]
        assert change["facts"] == [{"fact": "gpus_per_node", "before": 4, "now": 2}]
        assert change["global_batch"] == {
            "before": 32,
            "now": 16,
            "keep_with_accumulation_steps": 2,
        }
    for of_another in (("--machine", "8xH100-80GB", *JOB), JOB[:-1]):
        assert "machine_change" not in json.loads(here("plan", "--json", *of_another).stdout)


def test_it_is_said_of_gpus_that_were_planned_for_by_name_and_where_nothing_fits(
    here: Run, folder: Path, driver: Install
) -> None:
    (folder / "train.py").write_text(HF_PARSER)
    driver(library("h200-x4"))
    assert here("init", "--yes", "--machine", "8xH100-80GB", *JOB).code == 0
    said = note(here("launch", "--dry-run", *JOB))
    assert "8 -> 4 GPUs per node; " in said
    assert "falls from 64 to 32; keep it with `--grad-accum 2`" in said
    refused = here("launch", "--dry-run", "--memory-budget", "2GiB", *JOB)
    assert refused.code == ExitCode.NOTHING_FITS
    assert "the machine has changed" in refused.stderr


def test_another_strategy_and_a_batch_that_the_script_fixes(
    here: Run, folder: Path, driver: Install
) -> None:
    """Another stage has a config of another name; a number in the code cannot be typed."""
    fixed = HF_IN_CODE.replace("=4,", "=8, gradient_accumulation_steps=1,")
    (folder / "train.py").write_text(fixed)
    driver(library("h200-x4"))
    assert here("init", "--yes", "--stage", "2", *JOB).code == 0
    driver(library("h200-x2"))
    said = note(here("plan", "--stage", "3", *JOB))
    assert "falls from 32 to 16" in said
    assert "an accumulation of 2 in your script keeps it" in said


def save_states(folder: Path, ranks: int) -> None:
    """A checkpoint as DeepSpeed saves it, without what is in its files."""
    states = folder / "out" / "checkpoint-500" / "global_step500"
    states.mkdir(parents=True)
    (states.parent / "latest").write_text("global_step500")
    for rank in range(ranks):
        (states / f"bf16_zero_pp_rank_{rank}_mp_rank_00_optim_states.pt").touch()


def test_a_checkpoint_of_other_ranks_is_refused_with_the_way_out(here: Run, folder: Path) -> None:
    (folder / "train.py").write_text(HF_PARSER)
    save_states(folder, 4)
    resume = ("--resume_from_checkpoint", "out/checkpoint-500")

    def launch(ranks: int, stage: int = 2, *words: str) -> Result:
        job = (*CPU, "--gpus-per-node", str(ranks), "--stage", str(stage), *words, "train.py")
        return here("launch", "--dry-run", "--yes", *job, *resume)

    refused = launch(2)
    assert refused.code == ExitCode.PREFLIGHT
    assert (
        "4 ranks saved the checkpoint `out/checkpoint-500`, and this job has 2" in refused.problem
    )
    assert (
        "ds_to_universal --inject_missing_state --input_folder out/checkpoint-500" in refused.hints
    )
    assert "is of stage 1/2, and this job trains at stage 0" in launch(2, 0).problem
    for taken in (launch(4), launch(2, 2, "--force")):
        assert taken.code == 0, taken.stderr


def test_a_portable_checkpoint_continues_on_fewer_ranks(here: Run) -> None:
    assert here("template", ".").code == 0
    job = ("--machine", "cpu", "--model", "model", "train_hf.py", "--resume")
    assert here("init", "--yes", "--gpus-per-node", "2", *job).code == 0
    words = ("launch", "--dry-run", "--yes", "--gpus-per-node")
    resumed, anew = here(*words, "1", *job), here(*words, "1", *job[:-1])
    assert "`--resume` continues on any number of ranks" in " ".join(resumed.stderr.split())
    assert note(anew)
    assert "continues on any number" not in " ".join(anew.stderr.split())
