"""What is open after some answers, and what each answer leads to."""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from zerowiz.app.command import (
    DEFAULT_SCRIPT,
    Command,
    Person,
    as_answers,
    as_value,
    lacks_precision,
    open_questions,
    read_as_said,
    require_reachable,
    said_by_config,
)
from zerowiz.app.decide import Plan, decide_job, kept_keys, machine_of
from zerowiz.app.machines.machine import CPU_MACHINE, find_machine
from zerowiz.app.options import Options, with_plain
from zerowiz.app.reporter import Reporter
from zerowiz.app.resolve.resolved_job import (
    ResolvedJob,
    check_model,
    longest_sequence,
    own_config,
    read_near,
    resolve_job,
)
from zerowiz.app.resolve.workload import check_words, keep_steps, splits
from zerowiz.app.wizard_plan import CopiedTemplate, InitOptions, InitPlan, check_template, script_of
from zerowiz.core import shell
from zerowiz.core.decision.job import (
    Objective,
    list_shared,
    native_precision,
    refuse_length,
)
from zerowiz.core.decision.questions import (
    ALL_QUESTIONS,
    CHANGEABLE,
    NO_BASE,
    NO_SCRIPT,
    OWN_MICRO_BATCH,
    STRATEGY,
    TEMPLATE,
    Answers,
    Back,
    Choice,
    Question,
    is_relevant,
    spare,
)
from zerowiz.core.machine.types import Machine
from zerowiz.core.memory.micro_step import ReadModel
from zerowiz.core.script.config_delivery import add_settled, add_words
from zerowiz.core.script.facts import OwnModel, ScriptFacts, State, Words
from zerowiz.core.script.settings import (
    ScriptRun,
    ScriptSettings,
    can_be_given,
    check_accelerator,
    facts_of,
    settings_of,
)
from zerowiz.core.strategies import STRATEGIES
from zerowiz.core.structs import replace
from zerowiz.core.units import read_count
from zerowiz.core.workload import Method, Precision
from zerowiz.errors import (
    AnswerNeededError,
    PreflightError,
    UnreachableScriptError,
    UsageError,
    ZerowizError,
)
from zerowiz.probe.config_text import read_config_values
from zerowiz.probe.files import read_known_models, read_version
from zerowiz.probe.output_folder import find_persons_configs
from zerowiz.probe.preflight.read_facts import find_programs
from zerowiz.probe.script.read_script import find_models, find_scripts
from zerowiz.translation import _, listing
from zerowiz.ui import sentences, wizard
from zerowiz.ui.text import count

# The menus of the wizard: machines, scripts and models that lie near or are known by name.

# The model that the menu starts with where none lies near.
_COMMON, _COMMON_ON_CPU = "meta-llama/Llama-3.1-8B", "openai-community/gpt2"
# What people rent or have, the common ones first.
LARGEST_MACHINE = "8xH100-80GB-SXM"
_OTHER_MACHINES = (
    (LARGEST_MACHINE, _("8 GPUs of one node, NVLink")),
    ("8xA100-80GB-SXM", _("8 GPUs of one node, NVLink")),
    ("4xA100-40GB-SXM", _("4 GPUs of one node, NVLink")),
    ("1xH100-80GB-SXM", _("one GPU")),
    ("2xRTX4090", _("2 GPUs of a workstation, PCIe")),
    ("1xRTX4090", _("one GPU of a workstation")),
)


def _machines(options: Options) -> list[tuple[str, str]]:
    """This machine first where it can train, and some that people rent."""
    try:
        here = find_machine(replace(options, machine=CPU_MACHINE), os.environ)
    except ZerowizError:
        # What was typed is for GPUs.
        return [*_OTHER_MACHINES]
    cpu = (CPU_MACHINE, _("this machine, without a GPU: {host}", host=wizard.host(here)))
    return [cpu, *_OTHER_MACHINES] if _can_train_here() else [*_OTHER_MACHINES, cpu]


def _can_train_here() -> bool:
    try:
        find_programs(os.environ)
    except PreflightError:
        return False
    return all(read_version(name) for name in ("torch", "deepspeed"))


def offer_scripts(question: Question, nearby: Sequence[ScriptFacts], answered: str) -> Question:
    """The question with the scripts nearby, then what it offers by itself.

    Args:
        question: Of the script.
        nearby: What was found.
        answered: The answer before; empty where there was none.
    """
    copied = script_of(answered) if answered.startswith(TEMPLATE) else None
    scripts = [(f.path, sentences.convention(f)) for f in nearby if f.path != copied]
    default = DEFAULT_SCRIPT if DEFAULT_SCRIPT in dict(scripts) else None
    others = tuple(
        choice
        for choice in question.choices
        if choice.value == answered or not Path(script_of(choice.value)).exists()
    )
    menu = _menu(question, scripts, default)
    choices = (*menu.choices, *others)
    return replace(menu, choices=choices, default=menu.default or choices[0].value)


def _models(machine: Machine | None, own: OwnModel | None) -> list[tuple[str, str]]:
    """What the script shows, what lies near, then what is known by name, a common one first."""
    shown = {} if own is None else {own.name: _("as your script shows")}
    near = {**shown, **dict(find_models(Path(), os.environ))}
    on_cpu = machine is not None and machine.accelerator.row.on_host
    common = _COMMON_ON_CPU if on_cpu else _COMMON
    rows = sorted(read_known_models(), key=lambda row: row.id != common)
    known = {row.id: _("{params} parameters", params=count(row.params)) for row in rows}
    return list({**near, **{k: v for k, v in known.items() if k not in near}}.items())


def _menu(
    question: Question,
    rows: "tuple[tuple[str, str], ...] | list[tuple[str, str]]",
    default: str | None = None,
) -> Question:
    """The question with what was found, the first of which is the default.

    What is typed is an answer, too.
    """
    listed = (Choice(value=value, title=value, detail=detail) for value, detail in rows)
    first = rows[0][0] if rows else None
    return replace(question, choices=tuple(listed), default=default or first)


def with_default(question: Question, default: str | None) -> Question:
    """The question with this default, a line of its menu; as it is where there is none."""
    if default is None:
        return question
    values = [choice.value for choice in question.choices]
    if question.choices and default not in values:
        listed = (Choice(value=default, title=default), *question.choices)
        return replace(question, default=default, choices=listed)
    return replace(question, default=default)


# Ask for the arguments that the script requires, and that nobody has passed.


def ask_words(person: Person, planned: InitPlan) -> Words | Back:
    """The words that a person types after the script; they give it all that it requires."""
    question = Question(
        key="words",
        flag="ARGS",
        text=_("Which arguments does {path} get?", path=planned.script),
        why=_("The script requires {names}.", names=_names(planned)),
        more=_("Type them as in a shell: `{words}`", words=_usage(planned)),
    )
    answer = person.ask(question, check=lambda text: _check(planned, text))
    return answer if isinstance(answer, Back) else tuple(shell.split(answer))


def _names(planned: InitPlan) -> str:
    return listing(f"`{row.flag}`" for row in planned.missing)


def _usage(planned: InitPlan) -> str:
    return " ".join(row.usage for row in planned.missing)


def _check(planned: InitPlan, text: str) -> None:
    """See that nothing is missing any more.

    Raises:
        UsageError: Something is, or a quote has no end.
    """
    run = planned.plan.script
    words = () if run is None else add_words(run.words, tuple(shell.split(text)))
    script = None if run is None else run.with_words(words)
    after = replace(planned, plan=replace(planned.plan, script=script))
    if after.missing:
        raise UsageError(
            f"{planned.script} also requires {_names(after)}",
            f"type `{_usage(after)}` too",
        )


# What the answers name: the machine, the script and the model, each of which is read once.


class NamedInputs:
    """Machine, scripts and models are read once each, so that a consequence is shown at once.

    Args:
        command: The script and the options as they were typed.
        reporter: Hears how many nodes of a hostfile have answered.
        wanted: Whether a config alone is wanted, and of what.

    Raises:
        ZerowizError: What was typed cannot be used: there is no such script, model or machine.
    """

    def __init__(self, command: Command, reporter: Reporter, wanted: InitOptions) -> None:
        self.typed, self.script_args = command.options, command.script_args
        self.no_script, self._program_file = wanted.no_script, wanted.program_file
        self._machines: dict[str, Machine | None] = {}
        self._runs: dict[str, ScriptRun] = {}
        self._models: dict[str, ReadModel | None] = {}
        self._configs: dict[str, Mapping[str, list[str]]] = {}
        self._job: ResolvedJob | None = None
        self.here, self._why_not_here = self._find_machine(reporter)
        self._has_typed_script = command.script is not None
        is_open = command.script is None and not self.no_script
        self.nearby = tuple(find_scripts(Path())) if is_open else ()
        self.script_here = command.script or (None if self.no_script else only_script(self.nearby))

    def _find_machine(self, reporter: Reporter) -> tuple[Machine | None, str]:
        """The machine, or else why there is none."""
        try:
            return find_machine(self.typed, os.environ, reporter=reporter), ""
        except PreflightError as error:
            return None, error.message

    def forget(self) -> None:
        """Read scripts, models and named machines again: the person may have edited them."""
        for read in (self._machines, self._runs, self._models, self._configs):
            read.clear()
        self._job = None

    def resolve(
        self, options: Options, machine: Machine, run: ScriptRun | None, read: ReadModel
    ) -> ResolvedJob:
        """The job of answers: the first one is resolved, the others are changes of it."""
        names = Options.__struct_fields__
        answered = {n for n in names if getattr(options, n) != getattr(self.typed, n)}
        is_first = self._job is None or self._job.options.config != options.config
        if self._job is None or is_first or self._job.script is not run:
            self._job = resolve_job(options, machine, run, read, answered=answered)
            return self._job
        return self._job.with_change(options, machine, read, answered)

    def add_words(self, words: Words) -> None:
        """Read the script with these words after it, too."""
        self.script_args = add_words(self.script_args, words)
        self._runs.clear()

    def pass_config(self, way: str, answers: Answers) -> None:
        """Pass the config to the script as a person says.

        Raises:
            ZerowizError: The script is seen not to take it so; nothing has changed then.
        """
        before, self.typed = self.typed, replace(self.typed, config_via=way)
        self._runs.clear()
        try:
            self.run(answers)
        except ZerowizError:
            self.typed = before
            raise

    def write_to(self, folder: Path) -> None:
        """Plan for configs in another folder."""
        self.typed = replace(self.typed, output_dir=folder)

    def detected(self) -> tuple[str, str]:
        """What is known before anything is asked, in two lines.

        Raises:
            ZerowizError: A script or a model that was typed cannot be used.
        """
        if self.typed.model is not None:
            # What is read without the network is refused now, not after the questions.
            read_near(self.typed.model, os.environ, trace=self.typed.trace)
        script: ScriptFacts | list[str] = [script.path for script in self.nearby]
        try:
            script = facts_of(self.run(Answers())) or script
        except ZerowizError as error:
            if self._has_typed_script and not isinstance(error, UnreachableScriptError):
                raise
            # It is said where the person can do something about it.
            script = [str(self.script_here)]
        what = script if self._program_file is None else self._program_file
        return wizard.detected(self.here or self._why_not_here, what)

    def machine(self, answers: Answers) -> Machine | None:
        """The machine of the job, once it is known."""
        named, change = answers.by_key.get("machine"), answers.settings
        key = json.dumps([named, change])
        if key not in self._machines:
            options = self.typed if named is None else replace(self.typed, machine=named)
            machine = self.here if named is None else find_machine(options, os.environ)
            if machine is not None and change:
                machine = machine_of(with_plain(options, change), change, machine)
            self._machines[key] = machine
        return self._machines[key]

    def has_script(self, answers: Answers) -> bool:
        """Whether the job has a script, or will have one."""
        return answers.by_key.get("script") != NO_SCRIPT and not self.no_script

    def script(self, answers: Answers) -> str | None:
        """The script, once it is known; None where there is none."""
        if not self.has_script(answers):
            return None
        answer = answers.by_key.get("script")
        return self.script_here if answer is None else script_of(answer)

    def run(self, answers: Answers) -> ScriptRun | None:
        """The script as it is run, once it is known.

        Raises:
            ZerowizError: It cannot be read, or no config can reach it.
        """
        script = self.script(answers)
        if script is None:
            return None
        if script not in self._runs:
            run = read_as_said(script, self.script_args, self.typed)
            require_reachable(run, self.typed)
            check_words(run)
            self._runs[script] = run
        return self._runs[script]

    def configs(self, answers: Answers) -> Mapping[str, list[str]]:
        """The keys that stay of each config that a person has for the script, by its path."""
        run = self.run(answers)
        if run is None or self.typed.config is not None:
            return {}
        if run.facts.path not in self._configs:
            named = run.facts.literal_config
            paths = (str(path) for path in find_persons_configs(run.facts))
            # Where the code names one, nothing else can be built on, nor passed.
            kept = {path: _kept_of(Path(path)) for path in paths if named in {None, path}}
            self._configs[run.facts.path] = {path: keys for path, keys in kept.items() if keys}
        return self._configs[run.facts.path]

    def settings(self, answers: Answers) -> ScriptSettings:
        """What the script says, once it is known."""
        return settings_of(self.run(answers))

    def model(self, answers: Answers) -> ReadModel | None:
        """The model, where reading it takes neither the network nor a trace."""
        answered = {**answers.by_key, **as_answers(answers.settings)}
        named = answered.get("model") or self.typed.model
        name = named or self.settings(answers).model_name
        if name is not None and name not in self._models:
            try:
                near = read_near(name, os.environ, trace=self.typed.trace)
            except ZerowizError:
                near = None
            rows = (row for row in read_known_models() if row.id == name and near is None)
            known = next((ReadModel(model=row.build()) for row in rows), None)
            self._models[name] = near or known
        return None if name is None else self._models[name]


def only_script(nearby: Sequence[ScriptFacts]) -> str | None:
    """The script that is meant where nobody names it; None where it may be one of several.

    Args:
        nearby: Those of the folder.
    """
    if len(nearby) == 1:
        return nearby[0].path
    return DEFAULT_SCRIPT if not nearby and Path(DEFAULT_SCRIPT).is_file() else None


def _kept_of(path: Path) -> list[str]:
    """The keys that stay of a config; none where it cannot be read."""
    try:
        return kept_keys(read_config_values(path))
    except ZerowizError:
        return []


_CHANGEABLE = {question.key: question for question in CHANGEABLE}
# What a plan is of, and its strategy, which are no settings of a step.
_OF_JOB = frozenset({"strategy", "machine", "model"})


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
        questions = self._open(answers)
        if self.named.script(answers) is None:
            return questions
        return spare(questions, answers.by_key, self._defaults(answers))

    def spared(self, answers: Answers) -> dict[str, str | None]:
        """What is not asked, so that there are few questions, by key."""
        questions = self._open(answers)
        return {k: v for k, v in self.known(answers).items() if v != questions[k]}

    def _open(self, answers: Answers) -> dict[str, str | None]:
        """As `known`, however many questions that is."""
        questions = self._asked(answers)
        known = {**dict(answers.given), **as_answers(answers.settings)}
        changed = (k for k, v in answers.given if k in _CHANGEABLE and self._takes(k, v, answers))
        kept = {*questions, *changed}
        return {**questions, **{k: v for k, v in known.items() if k in kept}}

    def _asked(self, answers: Answers) -> dict[str, str | None]:
        """What is asked or was typed, by key, whatever was answered to it."""
        questions: dict[str, str | None] = {}
        if self.named.here is None or self.named.typed.machine is not None:
            questions["machine"] = self.named.typed.machine
        if not self.named.no_script:
            # The only one here is not asked for.
            questions["script"] = self.named.script_here
        script = self.named.script(answers)
        if not self.named.has_script(answers):
            questions |= open_questions(self.named.typed, ScriptSettings())
            questions["method"] = self.named.typed.method
        elif script is not None:
            questions |= self._of_script(answers, self._with_base(answers))
            if self.named.configs(answers):
                questions["config"] = None
        read = self.named.model(answers)
        if read is not None and read.model.architecture.reads_images:
            # The size of its images decides it.
            questions.pop("sequence_tokens", None)
        return questions

    def _defaults(self, answers: Answers) -> dict[str, str]:
        """What the script does where nobody says otherwise, by the keys of questions.

        But the precision, which is the best that the machine has.
        """
        settings, machine = self.named.settings(answers), self.named.machine(answers)
        defaults = {"method": settings.method, "micro_batch": settings.micro_batch}
        known = {key: str(value.value) for key, value in defaults.items() if value is not None}
        native = {} if machine is None else {"precision": native_precision(machine).value}
        return {**known, **native}

    def _of_script(self, answers: Answers, options: Options) -> dict[str, str | None]:
        run = self.named.run(answers)
        settings = settings_of(run)
        questions = open_questions(options, settings)
        for name in ("model", "sequence_tokens", "lr", "gradient_checkpointing"):
            # What the script decides is no question, and what was typed can be said anew.
            if questions.get(name) is not None and getattr(options, name) is None:
                del questions[name]
        if run is not None and run.facts.micro_batch.from_config:
            questions["micro_batch"] = questions["micro_batch"] or "1"
        if run is not None and (lacks_precision(options, run) or self._trains_in_fp32(answers)):
            questions["precision"] = None
        if splits(options, settings, own_config(options)):
            machine = self.named.machine(answers)
            # No time of a step is known there: the recommended split is the fastest known.
            on_cpu = machine is not None and machine.accelerator.row.on_host
            questions["goal"] = _goal(options) or (Objective.FLOWCHART.value if on_cpu else None)
            questions["micro_batch"] = None
        elif questions["micro_batch"] is not None and options.micro_batch is None:
            del questions["micro_batch"]
        if options.method is not None or any(_is_open(settings, method) for method in Method):
            questions["method"] = options.method
        return questions

    def _trains_in_fp32(self, answers: Answers) -> bool:
        """Whether the script would train in fp32 by itself, on GPUs that have better."""
        typed, machine = self._with_base(answers), self.named.machine(answers)
        said, precision = said_by_config(typed), self.named.settings(answers).precision
        if machine is None or precision is None or "precision" in said:
            return False
        native = native_precision(machine, typed.torch_autocast)
        is_worse = precision.value is Precision.FP32 is not native
        is_open = typed.precision is None and precision.state is State.OPEN
        return is_worse and is_open and not machine.accelerator.row.on_host

    def options(self, answers: Answers) -> Options:
        """What was typed, with the answers that matter.

        Raises:
            ZerowizError: An answer contradicts what was typed.
        """
        options, known = self._with_base(answers), self.known(answers)
        # One that nobody was asked for, so that there are few questions.
        precision = known.get("precision")
        values: dict[str, object] = {} if precision is None else {"precision": precision}
        for question in ALL_QUESTIONS:
            answer = answers.by_key.get(question.key)
            if answer is not None and is_relevant(question, known):
                values |= _as_settings(question, answer)
        return with_plain(options, {**values, **answers.settings})

    def _with_base(self, answers: Answers) -> Options:
        """What was typed, with the config that is built on."""
        typed, base = self.named.typed, answers.by_key.get("config", NO_BASE)
        if base not in self.named.configs(answers):
            return typed
        return with_plain(typed, {"config": base, "stage": typed.stage or "auto"})

    def question(self, question: Question, answers: Answers) -> Question:
        """The question with what was found here as a menu, and what was answered before."""
        if question is STRATEGY:
            followed = self._follow(answers.only({*answers.by_key} - {STRATEGY.key}))
            return question if followed is None else wizard.strategies(question, followed.decision)
        if self._is_planned(question.key, answers) and question.key not in _OF_JOB:
            # What the plan takes of it, and what else it can.
            had = answers.by_key.get(question.key) or self.planned(answers).get(question.key)
            choices = [
                choice
                for choice in question.choices or self._shared(question, answers)
                if choice.value == had or self._takes(question.key, choice.value, answers)
            ]
            return replace(question, default=had, choices=tuple(choices))
        match question.key:
            case "machine":
                question = _menu(question, _machines(self.named.typed))
            case "script":
                answered = answers.by_key.get("script", "")
                # Where one was named, others matter only once it is refused.
                nearby = self.named.nearby or tuple(find_scripts(Path()))
                question = offer_scripts(question, nearby, answered)
            case "config":
                facts = facts_of(self.named.run(answers))
                is_fixed = facts is not None and facts.literal_config is not None
                found = [
                    Choice(value=path, title=path, detail=_("keeps {keys}", keys=listing(keys)))
                    for path, keys in self.named.configs(answers).items()
                ]
                others = () if is_fixed else question.choices
                question = replace(question, choices=(*found, *others), default=found[0].value)
            case "model":
                question = self._model_question(question, answers)
            case "goal":
                question = _keeping(question, self._global_batch(answers))
            case "micro_batch" if "goal" in self._open(answers):
                question = _keeping(question, self._global_batch(answers))
            case "method":
                question = self._method_question(question, answers)
            case "sequence_tokens":
                question = self._length_question(question, answers)
            case _:
                pass
        known = {**answers.before, **answers.by_key, **as_answers(answers.settings)}
        default = known.get(question.key)
        if not default:
            # The script's own value is asked for where it decides that question alone.
            alone = question.key in {"method", "micro_batch", "precision"}
            default = self._defaults(answers).get(question.key) if alone else None
        question = with_default(question, default)
        return self._fitting(question, answers) if question.key == "machine" else question

    def planned(self, answers: Answers) -> dict[str, str]:
        """What the plan takes of each setting that can be given another value, by its key.

        What the script decides of it where the answers lead to no plan. Nothing where a config of
        the person's own decides.
        """
        if self.named.typed.own_config is not None:
            return {}
        followed = self._follow(answers)
        if followed is None:
            # What the script decides of each setting; a refusal can be of one that nobody typed.
            settings = self.named.settings(answers)
            decided = ((key, getattr(settings, key, None)) for key in _CHANGEABLE)
            values = {
                **{key: setting.value for key, setting in decided if setting is not None},
                **answers.settings,
            }
        else:
            job = followed.resolved.job
            values = {**job.workload.settings(), "global_batch": job.global_batch}
            values |= wizard.as_planned(followed.decision)
            if not list_shared(job):
                del values["sequence_parallel"]
        shown = as_answers({k: v for k, v in values.items() if k in _CHANGEABLE})
        return {k: v for k, v in shown.items() if self._has_others(k, v, answers)}

    def _is_planned(self, key: str, answers: Answers) -> bool:
        """Whether a setting is one that nobody is asked for, as something decides it."""
        if key not in _CHANGEABLE:
            return False
        asked = {k: answers.by_key.get(k, v) for k, v in self._asked(answers).items()}
        return not is_relevant(_CHANGEABLE[key], asked)

    def _shared(self, question: Question, answers: Answers) -> list[Choice]:
        """How many GPUs can share each sequence, where that is asked."""
        followed = self._follow(answers) if question.key == "sequence_parallel" else None
        counts = () if followed is None else (1, *list_shared(followed.resolved.job))
        return [Choice(value=str(count), title=str(count)) for count in counts]

    def _has_others(self, key: str, value: str, answers: Answers) -> bool:
        """Whether a setting can be given another value."""
        if key in _OF_JOB:
            return self._takes(key, value, answers)
        choices = [choice.value for choice in _CHANGEABLE[key].choices] or [str(int(value) + 1)]
        return any(self._takes(key, choice, answers) for choice in choices if choice != value)

    def _takes(self, key: str, value: str, answers: Answers) -> bool:
        """Whether the ranks can be given this value of a setting."""
        if not self.named.has_script(answers) or key in {"strategy", "machine"}:
            return True
        run = self.named.run(answers)
        if key == "model" and self.named.settings(answers).own_model is not None:
            # Its sizes are read, and may be wrong.
            return True
        if run is None or _CHANGEABLE[key].problem(value) is not None:
            return False
        name = "accumulation_steps" if key == "global_batch" else key
        typed = with_plain(Options(), {name: as_value(_CHANGEABLE[key], value)})
        return can_be_given(run, name, getattr(typed, name))

    def with_answer(self, key: str, answer: str, answers: Answers) -> Answers:
        """The answers with another one; a micro-batch of one's own is a goal."""
        if key == "micro_batch" and "goal" in self._open(answers):
            answers = answers.with_answer("goal", OWN_MICRO_BATCH)
        return answers.with_answer(key, answer)

    def _fitting(self, question: Question, answers: Answers) -> Question:
        """The question of the machine whose default is the first one that trains the job.

        As it is where that is not known; else the largest, for which there are remedies.
        """
        if self._trains(answers.with_answer("machine", str(question.default))) is not False:
            return question
        values = (choice.value for choice in question.choices)
        fitting = (v for v in values if self._trains(answers.with_answer("machine", v)))
        return replace(question, default=next(fitting, LARGEST_MACHINE))

    def _trains(self, answers: Answers) -> bool | None:
        """Whether the job fits, and the script trains on this accelerator; None where unknown."""
        followed = self._follow(answers)
        if followed is None:
            return None
        return followed.decision.chosen is not None and self._refusal(answers, followed) is None

    def _model_question(self, question: Question, answers: Answers) -> Question:
        """The question with models as a menu, and where the script makes one of unknown size."""
        own, facts = self.named.settings(answers).own_model, facts_of(self.named.run(answers))
        made = None if facts is None else facts.built_model
        if facts is not None and made is not None and own is None:
            made_by = f"`{made.code}` in {facts.where(made.line)}"
            why = _("{made_by} makes it: zerowiz does not read its size.", made_by=made_by)
            question = replace(question, why=why)
        return _menu(question, _models(self.named.machine(answers), own))

    def _method_question(self, question: Question, answers: Answers) -> Question:
        if not self.named.has_script(answers):
            return replace(question, why=_("Adapters (LoRA, QLoRA) take a fraction of the memory."))
        settings = self.named.settings(answers)
        open_ones = [c for c in question.choices if _is_open(settings, Method(c.value))]
        return replace(question, choices=tuple(open_ones))

    def _length_question(self, question: Question, answers: Answers) -> Question:
        """The question whose default is no longer than the model was made for."""
        read, settings = self.named.model(answers), self.named.settings(answers)
        longest = None if read is None else longest_sequence(read.model, settings)
        if longest is None or longest > int(str(question.default)):
            return question
        return replace(question, default=str(longest))

    def _global_batch(self, answers: Answers) -> int | None:
        """What the script learns from at a time; None where nobody says, or it is not known yet."""
        followed = self._follow(answers)
        says = self.options(answers).global_batch or self.named.settings(answers).micro_batch
        return followed.resolved.job.global_batch if followed and says else None

    def check(self, key: str, answers: Answers) -> Callable[[str], object] | None:
        """What refuses an answer that would fail later."""
        checks: Mapping[str, Callable[[str], object]] = {
            "machine": lambda answer: self.named.machine(answers.with_answer("machine", answer)),
            "script": lambda answer: self._check_script(answer, answers),
            "config": lambda answer: own_config(
                self._with_base(answers.with_answer("config", answer))
            ),
            "model": lambda answer: check_model(answer, os.environ, trace=self.named.typed.trace),
            "sequence_tokens": lambda answer: self._check_length(answer, answers),
            "micro_batch": lambda answer: self._check_split(answer, answers),
        }
        if self._is_planned(key, answers) and key not in checks:
            return lambda answer: self._followed(self.with_answer(key, answer, answers))
        return checks.get(key)

    def _check_script(self, answer: str, answers: Answers) -> None:
        if answer.startswith(TEMPLATE):
            check_template(answer)
        else:
            self.named.run(answers.with_answer("script", answer))

    def _check_split(self, answer: str, answers: Answers) -> None:
        options = self.options(self.with_answer("micro_batch", answer, answers))
        keep_steps(options, self.named.settings(answers), own_config(options))

    def _check_length(self, answer: str, answers: Answers) -> None:
        if (read := self.named.model(answers)) is not None:
            refuse_length(read.model, read_count(answer) or 0)

    def consequence(self, question: Question, answers: Answers) -> Callable[[str], str]:
        """What an answer leads to, in one line; empty where that is not known at once."""

        def leads_to(answer: str) -> str:
            after = self.with_answer(question.key, answer, answers)
            followed = None if question.problem(answer) else self._follow(after)
            if followed is None:
                return ""
            return self._refusal(after, followed) or wizard.consequence(followed.decision)

        return leads_to

    def _refusal(self, answers: Answers, followed: Plan) -> str | None:
        """Why the script would not train on this accelerator."""
        run = self.named.run(answers)
        if run is None:
            return None
        words = add_settled(run.words, followed.resolved.settled)
        try:
            accelerator = followed.decision.job.machine.accelerator
            check_accelerator(run.with_words(words), accelerator)
        except PreflightError as error:
            return error.message
        return None

    def _follow(self, answers: Answers) -> Plan | None:
        """What the answers lead to; None where that is not known at once, or is refused."""
        try:
            return self._followed(answers)
        except (ZerowizError, OSError):
            # Such as a name that is too long: the answer will be refused.
            return None

    def _followed(self, answers: Answers) -> Plan | None:
        """As `_follow`, but for what is refused."""
        machine, read = self.named.machine(answers), self.named.model(answers)
        if machine is None or read is None:
            return None
        options, run = self.options(answers), self.named.run(answers)
        return decide_job(self.named.resolve(options, machine, run, read))

    def job(self, answers: Answers) -> tuple[str | None, ScriptRun | None, Machine]:
        """The script with how it is run, and the machine, once nothing is open.

        Args:
            answers: All of them.

        Raises:
            ZerowizError: It is open, or cannot be read any more.
        """
        named = self.named
        script, machine = named.script(answers), named.machine(answers)
        if machine is None or (script is None and named.has_script(answers)):
            raise AnswerNeededError("the script and the machine of the job are not known yet")
        return script, named.run(answers), machine


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
        case "script" | "config":
            return {}
        case "strategy":
            strategy = next(row for row in STRATEGIES if row.name == answer)
            return {"stage": str(strategy.stage), "offload": strategy.offload.value}
        case "goal":
            return {} if answer == OWN_MICRO_BATCH else {"objective": answer}
        case _:
            return {question.key: as_value(question, answer)}


def _keeping(question: Question, global_batch: int | None) -> Question:
    """The question of the goal or the micro-batch, with the global batch that is kept."""
    if global_batch is None:
        return question
    batch = _("its global batch ({global_batch})", global_batch=global_batch)
    if question.key == "micro_batch":
        why = _("Your script keeps {batch}: the accumulation follows.", batch=batch)
    else:
        why = _("Your script leaves open how {batch} is split.", batch=batch)
    return replace(question, why=why)
