"""Plan the file that trains the decided job on a SLURM cluster."""

import sys
from collections.abc import Sequence
from pathlib import Path

from zerowiz.app.decide.decision import Plan
from zerowiz.app.machines.machine import is_here
from zerowiz.app.options import Options, as_words
from zerowiz.core.launch.plan import PlannedFile
from zerowiz.core.launch.sbatch import JobScript, render_job_script
from zerowiz.core.machine.types import Accelerator
from zerowiz.core.outcome.resume import RESUME
from zerowiz.core.script.delivery import add_words
from zerowiz.core.script.facts import ScriptFacts
from zerowiz.core.values import replace

NAME = "job.sbatch"
# Of the templates: a job that is queued again goes on, and saves when its time is up.
_RESUMES_FROM = (RESUME, "--save_on_signal")


def plan_job_file(plan: Plan, facts: ScriptFacts, script_args: Sequence[str] = ()) -> PlannedFile:
    """The job script: the nodes of the plan, the answers that were given, the script.

    Args:
        plan: What was decided.
        facts: What the script shows.
        script_args: The words after it.
    """
    machine, options = plan.request.job.machine, plan.options
    has_gpus = machine.accelerator is Accelerator.CUDA
    # Each zerowiz reads its own node; the ranks of a CPU are as many as an option says.
    # Answers that change while the job waits change nothing of it.
    on_node = replace(options, machine=None, nodes=None, hostfile=None, stage=None, isolated=True)
    if has_gpus:
        on_node = replace(on_node, gpus=None, gpus_per_node=None)
    else:
        on_node = replace(
            on_node, accelerator=Accelerator.CPU, gpus_per_node=len(machine.gpus), machine=None
        )
    on_node = _seen_from_here(on_node)
    virtual = sys.prefix != sys.base_prefix
    path = str((on_node.output_dir or Path()) / NAME)
    job = JobScript(
        nodes=machine.nodes,
        ranks=len(machine.gpus),
        has_gpus=has_gpus,
        cores=machine.host.cores if is_here(machine) else None,
        activate=str(Path(sys.prefix) / "bin" / "activate") if virtual else None,
        stage=options.stage or "auto",
        options=tuple(as_words(on_node)),
        script=_below(facts.target),
        script_args=add_words(script_args, _resuming(facts, script_args)),
        path=path,
        elsewhere=not is_here(machine),
    )
    return PlannedFile(path=path, text=render_job_script(job))


def _seen_from_here(options: Options) -> Options:
    """The options with each path below this folder, where `sbatch` runs, as a copy of it has it."""
    said = {name: getattr(options, name) for name in options.__struct_fields__}
    paths = {name: Path(_below(str(path))) for name, path in said.items() if isinstance(path, Path)}
    model = None if options.model is None else _below(options.model)
    return replace(options, **paths, model=model)  # type: ignore[arg-type]


def _below(path: str) -> str:
    """A path, relative to this folder if it is in it."""
    here = Path.cwd()
    return str(Path(path).relative_to(here)) if Path(path).is_relative_to(here) else path


def _resuming(facts: ScriptFacts, script_args: Sequence[str]) -> list[str]:
    """The words by which a job that is queued again goes on, where they are not there yet."""
    spelled = [flag for flag in _RESUMES_FROM if facts.parser.spells(flag)]
    return [flag for flag in spelled if flag not in script_args]
