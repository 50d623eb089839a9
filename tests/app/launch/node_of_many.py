"""Be one node of many, round after round: agree, and print what was agreed in each.

Usage: node_of_many.py FOLDER RANK NODES ROUNDS
"""

import hashlib
import json
import sys
import time
from pathlib import Path

from zerowiz.app.launch.multi_node import follow, gather, introduce, publish, publish_end
from zerowiz.core.launch.plan import EntryPoint, Join, LaunchSpec, NodeRank, slots_of
from zerowiz.core.machine.types import Accelerator, Gpu, Machine, MachineSource

DEADLINE_S = 60.0


def machine_of(rank: int) -> Machine:
    """Another on each node, which node 0 has to hear of."""
    gpus = tuple(Gpu(index=index, name="A", ordinal=index + rank) for index in range(2))
    return Machine(source=MachineSource.NVML, accelerator=Accelerator.CUDA, gpus=gpus)


def lead(folder: Path, node: NodeRank, own: Join, turn: int) -> tuple[object, int | None]:
    rendezvous = gather(folder, node, own, lambda _: None, deadline_s=DEADLINE_S)
    config = folder / f"config-{turn}.json"
    config.write_text(f'{{"turn": {turn}, "word": "{own.word}"}}', encoding="utf-8")
    spec = LaunchSpec(
        entry=EntryPoint(target="train.py"),
        script_args=("--word", own.word),
        env={"TURN": str(turn)},
        sha256_by_path={str(config): hashlib.sha256(config.read_bytes()).hexdigest()},
        master_addr="n0",
        master_port=1024 + turn,
        slots=tuple(slots_of(join.machine) for join in rendezvous.joins),
        run_folder="run",
    )
    publish(rendezvous, 1, spec)
    publish_end(rendezvous, turn)
    return spec, turn


def follow_to_the_end(folder: Path, node: NodeRank, own: Join) -> tuple[object, int | None]:
    rendezvous, first = follow(folder, node, own, deadline_s=DEADLINE_S)
    last = follow(folder, node, own, 2, rendezvous, deadline_s=DEADLINE_S)[1]
    return first.spec, last.end


def main() -> None:
    folder, rank, nodes, rounds = Path(sys.argv[1]), *map(int, sys.argv[2:])
    node = NodeRank(
        node_rank=rank,
        nodes=nodes,
        hosts=tuple(f"n{number}" for number in range(nodes)),
        master_addr="n0",
        job_key="the-same-each-time",
    )
    agreed = []
    for turn in range(rounds):
        time.sleep((0.0, 0.002, 0.03)[(turn * 7 + rank * 5) % 3])
        own = introduce(node, machine_of(rank))
        agreed.append(
            lead(folder, node, own, turn) if rank == 0 else follow_to_the_end(folder, node, own)
        )
    sys.stdout.write(json.dumps([[repr(spec), end] for spec, end in agreed]))


if __name__ == "__main__":
    main()
