"""What DeepSpeed's ranks really have of a model at stage 3, when a script saves it by itself."""

import json
import sys
from pathlib import Path

import pytest
from ranks.harness import rank_environ, run

pytestmark = [pytest.mark.deepspeed, pytest.mark.slow]

THRESHOLD = 100
LOOP = f"""import json, sys
import deepspeed, torch

model = torch.nn.Sequential(torch.nn.Linear(10, 10, bias=False), torch.nn.Linear(10, 11, bias=False))
config = {{
    "train_micro_batch_size_per_gpu": 1,
    "optimizer": {{"type": "AdamW", "params": {{"lr": 0.01, "torch_adam": True}}}},
    "zero_optimization": {{"stage": 3, "stage3_param_persistence_threshold": {THRESHOLD},
        "stage3_gather_16bit_weights_on_model_save": True}},
}}
engine, *_ = deepspeed.initialize(model=model, config=config)
for _ in range(2):
    engine.backward(engine(torch.ones(1, 10)).sum())
    engine.step()
sizes = lambda: [tensor.numel() for tensor in model.state_dict().values()]
itself = sizes()
with deepspeed.zero.GatheredParameters(model.parameters()):
    gathered = sizes()
engine.save_16bit_model(sys.argv[1], "all.bin")
if torch.distributed.get_rank() == 0:
    saved = torch.load(f"{{sys.argv[1]}}/all.bin")
    found = itself, gathered, [tensor.numel() for tensor in saved.values()]
    with open(f"{{sys.argv[1]}}/found.json", "w") as file:
        json.dump(found, file)
"""


def test_a_rank_has_no_weight_of_its_model_that_is_above_the_threshold(folder: Path) -> None:
    (folder / "loop.py").write_text(LOOP, encoding="utf-8")
    launcher = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
    done = run((*launcher, "loop.py", folder), rank_environ(folder / "reports"), folder)
    assert 0 == done.returncode, done.stderr
    itself, gathered, saved = json.loads((folder / "found.json").read_text())
    assert ([THRESHOLD, 0], [100, 110], [100, 110]) == (itself, gathered, saved)
