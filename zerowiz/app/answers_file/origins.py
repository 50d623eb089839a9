"""Say where each setting of a plan comes from."""

from collections.abc import Mapping

from msgspec import Struct

from zerowiz.app.answers_file.layers import Layers
from zerowiz.app.ask.answers import said_by_config
from zerowiz.app.decide.decision import Plan
from zerowiz.app.options import lasting
from zerowiz.core.machine.types import MachineSource
from zerowiz.core.script.settings import ScriptSettings, settle
from zerowiz.words import N_, _

DEFAULT = N_("default")


class SettingOrigin(Struct, frozen=True, kw_only=True):
    """One setting of a plan, and what decides it."""

    name: str
    value: object
    """None where nobody says it, and nothing follows from the rest."""
    origin: str


def find_origins(plan: Plan, layers: Layers) -> tuple[SettingOrigin, ...]:
    """Every setting of a plan, with what decides it.

    Args:
        plan: What was decided.
        layers: What was said, before the script was read.
    """
    values, detected = _values(plan), _detected(plan)
    decided = {**detected, **_by_script(plan), **_by_config(plan), **_later(plan, layers)}
    decided |= {**_by_search(plan), **layers.origins}
    return tuple(
        SettingOrigin(name=name, value=values[name], origin=decided.get(name, DEFAULT))
        for name in lasting().values()
    )


def _values(plan: Plan) -> Mapping[str, object]:
    """What the plan takes of each setting."""
    options, job = plan.options, plan.request.job
    machine, step = job.machine, job.workload
    said = {name: getattr(options, name) for name in lasting().values()}
    resolved: dict[str, object] = {
        "model": options.model or job.model.name,
        "nodes": machine.nodes,
        "gpus_per_node": len(machine.gpus),
        "accelerator": machine.accelerator,
        "optimizer_state_dtype": job.state_format,
        "global_batch": step.micro_batch * step.accumulation_steps * machine.world_size,
        "integration": plan.request.handover.integration,
    }
    return {**said, **resolved, **{n: v for n, v in step.settings().items() if n not in resolved}}


_DETECTED: Mapping[MachineSource, str] = {
    MachineSource.NVML: _("detected: NVML"),
    MachineSource.CPU: _("detected: host"),
    MachineSource.FILE: _("machine file"),
    MachineSource.SPEC: _("machine spec"),
}


def _detected(plan: Plan) -> Mapping[str, str]:
    """What the machine decides where nothing is said of it."""
    source = _DETECTED[plan.request.job.machine.source]
    follows = {"global_batch": _("micro-batch x accumulation x GPUs")}
    return dict.fromkeys(("nodes", "gpus_per_node", "accelerator"), source) | follows


def _by_script(plan: Plan) -> Mapping[str, str]:
    """What the script, or a word after it, says."""
    if plan.facts is None:
        return {}
    settings = settle(plan.facts, plan.script_args)
    found = {name: getattr(settings, name) for name in ScriptSettings.__struct_fields__}
    sources = {name: getattr(setting, "source", None) for name, setting in found.items()}
    sources["model"] = sources.pop("model_config") or sources["model"]
    seen = {"integration": plan.facts.path} if plan.facts.integration is not None else {}
    return seen | {name: source for name, source in sources.items() if source is not None}


def _by_config(plan: Plan) -> Mapping[str, str]:
    """What a config of the person's own says."""
    return dict.fromkeys(said_by_config(plan.options), str(plan.options.config))


def _later(plan: Plan, layers: Layers) -> Mapping[str, str]:
    """What was said in another launcher's words, or in an earlier run of the script."""
    before, after = layers.options, plan.options
    names = [n for n in lasting().values() if getattr(before, n) != getattr(after, n)]
    named = layers.script is not None and (plan.facts is None or plan.facts.target != layers.script)
    by = _("`{script}` on the command line", script=layers.script) if named else _("an earlier run")
    return dict.fromkeys(names, by)


def _by_search(plan: Plan) -> Mapping[str, str]:
    """What zerowiz chose of what is open, also where it is as it was."""
    own, taken = plan.own_step, plan.request.job.workload
    names = [n for n in lasting().values() if hasattr(own, n)]
    changed = {n for n in names if getattr(own, n) != getattr(taken, n)}
    chose = plan.search is not None and plan.search.choice is not None
    return dict.fromkeys((*changed, *(plan.request.freedom.names if chose else ())), N_("chosen"))
