"""Join a decision, its config and the command line into the files that a run writes."""

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from zerowiz import __version__
from zerowiz.app.decide import Plan, note_settled, with_way_to_keep
from zerowiz.app.machines.machine import is_here
from zerowiz.app.options import Options, as_words
from zerowiz.app.reporter import Reporter
from zerowiz.app.resolve.resolved_job import config_file
from zerowiz.core.decision.flowchart import Reason
from zerowiz.core.decision.open_settings import Limit
from zerowiz.core.decision.remedy_table import encode_remedy
from zerowiz.core.dsconfig.merge import Merged, removed_keys, with_edits
from zerowiz.core.dsconfig.write import render_config, write_config
from zerowiz.core.launch.plan import RESUME, resumes
from zerowiz.core.launch.provenance import (
    LIBRARIES,
    MachineChange,
    PlannedFile,
    Provenance,
    change_batch,
    compare_machines,
    plan_path,
    read_earlier_plan,
    render_plan,
    without_identities,
)
from zerowiz.core.launch.secrets import hide_secret_values, hide_secrets
from zerowiz.core.machine.names import encode_machine
from zerowiz.core.machine.types import Accelerator, Machine
from zerowiz.core.plan_json import encode_decision
from zerowiz.core.script.config_delivery import add_words
from zerowiz.core.script.settings import ScriptRun
from zerowiz.core.script.settings_file import SettingsCopy, render_values
from zerowiz.core.strategies import STRATEGIES
from zerowiz.core.strategy_types import Strategy
from zerowiz.core.structs import replace
from zerowiz.errors import HandEditedError, LostEdit
from zerowiz.probe.files import read_named
from zerowiz.probe.output_folder import EditedConfig, read_edits, read_plan_files
from zerowiz.probe.package_data import read_version
from zerowiz.translation import _, in_english
from zerowiz.ui import assumptions, sentences
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


class PlannedConfig(Struct, frozen=True, kw_only=True):
    """The config of a plan, with a person's edits of what zerowiz wrote before."""

    path: str
    written: Mapping[str, object]
    """Without the edits."""
    merged: Merged
    edited: EditedConfig | None
    """Where the edits are."""

    @property
    def file(self) -> PlannedFile:
        """What is written."""
        there = None if self.edited is None else self.edited.content
        return PlannedFile(
            path=self.path,
            text=render_config(self.merged.values),
            takes_over=there,
            conflicts=() if there is None else tuple(self._conflicts()),
        )

    def _conflicts(self) -> Iterator[str]:
        for edit in self.merged.conflicts:
            there = "removed" if edit.is_removed else json.dumps(edit.value)
            yield f"`{edit.key}` is {there}, and the plan needs {self._planned(edit.key)}"

    def _planned(self, key: str) -> str:
        value: object = self.written
        for part in key.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        return "none" if value is None else json.dumps(value)


def plan_config(plan: Plan, strategy: Strategy) -> PlannedConfig:
    """The config that zerowiz writes for a plan.

    Args:
        plan: What was decided.
        strategy: The one that the job runs with.
    """
    path, resolved = config_file(plan.options, strategy), plan.resolved
    script = None if plan.script is None else plan.script.facts.target
    written = write_config(resolved.job, plan.decision.of(strategy), resolved.handover)
    edited = read_edits(path, script)
    merged = Merged(values=written) if edited is None else with_edits(written, edited.edits)
    return PlannedConfig(path=path, written=written, merged=merged, edited=edited)


def note_choices(plan: Plan, reporter: Reporter, *, is_asked: bool = False) -> None:
    """Note what was chosen, and what the config keeps of a person's base and edits.

    How it differs is shown where that is asked for.

    Args:
        plan: What was decided.
        reporter: Hears of it.
        is_asked: Whether a person decides next whether it is written: they see what differs.

    Raises:
        ConfigMistakeError: DeepSpeed would not take it, and nobody forces it.
    """
    note_settled(plan, reporter)
    options, strategy = plan.options, plan.strategy
    if strategy is None or options.own_config is not None:
        return
    planned = plan_config(plan, strategy)
    base = plan.resolved.handover.base
    removed = () if base is None else removed_keys(base, planned.written)
    if base is not None:
        reporter.note(assumptions.built_on(planned.path, str(options.base), base, removed))
    if base is not None or planned.edited is not None:
        from zerowiz.app.resolve.own_config import lint_built_config  # noqa: PLC0415 - seldom needed

        machine, values = plan.resolved.job.machine, planned.merged.values
        lint_built_config(planned.path, values, options, machine, plan.script, reporter)
    if planned.edited is not None and planned.merged.kept:
        reporter.note(
            assumptions.keeps_edits(planned.path, planned.edited.path, planned.merged.kept)
        )
    if options.show_removed:
        for each in removed:
            reporter.note(assumptions.removed(str(options.base), each))
    if options.diff or (is_asked and base is not None):
        _show_difference(plan, planned, reporter)


def _show_difference(plan: Plan, planned: PlannedConfig, reporter: Reporter) -> None:
    """Show how a config differs from the base, or from the file that is there."""
    base, path, wanted = plan.resolved.handover.base, planned.path, planned.file.text
    if base is not None:
        there = render_config(base).encode()
        edit = LostEdit(path=str(plan.options.base), there=there, wanted=wanted, new_path=path)
    else:
        there = read_named(Path(path)) if Path(path).is_file() else b""
        edit = LostEdit(path=path, there=there, wanted=wanted)
    if edit.there != wanted.encode():
        reporter.losses([edit])


def with_plan(
    plan: Plan, planned: PlannedConfig, script: str | None, script_args: Sequence[str]
) -> tuple[PlannedFile, ...]:
    """The config and its plan file, in the order in which they are written.

    The plan goes first: a config is what a run takes, so where writing ends in between, no new
    config lies there without its reasons, and the hash in the plan shows that it is of another.
    """
    from zerowiz.probe.host_files import hash_uuids  # noqa: PLC0415 - few plans are for this machine

    job, config = plan.decision.job, planned.file
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
        written=planned.written,
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


def next_words(
    options: Options, script: str | None, script_args: Sequence[str], machine: Machine
) -> list[str]:
    """The command that goes on after a plan: it starts the script here, or writes its files.

    Args:
        options: As they were typed, with what is added to them.
        script: Its path, where there is one.
        script_args: The words after it.
        machine: That of the plan.
    """
    command = "launch" if script is not None and is_here(machine) else "init"
    shown = replace(options, as_json=False, quiet=False)
    return ["zerowiz", command, *as_words(shown), *((script, *script_args) if script else ())]


@contextmanager
def losses_shown(*, shown: bool) -> Iterator[None]:
    """With `--quiet` an error is its line and its hints, without what would be lost."""
    try:
        yield
    except HandEditedError as error:
        alone = HandEditedError(error.message, *error.hints, losses=())
        raise error if shown else alone from None


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
