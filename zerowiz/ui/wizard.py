"""The lines of the wizard: what was detected, and what an answer leads to."""

import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress

from zerowiz.core.decision.evaluate import StrategyEstimate
from zerowiz.core.decision.flowchart import Decision, Reason
from zerowiz.core.decision.questions import Choice, Question
from zerowiz.core.decision.remedies import Remedy
from zerowiz.core.machine.types import Machine
from zerowiz.core.script.facts import ScriptFacts
from zerowiz.core.script.programs import ProgramFile
from zerowiz.core.settings import SettingValue
from zerowiz.core.structs import replace
from zerowiz.translation import _, listing
from zerowiz.ui import pictures, remedies, sentences, show
from zerowiz.ui.job_end import TerminalLaunchReporter
from zerowiz.ui.text import columns_of, gib, gpus, labelled, paragraphs, seconds, size_of


def detected(
    machine: Machine | str,
    script: ScriptFacts | ProgramFile | Sequence[str],
) -> tuple[str, str]:
    """What is known before anything is asked: machine; script.

    The model is asked for next, or stands in the plan.

    Args:
        machine: The machine that is planned for, or why there is none.
        script: What it shows, or the names of those that could be meant; or the file of a program.
    """
    if isinstance(machine, str):
        where = _("no GPU: {machine}", machine=machine)
    else:
        where = sentences.machine_in_short(machine)
    if isinstance(script, ScriptFacts):
        what = f"{script.target}: {sentences.convention(script)}"
    elif isinstance(script, ProgramFile):
        what = _(
            "{path}: a file of {program}, which takes the config by its key `deepspeed`",
            path=script.path,
            program=script.program.name,
        )
    else:
        what = _("{script} found here", script=len(script)) if script else _("none found here")
    return labelled(_("Machine"), where), labelled(_("Script"), what)


def host(machine: Machine) -> str:
    """Cores and memory of a host that may train without a GPU."""
    cores, available_bytes = machine.host.cores, machine.host.available_bytes
    known = {
        _("1 core") if cores == 1 else _("{cores} cores", cores=cores): cores is not None,
        _("{amount} free", amount=gib(available_bytes)): available_bytes is not None,
    }
    return listing(words for words, is_known in known.items() if is_known)


def strategies(question: Question, decision: Decision) -> Question:
    """The question with the table of strategies as its menu, and why one is recommended."""
    # A menu has a sign before its lines, and two blanks more behind the name.
    first, rows = pictures.strategy_lines(decision, columns_of(sys.stderr) - 7, folded=False)
    heading, *lines = [
        "".join(words for words, _colour in line) for line in (first, *(row.line for row in rows))
    ]
    at = len(rows[0].line[0][0])
    heading = f"{heading[:at]}  {heading[at:]}"
    choices = tuple(
        Choice(
            value=row.evaluated[0].strategy.name,
            title=line[:at],
            detail=line[at:].rstrip(),
        )
        for row, line in zip(rows, lines, strict=True)
    )
    chosen = decision.chosen
    why = "; ".join(sentences.reasons(decision))
    recommended = _(
        "{name} is recommended: {why}",
        name="" if chosen is None else _(chosen.strategy.words),
        why=why,
    )
    return replace(
        question,
        choices=choices,
        heading=heading,
        why="" if chosen is None else recommended,
        default=(chosen or decision.closest).strategy.name,
    )


def as_planned(decision: Decision) -> dict[str, str]:
    """What a plan is of, by the questions that change it."""
    job, evaluated = decision.job, decision.chosen or decision.closest
    return {
        "strategy": _(evaluated.strategy.words),
        "machine": gpus(job.machine),
        "model": job.model.name,
    }


def consequence(decision: Decision) -> str:
    """What an answer leads to, in one line: strategy, memory, step time."""
    chosen = decision.chosen
    if chosen is None:
        closest = decision.closest
        name = _(closest.strategy.words)
        if decision.reasons[0] is Reason.SLOW_LINK_REFUSES_ZERO3:
            return _("only {name} fits, and the link is slow for it", name=name)
        return _(
            "nothing fits: {name} needs {memory}", name=name, memory=_memory(decision, closest)
        )
    fits = remedies.fits(_(chosen.strategy.words), chosen.verdict)
    text = f"{fits}: {_memory(decision, chosen)}"
    if chosen.step_time is not None:
        text += _(
            ", {expected_seconds} s a step",
            expected_seconds=seconds(chosen.step_time.expected_seconds),
        )
    step = decision.job.workload
    text += _(", micro-batch {micro_batch}", micro_batch=step.micro_batch)
    return (
        _(
            "{said} x {accumulation_steps} steps",
            said=text,
            accumulation_steps=step.accumulation_steps,
        )
        if step.accumulation_steps > 1
        else text
    )


def _memory(decision: Decision, evaluated: StrategyEstimate) -> str:
    return size_of(evaluated.device_bytes, decision.job.gpu_budget_bytes)


def where(machine: Machine, *, is_here: bool) -> str:
    """On which machine the command runs, before the last question."""
    if is_here:
        return _(
            "It runs on this machine, on {machine}; your script gets the config.",
            machine=gpus(machine),
        )
    return _("The job is for {machine}, and starts there.", machine=gpus(machine))


def where_program(file: ProgramFile) -> str:
    """Who starts the job of a program's file, before the last question."""
    return _(
        "{program} starts the ranks; zerowiz writes the config, and says what to set in {path}.",
        program=file.program.name,
        path=file.path,
    )


# Say between the wizard's questions what was decided, and not again what was shown before.


class WizardReporter(TerminalLaunchReporter):
    """Machine and script stand in the lines of what was detected."""

    def script(self, facts: ScriptFacts) -> None:
        """Where the reading of the script ended."""
        if not self.quiet:
            with suppress(OSError):
                show.unseen(facts, self.stream)

    def decision(
        self,
        decision: Decision,
        remedies: Sequence[Remedy],
        learning: Mapping[str, SettingValue],
    ) -> None:
        """The flowchart as it was answered, and what the chosen strategy takes."""
        del remedies  # They are a menu.
        if not self.quiet:
            with suppress(OSError):
                learned = sentences.learning_in_short(learning)
                show.answers(decision, self.stream, learned)
                paragraphs(show.besides(decision), self.stream, None)
