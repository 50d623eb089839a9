import pytest

from zerowiz.core.launch.nodes import (
    AttemptSpec,
    Join,
    LaunchSpec,
    decode_file,
    encode_file,
    job_folder,
    refuse_unlike,
)
from zerowiz.core.launch.plan import EntryPoint
from zerowiz.core.machine.types import Accelerator, Gpu, Machine, MachineSource
from zerowiz.errors import UsageError, ZerowizError

LAUNCH = LaunchSpec(
    zerowiz_version="1.0",
    entry=EntryPoint(target="pkg.train", is_module=True, takes_local_rank=False),
    script_args=("--name", "a 'b' $c\n"),
    env={"ACCELERATE_USE_DEEPSPEED": "true"},
    sha256_by_path={"out/ds_config_zero2.json": "0" * 64},
    strategy="zero2",
    master_addr="n1",
    master_port=29500,
    slots=((0, 1), (2, 3)),
    hostfile="run/hostfile",
    run_folder="run",
)


def join(rank: int, accelerator: Accelerator = Accelerator.CUDA) -> Join:
    source = MachineSource.NVML if accelerator is Accelerator.CUDA else MachineSource.CPU
    gpus = tuple(Gpu(index=index, name="A") for index in range(2))
    machine = Machine(source=source, accelerator=accelerator, gpus=gpus)
    return Join(
        rank=rank, host=f"n{rank + 1}", word=f"w{rank}", zerowiz_version="1.0", machine=machine
    )


@pytest.mark.parametrize(
    "attempt",
    [
        AttemptSpec(heard=("a", "b"), spec=LAUNCH),
        AttemptSpec(heard=("a", "b"), end=137, why="killed"),
        AttemptSpec(heard=(), end=0),
    ],
)
def test_an_attempt_is_read_as_it_was_written(attempt: AttemptSpec) -> None:
    assert attempt == decode_file(AttemptSpec, encode_file(attempt), "attempt-1.json")


def test_a_join_is_read_as_it_was_written() -> None:
    assert join(1) == decode_file(Join, encode_file(join(1)), "hello-1.json")


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"schema_version": 2, "value": {}}', "{"])
def test_what_another_version_wrote_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"attempt-1\.json"):
        decode_file(AttemptSpec, text, "attempt-1.json")


@pytest.mark.parametrize(("output_dir", "parent"), [("", "."), ("/shared/out", "/shared/out")])
def test_nodes_meet_in_the_output_folder(output_dir: str, parent: str) -> None:
    assert f"{parent}/.zerowiz/jobs/slurm-1-0-0" == job_folder(output_dir, "slurm-1-0-0")


def test_nodes_that_are_alike_are_taken() -> None:
    refuse_unlike((join(0), join(1), join(2)))


def test_gpus_and_cpus_do_not_train_together() -> None:
    with pytest.raises(ZerowizError, match="`n2` on cpu"):
        refuse_unlike((join(0), join(1, Accelerator.CPU)))
