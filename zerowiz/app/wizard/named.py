"""What the answers name: the machine, the script and the model, each of which is read once."""

import json
import os
from pathlib import Path

from zerowiz.app.ask.command import Command
from zerowiz.app.ask.kept import recall_kept
from zerowiz.app.ask.script import DEFAULT_SCRIPT, read_as_said, require_reachable
from zerowiz.app.decide.find_remedies import machine_of
from zerowiz.app.machines.machine import find_machine
from zerowiz.app.options import Options, with_plain
from zerowiz.app.reporter import SILENT, Reporter
from zerowiz.app.resolve.built_model import made_for, read_made_near
from zerowiz.app.resolve.guards import check_words
from zerowiz.app.resolve.model import read_near
from zerowiz.app.resolve.read_model import ReadModel
from zerowiz.app.wizard.outcome import InitOptions
from zerowiz.app.wizard.template import script_of
from zerowiz.core.decision.answers import Answers
from zerowiz.core.decision.questions import NO_SCRIPT
from zerowiz.core.machine.types import Machine
from zerowiz.core.script.bindings import Words
from zerowiz.core.script.built_config import ModelConfig
from zerowiz.core.script.delivery import add_words
from zerowiz.core.script.facts import ScriptFacts
from zerowiz.core.script.settings import ScriptSettings, settle
from zerowiz.core.settings import Change
from zerowiz.core.values import replace
from zerowiz.errors import PreflightError, ZerowizError
from zerowiz.probe.model.known_models import read_known_models
from zerowiz.probe.model.libraries import read_version
from zerowiz.probe.nearby import find_scripts
from zerowiz.ui.wizard import lines

_TRAINING_LIBRARIES = ("torch", "deepspeed", "transformers")


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
        self._no_script, self._program_file = wanted.no_script, wanted.program_file
        self._machines: dict[str | None, Machine] = {}
        self._facts: dict[str, ScriptFacts] = {}
        self._models: dict[str, ReadModel | None] = {}
        self._recalled: dict[str, Options] = {}
        self.here, self._why_not_here = self._find_machine(reporter)
        self._has_typed_script = command.script is not None
        is_open = command.script is None and not wanted.no_script
        self.nearby = tuple(find_scripts(Path())) if is_open else ()
        self.script_here = command.script or self._only_script()

    def _find_machine(self, reporter: Reporter) -> tuple[Machine | None, str]:
        """The machine, or else why there is none."""
        try:
            return find_machine(self.typed, os.environ, reporter=reporter), ""
        except PreflightError as error:
            return None, error.message

    def _only_script(self) -> str | None:
        """The one that is meant where nobody names it."""
        if self._no_script:
            return None
        if len(self.nearby) == 1:
            return self.nearby[0].path
        is_there = not self.nearby and Path(DEFAULT_SCRIPT).is_file()
        return DEFAULT_SCRIPT if is_there else None

    def forget(self) -> None:
        """Read scripts, models and named machines again: the person may have edited them."""
        for read in (self._machines, self._facts, self._models, self._recalled):
            read.clear()

    def add_words(self, words: Words) -> None:
        """Read the script with these words after it, too."""
        self.script_args = add_words(self.script_args, words)
        self._facts.clear()

    def write_to(self, folder: Path) -> None:
        """Plan for configs in another folder."""
        self.typed = replace(self.typed, output_dir=folder)
        self._recalled.clear()

    def detected(self) -> tuple[str, str, str]:
        """What is known before anything is asked, in three lines.

        Raises:
            ZerowizError: A script or a model that was typed cannot be used.
        """
        if self.typed.model is not None:
            # What is read without the network is refused now, not after the questions.
            read_near(self.typed.model, os.environ, trace=self.typed.trace)
        script: ScriptFacts | list[str] = [each.path for each in self.nearby]
        try:
            script = self.facts(Answers()) or script
        except ZerowizError:
            if self._has_typed_script:
                raise
            # It is said where the person can do something about it.
            script = [str(self.script_here)]
        versions = {name: read_version(name) for name in _TRAINING_LIBRARIES}
        what = script if self._program_file is None else self._program_file
        return lines.detected(self.here or self._why_not_here, what, versions)

    def machine(self, answers: Answers) -> Machine | None:
        """The machine of the job, once it is known."""
        named = answers.by_key.get("machine")
        options = self.typed if named is None else replace(self.typed, machine=named)
        if named is None:
            machine = self.here
        else:
            if named not in self._machines:
                self._machines[named] = find_machine(options, os.environ)
            machine = self._machines[named]
        change = answers.settings
        if machine is None or not change:
            return machine
        key = json.dumps([named, change])
        if key not in self._machines:
            self._machines[key] = machine_of(with_plain(options, change), change, machine)
        return self._machines[key]

    def has_script(self, answers: Answers) -> bool:
        """Whether the job has a script, or will have one."""
        return answers.by_key.get("script") != NO_SCRIPT and not self._no_script

    def script(self, answers: Answers) -> str | None:
        """The script, once it is known; None where there is none."""
        if not self.has_script(answers):
            return None
        answer = answers.by_key.get("script")
        return self.script_here if answer is None else script_of(answer)

    def facts(self, answers: Answers) -> ScriptFacts | None:
        """What the script shows, once it is known.

        Raises:
            ZerowizError: It cannot be read, or no config can reach it.
        """
        script = self.script(answers)
        if script is None:
            return None
        if script not in self._facts:
            options = self.options_of(script)
            facts = read_as_said(script, self.script_args, options)
            require_reachable(facts, self.script_args, options)
            check_words(facts, self.script_args)
            self._facts[script] = facts
        return self._facts[script]

    def options_of(self, script: str) -> Options:
        """What was typed, and what was kept of a script."""
        if script not in self._recalled:
            self._recalled[script] = recall_kept(script, self.typed, SILENT)
        return self._recalled[script]

    def settings(self, answers: Answers) -> ScriptSettings:
        """What the script says, once it is known."""
        facts = self.facts(answers)
        return ScriptSettings() if facts is None else settle(facts, self.script_args)

    def _named_model(self, answers: Answers) -> str | None:
        answered = {**answers.by_key, **as_answers(answers.settings)}
        return answered.get("model") or self.typed.model

    def model(self, answers: Answers) -> ReadModel | None:
        """The model, where reading it takes neither the network nor a trace."""
        named, settings = self._named_model(answers), self.settings(answers)
        made, own = made_for(named, settings), settings.model
        name = named or (None if own is None else own.value)
        key = name if made is None else f"{made.base} {made.source}"
        if key is not None and key not in self._models:
            self._models[key] = self._near(name or "") if made is None else self._near_made(made)
        return None if key is None else self._models[key]

    def _near(self, name: str) -> ReadModel | None:
        try:
            near = read_near(name, os.environ, trace=self.typed.trace)
        except ZerowizError:
            near = None
        rows = (row for row in read_known_models() if row.id == name and near is None)
        known = next((ReadModel(model=row.build()) for row in rows), None)
        return near or known

    def _near_made(self, made: ModelConfig) -> ReadModel | None:
        try:
            return None if self.typed.trace else read_made_near(made, os.environ)
        except ZerowizError:
            return None


def as_answers(settings: Change) -> dict[str, str]:
    """Settings as the answers to the questions of their names."""
    words = {True: "yes", False: "no"}
    return {k: words[v] if isinstance(v, bool) else str(v) for k, v in settings.items()}
