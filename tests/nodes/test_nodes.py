"""Launch over a hostfile on nodes that are namespaces of this host: real sshd, pdsh, DeepSpeed."""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from nodes.harness import Cluster, Job, wait_for

from zerowiz.core.launch.plan import ALIVE_EVERY_S, ALIVE_TRIES
from zerowiz.probe.files import Files
from zerowiz.probe.preflight.read_facts import try_core_binding

HERE = Path(__file__).parent
ROOT, BIN = HERE.parents[1], Path(sys.executable).parent
GRACE_S = 5
# Until ssh gives a node up, the end of its ranks is settled, and the others have theirs written.
LOST_S = ALIVE_EVERY_S * (ALIVE_TRIES + 1) + 5 + GRACE_S + 15
ODD = ("a b", "", "$HOME `id` \"q\" 'r' \\ *;&|", "100% %h", "new\nline")


def environ(cluster: Cluster, more: Mapping[str, str]) -> dict[str, str]:
    """Of the head; its home folder holds no file of somebody's."""
    inherited = {key: os.environ[key] for key in os.environ if key != "CUDA_VISIBLE_DEVICES"}
    return {
        "TORCH_EXTENSIONS_DIR": str(Path(sys.prefix) / "torch_extensions"),
        **inherited,
        "HOME": str(cluster.folder),
        "PYTHONPATH": str(ROOT),
        "PATH": f"{BIN}:/usr/sbin:{os.environ['PATH']}",
        **more,
    }


def launch(
    cluster: Cluster,
    out: Path,
    *words: str,
    nodes: int = 2,
    slots: int = 1,
    env: Mapping[str, str] | None = None,
) -> AbstractContextManager[Job]:
    hostfile, attempt = cluster.hostfile(nodes, slots), out / "attempt"
    head = (sys.executable, HERE / "driver.py", hostfile, attempt, str(GRACE_S))
    script = (str(HERE / "step_together.py"), "--out", str(out), *words)
    return cluster.start((*head, *script), environ(cluster, env or {}), out)


def seen(out: Path) -> list[dict[str, Any]]:
    """What each rank saw, in their order."""
    files = sorted(out.glob("seen-*.json"))
    return [json.loads(file.read_text(encoding="utf-8")) for file in files]


def all_gone(cluster: Cluster, within_s: float = GRACE_S + 5) -> None:
    wait_for(f"the end of {cluster.left()}", lambda: not cluster.left(), within_s)


def launch_template(
    cluster: Cluster, out: Path, *options: str | Path, nodes: int, env: Mapping[str, str]
) -> AbstractContextManager[Job]:
    """The template over the nodes, through the command, with 2 ranks on each."""
    templates = shutil.copytree(ROOT / "templates", out / "templates")
    where = ("--hostfile", cluster.hostfile(nodes, 2), "--accelerator", "cpu")
    what = ("--model", templates / "model", "--micro-batch", "2", "--stage", "2", "--yes")
    how = ("--output-dir", out, "--supervise", "--grace-seconds", str(GRACE_S), *options)
    script = (templates / "train_deepspeed.py", "--steps", "6", "--save_steps", "3")
    saved = ("--output_dir", out / "saved")
    argv = (sys.executable, "-m", "zerowiz", "launch", *where, *what, *how, *script, *saved)
    return cluster.start(argv, environ(cluster, env), out)


def read_record(out: Path) -> dict[str, Any]:
    return dict(json.loads((out / "zerowiz-run.json").read_text(encoding="utf-8")))


def assert_two_on_each(record: Mapping[str, Any], nodes: int) -> None:
    """All of them ended well."""
    logs = Path(record["attempts"][0]["logs"])
    ends = [json.loads(file.read_text(encoding="utf-8")) for file in logs.glob("rank-*.end.json")]
    expected = {(rank, f"n{rank // 2 + 1}", 0) for rank in range(2 * nodes)}
    assert expected == {(end["rank"], end["host"], end["status"]) for end in ends}
    assert 0 == record["exit"]


def train(cluster: Cluster, out: Path, *, nodes: int) -> None:
    with launch_template(cluster, out, nodes=nodes, env={}) as job:
        assert 0 == job.status(within_s=240), job.text()
        text = job.text()
        all_gone(cluster)
    losses = [float(loss) for loss in re.findall(r"step \d+  loss ([\d.]+)", text)]
    assert losses[-1] < losses[0], text
    assert_two_on_each(read_record(out), nodes)


@pytest.mark.nodes
@pytest.mark.deepspeed
def test_launch_trains_on_two_nodes(cluster: Cluster, tmp_path: Path) -> None:
    train(cluster, tmp_path, nodes=2)


@pytest.mark.nodes
@pytest.mark.deepspeed
@pytest.mark.thorough
@pytest.mark.parametrize("how", ["--supervise", "--no-supervise"])
def test_a_module_whose_parser_knows_no_local_rank_trains_on_two_nodes(
    cluster: Cluster, tmp_path: Path, how: str
) -> None:
    (tmp_path / "pkg").mkdir()
    shutil.copy(ROOT / "tests" / "scripts" / "strict_loop.py", tmp_path / "pkg" / "train.py")
    # As a launcher around the ranks would leave it.
    (tmp_path / ".deepspeed_env").write_text("PMI_RANK=0\n", encoding="utf-8")
    where = ("--hostfile", cluster.hostfile(2, 2), "--accelerator", "cpu")
    what = ("--model", "1m", "--seq-len", "16", "--precision", "fp32", "--stage", "1", "--yes", how)
    words = ("-m", "pkg.train", "--batch", "2")
    argv = (sys.executable, "-m", "zerowiz", "launch", *where, *what, *words)
    with cluster.start(argv, environ(cluster, {}), tmp_path) as job:
        assert 0 == job.status(within_s=240), job.text()
    told = [json.loads((tmp_path / f"told-{rank}.json").read_text()) for rank in range(4)]
    assert [(rank, rank % 2, 4, "pkg.train") for rank in range(4)] == [
        (each["rank"], each["local_rank"], each["ranks"], each["name"]) for each in told
    ]
    assert (how == "--supervise") == (tmp_path / "zerowiz-run.json").exists()


@pytest.mark.nodes
@pytest.mark.deepspeed
@pytest.mark.thorough
def test_a_rank_of_another_node_runs_out_and_the_next_strategy_goes_on(
    cluster: Cluster, tmp_path: Path
) -> None:
    (tmp_path / ".deepspeed_env").write_text("ZEROWIZ_RANK_RUNS_OUT=2,5,2\n", encoding="utf-8")
    env = {
        "PYTHONPATH": f"{ROOT}:{ROOT / 'tests' / 'ranks'}",
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
    }
    options = ("--allow-slow", "--escalate")
    with launch_template(cluster, tmp_path, *options, nodes=2, env=env) as job:
        assert 0 == job.status(within_s=300), job.text()
        all_gone(cluster)
    first, second = read_record(tmp_path)["attempts"]
    ended, went_on = first["end"], second["goes_on_from"]["what"]
    assert ("zero2", "host_oom", "n2") == (first["strategy"], ended["cause"], ended["host"])
    assert ("zero3", "finished", "checkpoint") == (
        second["strategy"],
        second["end"]["cause"],
        went_on,
    )


@pytest.mark.nodes
@pytest.mark.deepspeed
@pytest.mark.thorough
def test_launch_trains_on_three_nodes(cluster: Cluster, tmp_path: Path) -> None:
    train(cluster, tmp_path, nodes=3)


# What starts zerowiz on each node, after `rank` was set there.
COPIES = {
    "torchrun": "exec torchrun --nnodes 2 --nproc-per-node 1 --node-rank $rank"
    " --master-addr n1 --master-port 29411 --no-python",
    "a pod of a TrainJob": "export PET_NNODES=2 PET_NODE_RANK=$rank PET_NPROC_PER_NODE=2"
    " PET_MASTER_ADDR=n1 PET_MASTER_PORT=23456 RANK=$rank WORLD_SIZE=2; exec",
    "a pod of a PyTorchJob": "export RANK=$rank WORLD_SIZE=2 MASTER_ADDR=n1 MASTER_PORT=23456; exec",
}


@pytest.mark.nodes
@pytest.mark.deepspeed
@pytest.mark.thorough
@pytest.mark.parametrize("name", COPIES)
def test_a_copy_on_each_node_trains_with_the_others(
    name: str, cluster: Cluster, tmp_path: Path
) -> None:
    own = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    names = ("PATH", "PYTHONPATH", "TORCH_EXTENSIONS_DIR", "XDG_CACHE_HOME")
    told = environ(cluster, own)
    what = ("--accelerator", "cpu", "--gpus-per-node", "2", "--model", ROOT / "templates/model")
    script = (ROOT / "templates/train_deepspeed.py", "--steps", "4", "--output_dir", "saved")
    launched = (sys.executable, "-m", "zerowiz", "launch", "--stage", "2", *what, "--yes")
    words = shlex.join(map(str, (*launched, "--micro-batch", "2", *script)))
    lines = [f"export {key}={shlex.quote(told[key])}" for key in names]
    lines += [f"cd {tmp_path}", "rank=$(($(hostname | tr -d n) - 1))", f"{COPIES[name]} {words}"]
    (tmp_path / "copy.sh").write_text("\n".join(lines) + "\n", encoding="utf-8")
    argv = ("pdsh", "-S", "-R", "ssh", "-w", "n1,n2", f"sh {tmp_path}/copy.sh")
    with cluster.start(argv, told, tmp_path) as job:
        assert 0 == job.status(within_s=240), job.text()
        all_gone(cluster)
    assert_two_on_each(read_record(tmp_path), 2)


@pytest.mark.nodes
@pytest.mark.deepspeed
@pytest.mark.thorough
def test_ranks_of_every_node_see_the_variables_and_the_words(
    cluster: Cluster, tmp_path: Path
) -> None:
    (tmp_path / ".deepspeed_env").write_text(
        "# mine\n\nexport WANDB_NAME=of $(hostname)\nHF_HUB_OFFLINE=1\nno equals\n",
        encoding="utf-8",
    )
    more = {"HF_HOME": "/a b/$c", "HF_HUB_OFFLINE": "0", "HF_TOKEN": "hidden"}
    words = [word for text in ODD for word in ("--text", text)]
    with launch(cluster, tmp_path, *words, env=more) as job:
        assert 0 == job.status(within_s=120), job.text()
        all_gone(cluster)
    ranks = seen(tmp_path)
    assert ["n1", "n2"] == [rank["host"] for rank in ranks]
    assert [words] * 2 == [rank["argv"][-len(words) :] for rank in ranks]
    names = ("HF_HOME", "HF_HUB_OFFLINE", "WANDB_NAME", "HF_TOKEN")
    assert [("/a b/$c", "1", f"of n{number}", None) for number in (1, 2)] == [
        tuple(rank["environ"].get(name) for name in names) for rank in ranks
    ]
    assert "`HF_TOKEN` is not sent to the nodes" in job.text()


@pytest.mark.nodes
@pytest.mark.deepspeed
def test_a_node_that_vanishes_ends_the_job(cluster: Cluster, tmp_path: Path) -> None:
    with launch(cluster, tmp_path, "--steps", "10000") as job:
        job.says("step 3")
        lost = cluster.nodes[1]
        cluster.cut(lost)
        lost.die()
        assert 255 == job.status(within_s=LOST_S), job.text()
        all_gone(cluster)


@pytest.mark.nodes
@pytest.mark.deepspeed
@pytest.mark.thorough
def test_a_node_that_crashes_ends_the_job(cluster: Cluster, tmp_path: Path) -> None:
    """The others hear of it: their connections are reset, and they fail in the collective."""
    with launch(cluster, tmp_path, "--steps", "10000") as job:
        job.says("step 3")
        cluster.nodes[1].die()
        assert 0 != job.status(within_s=LOST_S), job.text()
        all_gone(cluster)


@pytest.mark.nodes
@pytest.mark.deepspeed
@pytest.mark.thorough
def test_a_signal_to_zerowiz_reaches_the_ranks_of_every_node(
    cluster: Cluster, tmp_path: Path
) -> None:
    with launch(cluster, tmp_path, "--steps", "10000", "--saves") as job:
        job.says("step 3")
        os.kill(job.pid, signal.SIGTERM)
        assert 128 + signal.SIGTERM == job.status(within_s=60), job.text()
        assert {"saved-0", "saved-1"} == {file.name for file in tmp_path.glob("saved-*")}
        all_gone(cluster)


@pytest.mark.nodes
@pytest.mark.deepspeed
@pytest.mark.thorough
def test_the_status_is_that_of_the_rank_that_failed_on_another_node(
    cluster: Cluster, tmp_path: Path
) -> None:
    with launch(cluster, tmp_path, "--steps", "10000", "--fails", "1") as job:
        assert 1 == job.status(within_s=90), job.text()
        assert "job ended: 1 failed" in job.text()
        all_gone(cluster)


# Ranks are bound by the real numactl, where this host lets it.


@pytest.mark.nodes
def test_the_real_numactl_binds_or_says_why_not() -> None:
    found = try_core_binding(os.environ, 1, Files())
    assert (found.cores is None) == (found.notes != ())
    if found.cores is not None:
        command = ("numactl", "-C", found.cores, "nproc")
        shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        assert str(len(os.sched_getaffinity(0))) == shown.strip()
