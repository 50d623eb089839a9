"""Report what an earlier step of a launch refused."""

from zerowiz.core.launch.doctor.finding import PreflightFinding, found
from zerowiz.core.rule import Rule, Severity
from zerowiz.errors import ZerowizError
from zerowiz.words import _

SCRIPT_REFUSED = Rule(
    code="PF101",
    name="script-refused",
    severity=Severity.ERROR,
    why=_("`launch` refuses the script"),
    when=_("the script does not exist, is not Python, or cannot get a config"),
)
PLAN_REFUSED = Rule(
    code="PF104",
    name="plan-refused",
    severity=Severity.ERROR,
    why=_("`launch` refuses the job"),
    when=_("nothing fits, or the script, the config and the options conflict"),
)
NO_PLAN = Rule(
    code="PF105",
    name="no-plan",
    severity=Severity.INFO,
    why=_("`doctor` could not check what depends on the plan"),
    when=_("there is no script, or its model is unknown"),
)
NO_DEEPSPEED = Rule(
    code="PF201",
    name="no-deepspeed",
    severity=Severity.ERROR,
    why=_("zerowiz cannot start a job without `deepspeed`"),
    when=_("`deepspeed` is neither in zerowiz's environment nor on `PATH`"),
)
NO_MACHINE = Rule(
    code="PF301",
    name="no-machine",
    severity=Severity.ERROR,
    why=_("zerowiz cannot train without a GPU"),
    when=_("no driver, no usable GPU"),
)


def refused(rule: Rule, error: ZerowizError) -> PreflightFinding:
    """The error of such a step as a finding."""
    return found(rule, error.message, *error.hints)
