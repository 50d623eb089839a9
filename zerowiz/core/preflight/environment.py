"""Check the ranks' Python, its libraries, the script's imports, and the checkpoint to resume."""

from collections.abc import Iterator, Mapping, Sequence

from zerowiz.core import shell
from zerowiz.core.dsconfig.merge import section_of, truth_of
from zerowiz.core.findings import (
    MOST_MICRO_BATCHES,
    BadRelease,
    Finding,
    Rule,
    Severity,
    dotted,
    found,
    parse_release,
    shown_by,
)
from zerowiz.core.preflight.facts import (
    Import,
    Installed,
    PlannedJob,
    PreflightInput,
    SavedStates,
)
from zerowiz.core.script.facts import RELEASE_CALLS
from zerowiz.core.strategy_types import Offload, ZeroKey
from zerowiz.core.workload import Integration, Method

# The oldest release that configs are written for (pyproject.toml, extra `train`).
_DEEPSPEED = (0, 19, 8)


OTHER_ENVIRONMENT = Rule(
    code="PF204",
    name="other-environment",
    severity=Severity.WARNING,
    why="the ranks run with that Python and its packages, not with zerowiz's",
    when="the `deepspeed` on PATH belongs to another Python than zerowiz",
)
NO_INTERPRETER = Rule(
    code="PF205",
    name="no-interpreter",
    severity=Severity.ERROR,
    why="`deepspeed` cannot start",
    when=(
        "its first line names a Python that does not exist (a moved environment), or that does "
        "not start; a warning if that Python does not answer in time"
    ),
)


def _program(installed: Installed) -> Iterator[Finding]:
    program, interpreter = installed.program, installed.interpreter
    if installed.failure is not None:
        yield found(
            NO_INTERPRETER,
            f"`{program}` needs `{interpreter}`, which {installed.failure}",
            'create the environment again, then `pip install "zerowiz[train]"`',
            severity=Severity.WARNING if installed.is_slow else None,
        )
    elif interpreter is not None and not installed.own:
        yield found(
            OTHER_ENVIRONMENT,
            f"`{program}` belongs to `{interpreter}`",
            'install DeepSpeed in the environment of zerowiz: `pip install "zerowiz[train]"`',
            (f"or install zerowiz in that of DeepSpeed: `{interpreter} -m pip install zerowiz`"),
        )


PACKAGE_MISSING = Rule(
    code="PF202",
    name="package-missing",
    severity=Severity.ERROR,
    why="the ranks fail when they import it",
    when=(
        "deepspeed, torch, transformers, accelerate, peft, bitsandbytes, setuptools: "
        "packages that this job needs"
    ),
)


def _wanted(planned: PlannedJob | None) -> Iterator[tuple[str, str]]:
    """The libraries of this job, each with who needs it."""
    yield "torch", "DeepSpeed needs it"
    yield "deepspeed", "the ranks need it"
    if planned is None:
        return
    if planned.integration is not None:
        yield from planned.integration.row.libraries.items()
    if planned.uses_peft:
        yield "peft", "the script trains adapters"
    if planned.uses_bitsandbytes:
        yield "bitsandbytes", "8-bit states and 4-bit weights need it"
    if planned.ops:
        yield "setuptools", "torch needs it to build DeepSpeed's ops"


def _pip(installed: Installed) -> str:
    """How the ranks' Python installs a library."""
    return f"{installed.interpreter or 'python'} -m pip"


OLD_DEEPSPEED = Rule(
    code="PF203",
    name="old-deepspeed",
    severity=Severity.WARNING,
    why=(
        "zerowiz is tested with 0.19.8; older versions have other keys and use other "
        "amounts of memory"
    ),
    when="older than 0.19.8",
)


def _age(installed: Installed) -> Iterator[Finding]:
    release = parse_release(installed.version("deepspeed"))
    if release and release < _DEEPSPEED:
        least = dotted(_DEEPSPEED)
        yield found(
            OLD_DEEPSPEED,
            (
                f"DeepSpeed {dotted(release)} is installed, and zerowiz writes configs for {least} "
                "and later"
            ),
            f'{_pip(installed)} install "deepspeed>={least}"',
        )


BAD_RELEASE = Rule(
    code="PF206",
    name="bad-release",
    severity=Severity.ERROR,
    why="the job trains wrongly, loses its weights, or ends where another release would not",
    when="a release of DeepSpeed or a library of Hugging Face that is known to harm such a job",
)
# What other libraries meet from these releases on.
_CHANGED: Mapping[str, Sequence[str]] = {
    "deepspeed": ("0.15.0", "0.16.0", "0.16.4"),
    "torch": ("2.6.0", "2.10.0"),
}


def check_releases(
    installed: Installed, planned: PlannedJob, rows: Sequence[BadRelease]
) -> Iterator[Finding]:
    """What is known against the releases that a job would run with."""
    job = _kind_of_job(installed, planned)
    for row in rows:
        version = installed.version(row.library)
        severity = row.severity_for(job) if row.affects(row.library, version) else None
        if severity is not None:
            yield found(
                BAD_RELEASE,
                f"{row.library} {version} is installed: {row.words}",
                f'{_pip(installed)} install "{row.requirement}"',
                row.instead,
                severity=severity,
            )


def _kind_of_job(installed: Installed, planned: PlannedJob) -> Mapping[str, object]:
    """What a job says of the conditions of bad releases."""
    step, strategy, integration = planned.job.workload, planned.strategy, planned.integration
    config = planned.config or {}
    zero = section_of(config, "zero_optimization")
    by_trainer = planned.uses_peft and integration is Integration.HF
    return {
        **shown_by(config),
        "stage": strategy.stage,
        "precision": step.precision.value,
        "offload": strategy.offload is not Offload.NONE,
        "micro_batches": min(step.accumulation_steps, MOST_MICRO_BATCHES),
        "integration": None if integration is None else integration.value,
        "trainer": step.trainer.value,
        "loss": step.loss.value,
        "lora": step.method is not Method.FULL,
        "checkpointing": step.gradient_checkpointing,
        "sequence_parallel": step.sequence_parallel > 1,
        "expert_parallel": step.expert_parallel > 1,
        "experts": planned.job.model.architecture.experts > 1,
        "on_cpu": planned.job.machine.accelerator.row.on_host,
        "empty_adapter": by_trainer and truth_of(zero.get(ZeroKey.GATHER_ON_SAVE, False)) is False,
        "auto_prefetch": zero.get("stage3_prefetch_bucket_size") == "auto",
        **{library: _changed_at(installed, library) for library in _CHANGED},
        **{name: _calls(planned, name) for name in RELEASE_CALLS},
    }


def _calls(planned: PlannedJob, name: str) -> bool | None:
    """Whether the script calls a method; None where only a part of it that is not seen may."""
    calls = frozenset() if planned.script is None else planned.script.facts.calls
    return name in calls or (False if "backward" in calls else None)


def _changed_at(installed: Installed, library: str) -> str | None:
    """The last of its releases that others met, up to the one that is installed."""
    version = parse_release(installed.version(library))
    met = [release for release in _CHANGED[library] if parse_release(release) <= version]
    return ("older", *met)[-1] if version else None


# No package has it.
_OURS: Mapping[str, str] = {
    "portable_checkpoint": "copy zerowiz's `templates/portable_checkpoint` next to the script"
}

# Where a package has another name than its module; some of these modules' names are other packages.
_PACKAGES: Mapping[str, str] = {
    "PIL": "pillow",
    "bs4": "beautifulsoup4",
    "cv2": "opencv-python",
    "dateutil": "python-dateutil",
    "dotenv": "python-dotenv",
    "flash_attn": "flash-attn",
    "git": "GitPython",
    "hydra": "hydra-core",
    "skimage": "scikit-image",
    "sklearn": "scikit-learn",
    "yaml": "pyyaml",
}


IMPORT_MISSING = Rule(
    code="PF102",
    name="import-missing",
    severity=Severity.ERROR,
    why="every rank fails at that line of the script",
    when="the script imports a package that is not installed, at its top and without `try`",
)


def _imports(imports: Sequence[Import], installed: Installed) -> Iterator[Finding]:
    for module in imports:
        if installed.lacks(module.name):
            yield found(
                IMPORT_MISSING,
                f"{module.path} line {module.line} imports `{module.name}`, which is not installed",
                _OURS.get(module.name) or _install(module, installed),
            )


def _install(missing: Import, installed: Installed) -> str:
    """How to get what a script imports; PyPI can have another package of the same name."""
    source = missing.source
    if source is None:
        return f"{_pip(installed)} install {_PACKAGES.get(missing.name, missing.name)}"
    if source.project is not None:
        return f"{_pip(installed)} install -e {shell.quote(source.project)}"
    return f"export PYTHONPATH={shell.quote(source.path)}"


def check_environment(inputs: PreflightInput) -> Iterator[Finding]:
    """The Python of the ranks, its libraries, and what the script imports."""
    installed, planned, facts = inputs.facts.installed, inputs.planned, inputs.facts
    if installed is None:
        return
    yield from _program(installed)
    for name, wants in _wanted(planned):
        if installed.lacks(name):
            yield found(
                PACKAGE_MISSING,
                f"`{name}` is not installed, and {wants}",
                f"{_pip(installed)} install {name}",
            )
    yield from _age(installed)
    if planned is not None:
        yield from check_releases(installed, planned, facts.bad_releases)
    yield from _imports(facts.imports, installed)


# Check whether the checkpoint that a job resumes from loads on its ranks and at its stage.

OTHER_RANKS = Rule(
    code="PF112",
    name="other-ranks",
    severity=Severity.ERROR,
    why="DeepSpeed loads the optimizer states of ZeRO only on as many ranks as saved them",
    when=(
        "`--resume_from_checkpoint` names a checkpoint of DeepSpeed that another number of "
        "ranks saved; a warning if the script does not use the Trainer"
    ),
)
OTHER_STAGE = Rule(
    code="PF114",
    name="other-stage",
    severity=Severity.ERROR,
    why="DeepSpeed loads a checkpoint only at its own stage; stages 1 and 2 load each other's",
    when=(
        "`--resume_from_checkpoint` names a checkpoint of DeepSpeed that another stage "
        "saved; a warning if the script does not use the Trainer"
    ),
)


def check_checkpoint(inputs: PreflightInput) -> Iterator[Finding]:
    """Whether a checkpoint loads."""
    planned, resumed = inputs.planned, inputs.facts.resumed
    section = (planned.config or {}).get("checkpoint") if planned else None
    loads_universal = isinstance(section, Mapping) and section.get("load_universal") is True
    if planned is None or resumed is None or loads_universal:
        return
    severity = None if planned.integration is Integration.HF else Severity.WARNING
    # deepspeed 0.19.8, runtime/engine.py: `_load_checkpoint` and `_load_zero_checkpoint` raise for
    # each pair of stages but these, and for other ranks, unless the checkpoint is universal.
    stage, stages = planned.strategy.stage, resumed.stages
    if stages and stage not in stages:
        yield found(
            OTHER_STAGE,
            (
                f"the checkpoint `{resumed.path}` is of stage {'/'.join(map(str, stages))}, "
                f"and this job trains at stage {stage}"
            ),
            f"resume at a stage that loads it: `$stage {stages[-1]}`",
            "for the next job: save with `portable_checkpoint`, which loads at every stage",
            severity=severity,
        )
    saved, ranks = resumed.ranks, planned.job.machine.world_size
    if saved not in {None, ranks} and stage != 0:
        yield found(
            OTHER_RANKS,
            f"{saved} ranks saved the checkpoint `{resumed.path}`, and this job has {ranks}",
            *_ways_out(resumed, planned),
            severity=severity,
        )


def _ways_out(states: SavedStates, planned: PlannedJob) -> Iterator[str]:
    yield f"resume on {states.ranks} ranks again"
    folder = f"{states.path}/{states.tag}"
    # For states of stages 1 and 2 the converter wants a note in the checkpoint, which none of the
    # Trainer has.
    command = (
        "python -m deepspeed.checkpoint.ds_to_universal --inject_missing_state"
        f" --input_folder {shell.quote(folder)} --output_folder {shell.quote(folder)}_universal"
    )
    yield (
        f'convert it with `{command}`, add `"checkpoint": {{"load_universal": true}}` to a copy'
        f" of `{planned.strategy.config_name}`, and launch with that: `$config FILE`"
    )
    yield "for the next job: save with `portable_checkpoint`, which loads on any number of ranks"
