"""Explain a strategy line by line: what its step takes its time for, and its memory."""

from collections.abc import Iterator, Mapping
from typing import TextIO

from zerowiz.core.decision.evaluate import StrategyEstimate
from zerowiz.core.decision.flowchart import Decision
from zerowiz.core.decision.memory_parts import outside
from zerowiz.core.decision.plan_input import PlanInput
from zerowiz.core.flags import spell
from zerowiz.core.machine.types import Accelerator
from zerowiz.core.speed.links import is_assumed
from zerowiz.core.speed.terms import StepTime, TermKind
from zerowiz.core.strategy import Offload
from zerowiz.core.workload.choices import Accounting
from zerowiz.ui.pictures import memory
from zerowiz.ui.text.fold import columns_of
from zerowiz.ui.text.lines import draw
from zerowiz.ui.text.table import say, show_rows
from zerowiz.ui.text.units import bare_gib, on_device, seconds
from zerowiz.words import N_, _

_TERMS: Mapping[TermKind, str] = {
    TermKind.MATRIX_PRODUCTS: _("matrix products"),
    TermKind.ATTENTION: _("attention"),
    TermKind.ELEMENTWISE: _("elementwise"),
    TermKind.HOST: _("host"),
    TermKind.HOOKS: _("hooks"),
    TermKind.GATHERING: _("gathering"),
    TermKind.REDUCTION: _("reduction"),
    TermKind.OPTIMIZER: _("optimizer"),
    TermKind.CPU_OPTIMIZER: _("cpu optimizer"),
    TermKind.PCIE: _("pcie"),
    TermKind.ALLOCATOR: _("allocator"),
}


def explain(decision: Decision, evaluated: StrategyEstimate, stream: TextIO) -> None:
    """The time of a step; the memory by phase, as bars and line by line."""
    job, name = decision.job, evaluated.strategy.name
    say(stream, "", _("Time of a step with {name}, in seconds:", name=name))
    if evaluated.step_time is None:
        say(
            stream,
            on_device(_("  unknown: {why_untimed}", why_untimed=job.why_untimed), job.machine),
        )
    else:
        _times(evaluated.step_time, stream)
        say(stream, *(on_device(line, job.machine) for line in _pcie(job, evaluated)))
    _why(job, evaluated, stream)
    say(
        stream,
        "",
        on_device(_("Memory of each GPU with {name}, by phase:", name=name), job.machine),
    )
    if job.accounting is Accounting.REAL:
        draw(memory.phases(job, evaluated, columns_of(stream)), stream)
        stream.write("\n")
    _ledger(evaluated, stream)


def _times(value: StepTime, stream: TextIO) -> None:
    rows = [
        (
            _TERMS[term.kind],
            seconds(term.exposed_seconds),
            f"{term.exposed_seconds / value.expected_seconds:.0%}",
            _(term.formula),
        )
        for term in value.terms
    ]
    rows.append((_("sum"), seconds(value.expected_seconds), "100%", ""))
    show_rows(stream, ("part", N_("seconds"), N_("share"), "formula"), rows)


def _pcie(job: PlanInput, evaluated: StrategyEstimate) -> Iterator[str]:
    """Where the PCIe rate of the GPU enters the time, and how large it is taken to be."""
    if job.rates is None:
        return
    rate = _(
        "{pcie_gigabytes_per_s:.0f} GB/s one way",
        pcie_gigabytes_per_s=job.rates.pcie_bytes_per_s / 1e9,
    )
    if is_assumed(job.machine, job.rates):
        yield _(
            "The link between the GPUs has no known speed: their PCIe is assumed, {rate}.",
            rate=rate,
        )
    if evaluated.strategy.offload is not Offload.NONE:
        yield _(
            "What is offloaded crosses the PCIe of each GPU: {rate} by the table of GPUs.",
            rate=rate,
        )


def _why(job: PlanInput, evaluated: StrategyEstimate, stream: TextIO) -> None:
    """Every line of what a device holds where that is most; they add up to what is needed."""
    phase = evaluated.estimate.peak_phase
    needs = bare_gib(evaluated.device_bytes)
    title = _(
        "Why {needs} GiB: what each GPU holds in {phase}, where that is most:",
        needs=needs,
        phase=_(phase.value),
    )
    say(stream, "", on_device(title, job.machine))
    rows = [
        (_(each.kind.value), bare_gib(each.size_bytes), _(each.formula))
        for each in evaluated.estimate.peaks()[phase]
    ]
    beside = outside(job, evaluated)
    on_cuda = job.machine.accelerator is Accelerator.CUDA
    besides = (
        (
            _("CUDA and NCCL") if on_cuda else _("libraries"),
            beside.context_bytes,
            _("as it was measured"),
        ),
        (_("allocator slack"), beside.slack_bytes, _("a part of the peak, as it was measured")),
        ("vLLM", beside.vllm_bytes, _("`$vllm_memory_fraction` of the GPU")),
    )
    rows += [(name, bare_gib(size), spell(why)) for name, size, why in besides if size]
    rows.append((_("sum"), needs, ""))
    show_rows(stream, ("part", "GiB", "formula"), rows)


def _ledger(evaluated: StrategyEstimate, stream: TextIO) -> None:
    rows = [
        (_(phase.value), _(each.kind.value), bare_gib(each.size_bytes), _(each.formula))
        for phase, moment in evaluated.estimate.peaks().items()
        for each in moment
    ]
    show_rows(stream, ("phase", "part", "GiB", "formula"), rows)
