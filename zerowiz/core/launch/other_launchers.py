"""What zerowiz takes in the place of another launcher, or of a program that starts its ranks."""

import re
import shlex
from collections.abc import Mapping, Sequence
from itertools import dropwhile

from zerowiz.core import shell
from zerowiz.core.launch.secrets import join_words
from zerowiz.core.script.arguments import YAML_SUFFIXES

_LAUNCHERS = re.compile(r"torchrun|accelerate|accelerate-launch|deepspeed|python(3(\.\d+)?t?)?")
_MODULES = frozenset(
    {
        *("torch.distributed.run", "torch.distributed.launch"),
        *("accelerate.commands.launch", "deepspeed.launcher.runner"),
    }
)
"""What `python -m` runs in the place of a launcher."""


def is_launcher(word: str) -> bool:
    """Whether a word starts another launcher: its name, its path in a `bin`, or its module.

    Example:
        >>> is_launcher("torchrun"), is_launcher("env/bin/python3"), is_launcher("train.py")
        (True, True, False)
    """
    folder, _, name = word.rpartition("/")
    is_program = not folder or folder.rpartition("/")[2] == "bin"
    return word in _MODULES or (is_program and _LAUNCHERS.fullmatch(name) is not None)


def launch_instead(words: Sequence[str]) -> str:
    """The command of zerowiz that starts the script, or the module, of another launcher's.

    Args:
        words: The launcher, its options, the script and its arguments.

    Example:
        >>> launch_instead(["torchrun", "--nproc_per_node", "8", "train.py", "--lr", "1"])
        'zerowiz launch train.py --lr 1'
    """
    scripts = [at for at, word in enumerate(words) if word.endswith(".py")]
    modules = [
        at
        for at, word in enumerate(words)
        if word in {"-m", "--module"} and words[at + 1 : at + 2] and words[at + 1] not in _MODULES
    ]
    begin = min((*scripts, *modules), default=None)
    return f"zerowiz launch {'train.py' if begin is None else join_words(words[begin:])}"


# What trains with each program, and the way.
TRAINERS: Mapping[str, tuple[frozenset[str], str]] = {
    "axolotl": (frozenset({"train"}), "pass its YAML file: `zerowiz init {path}`"),
    "llamafactory-cli": (frozenset({"train"}), "pass its YAML file: `zerowiz init {path}`"),
    "swift": (
        frozenset({"pt", "rlhf", "sft"}),
        "pass its arguments in a YAML file: `zerowiz init {path}`",
    ),
    "trl": (
        frozenset({"dpo", "grpo", "kto", "reward", "rloo", "sft"}),
        "launch its module: `zerowiz launch -m trl.scripts.{module}`",
    ),
}
PREFIXES = frozenset({"env", "exec", "nice", "nohup", "numactl", "poetry", "srun", "time", "uv"})
"""Programs that start the one that their words name."""
# What stands before a program in a line of a shell script, beside those.
_BEFORE = re.compile(r"[A-Za-z_]\w*=.*|-.*|\d+|run")


def name_way(program: str, words: Sequence[str]) -> str:
    """What zerowiz takes in the place of a program of TRAINERS.

    Args:
        program: Its name.
        words: The words after it.
    """
    path = next((word for word in words if word.endswith(YAML_SUFFIXES)), "my.yaml")
    return TRAINERS[program][1].format(path=shell.quote(path), module=shell.join(words) or "sft")


def find_trainer(text: str) -> tuple[str, ...] | None:
    r"""A program of TRAINERS that a shell script trains with, and its words; None for none.

    Example:
        >>> find_trainer("export A=1\nNPROC_PER_NODE=8 swift sft my.yaml")
        ('swift', 'sft', 'my.yaml')
    """
    for line in text.replace("\\\n", " ").splitlines():
        try:
            typed = shlex.split(line, comments=True)
        except ValueError:
            continue  # a quote that ends on another line
        words = tuple(dropwhile(lambda w: w in PREFIXES or bool(_BEFORE.fullmatch(w)), typed))
        if len(words) > 1 and words[0] in TRAINERS and words[1] in TRAINERS[words[0]][0]:
            return words
    return None
