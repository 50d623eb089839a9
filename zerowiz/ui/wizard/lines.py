"""The lines of the wizard: what was detected, and what an answer leads to."""

from collections.abc import Mapping, Sequence

from zerowiz.core.decision.evaluate import StrategyEstimate
from zerowiz.core.decision.flowchart import Decision, Reason
from zerowiz.core.machine.types import Machine
from zerowiz.core.script import ScriptFacts
from zerowiz.ui import remedies, sentences
from zerowiz.ui.text.units import gib, gpus, seconds, size_of


def detected(
    machine: Machine | str,
    script: ScriptFacts | Sequence[str],
    model: str | None,
    versions: Mapping[str, str | None],
) -> tuple[str, str, str]:
    """What is known before anything is asked: machine; script; model and environment.

    Args:
        machine: The machine that is planned for, or why there is none.
        script: What it shows, or the names of those that could be meant.
        model: As it was named; None where nobody did.
        versions: Of the libraries that train, None for what is not installed.
    """
    where = f"no GPU: {machine}" if isinstance(machine, str) else _machine(machine)
    if isinstance(script, ScriptFacts):
        what = f"{script.target}: {sentences.convention(script)}"
    else:
        what = f"{len(script)} found here" if script else "none found here"
    named = model or ("the script names none" if isinstance(script, ScriptFacts) else "none named")
    found = [f"{name} {version}" for name, version in versions.items() if version is not None]
    missing = [name for name, version in versions.items() if version is None]
    has = ", ".join([*found, *(f"no {name}" for name in missing)])
    return (f"Machine  {where}", f"Script   {what}", f"Model    {named}; {has}")


def _machine(machine: Machine) -> str:
    shown = f"{gpus(machine)} ({sentences.source(machine)})"
    return f"{shown}; {sentences.links(machine)}" if machine.world_size > 1 else shown


def host(machine: Machine) -> str:
    """Cores and memory of a host that may train without a GPU."""
    cores, available_bytes = machine.host.cores, machine.host.available_bytes
    known = {
        f"{cores} cores": cores is not None,
        f"{gib(available_bytes)} free": available_bytes is not None,
    }
    return ", ".join(words for words, is_known in known.items() if is_known)


def consequence(decision: Decision) -> str:
    """What an answer leads to, in one line: strategy, memory, step time."""
    chosen = decision.chosen
    if chosen is None:
        closest = decision.closest
        name = remedies.strategy(closest.strategy.name)
        if decision.reasons[0] is Reason.SLOW_LINK_REFUSES_ZERO3:
            return f"only {name} fits, and the link is slow for it"
        return f"nothing fits: {name} needs {_memory(decision, closest)}"
    fits = remedies.fits(chosen.strategy.name, chosen.verdict)
    said = f"{fits}: {_memory(decision, chosen)}"
    if chosen.step_time is not None:
        said += f", {seconds(chosen.step_time.expected_seconds)} s a step"
    step = decision.job.workload
    said += f", micro-batch {step.micro_batch}"
    return f"{said} x {step.accumulation_steps} steps" if step.accumulation_steps > 1 else said


def _memory(decision: Decision, evaluated: StrategyEstimate) -> str:
    return size_of(evaluated.device_bytes, decision.job.gpu_budget_bytes)


def where(machine: Machine, *, is_here: bool) -> str:
    """On which machine the command runs, before the last question."""
    if is_here:
        return f"It runs on this machine, on {gpus(machine)}; your script gets the config."
    return f"The job is for {gpus(machine)}: run the command there. It cannot be launched here."


def trains_on(machine: Machine) -> str:
    """The machine on which a command runs that was planned elsewhere."""
    return gpus(machine)
