"""Join a decision, its config and the command line into the files that a run writes."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from zerowiz import __version__
from zerowiz.app.decide import Plan, with_way_to_keep
from zerowiz.app.machines.machine import is_here
from zerowiz.app.options import Options, as_words
from zerowiz.app.reporter import Reporter
from zerowiz.app.resolve.resolved_job import config_file
from zerowiz.core.decision.flowchart import Reason
from zerowiz.core.decision.open_settings import Limit
from zerowiz.core.decision.remedy_table import encode_remedy
from zerowiz.core.launch.plan import RESUME, resumes
from zerowiz.core.launch.provenance import (
    LIBRARIES,
    MachineChange,
    PlannedFile,
    Provenance,
    change_batch,
    compare_machines,
    hide_secret_values,
    hide_secrets,
    plan_path,
    read_earlier_plan,
    render_plan,
    without_identities,
)
from zerowiz.core.machine.spec import encode_machine
from zerowiz.core.machine.types import Accelerator
from zerowiz.core.plan_json import encode_decision
from zerowiz.core.script.config_delivery import add_words
from zerowiz.core.script.settings import ScriptRun
from zerowiz.core.script.settings_file import SettingsCopy, render_values
from zerowiz.core.strategies import STRATEGIES
from zerowiz.core.structs import replace
from zerowiz.errors import HandEditedError
from zerowiz.probe.output_folder import read_plan_files
from zerowiz.probe.package_data import read_version
from zerowiz.translation import _, in_english
from zerowiz.ui import sentences
from zerowiz.ui.files import machine_change

if TYPE_CHECKING:
    from zerowiz.core.catalog import PlannedRun

# Encode what was decided as the contract has it.


def encode_plan(
    plan: Plan,
    command: Sequence[str] | None = None,
    env: Mapping[str, str] | None = None,
    run: "PlannedRun | None" = None,
    limits: Sequence[Limit] | None = None,
) -> dict[str, object]:
    """The contract's object of what was decided."""
    strategy, decision = plan.strategy, plan.decision
    encoded_run = None
    if run is not None:
        from zerowiz.core.catalog import encode_run  # noqa: PLC0415 - most plans ask for no run

        encoded_run = encode_run(run)
    with in_english():
        reasons = sentences.reasons(decision)
    return encode_decision(
        decision,
        plan.search,
        version=__version__,
        reasons=reasons,
        remedies=[encode_remedy(remedy) for remedy in plan.remedies],
        settled=plan.resolved.settled,
        config_path=None if strategy is None else config_file(plan.options, strategy),
        command=command,
        env=env,
        run=encoded_run,
        limits=limits,
    )


def with_plan(
    plan: Plan, config: PlannedFile, script: str | None, script_args: Sequence[str]
) -> tuple[PlannedFile, ...]:
    """The config and its plan file, in the order in which they are written.

    The plan goes first: a config is what a run takes, so where writing ends in between, no new
    config lies there without its reasons, and the hash in the plan shows that it is of another.
    """
    from zerowiz.probe.host_files import hash_uuids  # noqa: PLC0415 - few plans are for this machine

    job = plan.decision.job
    machine = without_identities(
        job.machine, hash_uuids, names_hosts=plan.options.hostfile is not None
    )
    # `command` and `env` stay null: the port, PATH and folders of one start on one host would
    # differ each time, and `reproduce` makes them anew.
    content = {**encode_plan(plan), "machine": encode_machine(machine)}
    python = ".".join(map(str, sys.version_info[:3]))
    libraries = {name: read_version(name) for name in LIBRARIES}
    provenance = Provenance(
        config=config,
        argv=tuple(reproducing_words(plan, script, script_args)),
        versions={"zerowiz": __version__, "python": python, **libraries},
    )
    text = render_plan(content, provenance)
    return PlannedFile(path=plan_path(config.path), text=text), config


def plan_copy(copy: SettingsCopy) -> PlannedFile:
    """The copy of a settings file, as it is written."""
    return PlannedFile(
        path=copy.path,
        text=render_values(copy.path, copy.values),
        copy_of=copy.of,
        shown=render_values(copy.path, hide_secret_values(copy.values)),
    )


def reproducing_words(plan: Plan, script: str | None, script_args: Sequence[str]) -> list[str]:
    """The command that writes the same files, asking nothing; run where this one was.

    Args:
        plan: What was decided.
        script: Its path; None where a config is written alone.
        script_args: The words after it.
    """
    # A launch starts where it is: what was planned for another machine, `init` writes.
    command = "launch" if script and is_here(plan.decision.job.machine) else "init"
    forced = ["--force"] if Reason.FORCED in plan.decision.reasons else []
    # An answers file may say something else by then.
    options = replace(plan.options, isolated=True)
    words = ["zerowiz", command, "--yes", *forced, *as_words(options)]
    return [*words, *((script, *hide_secrets(script_args)) if script else ("--no-script",))]


@contextmanager
def losses_shown(*, shown: bool) -> Iterator[None]:
    """With `--quiet` an error is its line and its hints, without what would be lost."""
    try:
        yield
    except HandEditedError as error:
        raise error if shown else error.without_losses() from None


# Find that this machine is not what it was when the same script was planned before.


def find_machine_change(plan: Plan) -> MachineChange | None:
    """What has changed on this machine since the plan file of an earlier run was written.

    None for a plan of another machine, or where there is no earlier plan of this script beside
    the config.

    Args:
        plan: Of today; nothing of it is written yet.
    """
    machine = plan.resolved.job.machine
    if not is_here(machine):
        return None
    script = None if plan.script is None else plan.script.facts.target
    # The plans of all strategies lie side by side.
    files = read_plan_files(config_file(plan.options, plan.strategy or STRATEGIES[0]))
    plans = (read_earlier_plan(path, content, script) for path, content in files)
    earlier = next((other for other in plans if other is not None), None)
    if earlier is None:
        return None
    facts = compare_machines(earlier.machine, machine)
    if not facts:
        return None
    # A batch that somebody stated is what it was, and so is one on as many ranks.
    is_kept = plan.options.global_batch is not None
    if is_kept or machine.world_size == earlier.machine.world_size:
        return MachineChange(plan_path=earlier.path, facts=facts)
    batch = change_batch(earlier.global_batch, plan.resolved.job.workload, machine)
    batch = None if batch is None else with_way_to_keep(plan, batch)
    return MachineChange(plan_path=earlier.path, facts=facts, global_batch=batch)


# Plan the file that trains the decided job on a SLURM cluster.

NAME = "job.sbatch"
# Of the templates: a job that is queued again goes on, and saves when its time is up.
_RESUMES_FROM = (RESUME, "--save_on_signal")


def plan_job_file(plan: Plan, script: ScriptRun) -> PlannedFile:
    """The job script: the nodes of the plan, the answers that were given, the script.

    Args:
        plan: What was decided.
        script: The script as it is run.
    """
    from zerowiz.core.launch.sbatch import JobScript, render_job_script  # noqa: PLC0415 - few plans write a job script

    machine, options = plan.resolved.job.machine, plan.options
    has_gpus = not machine.accelerator.row.on_host
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
    resuming = [flag for flag in _RESUMES_FROM if script.facts.parser.spells(flag)]
    missing = [flag for flag in resuming if flag not in script.words]
    path = str((on_node.output_dir or Path()) / NAME)
    job = JobScript(
        nodes=machine.nodes,
        ranks=len(machine.gpus),
        has_gpus=has_gpus,
        cores=machine.host.cores if is_here(machine) else None,
        activate=str(Path(sys.prefix) / "bin" / "activate") if virtual else None,
        stage=options.stage or "auto",
        options=tuple(as_words(on_node)),
        script=_below(script.facts.target),
        script_args=add_words(script.words, missing),
        path=path,
        elsewhere=not is_here(machine),
    )
    return PlannedFile(path=path, text=render_job_script(job))


def _seen_from_here(options: Options) -> Options:
    """The options with each path below this folder, where `sbatch` runs, as a copy of it has it."""
    values = {name: getattr(options, name) for name in options.__struct_fields__}
    paths = {
        name: Path(_below(str(path))) for name, path in values.items() if isinstance(path, Path)
    }
    model = None if options.model is None else _below(options.model)
    return replace(options, **paths, model=model)  # type: ignore[arg-type]


def _below(path: str) -> str:
    """A path, relative to this folder if it is in it."""
    here = Path.cwd()
    return str(Path(path).relative_to(here)) if Path(path).is_relative_to(here) else path


# Say that the machine has changed since the last plan of a job.


def note_change(plan: Plan, reporter: Reporter) -> None:
    """Note what has changed, and how the batch is kept.

    Args:
        plan: Of today; nothing of it is written yet.
        reporter: Hears of the change.
    """
    change = find_machine_change(plan)
    if change is None:
        return
    reporter.note(machine_change(change, plan.resolved.job.machine))
    has_other_ranks = any(fact.fact != "gpu_names" for fact in change.facts)
    if plan.script is not None and has_other_ranks and resumes(plan.script):
        reporter.note(
            _(
                "`{resume}` continues on any number of ranks; the random numbers and each rank's"
                " share of the data are new",
                resume=RESUME,
            )
        )
