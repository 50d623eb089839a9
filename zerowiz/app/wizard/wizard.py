"""What is open after some answers, and what each answer leads to."""

import os
from collections.abc import Callable, Mapping
from pathlib import Path

from msgspec import Struct

from zerowiz.app.ask.answers import as_value, open_questions
from zerowiz.app.ask.command import Command
from zerowiz.app.ask.kept import recall_kept
from zerowiz.app.decide.follow import Followed, follow_options
from zerowiz.app.options import Options, with_plain
from zerowiz.app.reporter import Reporter
from zerowiz.app.resolve.model import check_model
from zerowiz.app.resolve.request import own_config
from zerowiz.app.resolve.workload import splits
from zerowiz.app.wizard import menus
from zerowiz.app.wizard.named import NamedInputs, as_answers
from zerowiz.app.wizard.outcome import InitOptions
from zerowiz.app.wizard.template import CopiedTemplate, check_template
from zerowiz.core.decision.answers import Answers
from zerowiz.core.decision.flowchart import Decision
from zerowiz.core.decision.plan_input import longest_tokens, refuse_length
from zerowiz.core.decision.precision import native_precision
from zerowiz.core.decision.questions import (
    ALL_QUESTIONS,
    CHANGEABLE,
    OWN_MICRO_BATCH,
    TEMPLATE,
    Question,
    is_relevant,
    spare,
)
from zerowiz.core.machine.types import Accelerator, Machine
from zerowiz.core.script.delivery import add_settled
from zerowiz.core.script.facts import ScriptFacts
from zerowiz.core.script.settings import ScriptSettings, can_be_given, check_accelerator, settle
from zerowiz.core.search.freedom import Objective
from zerowiz.core.templates import template_of
from zerowiz.core.values import replace
from zerowiz.core.workload.choices import Loop, Method, Precision
from zerowiz.errors import AnswerNeededError, PreflightError, ZerowizError
from zerowiz.probe.nearby import find_scripts
from zerowiz.ui.wizard import lines
from zerowiz.words import _

_SEVERAL = 2
_CHANGEABLE = {question.key: question for question in CHANGEABLE}


class AnsweredJob(Struct, frozen=True, kw_only=True):
    """What the answers lead to."""

    script: str | None
    """None where a config alone is wanted."""
    facts: ScriptFacts | None
    machine: Machine
    options: Options


class _Outlook(Struct, frozen=True, kw_only=True):
    """What an answer leads to."""

    decision: Decision
    refusal: str | None
    """Why the script would not train there, whether or not the job fits."""

    @property
    def trains(self) -> bool:
        return self.decision.chosen is not None and self.refusal is None


class Wizard:
    """Knows what is open after some answers, and what each answer leads to.

    Args:
        command: The script and the options as they were typed.
        template: The template that lies in the folder, if the person starts from one.
        reporter: Hears how many nodes of a hostfile have answered.
        wanted: Whether a config alone is wanted, and of what.

    Raises:
        ZerowizError: What was typed cannot be used: there is no such script, model or machine.
    """

    def __init__(
        self,
        command: Command,
        template: CopiedTemplate,
        reporter: Reporter,
        wanted: InitOptions,
    ) -> None:
        self._no_script = wanted.no_script
        self._template = template
        self.named = NamedInputs(command, reporter, wanted)

    def prepare(self, answers: Answers) -> None:
        """Lay a template that was chosen into the folder, and take off one that is no more.

        Raises:
            ZerowizError: It cannot be copied.
        """
        if self._template.follow(answers.by_key.get("script")):
            self.named.forget()

    def known(self, answers: Answers) -> dict[str, str | None]:
        """What is asked of this job, by key: the answer, what was typed, or None where it is open.

        What the script or a config of the person's own decides is no question.
        """
        found = self._open(answers)
        if self.named.script(answers) is None:
            return found
        return spare(found, answers.by_key, self._defaults(answers))

    def spared(self, answers: Answers) -> dict[str, str | None]:
        """What is not asked, so that there are few questions, by key."""
        found = self._open(answers)
        return {k: v for k, v in self.known(answers).items() if v != found[k]}

    def _open(self, answers: Answers) -> dict[str, str | None]:
        """As `known`, however many questions that is."""
        found = self._asked(answers)
        known = {**dict(answers.given), **as_answers(answers.settings)}
        changed = (k for k, v in answers.given if k in _CHANGEABLE and self._takes(k, v, answers))
        kept = {*found, *changed}
        return {**found, **{k: v for k, v in known.items() if k in kept}}

    def _asked(self, answers: Answers) -> dict[str, str | None]:
        """What is asked or was typed, by key, whatever was answered to it."""
        found: dict[str, str | None] = {}
        if self.named.here is None or self.named.typed.machine is not None:
            found["machine"] = self.named.typed.machine
        if not self._no_script:
            # The only one here is not asked for; with others it is what the menu points at.
            found["script"] = self.named.script_here if len(self.named.nearby) < _SEVERAL else None
        script = self.named.script(answers)
        if not self.named.has_script(answers):
            found |= open_questions(self.named.typed, ScriptSettings())
            found["method"] = self.named.typed.method
        elif script is not None:
            found |= self._of_script(answers, self.named.options_of(script))
        read = self.named.model(answers)
        if read is not None and read.model.architecture.reads_images:
            # The size of its images decides it.
            found.pop("sequence_tokens", None)
        return found

    def _defaults(self, answers: Answers) -> dict[str, str]:
        """What the script does where nobody says otherwise, by the keys of questions."""
        settings = self.named.settings(answers)
        own = {"method": settings.method, "micro_batch": settings.micro_batch}
        return {key: str(each.value) for key, each in own.items() if each is not None}

    def _default_of(self, key: str, answers: Answers) -> str | None:
        """The script's own value, which is asked for where it decides that question alone."""
        return self._defaults(answers).get(key) if key in {"method", "micro_batch"} else None

    def _of_script(self, answers: Answers, options: Options) -> dict[str, str | None]:
        settings, facts = self.named.settings(answers), self.named.facts(answers)
        found = open_questions(options, settings)
        for name in ("model", "sequence_tokens", "gradient_checkpointing"):
            # What the script decides is no question, and what was typed can be said anew.
            if found[name] is not None and getattr(options, name) is None:
                del found[name]
        if facts is not None and facts.micro_batch.from_config:
            found["micro_batch"] = found["micro_batch"] or "1"
        if splits(options, settings, own_config(options)):
            machine = self.named.machine(answers)
            # No time of a step is known there: the recommended split is the fastest known.
            on_cpu = machine is not None and machine.accelerator is Accelerator.CPU
            found["goal"] = _goal(options) or (Objective.FLOWCHART.value if on_cpu else None)
            found["micro_batch"] = None
        elif found["micro_batch"] is not None and options.micro_batch is None:
            del found["micro_batch"]
        if options.method is not None or any(_is_open(settings, each) for each in Method):
            found["method"] = options.method
        return found

    def options(self, answers: Answers) -> Options:
        """What was typed, with the answers that matter.

        Raises:
            ZerowizError: An answer contradicts what was typed.
        """
        script = self.named.script(answers)
        options = self.named.typed if script is None else self.named.options_of(script)
        known = self.known(answers)
        said = self._of_template(options, answers)
        for question in ALL_QUESTIONS:
            answer = answers.by_key.get(question.key)
            if answer is not None and is_relevant(question, known):
                said |= _as_settings(question, answer)
        return with_plain(options, {**said, **answers.settings})

    def _of_template(self, options: Options, answers: Answers) -> dict[str, object]:
        """The machine's own precision for the Trainer's template, which trains in fp32 by itself.

        Nobody has chosen that: the person has not seen the script yet.
        """
        trainer = f"{TEMPLATE}{template_of(Loop.TRAINER).script}"
        machine = self.named.machine(answers)
        if answers.by_key.get("script") != trainer or options.precision or machine is None:
            return {}
        native = native_precision(machine, options.torch_autocast)
        return {} if native is Precision.FP32 else {"precision": native.value}

    def question(self, question: Question, answers: Answers) -> Question:
        """The question with what was found here as a menu, and what was answered before."""
        if self._is_planned(question.key, answers):
            return self._of_plan(question, answers)
        match question.key:
            case "machine":
                question = menus.offer_machines(question, self.named.typed)
            case "script":
                answered = answers.by_key.get("script", "")
                # Where one was named, others matter only once it is refused.
                nearby = self.named.nearby or tuple(find_scripts(Path()))
                question = menus.offer_scripts(question, nearby, answered)
            case "model":
                question = menus.offer_models(question, self.named.machine(answers))
            case "goal":
                question = _keeping(question, self._global_batch(answers))
            case "method":
                question = self._method_question(question, answers)
            case "sequence_tokens":
                question = self._length_question(question, answers)
            case _:
                pass
        known = {**answers.before, **answers.by_key, **as_answers(answers.settings)}
        default = known.get(question.key) or self._default_of(question.key, answers)
        question = menus.with_default(question, default)
        return self._fitting(question, answers) if question.key == "machine" else question

    def planned(self, answers: Answers) -> dict[str, str]:
        """What the plan takes of each setting that can be given another value, by its key.

        What the script decides of it where the answers lead to no plan. Nothing where a config of
        the person's own decides.
        """
        if self.named.typed.config is not None:
            return {}
        followed = self._follow(answers)
        if followed is None:
            values = self._of_settings(answers)
        else:
            job = followed.request.job
            step = job.workload
            batch = step.micro_batch * step.accumulation_steps * job.machine.world_size
            values = {**step.settings(), "global_batch": batch}
        shown = as_answers({k: v for k, v in values.items() if k in _CHANGEABLE})  # type: ignore[misc]
        return {k: v for k, v in shown.items() if self._has_others(k, v, answers)}

    def _of_settings(self, answers: Answers) -> dict[str, object]:
        """What the script decides of each setting; a refusal can be of one that nobody typed."""
        settings = self.named.settings(answers)
        decided = ((key, getattr(settings, key, None)) for key in _CHANGEABLE)
        return {
            **{key: setting.value for key, setting in decided if setting is not None},
            **answers.settings,
        }

    def _is_planned(self, key: str, answers: Answers) -> bool:
        """Whether a setting is one that nobody is asked for, as something decides it."""
        if key not in _CHANGEABLE:
            return False
        asked = {k: answers.by_key.get(k, v) for k, v in self._asked(answers).items()}
        return not is_relevant(_CHANGEABLE[key], asked)

    def _of_plan(self, question: Question, answers: Answers) -> Question:
        """The question of such a setting: what the plan takes of it, and what else it can."""
        had = answers.by_key.get(question.key) or self.planned(answers).get(question.key)
        choices = [
            each
            for each in question.choices
            if each.value == had or self._takes(question.key, each.value, answers)
        ]
        return replace(question, default=had, choices=tuple(choices))

    def _has_others(self, key: str, value: str, answers: Answers) -> bool:
        """Whether a setting can be given another value."""
        choices = [each.value for each in _CHANGEABLE[key].choices] or [str(int(value) + 1)]
        return any(self._takes(key, each, answers) for each in choices if each != value)

    def _takes(self, key: str, value: str, answers: Answers) -> bool:
        """Whether the ranks can be given this value of a setting."""
        if not self.named.has_script(answers):
            return True
        facts = self.named.facts(answers)
        if facts is None or _CHANGEABLE[key].problem(value) is not None:
            return False
        name = "accumulation_steps" if key == "global_batch" else key
        typed = with_plain(Options(), {name: as_value(_CHANGEABLE[key], value)})
        return can_be_given(facts, self.named.settings(answers), name, getattr(typed, name))

    def with_answer(self, key: str, answer: str, answers: Answers) -> Answers:
        """The answers with another one; a micro-batch of one's own is a goal."""
        if key == "micro_batch" and "goal" in self._open(answers):
            answers = answers.with_answer("goal", OWN_MICRO_BATCH)
        return answers.with_answer(key, answer)

    def _fitting(self, question: Question, answers: Answers) -> Question:
        """The question of the machine whose default is the first one that trains the job.

        As it is where that is not known; else the largest, for which there are remedies.
        """
        outlook = self._look(question, str(question.default), answers)
        if outlook is None or outlook.trains:
            return question
        others = [each.value for each in question.choices if each.value != question.default]
        fitting = (
            each
            for each in others
            if (found := self._look(question, each, answers)) is not None and found.trains
        )
        return replace(question, default=next(fitting, menus.LARGEST_MACHINE))

    def _method_question(self, question: Question, answers: Answers) -> Question:
        if not self.named.has_script(answers):
            return replace(question, why=_("Adapters (LoRA, QLoRA) take a fraction of the memory."))
        settings = self.named.settings(answers)
        open_ones = [c for c in question.choices if _is_open(settings, Method(c.value))]
        return replace(question, choices=tuple(open_ones))

    def _length_question(self, question: Question, answers: Answers) -> Question:
        """The question whose default is no longer than the model's positions."""
        read = self.named.model(answers)
        longest = None if read is None else longest_tokens(read.model)
        if longest is None or longest > int(str(question.default)):
            return question
        return replace(question, default=str(longest))

    def _global_batch(self, answers: Answers) -> int | None:
        """What the script learns from at a time; None where nobody says."""
        machine, settings = self.named.machine(answers), self.named.settings(answers)
        if (said := self.options(answers).global_batch) is not None:
            return said
        if machine is None or settings.micro_batch is None:
            return None
        steps = settings.accumulation_steps
        each = settings.micro_batch.value * (1 if steps is None else steps.value)
        return each * machine.world_size

    def check(self, key: str, answers: Answers) -> Callable[[str], object] | None:
        """What refuses an answer that would fail later."""
        checks: Mapping[str, Callable[[str], object]] = {
            "machine": lambda answer: self.named.machine(answers.with_answer("machine", answer)),
            "script": lambda answer: self._check_script(answer, answers),
            "model": lambda answer: check_model(answer, os.environ, trace=self.named.typed.trace),
            "sequence_tokens": lambda answer: self._check_length(answer, answers),
        }
        if self._is_planned(key, answers):
            return lambda answer: self._followed(self.with_answer(key, answer, answers))
        return checks.get(key)

    def _check_script(self, answer: str, answers: Answers) -> None:
        if answer.startswith(TEMPLATE):
            check_template(answer)
        else:
            self.named.facts(answers.with_answer("script", answer))

    def _check_length(self, answer: str, answers: Answers) -> None:
        if (read := self.named.model(answers)) is not None:
            refuse_length(read.model, int(answer))

    def consequence(self, question: Question, answers: Answers) -> Callable[[str], str]:
        """What an answer leads to, in one line; empty where that is not known at once."""
        return lambda answer: self._leads_to(question, answer, answers)

    def _leads_to(self, question: Question, answer: str, answers: Answers) -> str:
        outlook = self._look(question, answer, answers)
        if outlook is None:
            return ""
        return outlook.refusal or lines.consequence(outlook.decision)

    def _look(self, question: Question, answer: str, answers: Answers) -> _Outlook | None:
        """What an answer leads to; None where that is not known at once."""
        if question.problem(answer) is not None:
            return None
        answers = self.with_answer(question.key, answer, answers)
        followed = self._follow(answers)
        if followed is None:
            return None
        refusal = self._refusal(answers, followed)
        return _Outlook(decision=followed.decision, refusal=refusal)

    def _refusal(self, answers: Answers, followed: Followed) -> str | None:
        """Why the script would not train on this accelerator."""
        facts = self.named.facts(answers)
        if facts is None:
            return None
        words = add_settled(self.named.script_args, followed.request.settled)
        try:
            accelerator = followed.decision.job.machine.accelerator
            check_accelerator(facts, settle(facts, words), accelerator)
        except PreflightError as error:
            return error.message
        return None

    def _follow(self, answers: Answers) -> Followed | None:
        """What the answers lead to; None where that is not known at once, or is refused."""
        try:
            return self._followed(answers)
        except (ZerowizError, OSError):
            # Such as a name that is too long: the answer will be refused.
            return None

    def _followed(self, answers: Answers) -> Followed | None:
        """As `_follow`, but for what is refused."""
        machine, read = self.named.machine(answers), self.named.model(answers)
        if machine is None or read is None:
            return None
        options, facts = self.options(answers), self.named.facts(answers)
        return follow_options(options, machine, facts, self.named.script_args, read)

    def job(self, answers: Answers, reporter: Reporter) -> "AnsweredJob":
        """The job, once nothing is open.

        Args:
            answers: All of them.
            reporter: Hears what was kept of the script.

        Raises:
            ZerowizError: An answer contradicts what was typed, or the script.
        """
        named = self.named
        script, facts, machine = named.script(answers), named.facts(answers), named.machine(answers)
        if machine is None or (script is None and named.has_script(answers)):
            raise AnswerNeededError(_("the script and the machine of the job are not known yet"))
        if script is not None:
            recall_kept(script, self.named.typed, reporter)
        return AnsweredJob(
            script=script, facts=facts, machine=machine, options=self.options(answers)
        )


def _goal(options: Options) -> str | None:
    """What was typed of how the batch is run; None where nothing was."""
    if options.global_batch is not None and options.objective is Objective.FLOWCHART:
        return Objective.FLOWCHART
    return None if options.objective is Objective.FLOWCHART else options.objective


def _is_open(settings: ScriptSettings, method: Method) -> bool:
    """Whether the script can be given a method, or trains adapters or not as nobody can see."""
    return settings.is_open("method", method) or "method" in settings.unseen


def _as_settings(question: Question, answer: str) -> dict[str, object]:
    """An answer as the settings that it sets."""
    match question.key:
        case "script":
            return {}
        case "goal":
            return {} if answer == OWN_MICRO_BATCH else {"objective": answer}
        case _:
            return {question.key: as_value(question, answer)}


def _keeping(question: Question, global_batch: int | None) -> Question:
    """The question of the goal, which names the global batch that is kept."""
    if global_batch is None:
        return question
    batch = _("its global batch of {global_batch} sequences", global_batch=global_batch)
    return replace(question, why=_("Your script leaves open how {batch} is split.", batch=batch))
