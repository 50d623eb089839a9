"""A supervised script is what it would be alone, and its steps are counted beside it."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import cast

import pytest
from kills.harness import SHIM

from zerowiz.emit.processes import ATTEMPT_VARIABLE, read_measured

AS_ALONE = """\
import atexit, json, multiprocessing, sys

class Mine:
    pass

def child(queue):
    queue.put(Mine())

if __name__ == "__main__":
    spawn = multiprocessing.get_context("spawn")
    queue = spawn.Queue()
    process = spawn.Process(target=child, args=(queue,))
    process.start()
    mine = queue.get()
    process.join()
    facts = [__file__, __name__, type(mine) is Mine, sys.argv[1:], sys.path[0]]
    atexit.register(lambda: print(json.dumps([*facts, Mine is not None]), flush=True))
    sys.exit(3)
"""
# What of DeepSpeed's engine is counted.
ENGINE = """\
class DeepSpeedEngine:
    device = __import__("torch").device("cpu")
    global_steps = micro_steps = 0
    zero_optimization_stage = lambda self: 2
    train_micro_batch_size_per_gpu = lambda self: 4
    gradient_accumulation_steps = lambda self: 2

    def __init__(self, model=None):
        "Take a model."
        self.module = model

    def step(self, lr_kwargs=None):
        "Take one."
        self.micro_steps += 1
        self.global_steps = self.micro_steps // 2

    def backward(self, loss):
        "Add gradients."
        return loss
"""
TRAINING = """\
import os
from deepspeed.runtime.engine import DeepSpeedEngine

engine, other = DeepSpeedEngine(), DeepSpeedEngine()
assert "Take one." == DeepSpeedEngine.step.__doc__
for _ in range(10):
    assert 1 == engine.backward(1)
    engine.step()
    other.step()
"""

# What a training does with its `__main__`, and how it may end.
ENDS = """\
import pickle, sys, threading
from beside import VALUE
from torch.utils.data import DataLoader

class Rows:
    def __len__(self):
        return 3

    def __getitem__(self, index):
        return Row(index * VALUE)

class Row:
    def __init__(self, value):
        self.value = value

def late():
    threading.main_thread().join()
    print(type(pickle.loads(pickle.dumps(Row(1)))) is Row, flush=True)

def fail():
    raise ValueError("broken")

if __name__ == "__main__":
    spawned = DataLoader(
        Rows(), batch_size=None, num_workers=1, multiprocessing_context="spawn"
    )
    print([row.value for row in spawned], sys.argv[1:], __file__, __package__, flush=True)
    # torch does not wait for the thread that holds a semaphore: ended between unlinking and
    # unregistering it, the interpreter warns of a leak.
    for thread in threading.enumerate():
        if thread.name == "QueueFeederThread":
            thread.join()
    threading.Thread(target=late).start()
    ENDING
"""
ENDINGS = (
    ("train.py", "fail()"),
    ("-m package.train", "sys.exit('no data')"),
    pytest.param("train.py", "pass", marks=pytest.mark.thorough),
    pytest.param("-m package.train", "fail()", marks=pytest.mark.thorough),
)


def supervised(folder: Path, script: str) -> "subprocess.CompletedProcess[str]":
    (folder / "train.py").write_text(script)
    return run(folder, "train.py", SHIM)


def run(folder: Path, program: str, *beside: Path) -> "subprocess.CompletedProcess[str]":
    """Run a script, or a module by `-m`, alone or beside the file that supervises it."""
    environ = {
        **os.environ,
        "RANK": "1",
        "LOCAL_RANK": "1",
        "CROSS_RANK": "0",
        ATTEMPT_VARIABLE: str(folder / "attempt"),
        "PYTHONPATH": str(folder),
    }
    words = [sys.executable, *map(str, beside), *program.split(), "--lr", "1"]
    return subprocess.run(
        words, cwd=folder, env=environ, capture_output=True, text=True, check=False
    )


def test_a_supervised_script_sees_what_it_sees_alone(tmp_path: Path) -> None:
    done = supervised(tmp_path, AS_ALONE)
    assert 3 == done.returncode, done.stderr
    path = tmp_path / "train.py"
    expected = [str(path), "__main__", True, ["--lr", "1"], str(tmp_path), True]
    assert expected == json.loads(done.stdout)


@pytest.mark.slow
@pytest.mark.parametrize(("program", "ending"), ENDINGS)
def test_a_supervised_training_prints_and_ends_as_it_does_alone(
    program: str, ending: str, tmp_path: Path
) -> None:
    script = ENDS.replace("ENDING", ending)
    package = tmp_path / "package"
    package.mkdir()
    for folder, text in ((tmp_path, script), (package, script.replace("beside", ".beside"))):
        (folder / "train.py").write_text(text)
        (folder / "beside.py").write_text("VALUE = 7")
    alone, beside = run(tmp_path, program), run(tmp_path, program, SHIM)
    assert f"[0, 7, 14] ['--lr', '1'] {tmp_path}" in alone.stdout
    assert alone.stdout == beside.stdout
    assert alone.returncode == beside.returncode
    assert alone.stderr == beside.stderr


def test_a_script_that_is_no_python_fails_as_it_does_alone(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("def f(:")
    alone, beside = run(tmp_path, "train.py"), run(tmp_path, "train.py", SHIM)
    assert alone.returncode == beside.returncode
    assert alone.stderr == beside.stderr


@pytest.fixture
def engine(tmp_path: Path) -> Path:
    package = tmp_path / "deepspeed" / "runtime"
    package.mkdir(parents=True)
    (package / "engine.py").write_text(ENGINE)
    (package / "__init__.py").touch()
    (package.parent / "__init__.py").touch()
    return tmp_path


def test_the_optimizer_steps_of_one_engine_are_counted_to_the_end(engine: Path) -> None:
    """Though the script leaves at once."""
    done = supervised(engine, TRAINING + "os._exit(0)\n")
    assert 0 == done.returncode, done.stderr
    measured = read_measured(engine / "attempt")
    assert [1] == [*measured]
    assert 5 == measured[1]["steps"]
    assert isinstance(measured[1]["timed_step_seconds"], list)
    assert 4 == len(measured[1]["timed_step_seconds"])
    # Of an engine without a model by name, nothing beside it is noted.
    assert measured[1]["outside_bytes"] is None


def test_what_the_process_holds_beside_the_first_model_is_noted(engine: Path) -> None:
    """200 MB that it held before the engine count, and its parameters and buffers do not."""
    script = TRAINING.replace(
        "DeepSpeedEngine(), DeepSpeedEngine()",
        "DeepSpeedEngine(model=model), DeepSpeedEngine(model=torch.nn.Linear(1, 1))",
    )
    before = (
        "import resource, torch\nmodel = torch.nn.Linear(10_000, 5_000)\n"
        "model.register_buffer('mask', torch.ones(25_000_000))\n"
        "pages = int(open('/proc/self/statm').read().split()[1])\n"
        "print(pages * resource.getpagesize() - 300_000_000)\n"
        "data = torch.ones(50_000_000)\n"
    )
    done = supervised(engine, before + script)
    assert 0 == done.returncode, done.stderr
    report = read_measured(engine / "attempt")[1]
    assert cast("int", report["peak_bytes"]) >= 299_000_000
    held_bytes = cast("int", report["outside_bytes"]) - int(done.stdout)
    assert 200_000_000 == pytest.approx(held_bytes, rel=0.1)


SAVING = """\
import os, torch
from deepspeed.runtime.engine import DeepSpeedEngine
from safetensors.torch import save_file

net = torch.nn.Linear(1, 1)
net.weight = torch.nn.Parameter(torch.empty(0))
net.weight.ds_numel = 1
DeepSpeedEngine(model=net), DeepSpeedEngine(model=net)
for save, held in ((torch.save, {"model": net.state_dict()}), (save_file, net.state_dict())):
    try:
        save(held, "refused")
    except RuntimeError as error:
        print(error)
torch.save({"bias": net.bias, "other": torch.empty(0)}, "saved")
# As DeepSpeed saves a checkpoint, with its shards in other files.
exec("torch.save(net.state_dict(), 'shard')", {"__name__": "deepspeed.x", "torch": torch, "net": net})
print(*map(os.path.exists, ("refused", "saved", "shard")))
"""


def test_no_weight_that_ranks_share_is_saved_empty(engine: Path) -> None:
    done = supervised(engine, SAVING)
    assert 2 == done.stdout.count(
        "does not save weights that are empty (1 of them, `weight` first). At "
    ), done.stderr
    assert done.stdout.endswith("False True True\n"), done.stderr


def test_what_cannot_be_counted_ends_no_training(engine: Path) -> None:
    (engine / "attempt").mkdir()
    (engine / "attempt" / "measured").write_text("no folder")
    done = supervised(engine, TRAINING + "print('trained')\n")
    assert (0, "trained\n") == (done.returncode, done.stdout), done.stderr


def test_a_script_without_an_engine_leaves_nothing(tmp_path: Path) -> None:
    assert 0 == supervised(tmp_path, "").returncode
    assert {} == read_measured(tmp_path / "attempt")
