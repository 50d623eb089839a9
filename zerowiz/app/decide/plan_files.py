"""Join a decision, its config and the command line into the files that a run writes."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from zerowiz import __version__
from zerowiz.app.decide.decision import Plan
from zerowiz.app.decide.plan_json import encode_plan
from zerowiz.app.machines.machine import is_here
from zerowiz.app.options import as_words
from zerowiz.core.decision.flowchart import Reason
from zerowiz.core.launch.plan import PlannedFile
from zerowiz.core.launch.provenance import (
    LIBRARIES,
    Provenance,
    hide_secret_values,
    hide_secrets,
    plan_path,
    render_plan,
    without_identities,
)
from zerowiz.core.machine_json import encode_machine
from zerowiz.core.script.settings_file import SettingsCopy, render_values
from zerowiz.core.values import replace
from zerowiz.errors import HandEditedError
from zerowiz.probe.model.libraries import read_version
from zerowiz.probe.recording.hashes import hash_uuids


def with_plan(
    plan: Plan, config: PlannedFile, script: str | None, script_args: Sequence[str]
) -> tuple[PlannedFile, ...]:
    """The config and its plan file, in the order in which they are written.

    The plan goes first: a config is what a run takes, so where writing ends in between, no new
    config lies there without its reasons, and the hash in the plan shows that it is of another.
    """
    job = plan.decision.job
    machine = without_identities(
        job.machine, hash_uuids, names_hosts=plan.options.hostfile is not None
    )
    # `command` and `env` stay null: the port, PATH and folders of one start on one host would
    # differ each time, and `reproduce` makes them anew.
    content = {**encode_plan(plan), "machine": encode_machine(machine)}
    provenance = Provenance(
        config=config,
        argv=tuple(reproducing_words(plan, script, script_args)),
        versions=_versions(),
    )
    text = render_plan(content, provenance)
    return PlannedFile(path=plan_path(config.path), text=text), config


def plan_copy(copy: SettingsCopy) -> PlannedFile:
    """The copy of a settings file, as it is written."""
    return PlannedFile(
        path=copy.path,
        text=render_values(copy.path, copy.values),
        copy_of=copy.of,
        shown=render_values(copy.path, hide_secret_values(copy.values)),
    )


def reproducing_words(plan: Plan, script: str | None, script_args: Sequence[str]) -> list[str]:
    """The command that writes the same files, asking nothing; run where this one was.

    Args:
        plan: What was decided.
        script: Its path; None where a config is written alone.
        script_args: The words after it.
    """
    # A launch starts where it is: what was planned for another machine, `init` writes.
    command = "launch" if script and is_here(plan.decision.job.machine) else "init"
    forced = ["--force"] if Reason.FORCED in plan.decision.reasons else []
    # An answers file may say something else by then.
    options = replace(plan.options, isolated=True)
    words = ["zerowiz", command, "--yes", *forced, *as_words(options)]
    return [*words, *((script, *hide_secrets(script_args)) if script else ("--no-script",))]


def _versions() -> dict[str, str | None]:
    python = ".".join(map(str, sys.version_info[:3]))
    libraries = {name: read_version(name) for name in LIBRARIES}
    return {"zerowiz": __version__, "python": python, **libraries}


@contextmanager
def losses_shown(*, shown: bool) -> Iterator[None]:
    """With `--quiet` an error is its line and its hints, without what would be lost."""
    try:
        yield
    except HandEditedError as error:
        raise error if shown else error.without_losses() from None
