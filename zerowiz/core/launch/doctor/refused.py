"""Report what an earlier step of a launch refused."""

from zerowiz.core.launch.doctor.finding import PreflightFinding, found
from zerowiz.core.rule import Rule, Severity
from zerowiz.errors import ZerowizError

SCRIPT_REFUSED = Rule(
    code="PF101",
    name="script-refused",
    severity=Severity.ERROR,
    why="`launch` refuses the script",
    when="the script does not exist, is not Python, or cannot get a config",
)
PLAN_REFUSED = Rule(
    code="PF104",
    name="plan-refused",
    severity=Severity.ERROR,
    why="`launch` refuses the job",
    when="nothing fits, or the script, the config and the options conflict",
)
NO_PLAN = Rule(
    code="PF105",
    name="no-plan",
    severity=Severity.INFO,
    why="`doctor` could not check what depends on the plan",
    when="there is no script, or its model is unknown",
)
NO_DEEPSPEED = Rule(
    code="PF201",
    name="no-deepspeed",
    severity=Severity.ERROR,
    why="zerowiz cannot start a job without `deepspeed`",
    when="`deepspeed` is neither in zerowiz's environment nor on `PATH`",
)
NO_MACHINE = Rule(
    code="PF301",
    name="no-machine",
    severity=Severity.ERROR,
    why="zerowiz cannot train without a GPU",
    when="no driver, no usable GPU",
)


def refused(rule: Rule, error: ZerowizError) -> PreflightFinding:
    """The error of such a step as a finding."""
    return found(rule, error.message, *error.hints)
