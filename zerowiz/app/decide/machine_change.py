"""Find that this machine is not what it was when the same script was planned before."""

from zerowiz.app.decide.batch_change import with_way_to_keep
from zerowiz.app.decide.decision import Plan
from zerowiz.app.machines.machine import is_here
from zerowiz.app.resolve.request import config_file
from zerowiz.core.launch.machine_change import (
    BatchChange,
    EarlierPlan,
    MachineChange,
    compare_batches,
    compare_machines,
    read_earlier_plan,
)
from zerowiz.core.strategies import STRATEGIES
from zerowiz.probe.launch.plan_files import read_plan_files


def find_machine_change(plan: Plan) -> MachineChange | None:
    """What has changed on this machine since the plan file of an earlier run was written.

    None for a plan of another machine, or where there is no earlier plan of this script beside
    the config.

    Args:
        plan: Of today; nothing of it is written yet.
    """
    machine = plan.request.job.machine
    if not is_here(machine):
        return None
    script = None if plan.facts is None else plan.facts.target
    # The plans of all strategies lie side by side.
    files = read_plan_files(config_file(plan.options, plan.strategy or STRATEGIES[0]))
    plans = (read_earlier_plan(path, content, script) for path, content in files)
    earlier = next((each for each in plans if each is not None), None)
    if earlier is None:
        return None
    facts = compare_machines(earlier.machine, machine)
    if not facts:
        return None
    batch = _find_batch_change(plan, earlier)
    return MachineChange(plan_path=earlier.path, facts=facts, global_batch=batch)


def _find_batch_change(plan: Plan, earlier: EarlierPlan) -> BatchChange | None:
    """What becomes of a batch that nobody stated, with a way to keep it that was tried."""
    job = plan.request.job
    if plan.options.global_batch is not None:
        return None
    batch = compare_batches(earlier, job.workload, job.machine)
    return None if batch is None else with_way_to_keep(plan, batch)
