"""Check whether the checkpoint that a job resumes from loads on its ranks and at its stage."""

from collections.abc import Iterator, Mapping

from zerowiz.core import shell
from zerowiz.core.launch.doctor.facts import Resumed, SavedStates
from zerowiz.core.launch.doctor.finding import PreflightFinding, found
from zerowiz.core.launch.doctor.inputs import PlannedJob, PreflightInput
from zerowiz.core.rule import Rule, Severity
from zerowiz.core.workload.choices import Integration
from zerowiz.words import _

OTHER_RANKS = Rule(
    code="PF112",
    name="other-ranks",
    severity=Severity.ERROR,
    why=_("DeepSpeed loads the optimizer states of ZeRO only on as many ranks as saved them"),
    when=_(
        "`--resume_from_checkpoint` names a checkpoint of DeepSpeed that another number of ranks"
        " saved; a warning if the script does not use the Trainer"
    ),
)
OTHER_STAGE = Rule(
    code="PF114",
    name="other-stage",
    severity=Severity.ERROR,
    why=_("DeepSpeed loads a checkpoint only at its own stage; stages 1 and 2 load each other's"),
    when=_(
        "`--resume_from_checkpoint` names a checkpoint of DeepSpeed that another stage saved;"
        " a warning if the script does not use the Trainer"
    ),
)
NO_CHECKPOINT = Rule(
    code="PF115",
    name="no-checkpoint",
    severity=Severity.ERROR,
    why=_(
        "with DeepSpeed, the Trainer resumes only from states of DeepSpeed, and looks for them"
        " after it has built its model"
    ),
    when=_(
        "`--resume_from_checkpoint` of a Trainer script names a folder that does not exist, or"
        " that has no states of DeepSpeed"
    ),
)


def check_checkpoint(inputs: PreflightInput) -> Iterator[PreflightFinding]:
    """Whether a checkpoint loads."""
    planned, resumed = inputs.planned, inputs.facts.resumed
    if planned is None or resumed is None or _loads_universal(planned.config):
        return
    if resumed.states is None:
        yield from _check_there(resumed, planned)
        return
    severity = None if planned.integration is Integration.HF else Severity.WARNING
    # deepspeed 0.19.8, runtime/engine.py: `_load_checkpoint` and `_load_zero_checkpoint` raise for
    # each pair of stages but these, and for other ranks, unless the checkpoint is universal.
    stage, stages = planned.strategy.stage, resumed.states.stages
    if stages and stage not in stages:
        yield found(
            OTHER_STAGE,
            _(
                "the checkpoint `{path}` is of stage {saved}, and this job trains at stage {stage}",
                path=resumed.path,
                saved="/".join(map(str, stages)),
                stage=stage,
            ),
            _("resume at a stage that loads it: `$stage {stage}`", stage=stages[-1]),
            _("for the next job: save with `portable_checkpoint`, which loads at every stage"),
            severity=severity,
        )
    saved, ranks = resumed.states.ranks, planned.job.machine.world_size
    if saved not in {None, ranks} and stage != 0:
        yield found(
            OTHER_RANKS,
            _(
                "{saved} ranks saved the checkpoint `{path}`, and this job has {ranks}",
                saved=saved,
                path=resumed.path,
                ranks=ranks,
            ),
            *_ways_out(resumed.path, resumed.states, planned),
            severity=severity,
        )


def _check_there(resumed: Resumed, planned: PlannedJob) -> Iterator[PreflightFinding]:
    # Scripts give words of their own a meaning: `latest`, `true`.
    names_folder = "/" in resumed.path or resumed.path.startswith("checkpoint-")
    portable = planned.script is not None and planned.script.saves_portably
    if planned.integration is not Integration.HF or not names_folder or portable:
        return
    if not resumed.is_folder:
        yield found(
            NO_CHECKPOINT,
            _("there is no checkpoint `{path}`", path=resumed.path),
            _("name a checkpoint that is there after `--resume_from_checkpoint`"),
            _("remove `--resume_from_checkpoint` to start from the beginning"),
        )
        return
    yield found(
        NO_CHECKPOINT,
        _("the checkpoint `{path}` has no states of DeepSpeed", path=resumed.path),
        _(
            "to go on from its weights with a new optimizer, remove `--resume_from_checkpoint`,"
            " and name the folder as the model"
        ),
    )


def _loads_universal(config: Mapping[str, object] | None) -> bool:
    section = None if config is None else config.get("checkpoint")
    return isinstance(section, Mapping) and section.get("load_universal") is True


def _ways_out(path: str, states: SavedStates, planned: PlannedJob) -> Iterator[str]:
    yield _("resume on {saved} ranks again", saved=states.ranks)
    folder = f"{path}/{states.tag}"
    # For states of stages 1 and 2 the converter wants a note in the checkpoint, which none of the
    # Trainer has.
    yield _(
        "convert it with `{command}`, add `{section}` to a copy of `{name}`, and launch with that:"
        " `$config FILE`",
        command="python -m deepspeed.checkpoint.ds_to_universal --inject_missing_state"
        f" --input_folder {shell.quote(folder)} --output_folder {shell.quote(folder)}_universal",
        section='"checkpoint": {"load_universal": true}',
        name=planned.strategy.config_name,
    )
    yield _("for the next job: save with `portable_checkpoint`, which loads on any number of ranks")
