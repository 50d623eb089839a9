"""What a help page says besides its options, and options that change nothing beside another."""

from collections.abc import Mapping
from typing import Any

from zerowiz.errors import UsageError

EXAMPLES: Mapping[str, tuple[tuple[str, str], ...]] = {
    "init": (
        ("zerowiz init", "answer a few questions, and launch"),
        ("zerowiz init train.py", "the same for this script"),
        ("zerowiz init --yes --model 7b --machine 8xH100", "write a config, and ask nothing"),
    ),
    "template": (
        ("zerowiz template first-run", "a script for the Trainer, a small model and a text"),
        ("zerowiz template --loop engine first-run", "a plain loop over DeepSpeed's engine"),
        ("zerowiz template", "list the templates"),
    ),
    "plan": (
        ("zerowiz plan train.py", "plan with the script's own settings"),
        ("zerowiz plan --model llama-3.1-8b --machine 8xH100", "a model and a machine by name"),
        ("zerowiz plan --model 7b --machine 4xA100-40 --method lora --limits", "how much fits"),
        ("zerowiz plan --model 7b --machine all", "compare the machines that the job fits"),
    ),
    "launch": (
        (
            "zerowiz launch --dry-run train.py",
            "show the config and the command, and start nothing",
        ),
        ("zerowiz launch train.py", "write the config, and train"),
        ("zerowiz launch --stage 2 train.py", "choose the strategy yourself"),
    ),
    "machine": (
        ("zerowiz machine", "show this machine"),
        ("zerowiz machine --machine p5.48xlarge", "show what a spec or an instance stands for"),
        (
            "zerowiz machine --save node.json",
            "save it, to plan elsewhere with --machine node.json",
        ),
    ),
    "measure": (
        (
            "zerowiz measure --model 10m --seq-len 64",
            "train a model of this size for some steps",
        ),
        ("zerowiz measure train.py", "run the script for some steps"),
        (
            "zerowiz measure --all --model 10m",
            "the same with every strategy that fits",
        ),
    ),
    "report": (("zerowiz report", "compare the last launch in this folder with its plan"),),
    "check": (
        ("zerowiz check .", "every config of this folder"),
        ("zerowiz check --fix ds_config.json", "apply the safe fixes"),
        ("zerowiz check --script train.py ds_config.json", "compare it with the script, too"),
    ),
    "doctor": (
        ("zerowiz doctor train.py", "find what would make this job fail"),
        (
            "zerowiz doctor --stage zero3 --offload optimizer train.py",
            "the same, with a strategy that you choose",
        ),
    ),
}


# What an option means to which command.

UNHEEDED: Mapping[str, frozenset[str]] = {
    "init": frozenset({"accounting"}),
    "launch": frozenset({"accounting"}),
    "plan": frozenset({"yes", "dry_run"}),
    "measure": frozenset({"accounting", "yes", "machine", "hostfile", "nodes"}),
    "doctor": frozenset({"accounting", "yes", "dry_run", "machine", "calibration"}),
}
"""Shared options that `--help` of a command leaves out.

What they ask for happens anyway (`plan --dry-run`), or they are refused by a line that says where
they belong (`launch --accounting textbook`).
"""


# What stands after a script is its own, and `--compare` says what it lacks.
_MAY_BE_EMPTY = frozenset({"args", "compare"})


def refuse_empty(command: Any, context: Any, words: list[str]) -> None:  # noqa: ANN401 - typer's own or click's, by typer's release
    """Refuse an option or an argument without a value, which as a path would be this folder.

    Args:
        command: The command.
        context: Of the command.
        words: After its name, as typed.

    Raises:
        UsageError: There is one.
    """
    if all(word.rpartition("=")[2] for word in words):
        return
    values = command.make_parser(context).parse_args(args=[*words])[0]
    for param in command.params:
        value = values.get(param.name)
        several = value if isinstance(value, (tuple, list)) else (value,)
        if param.name not in _MAY_BE_EMPTY and "" in several:
            is_option = param.param_type_name == "option"
            shown = (param.metavar or param.name).rstrip(".").upper()
            name = f"`{max(param.opts, key=len)}`" if is_option else shown
            raise UsageError(
                f"{name} is empty",
                "leave it out, or set the shell variable that it comes from",
            )


# By command: an option, and another without which it means nothing.
RELATIONS: Mapping[str, tuple[tuple[str, str], ...]] = {
    "launch": (("max_attempts", "escalate"),),
    "machine": (("force", "save"), ("deadline", "hostfile")),
}


def refuse_meaningless(command: Any, context: Any) -> None:  # noqa: ANN401 - as above
    """Refuse an option on the command line that would change nothing.

    Raises:
        UsageError: There is one.
    """
    spelled = {param.name: max(param.opts, key=len) for param in command.params}
    for option, other in RELATIONS.get(command.name, ()):
        source = context.get_parameter_source(option)
        is_typed = source is not None and source.name == "COMMANDLINE"
        if is_typed and not context.params[other]:
            raise UsageError(
                f"`{spelled[option]}` has no effect without `{spelled[other]}`",
                f"remove `{spelled[option]}`",
            )
