"""Find what would help a plan, each change as it would be if it were typed."""

import os
from collections.abc import Mapping, Sequence

from zerowiz.app.decide.follow import choose_open, refuse_strategy
from zerowiz.app.machines.machine import complete, find_machine, is_here, state_links
from zerowiz.app.options import Options, with_plain
from zerowiz.app.resolve.read_model import ReadModel
from zerowiz.app.resolve.request import Request, make_request
from zerowiz.core.decision.evaluate import StrategyEstimate, Verdict
from zerowiz.core.decision.flowchart import Decision, find_way
from zerowiz.core.machine.cuda_visible import choose_gpus
from zerowiz.core.machine.types import Machine, pick_gpus
from zerowiz.core.model.from_size import parse_size
from zerowiz.core.remedies.remedy import Remedy, make_remedy, worth_offering
from zerowiz.core.script.facts import ScriptFacts
from zerowiz.core.script.settings import can_be_given, check_method, settle
from zerowiz.core.search.freedom import Freedom, Objective
from zerowiz.core.settings import Change
from zerowiz.core.values import replace
from zerowiz.core.workload.choices import Integration, Loss
from zerowiz.core.workload.workload import SETTINGS
from zerowiz.errors import ZerowizError
from zerowiz.probe.machine.gpu_table import read_gpu_table
from zerowiz.probe.model.hf import model_of
from zerowiz.probe.model.known_models import read_known_models
from zerowiz.probe.model.libraries import read_version
from zerowiz.words import _, joined

# What a script has to do for a setting that it neither shows nor takes.
_EDITS: Mapping[tuple[str, object], str] = {
    ("loss", "liger"): _("let liger-kernel compute the loss"),
    ("loss", "chunked"): _("compute the loss in chunks"),
    ("attention", "sdpa"): _('load the model with `attn_implementation="sdpa"`'),
}


class RemedyFinder:
    """Finds what would help a plan, each as it would be if it were typed."""

    def __init__(
        self,
        options: Options,
        request: Request,
        facts: ScriptFacts | None,
        script_args: Sequence[str],
    ) -> None:
        self.options = options
        self.request = request
        self.facts = facts
        self.script_args = script_args
        self.settings = None if facts is None else settle(facts, tuple(script_args))

    def find(self, decision: Decision) -> tuple[Remedy, ...]:
        """The remedies that can be taken, then those that only a change of the script makes."""
        if decision.chosen is not None and decision.chosen.verdict is Verdict.FITS:
            return ()
        from zerowiz.core.remedies.attempts import RemedyScope  # noqa: PLC0415 - takes long to load
        from zerowiz.core.remedies.find import find_edits, find_remedies  # noqa: PLC0415 - as above

        scope = RemedyScope(
            takes=self._reaches,
            gpus=read_gpu_table(),
            models=read_known_models,
            complete=self._complete,
        )
        found = (self._checked(each, decision) for each in find_remedies(decision, scope))
        takeable = worth_offering(each for each in found if each is not None)
        if self.facts is None:
            return takeable
        edits = (replace(e, edit=self._edit(e)) for e in find_edits(decision, scope))
        return (*takeable, *edits)

    def _reaches(self, change: Change) -> bool:
        """Whether the ranks get each value that a change gives a setting of theirs."""
        if self.settings is None:
            return True
        typed = with_plain(self.options, change)
        return all(self._takes(name, getattr(typed, name)) for name in change)

    def _takes(self, name: str, value: object) -> bool:
        settings, facts = self.settings, self.facts
        if settings is None or facts is None or name == "optimizer_state_dtype":
            return True
        if name == "model":
            # A script that is planned for a size can as well be planned for another one.
            by_size = parse_size(self.options.model or "") is not None
            is_size = parse_size(str(value)) is not None
            return by_size if is_size else settings.is_open(name, value)
        if name not in SETTINGS:
            return True
        if name == "loss" and value is Loss.LIGER and not self._has_liger():
            return False
        return can_be_given(facts, settings, name, value)

    def _has_liger(self) -> bool:
        """Whether Liger's kernels are installed, where that can be seen."""
        elsewhere = not is_here(self.request.job.machine)
        return elsewhere or read_version("liger_kernel") is not None

    def _complete(self, machine: Machine) -> Machine:
        """A machine of the table with what the options say of it, its links aside."""
        said = replace(self.options, nodes=None, interconnect=None)
        return complete(machine, said)

    def _checked(self, remedy: Remedy, decision: Decision) -> Remedy | None:
        """The remedy with what it leads to when it is typed; None where it leads nowhere."""
        change = self._restated(remedy.change)
        if is_here(self.request.job.machine) and "host_memory" in change:
            # Nobody can type memory that this host does not have.
            return remedy
        try:
            request = self._request(change)
            chosen = self._lead(request)
            if chosen is None or not chosen.runs:
                return None
            refuse_strategy(self.options, request, chosen.strategy)
        except ZerowizError:
            return None
        return make_remedy(decision, change, chosen)

    def _restated(self, change: Change) -> Change:
        """The change with what was said of other links before, and with all nodes that it needs."""
        said = self.options.interconnect
        text = change.get("interconnect")
        if "machine" in change:
            nodes = {} if self.options.nodes is None else {"nodes": _nodes_of(change["machine"])}
            return {**change, **nodes}
        if text is None or said is None:
            return change
        return {**change, "interconnect": f"{said},{text}"}

    def _lead(self, request: Request) -> StrategyEstimate | None:
        """The strategy that is chosen for a request."""
        if request.freedom == Freedom() and self.options.objective is Objective.FLOWCHART:
            return find_way(request.job, request.constraints)[0]
        return choose_open(self.options, request).decision.chosen

    def _edit(self, remedy: Remedy) -> str:
        """What to change in the script for it."""
        path = "" if self.facts is None else self.facts.text_path
        return joined(
            "; ",
            (
                self._edit_of(name, value, path)
                for name, value in remedy.change.items()
                if not self._reaches({name: value})
            ),
        )

    def _edit_of(self, name: str, value: int | str | bool, path: str) -> str:
        """What to change in the script for one setting."""
        trains_adapters = self.facts is not None and self.facts.trains_adapters
        by_call = self.request.handover.integration is not Integration.HF
        if name == "method" and not trains_adapters:
            return _("wrap the model with peft in `{path}`", path=path)
        if name == "gradient_checkpointing" and by_call:
            return _("call `model.gradient_checkpointing_enable()` in `{path}`", path=path)
        if name == "model":
            return _("load `{value}` in `{path}`", value=value, path=path)
        try:
            self._request({name: value})
        except ZerowizError as error:
            return error.hints[0] if error.hints else error.message
        edit = _EDITS.get((name, value))
        if edit is None:
            return _(
                "train as `${name} {value}` says in `{path}`", name=name, value=value, path=path
            )
        return _("{edit} in `{path}`", edit=edit, path=path)

    def _request(self, change: Change) -> Request:
        """The job with a change typed.

        The machine and the model are those of the job, which were read once, unless the change
        names another.
        """
        job, facts = self.request.job, self.facts
        changed = with_plain(self.options, change)
        machine = machine_of(changed, change, job.machine)
        model, traced = job.model, job.traced
        if "model" in change:
            traced = None
            known = (row for row in read_known_models() if row.id == change["model"])
            row = next(known, None)
            model = model_of(str(change["model"]), None) if row is None else row.build()
        read = ReadModel(model=model, traced=traced)
        request = make_request(changed, machine, facts, self.script_args, read)
        if facts is not None:
            check_method(facts, request.job.workload.method)
        return request


def _nodes_of(spec: object) -> int:
    """The nodes of a spec such as `4x8xH100`."""
    nodes, *several = str(spec).split("x", 2)
    return int(nodes) if len(several) > 1 and several[0].isdecimal() else 1


def machine_of(changed: Options, change: Change, machine: Machine) -> Machine:
    """The machine that was read once, with other links or another one where the change says so."""
    if "machine" in change:
        return find_machine(changed, os.environ)
    if "gpus" in change:
        machine = pick_gpus(machine, choose_gpus(machine.gpus, asked=str(change["gpus"])))
    if "host_memory" in change:
        machine = complete(machine, Options(host_memory=changed.host_memory))
    return state_links(machine, changed.interconnect) if "interconnect" in change else machine
