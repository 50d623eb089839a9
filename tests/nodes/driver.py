"""Launch a script over a hostfile as `zerowiz launch` does, without the decisions before it.

python driver.py HOSTFILE FOLDER GRACE SCRIPT [ARGS...]
"""

import os
import sys
from pathlib import Path

from zerowiz.app.launch.start import Run, RunOptions, launcher_command, make_launch_plan
from zerowiz.core.launch.plan import EntryPoint
from zerowiz.core.machine.types import Host
from zerowiz.core.structs import replace
from zerowiz.emit.files import write_files
from zerowiz.emit.job import supervise
from zerowiz.probe.machine.host import cpu_machine
from zerowiz.probe.nodes import read_hostfile
from zerowiz.probe.preflight.read_facts import find_programs


def main() -> None:
    """Be the head."""
    hostfile, folder, grace, *words = sys.argv[1:]
    slots = read_hostfile(Path(hostfile))
    machine = replace(cpu_machine(next(iter(slots.values())), Host()), nodes=len(slots))
    programs = find_programs(os.environ)
    run = Run(
        folder=Path(folder),
        supervised=True,
        how=RunOptions(grace_seconds=int(grace)),
        hostfile=Path(hostfile),
    )
    wanted = {"DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1"}
    command = launcher_command(run, 1, machine, programs, wanted)
    script, *args = words
    entry = EntryPoint(target=script)
    plan = make_launch_plan(command, programs, entry, args, (), supervised=True)
    write_files(plan.files)
    sys.stderr.write("".join(f"note: {note}\n" for note in command.notes))
    sys.stderr.flush()
    end = supervise(plan.argv, plan.environ(os.environ), run.watch(1, machine.world_size))
    sys.stdout.write(f"job ended: {end.status} {end.cause}\n")
    sys.exit(end.status)


if __name__ == "__main__":
    main()
