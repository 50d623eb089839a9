"""Report what an earlier step of a launch refused."""

from zerowiz.core.launch.doctor.finding import PreflightFinding, found
from zerowiz.core.rule import Rule, Severity
from zerowiz.errors import ZerowizError

SCRIPT_REFUSED = Rule(
    code="PF101",
    name="script-refused",
    severity=Severity.ERROR,
    why="`launch` refuses the script",
    when="no file, not Python, or no config can reach it",
)
PLAN_REFUSED = Rule(
    code="PF104",
    name="plan-refused",
    severity=Severity.ERROR,
    why="`launch` refuses the job",
    when="nothing fits, or script, config and options contradict the machine",
)
NO_PLAN = Rule(
    code="PF105",
    name="no-plan",
    severity=Severity.INFO,
    why="what depends on the plan was not looked at",
    when="no script, or nobody says which model",
)
NO_DEEPSPEED = Rule(
    code="PF201",
    name="no-deepspeed",
    severity=Severity.ERROR,
    why="there is nothing to launch with",
    when="not beside zerowiz, nor on `PATH`",
)
NO_MACHINE = Rule(
    code="PF301",
    name="no-machine",
    severity=Severity.ERROR,
    why="there is nothing to train on",
    when="no driver, no usable GPU",
)


def refused(rule: Rule, error: ZerowizError) -> PreflightFinding:
    """The error of such a step as a finding."""
    return found(rule, error.message, *error.hints)
