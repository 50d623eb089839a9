"""What one conversation knows: what was typed, what was found here, what the answers change."""

import os
from collections.abc import Callable, Mapping
from pathlib import Path

from msgspec import Struct

from zerowiz.app.ask.answers import as_value, open_questions
from zerowiz.app.ask.command import Command
from zerowiz.app.ask.kept import recall_kept
from zerowiz.app.ask.script import DEFAULT_SCRIPT, read_as_said, require_reachable
from zerowiz.app.decide.decision import follow_options
from zerowiz.app.machines.machine import CPU_MACHINE, find_machine
from zerowiz.app.options import Options, with_plain
from zerowiz.app.reporter import SILENT, Reporter
from zerowiz.app.resolve.guards import check_words
from zerowiz.app.resolve.model import check_model, read_near
from zerowiz.app.resolve.read_model import ReadModel
from zerowiz.app.resolve.request import own_config
from zerowiz.app.resolve.workload import splits
from zerowiz.app.wizard.template import CopiedTemplate, check_template, script_of
from zerowiz.core.decision.answers import Answers
from zerowiz.core.decision.questions import (
    NO_SCRIPT,
    OWN_MICRO_BATCH,
    QUESTIONS,
    TEMPLATE,
    Choice,
    Question,
    is_relevant,
)
from zerowiz.core.machine.types import Accelerator, Machine
from zerowiz.core.script import ScriptFacts, ScriptSettings, settle
from zerowiz.core.search.freedom import Objective
from zerowiz.core.values import replace
from zerowiz.core.workload import Method
from zerowiz.errors import AnswerNeededError, PreflightError, ZerowizError
from zerowiz.probe.launch.programs import find_programs
from zerowiz.probe.model.known_models import read_known_models
from zerowiz.probe.model.libraries import read_version
from zerowiz.probe.nearby import find_models, find_scripts
from zerowiz.ui import sentences
from zerowiz.ui.text.units import count
from zerowiz.ui.wizard import lines

_TRAINING_LIBRARIES = ("torch", "deepspeed", "transformers")
_SEVERAL = 2
# The model that the menu starts with where none lies near.
_COMMON, _COMMON_ON_CPU = "meta-llama/Llama-3.1-8B", "openai-community/gpt2"
# What people rent or have, the common ones first.
_OTHER_MACHINES = (
    ("8xH100-80GB-SXM", "8 GPUs of one node, NVLink"),
    ("8xA100-80GB-SXM", "8 GPUs of one node, NVLink"),
    ("4xA100-40GB-SXM", "4 GPUs of one node, NVLink"),
    ("1xH100-80GB-SXM", "one GPU"),
    ("2xRTX4090", "2 GPUs of a workstation, PCIe"),
    ("1xRTX4090", "one GPU of a workstation"),
)


class AnsweredJob(Struct, frozen=True, kw_only=True):
    """What the answers lead to."""

    script: str | None
    """None where a config alone is wanted."""
    facts: ScriptFacts | None
    machine: Machine
    options: Options


class Wizard:
    """Knows what is open after some answers, and what each answer leads to.

    Machine, scripts and models are read once each, so that a consequence is shown at once.

    Args:
        command: The script and the options as they were typed.
        template: The template that lies in the folder, if the person starts from one.
        reporter: Hears how many nodes of a hostfile have answered.
        no_script: Whether a config alone is wanted.

    Raises:
        ZerowizError: What was typed cannot be used: there is no such script, model or machine.
    """

    def __init__(
        self, command: Command, template: CopiedTemplate, reporter: Reporter, *, no_script: bool
    ) -> None:
        self._typed, self._script_args = command.options, command.script_args
        self._template, self._no_script = template, no_script
        self._machines: dict[str | None, Machine] = {}
        self._facts: dict[str, ScriptFacts] = {}
        self._models: dict[str, ReadModel | None] = {}
        self._recalled: dict[str, Options] = {}
        self._here, self._why_not_here = self._find_machine(reporter)
        self._has_typed_script = command.script is not None
        is_open = command.script is None and not no_script
        self._nearby = tuple(find_scripts(Path())) if is_open else ()
        self._script = command.script or self._only_script()

    def _find_machine(self, reporter: Reporter) -> tuple[Machine | None, str]:
        """The machine, or else why there is none."""
        try:
            return find_machine(self._typed, os.environ, reporter=reporter), ""
        except PreflightError as error:
            return None, error.message

    def _only_script(self) -> str | None:
        """The one that is meant where nobody names it."""
        if self._no_script:
            return None
        if len(self._nearby) == 1:
            return self._nearby[0].path
        is_there = not self._nearby and Path(DEFAULT_SCRIPT).is_file()
        return DEFAULT_SCRIPT if is_there else None

    def forget(self) -> None:
        """Read scripts, models and named machines again: the person may have edited them."""
        for read in (self._machines, self._facts, self._models, self._recalled):
            read.clear()

    def write_to(self, folder: Path) -> None:
        """Plan for configs in another folder."""
        self._typed = replace(self._typed, output_dir=folder)
        self._recalled.clear()

    def detected(self) -> tuple[str, str, str]:
        """What is known before anything is asked, in three lines.

        Raises:
            ZerowizError: A script that was typed cannot be used.
        """
        script: ScriptFacts | list[str] = [each.path for each in self._nearby]
        model = self._typed.model
        try:
            script, model = self.facts(Answers()) or script, self._model_name(Answers())
        except ZerowizError:
            if self._has_typed_script:
                raise
            # It is said where the person can do something about it.
            script = [str(self._script)]
        versions = {name: read_version(name) for name in _TRAINING_LIBRARIES}
        return lines.detected(self._here or self._why_not_here, script, model, versions)

    def machine(self, answers: Answers) -> Machine | None:
        """The machine of the job, once it is known."""
        named = answers.by_key.get("machine")
        if named is None:
            return self._here
        if named not in self._machines:
            options = replace(self._typed, machine=named)
            self._machines[named] = find_machine(options, os.environ)
        return self._machines[named]

    def has_script(self, answers: Answers) -> bool:
        """Whether the job has a script, or will have one."""
        return answers.by_key.get("script") != NO_SCRIPT and not self._no_script

    def script(self, answers: Answers) -> str | None:
        """The script, once it is known; None where there is none."""
        if not self.has_script(answers):
            return None
        answer = answers.by_key.get("script")
        return self._script if answer is None else script_of(answer)

    def prepare(self, answers: Answers) -> None:
        """Lay a template that was chosen into the folder, and take off one that is no more.

        Raises:
            ZerowizError: It cannot be copied.
        """
        if self._template.follow(answers.by_key.get("script")):
            self.forget()

    def facts(self, answers: Answers) -> ScriptFacts | None:
        """What the script shows, once it is known.

        Raises:
            ZerowizError: It cannot be read, or no config can reach it.
        """
        script = self.script(answers)
        if script is None:
            return None
        if script not in self._facts:
            options = self._options_of(script, SILENT)
            facts = read_as_said(script, self._script_args, options)
            require_reachable(facts, self._script_args, options)
            check_words(facts, self._script_args)
            self._facts[script] = facts
        return self._facts[script]

    def _options_of(self, script: str, reporter: Reporter) -> Options:
        """What was typed, and what was kept of a script."""
        if script not in self._recalled:
            self._recalled[script] = recall_kept(script, self._typed, reporter)
        return self._recalled[script]

    def _settings(self, answers: Answers) -> ScriptSettings:
        facts = self.facts(answers)
        return ScriptSettings() if facts is None else settle(facts, self._script_args)

    def _model_name(self, answers: Answers) -> str | None:
        script = self._settings(answers).model
        named = answers.by_key.get("model") or self._typed.model
        return named or (None if script is None else script.value)

    def known(self, answers: Answers) -> dict[str, str | None]:
        """What is asked of this job, by key: the answer, what was typed, or None where it is open.

        What the script or a config of the person's own decides is no question.
        """
        found: dict[str, str | None] = {}
        if self._here is None or self._typed.machine is not None:
            found["machine"] = self._typed.machine
        if not self._no_script:
            # The only one here is not asked for; with others it is what the menu points at.
            found["script"] = self._script if len(self._nearby) < _SEVERAL else None
        script = self.script(answers)
        if not self.has_script(answers):
            found |= open_questions(self._typed, ScriptSettings())
            found["method"] = self._typed.method
        elif script is not None:
            found |= self._of_script(answers, self._options_of(script, SILENT))
        return {**found, **{k: v for k, v in answers.given if k in found}}

    def _of_script(self, answers: Answers, options: Options) -> dict[str, str | None]:
        settings, facts = self._settings(answers), self.facts(answers)
        found = open_questions(options, settings)
        for name in ("model", "sequence_tokens", "gradient_checkpointing"):
            # What the script decides is no question, and what was typed can be said anew.
            if found[name] is not None and getattr(options, name) is None:
                del found[name]
        if facts is not None and facts.micro_batch.from_config:
            found["micro_batch"] = found["micro_batch"] or "1"
        if splits(options, settings, own_config(options)):
            machine = self.machine(answers)
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
        script = self.script(answers)
        options = self._typed if script is None else self._options_of(script, SILENT)
        known = self.known(answers)
        said: dict[str, object] = {}
        for question in QUESTIONS:
            answer = answers.by_key.get(question.key)
            if answer is not None and is_relevant(question, known):
                said |= _as_settings(question, answer)
        return with_plain(options, said)

    def question(self, question: Question, answers: Answers) -> Question:
        """The question with what was found here as a menu, and what was answered before."""
        match question.key:
            case "machine":
                question = _menu(question, self._machines_offered())
            case "script":
                question = self._script_question(question, answers)
            case "model":
                question = _menu(question, self._models_offered(answers))
            case "goal":
                question = _keeping(question, self._global_batch(answers))
            case "method":
                question = self._method_question(question, answers)
            case _:
                pass
        default = answers.by_key.get(question.key) or answers.before.get(question.key)
        return _with_default(question, default)

    def _machines_offered(self) -> list[tuple[str, str]]:
        """This one first where it can train, and some that people rent."""
        try:
            here = find_machine(replace(self._typed, machine=CPU_MACHINE), os.environ)
        except ZerowizError:
            # What was typed is for GPUs.
            return [*_OTHER_MACHINES]
        cpu = (CPU_MACHINE, f"this machine, without a GPU: {lines.host(here)}")
        return [cpu, *_OTHER_MACHINES] if self._can_train_here() else [*_OTHER_MACHINES, cpu]

    def _can_train_here(self) -> bool:
        try:
            find_programs(os.environ)
        except PreflightError:
            return False
        return all(read_version(name) for name in ("torch", "deepspeed"))

    def _script_question(self, question: Question, answers: Answers) -> Question:
        # Where one was named, others matter only once it is refused.
        nearby = self._nearby or tuple(find_scripts(Path()))
        answered = answers.by_key.get("script", "")
        copied = script_of(answered) if answered.startswith(TEMPLATE) else None
        found = [(f.path, sentences.convention(f)) for f in nearby if f.path != copied]
        default = DEFAULT_SCRIPT if DEFAULT_SCRIPT in dict(found) else None
        others = tuple(
            each
            for each in question.choices
            if each.value == answered or not Path(script_of(each.value)).exists()
        )
        menu = _menu(question, found, default)
        choices = (*menu.choices, *others)
        return replace(menu, choices=choices, default=menu.default or choices[0].value)

    def _models_offered(self, answers: Answers) -> list[tuple[str, str]]:
        """What lies near, then what is known by name, a common one first."""
        near = dict(find_models(Path(), os.environ))
        machine = self.machine(answers)
        on_cpu = machine is not None and machine.accelerator is Accelerator.CPU
        common = _COMMON_ON_CPU if on_cpu else _COMMON
        rows = sorted(read_known_models(), key=lambda row: row.id != common)
        known = {row.id: f"{count(row.params)} parameters" for row in rows}
        return list({**near, **{k: v for k, v in known.items() if k not in near}}.items())

    def _method_question(self, question: Question, answers: Answers) -> Question:
        if not self.has_script(answers):
            return replace(question, why="Adapters (LoRA, QLoRA) take a fraction of the memory.")
        settings = self._settings(answers)
        open_ones = [c for c in question.choices if _is_open(settings, Method(c.value))]
        return replace(question, choices=tuple(open_ones))

    def _global_batch(self, answers: Answers) -> int | None:
        """What the script learns from at a time; None where nobody says."""
        machine, settings = self.machine(answers), self._settings(answers)
        if self._typed.global_batch is not None:
            return self._typed.global_batch
        if machine is None or settings.micro_batch is None:
            return None
        steps = settings.accumulation_steps
        each = settings.micro_batch.value * (1 if steps is None else steps.value)
        return each * machine.world_size

    def check(self, key: str, answers: Answers) -> Callable[[str], object] | None:
        """What refuses an answer that would fail later."""
        checks: Mapping[str, Callable[[str], object]] = {
            "machine": lambda answer: self.machine(answers.with_answer("machine", answer)),
            "script": lambda answer: self._check_script(answer, answers),
            "model": lambda answer: check_model(answer, os.environ, trace=self._typed.trace),
        }
        return checks.get(key)

    def _check_script(self, answer: str, answers: Answers) -> None:
        if answer.startswith(TEMPLATE):
            check_template(answer)
        else:
            self.facts(answers.with_answer("script", answer))

    def consequence(self, question: Question, answers: Answers) -> Callable[[str], str]:
        """What an answer leads to, in one line; empty where that is not known at once."""
        seen: dict[str, str] = {}

        def line(answer: str) -> str:
            if answer not in seen:
                seen[answer] = self._leads_to(question, answer, answers)
            return seen[answer]

        return line

    def _leads_to(self, question: Question, answer: str, answers: Answers) -> str:
        if question.problem(answer) is not None:
            return ""
        try:
            said = answers.with_answer(question.key, answer)
            machine, read = self.machine(said), self._read_model(said)
            if machine is None or read is None:
                return ""
            options, facts = self.options(said), self.facts(said)
            _, decision = follow_options(options, machine, facts, self._script_args, read)
        except ZerowizError:
            return ""
        return lines.consequence(decision)

    def _read_model(self, answers: Answers) -> ReadModel | None:
        """The model, where reading it takes neither the network nor a trace."""
        name = self._model_name(answers)
        if name is None:
            return None
        if name not in self._models:
            try:
                near = read_near(name, os.environ, trace=self._typed.trace)
            except ZerowizError:
                near = None
            rows = (row for row in read_known_models() if row.id == name and near is None)
            known = next((ReadModel(model=row.build()) for row in rows), None)
            self._models[name] = near or known
        return self._models[name]

    def job(self, answers: Answers, reporter: Reporter) -> "AnsweredJob":
        """The job, once nothing is open.

        Args:
            answers: All of them.
            reporter: Hears what was kept of the script.

        Raises:
            ZerowizError: An answer contradicts what was typed, or the script.
        """
        script, facts, machine = self.script(answers), self.facts(answers), self.machine(answers)
        if machine is None or (script is None and self.has_script(answers)):
            raise AnswerNeededError("the script and the machine of the job are not known yet")
        if script is not None:
            recall_kept(script, self._typed, reporter)
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
    batch = f"its global batch of {global_batch} sequences"
    return replace(question, why=f"Your script leaves open how {batch} is split.")


def _menu(
    question: Question,
    found: "tuple[tuple[str, str], ...] | list[tuple[str, str]]",
    default: str | None = None,
) -> Question:
    """The question with what was found, the first of which is the default.

    What is typed is an answer, too.
    """
    listed = (Choice(value=value, title=value, detail=detail) for value, detail in found)
    first = found[0][0] if found else None
    return replace(question, choices=tuple(listed), default=default or first)


def _with_default(question: Question, default: str | None) -> Question:
    if default is None:
        return question
    values = [choice.value for choice in question.choices]
    if question.choices and default not in values:
        listed = (Choice(value=default, title=default), *question.choices)
        return replace(question, default=default, choices=listed)
    return replace(question, default=default)
