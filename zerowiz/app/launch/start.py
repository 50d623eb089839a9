"""Plan one start of a job: the files, the command and the environment."""

import os
from collections.abc import Mapping, Sequence

from msgspec import Struct

from zerowiz.app.decide.decision import Plan
from zerowiz.app.decide.plan_files import plan_copy, with_plan
from zerowiz.app.launch.launchers import LauncherCommand, Run
from zerowiz.app.resolve.request import config_file
from zerowiz.core.dsconfig.write import render_config, write_config
from zerowiz.core.launch.plan import (
    EntryPoint,
    LaunchPlan,
    PlannedFile,
    Programs,
    entry_options,
    launch_argv,
    launch_env,
    launcher_options,
    refuse_slices,
    sees_one_rank,
)
from zerowiz.core.machine.types import Accelerator, Machine
from zerowiz.core.memory.allocator import shares_with_sleeping_vllm, without_expansion
from zerowiz.core.outcome.resume import Resume
from zerowiz.core.script.delivery import Delivery, add_settled, deliver
from zerowiz.core.script.facts import ScriptFacts
from zerowiz.core.script.settings import check_accelerator, settle
from zerowiz.core.strategy import Offload, Strategy
from zerowiz.core.values import replace
from zerowiz.core.workload.choices import Integration
from zerowiz.emit.supervise import watched_env
from zerowiz.errors import UsageError
from zerowiz.probe.launch.programs import find_programs
from zerowiz.words import _


class Start(Struct, frozen=True, kw_only=True):
    """One start of a job, ready to be done."""

    plan: Plan
    facts: ScriptFacts
    script_args: tuple[str, ...]
    """As the person said them."""
    strategy: Strategy
    run: Run
    launch_plan: LaunchPlan
    resume: Resume
    """From where the script goes on, and with which words."""
    why: str


def render(plan: Plan, strategy: Strategy) -> str:
    """The config of this job under this strategy."""
    job, handover = plan.request.job, plan.request.handover
    return render_config(write_config(job, plan.decision.of(strategy), handover))


def plan_files(
    plan: Plan, strategy: Strategy, script: str | None, script_args: Sequence[str]
) -> tuple[PlannedFile, ...]:
    """What this job writes: of a person's own config only one that stands in YAML."""
    own = plan.options.config
    if own is not None:
        from zerowiz.app.resolve.yaml_config import plan_yaml_config  # noqa: PLC0415 - takes long to load

        request = plan.request
        step, reader = request.job.workload, request.handover.integration
        return plan_yaml_config(own, plan.options, step, reader)
    path = config_file(plan.options, strategy)
    config = PlannedFile(path=path, text=render(plan, strategy))
    return with_plan(plan, config, script, script_args)


def plan_launch(
    plan: Plan,
    facts: ScriptFacts,
    script_args: Sequence[str],
    strategy: Strategy,
    run: Run,
    number: int = 1,
) -> LaunchPlan:
    """The files, the command and the environment of this job.

    Raises:
        ZerowizError: The config cannot reach the script, or what starts it is missing.
    """
    machine = plan.request.job.machine
    delivery = deliver_plan(plan, facts, script_args, strategy)
    programs = find_programs(os.environ)
    env = launch_env(machine, programs, os.environ, delivery.env)
    offloads = strategy.offload is not Offload.NONE
    command = launcher_command(run, number, machine, programs, env, offloads=offloads)
    entry = entry_point(facts, delivery.script_args, run)
    files = plan_files(plan, strategy, facts.target, script_args)
    if delivery.copy is not None:
        files = (*files, plan_copy(delivery.copy))
    return make_launch_plan(
        command, programs, entry, delivery.script_args, files, supervised=run.supervised
    )


def entry_point(facts: ScriptFacts, script_args: tuple[str, ...], run: Run) -> EntryPoint:
    """What each rank runs, and whether it bears the word that DeepSpeed's launcher adds.

    Args:
        facts: What the script shows.
        script_args: All words after it.
        run: The launch.
    """
    return EntryPoint(
        target=facts.target,
        is_module=facts.module is not None,
        takes_local_rank=not (run.no_local_rank or facts.parser.refuses_local_rank(script_args)),
    )


def deliver_plan(
    plan: Plan, facts: ScriptFacts, script_args: Sequence[str], strategy: Strategy
) -> Delivery:
    """How the config, and what was settled, reach the script.

    Raises:
        ZerowizError: They cannot.
    """
    options = plan.options
    words = add_settled(script_args, plan.request.settled)
    check_accelerator(facts, settle(facts, words), plan.request.job.machine.accelerator)
    folder = str(options.output_dir or "")
    is_own = options.config is not None
    if options.config is not None and options.config.is_fifo():
        raise UsageError(
            _("`$config {path}` is a pipe, and each rank would read it", path=options.config),
            _("write it to a file, and name that"),
        )
    delivery = deliver(facts, words, config_file(options, strategy), folder, is_own=is_own)
    if shares_with_sleeping_vllm(plan.request.job.workload):
        delivery = replace(delivery, env={**delivery.env, **without_expansion(os.environ)})
    if options.config is None or plan.request.handover.integration is Integration.DEEPSPEED:
        return delivery
    from zerowiz.app.resolve.yaml_config import read_yaml_config  # noqa: PLC0415 - takes long to load

    env = read_yaml_config(options.config, options.output_dir).env
    return replace(delivery, env={**delivery.env, **env})


def launcher_command(
    run: Run,
    number: int,
    machine: Machine,
    programs: Programs,
    env: Mapping[str, str],
    *,
    offloads: bool = False,
) -> LauncherCommand:
    """How the ranks of one attempt are started.

    Raises:
        ZerowizError: What starts them is missing, or would break on a path.
    """
    if run.node_launch is not None:
        return run.node_launch.launcher_command(run.folder, env)
    if run.hostfile is None:
        return _on_this_host(machine, env, offloads=offloads)
    refuse_slices(machine)
    from zerowiz.app.launch.hosts import hosts_command  # noqa: PLC0415 - takes long to load

    watched = watched_env(run.watch(number, machine.world_size)) if run.supervised else {}
    return hosts_command(run, run.hostfile, programs, env, watched)


def _on_this_host(machine: Machine, env: Mapping[str, str], *, offloads: bool) -> LauncherCommand:
    """With cores of their own for ranks whose optimizer steps there, where that can be had."""
    if not offloads or machine.accelerator is not Accelerator.CUDA:
        return LauncherCommand(options=launcher_options(machine), env=env)
    from zerowiz.probe.launch.core_binding import try_core_binding  # noqa: PLC0415 - seldom needed

    binding = try_core_binding(os.environ, len(machine.gpus))
    options = launcher_options(machine, binding.cores)
    return LauncherCommand(options=options, env=env, notes=binding.notes)


def make_launch_plan(
    command: LauncherCommand,
    programs: Programs,
    entry: EntryPoint,
    script_args: Sequence[str],
    files: Sequence[PlannedFile],
    *,
    supervised: bool,
) -> LaunchPlan:
    """The plan of a start, once it is known how its ranks are reached.

    Args:
        command: How.
        programs: What runs the job.
        entry: What each rank runs.
        script_args: All words after it.
        files: Its config and the plan of that.
        supervised: Whether zerowiz stays with the job.
    """
    port = command.master_port or programs.master_port
    # Under supervision the launcher starts a program of ours, whose first word the script is.
    needs_program = (entry.is_module and not command.starts_modules) or sees_one_rank(command.env)
    by_rank_program = supervised or needs_program
    program = (programs.rank_program, *entry.program) if by_rank_program else (entry.target,)
    script, *args = (*program, *script_args)
    launched = (command.quote_script(script), *command.quote(args))
    options = (*command.options, *entry_options(entry, by_rank_program=by_rank_program))
    return LaunchPlan(
        files=(*command.files, *files),
        argv=launch_argv(programs.deepspeed, options, port, launched),
        env=command.env,
        unset=command.unset,
        notes=command.notes,
        master_port=port,
        supervised=supervised,
        by_rank_program=by_rank_program,
    )
