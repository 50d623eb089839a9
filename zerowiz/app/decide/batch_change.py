"""Find a global batch that is not what it was, with a way to keep it that was tried."""

from zerowiz.app.decide.decision import Plan
from zerowiz.app.decide.follow import follow_options
from zerowiz.app.options import with_plain
from zerowiz.app.resolve.read_model import ReadModel
from zerowiz.core.launch.machine_change import BatchChange, change_batch
from zerowiz.core.script.settings import settle
from zerowiz.core.settings import Change
from zerowiz.core.values import replace
from zerowiz.errors import ZerowizError

_OF_BATCH = ("micro_batch", "accumulation_steps")


def change_by_options(plan: Plan) -> tuple[Change, BatchChange] | None:
    """The options that change the global batch which the script would have by itself, and how.

    None where they change nothing, where nobody sees what the script would have, and where a
    global batch was asked for.
    """
    options, step, machine = plan.options, plan.own_step, plan.request.job.machine
    said = {name: getattr(options, name) for name in _OF_BATCH}
    said = {name: value for name, value in said.items() if value is not None}
    if plan.facts is None or not said or options.global_batch is not None:
        return None
    settings, before = settle(plan.facts, plan.script_args), machine.world_size
    for name in _OF_BATCH:
        setting = getattr(settings, name)
        before *= getattr(step, name) if setting is None else setting.value
    batch = change_batch(before, step, machine)
    return None if batch is None else (said, with_way_to_keep(plan, batch))


def keeping(batch: BatchChange) -> Change:
    """The change of options that keeps the global batch; empty where none does."""
    steps = batch.accumulation_steps
    return {} if steps is None or batch.by_script else {"accumulation_steps": steps}


def with_way_to_keep(plan: Plan, batch: BatchChange) -> BatchChange:
    """The change, with micro-steps only where the job can have them and fits."""
    if batch.accumulation_steps is None:
        return batch
    job = plan.request.job
    read = ReadModel(model=job.model, traced=job.traced, notes=plan.request.traced)
    try:
        options = with_plain(plan.options, keeping(batch))
        decision = follow_options(options, job.machine, plan.facts, plan.script_args, read).decision
    except ZerowizError:
        return replace(batch, by_script=True)
    step = decision.job.workload
    whole = step.micro_batch * step.accumulation_steps * job.machine.world_size
    keeps = decision.chosen is not None and whole == batch.before
    return batch if keeps else replace(batch, accumulation_steps=None)
