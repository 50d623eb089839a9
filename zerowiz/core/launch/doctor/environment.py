"""Check the Python that the ranks run with, its libraries, and the script's own imports."""

import re
from collections.abc import Iterator, Mapping

from zerowiz.core.launch.doctor import rules
from zerowiz.core.launch.doctor.finding import PreflightFinding, found
from zerowiz.core.launch.doctor.found import Installed
from zerowiz.core.launch.doctor.situation import Situation
from zerowiz.core.workload import Integration

# The oldest release that configs are written for (pyproject.toml, extra `train`).
_DEEPSPEED = (0, 19, 8)
_RELEASE = re.compile(r"(\d{1,9})\.(\d{1,9})\.(\d{1,9})", re.ASCII)


def _program(s: Situation) -> Iterator[PreflightFinding]:
    installed = s.found.installed
    if installed is None or installed.interpreter is None:
        return
    if installed.interpreter_exists is False:
        yield found(
            rules.NO_INTERPRETER,
            f"`{installed.program}` starts with `{installed.interpreter}`, which is not there",
            "an environment that was moved has to be made again;"
            ' then `pip install "zerowiz[train]"`',
        )
    elif installed.own is False:
        yield found(
            rules.OTHER_ENVIRONMENT,
            f"`{installed.program}` belongs to `{installed.interpreter}`",
            'install DeepSpeed beside zerowiz: `pip install "zerowiz[train]"`',
            f"or zerowiz beside it: `{installed.interpreter} -m pip install zerowiz`",
        )


def _packages(s: Situation) -> Iterator[PreflightFinding]:
    installed = s.found.installed
    if installed is None:
        return
    for name, wants in _wanted(s):
        package = installed.packages.get(name)
        if package is not None and package.present is False:
            yield found(
                rules.PACKAGE_MISSING,
                f"`{name}` is not installed, and {wants}",
                f"{_pip(installed)} install {name}",
            )


def _wanted(s: Situation) -> Iterator[tuple[str, str]]:
    """The libraries of this job, each with who needs it."""
    yield "torch", "DeepSpeed needs it"
    yield "deepspeed", "the ranks need it"
    planned = s.planned
    if planned is None:
        return
    if planned.integration is Integration.HF:
        yield "transformers", "the script trains with its Trainer"
        yield "accelerate", "the Trainer needs it"
    if planned.integration is Integration.ACCELERATE:
        yield "accelerate", "the script imports it"
    if planned.uses_peft:
        yield "peft", "the script trains adapters"
    if planned.uses_bitsandbytes:
        yield "bitsandbytes", "8-bit states and 4-bit weights come from it"
    if planned.ops:
        yield "setuptools", "torch builds DeepSpeed's ops with it"


def _pip(installed: Installed) -> str:
    """How the ranks' Python installs a library."""
    return f"{installed.interpreter or 'python'} -m pip"


def _age(s: Situation) -> Iterator[PreflightFinding]:
    installed = s.found.installed
    package = installed and installed.packages.get("deepspeed")
    match = _RELEASE.match((package and package.version) or "")
    if installed is None or match is None:
        return
    if tuple(int(part) for part in match.groups()) < _DEEPSPEED:
        least = ".".join(map(str, _DEEPSPEED))
        yield found(
            rules.OLD_DEEPSPEED,
            f"DeepSpeed is {match[0]}, and zerowiz writes configs for {least} and later",
            f'{_pip(installed)} install "deepspeed>={least}"',
        )


# No package has it.
_OURS: Mapping[str, str] = {
    "portable_checkpoint": "copy the folder `portable_checkpoint` of zerowiz's templates beside it"
}


def _imports(s: Situation) -> Iterator[PreflightFinding]:
    script, installed = s.found.script, s.found.installed
    if script is None or installed is None:
        return
    for each in script.missing:
        yield found(
            rules.IMPORT_MISSING,
            f"{script.path} line {each.line} imports `{each.name}`, which is not installed",
            _OURS.get(each.name, f"{_pip(installed)} install {each.name}"),
        )
    for path in script.shadowing:
        yield found(
            rules.SHADOWED, f"`{path}` has the name of a library", f"rename it: `mv {path} ...`"
        )


CHECKS = (_program, _packages, _age, _imports)
