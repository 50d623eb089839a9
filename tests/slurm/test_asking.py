"""A job asks its own nodes through a real `srun`; run with `make test-slurm`."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from slurm.one_host import Slurm

pytestmark = pytest.mark.slurm

ROOT = Path(__file__).parents[2]
CPU = ("--accelerator", "cpu", "--gpus-per-node", "2")

IN_A_JOB = """
import json, os, sys
from zerowiz.core.machine.spec import encode_machine
from zerowiz.core.machine.merge import merge_nodes
from zerowiz.probe.machine.fleet import ask_nodes
from zerowiz.probe.machine.fleet import argv_for, node_command, pick_transport
transport = pick_transport(os.environ)
argv = argv_for(transport, node_command(sys.argv[1:], limit_s=60), os.environ)
fleet = merge_nodes(ask_nodes(["n1", "n2", "n9"], argv, concurrency=3, deadline_s=60, on_answer=lambda _: None))
print(json.dumps({
    "transport": transport,
    "machine": encode_machine(fleet.machine),
    "failures": {failure.host: failure.why for failure in fleet.failures},
}))
"""


@pytest.mark.parametrize(
    "memory", [(), ("--mem-per-cpu=100",), ("--mem=200",)], ids=["plain", "per CPU", "per node"]
)
def test_a_slurm_job_asks_its_own_nodes_with_srun(slurm: Slurm, memory: tuple[str, ...]) -> None:
    done = subprocess.run(
        ["salloc", "--quiet", "--nodes=2", "--ntasks-per-node=2", *memory]
        + [sys.executable, "-c", IN_A_JOB, *CPU],
        env={**slurm.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert 0 == done.returncode, done.stderr
    told = json.loads(done.stdout)
    assert "srun" == told["transport"]
    assert (2, 2) == (told["machine"]["nodes"], len(told["machine"]["gpus"]))
    assert ["n9"] == list(told["failures"])
    assert "node" in told["failures"]["n9"].lower()
