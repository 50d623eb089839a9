"""Check whether the checkpoint that a job resumes from loads on the ranks that it has now."""

from collections.abc import Iterator, Mapping

from zerowiz.core import shell
from zerowiz.core.launch.doctor.facts import SavedStates
from zerowiz.core.launch.doctor.finding import PreflightFinding, found
from zerowiz.core.launch.doctor.inputs import PlannedJob, PreflightInput
from zerowiz.core.rule import Rule, Severity
from zerowiz.core.workload import Integration
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


def check(inputs: PreflightInput) -> Iterator[PreflightFinding]:
    """Whether a checkpoint loads."""
    planned, saved = inputs.planned, inputs.facts.resumed
    if planned is None or saved is None or planned.strategy.stage == 0:
        return
    # deepspeed 0.19.8, runtime/engine.py, _load_zero_checkpoint: a ZeRORuntimeException, unless
    # the checkpoint is universal.
    ranks = planned.job.machine.world_size
    if saved.ranks != ranks and not _loads_universal(planned.config):
        yield found(
            OTHER_RANKS,
            _(
                "{saved} ranks saved the checkpoint `{path}`, and this job has {ranks}",
                saved=saved.ranks,
                path=saved.path,
                ranks=ranks,
            ),
            *_ways_out(saved, planned),
            severity=None if planned.integration is Integration.HF else Severity.WARNING,
        )


def _loads_universal(config: Mapping[str, object] | None) -> bool:
    section = None if config is None else config.get("checkpoint")
    return isinstance(section, Mapping) and section.get("load_universal") is True


def _ways_out(saved: SavedStates, planned: PlannedJob) -> Iterator[str]:
    yield _("resume on {saved} ranks again", saved=saved.ranks)
    folder = f"{saved.path}/{saved.tag}"
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
