"""What a dry run of `zerowiz launch` shows, taken apart."""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass

from cli.harness import Result, Run
from paths import ROOT

RANK_PROGRAM = str(ROOT / "zerowiz" / "worker" / "rank.py")
CPU = ("--machine", "cpu", "--gpus-per-node", "2", "--model", "10m", "--seq-len", "64")
# The torch of the tests is built for the CPU, which would stop a launch on GPUs.
ON_GPUS = ("--model", "1b", "--force")


@dataclass(frozen=True, kw_only=True, slots=True)
class Shown:
    """The last line of a dry run, taken apart."""

    env: Mapping[str, str]
    launcher: tuple[str, ...]
    script: tuple[str, ...]

    @property
    def options(self) -> tuple[str, ...]:
        """The launcher's options, less the port, which differs each time."""
        words = [word for word in self.launcher[1:] if word != RANK_PROGRAM]
        at = words.index("--master_port")
        return tuple(words[:at] + words[at + 2 :])


def shown(result: Result, script: str = "train.py") -> Shown:
    assert 0 == result.code, result.stderr
    words = shlex.split(result.stdout.splitlines()[-1])
    first = next(index for index, word in enumerate(words) if word.endswith("/deepspeed"))
    env, argv = words[:first], words[first:]
    at = argv.index(script)
    return Shown(
        env=dict(word.split("=", 1) for word in env),
        launcher=tuple(argv[:at]),
        script=tuple(argv[at:]),
    )


def dry(run: Run, *words: str) -> Shown:
    return shown(run("launch", "--dry-run", *words))
