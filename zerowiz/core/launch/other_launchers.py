"""Understand a command of another launcher, such as `torchrun --nproc_per_node 8 train.py`.

zerowiz takes its place: what it says of ranks, nodes and DeepSpeed becomes settings, and what it
does for the ranks to meet is done by DeepSpeed's own launcher.
"""

import re
from collections.abc import Mapping, Sequence
from difflib import get_close_matches

from msgspec import Struct

from zerowiz.core.launch.launcher_options import (
    ALL_RANKS,
    IS_MODULE,
    LAUNCHER,
    LAUNCHERS,
    MODULES,
    NO_LOCAL_RANK,
    OPTIMIZER_DEVICE,
    PARAMETER_DEVICE,
    PYTHON,
    Fate,
    LauncherOption,
    OtherLauncher,
)
from zerowiz.core.launch.plan import Launcher
from zerowiz.errors import UsageError, did_you_mean
from zerowiz.words import _, joined

_PYTHON_NAME = re.compile(r"python(3(\.\d+)?t?)?")


class OtherCommand(Struct, frozen=True, kw_only=True):
    """What a command of another launcher says."""

    words: tuple[str, ...]
    """The launcher and its options, as they were typed."""
    target: str
    """The script, or the module."""
    is_module: bool
    args: tuple[str, ...]
    """What follows the target."""
    settings: Mapping[str, object]
    """Plain values by the names of zerowiz's settings."""
    said_by: Mapping[str, str]
    """The words that say each of them."""
    lost: tuple[str, ...]
    """The options without effect, with their words."""
    no_local_rank: bool = False
    """Whether DeepSpeed's own option said so."""
    launcher: Launcher | None = None
    """What reaches the nodes of a hostfile."""


def is_launcher(word: str) -> bool:
    """Whether a word may be the first of another launcher's command."""
    names = {name[0] for name in LAUNCHERS}
    return word in names or _PYTHON_NAME.fullmatch(word) is not None


def read_command(words: Sequence[str]) -> OtherCommand | None:
    """A command of another launcher; None where the first word starts none.

    Args:
        words: All words, the launcher first.

    Raises:
        UsageError: An option that it does not have, or that zerowiz cannot stand in for.
    """
    name, launcher = _find_launcher(words)
    if launcher is None:
        return None
    typed = _Typed(words)
    typed.take(len(name))
    module = typed.read_options(launcher)
    if module is not None and module in MODULES:
        typed.take(1)
        typed.settings.pop(IS_MODULE)
        typed.read_options(MODULES[module])
    return typed.command()


def launcher_words(words: Sequence[str]) -> tuple[str, ...]:
    """The words that start another launcher; empty where they start none."""
    return _find_launcher(words)[0]


def _find_launcher(words: Sequence[str]) -> tuple[tuple[str, ...], OtherLauncher | None]:
    first, *rest = words or ("",)
    folder, _, base = first.rpartition("/")
    # A path may be a script of that name; one in a `bin` is the program.
    program = base if not folder or folder.rpartition("/")[2] == "bin" else ""
    for name, launcher in LAUNCHERS.items():
        if (program, *rest[: len(name) - 1]) == name:
            return name, launcher
    if _PYTHON_NAME.fullmatch(program):
        return (program,), PYTHON
    return (), None


class _Typed:
    """Reads the words of a command, one after the other.

    Args:
        words: All of them.
    """

    def __init__(self, words: Sequence[str]) -> None:
        self._words = tuple(words)
        self._at = 0
        self.settings: dict[str, object] = {}
        self._said_by: dict[str, str] = {}
        self._lost: list[str] = []

    def take(self, count: int) -> None:
        """Go past these words."""
        self._at += count

    @property
    def _read(self) -> str:
        return " ".join(self._words[: self._at])

    def read_options(self, launcher: OtherLauncher) -> str | None:
        """Read the options of a launcher; the module, where the words name one."""
        while self._at < len(self._words) and self._words[self._at].startswith("-"):
            word = self._words[self._at]
            if word == "--":
                self._at += 1
                break
            self._read_option(launcher, word)
            if launcher is PYTHON and IS_MODULE in self.settings:
                break
        target = self._words[self._at] if self._at < len(self._words) else None
        return target if IS_MODULE in self.settings else None

    def _read_option(self, launcher: OtherLauncher, word: str) -> None:
        before = self._read
        flag, option = self._find_option(launcher, word)
        value, said = self._take_value(flag, takes_word=option.takes_word)
        if option.fate is Fate.REFUSED:
            raise _refused(before, flag)
        if option.fate is Fate.LOST:
            self._lost.append(said)
        try:
            values = option.read(value)
        except ValueError as error:
            raise UsageError(f"`{said}`: " + error.args[0]) from None
        self.settings |= values
        self._said_by |= dict.fromkeys(values, said)

    def _find_option(self, launcher: OtherLauncher, word: str) -> tuple[str, LauncherOption]:
        """The option that a word means, with its flag as it is written."""
        takes_sign = word.startswith("--") or launcher.uses_argparse
        flag = word.partition("=")[0] if takes_sign else word
        if launcher.of_family(flag):
            raise _refused(self._read, flag)
        found = launcher.find(flag)
        if not found and not word.startswith("--") and launcher.find(word[:2]):
            self._split_short(launcher, word)
            flag, found = word[:2], launcher.find(word[:2])
        if len(found) == 1:
            return flag, launcher.options[found[0]]
        if found:
            raise UsageError(
                _(
                    "`{read} {flag}`: `{flag}` could mean {options}",
                    read=self._read,
                    flag=flag,
                    options=joined(_(" or "), (f"`{n}`" for n in found[:4])),
                )
            )
        raise UsageError(
            _(
                "`{read} {flag}`: `{flag}` is not an option that zerowiz knows",
                read=self._read,
                flag=flag,
            ),
            *did_you_mean(get_close_matches(flag.replace("-", "_"), launcher.options, n=1)),
            _(
                "remove it: zerowiz starts the ranks with deepspeed, and reads the options before"
                " SCRIPT"
            ),
        )

    def _take_value(self, flag: str, *, takes_word: bool) -> tuple[str, str]:
        """The word of the option that is next, and the whole of it as it is written."""
        word = self._words[self._at]
        self._at += 1
        if not takes_word:
            return "", word
        if word != flag:
            return word.partition("=")[2], word
        if self._at == len(self._words):
            raise UsageError(_("`{read}`: `{flag}` needs a value", read=self._read, flag=flag))
        self._at += 1
        return self._words[self._at - 1], f"{flag} {self._words[self._at - 1]}"

    def _split_short(self, launcher: OtherLauncher, word: str) -> None:
        """Split `-Wignore` and `-mpkg.train` into two words, `-uB` into two options."""
        option = launcher.options[word[:2]]
        switch = not option.takes_word and word[:2] != "-m"
        parts = (word[:2], f"-{word[2:]}" if switch else word[2:])
        self._words = (*self._words[: self._at], *parts, *self._words[self._at + 1 :])

    def command(self) -> OtherCommand:
        """What was read.

        Raises:
            UsageError: No script follows, or the options contradict each other.
        """
        if self._at >= len(self._words):
            raise UsageError(
                _("`{read}` has no script", read=self._read),
                f"`zerowiz launch {self._read} train.py`",
            )
        settings, said_by = self.settings, self._said_by
        is_module = bool(settings.pop(IS_MODULE, False))
        no_local_rank = bool(settings.pop(NO_LOCAL_RANK, False))
        launcher = settings.pop(LAUNCHER, None)
        _settle_ranks(settings, said_by)
        _settle_offload(settings, said_by)
        target, *args = self._words[self._at :]
        return OtherCommand(
            words=self._words[: self._at],
            target=target,
            is_module=is_module,
            args=tuple(args),
            settings=settings,
            said_by={name: words for name, words in said_by.items() if name in settings},
            lost=tuple(self._lost),
            no_local_rank=no_local_rank,
            launcher=None if launcher is None else Launcher(str(launcher)),
        )


def _refused(launcher: str, said: str) -> UsageError:
    return UsageError(
        _(
            "`{launcher} {said}`: zerowiz starts DeepSpeed jobs, which have no `{said}`",
            launcher=launcher,
            said=said,
        ),
        _("remove it, or start this job without zerowiz"),
    )


def _settle_ranks(settings: dict[str, object], said_by: dict[str, str]) -> None:
    """The ranks of each node, of all ranks; and GPUs that are named, beside their number."""
    total = settings.pop(ALL_RANKS, None)
    if isinstance(total, int):
        nodes = settings.get("nodes", 1)
        each, rest = divmod(total, nodes if isinstance(nodes, int) else 1)
        if rest:
            raise UsageError(
                _(
                    "`{said_by}`: {total} ranks cannot be divided equally over {nodes} nodes",
                    said_by=said_by[ALL_RANKS],
                    total=total,
                    nodes=nodes,
                )
            )
        settings["gpus_per_node"] = each
        said_by["gpus_per_node"] = said_by[ALL_RANKS]
    gpus, count = settings.get("gpus"), settings.get("gpus_per_node")
    if gpus is None or count is None:
        return
    if len(str(gpus).split(",")) != count:
        raise UsageError(
            _(
                "`{gpus}` conflicts with `{gpus_per_node}`",
                gpus=said_by["gpus"],
                gpus_per_node=said_by["gpus_per_node"],
            ),
            _("remove one of them"),
        )
    del settings["gpus_per_node"]


def _settle_offload(settings: dict[str, object], said_by: dict[str, str]) -> None:
    """Accelerate's devices of the optimizer and the parameters, as one setting."""
    devices = tuple(settings.pop(name, None) for name in (OPTIMIZER_DEVICE, PARAMETER_DEVICE))
    if devices == (None, None):
        return
    said = [said_by[name] for name in (OPTIMIZER_DEVICE, PARAMETER_DEVICE) if name in said_by]
    optimizer, parameters = (device == "cpu" for device in devices)
    if parameters and not optimizer:
        raise UsageError(
            _(
                "`{said}`: zerowiz offloads parameters only together with the optimizer",
                said=" ".join(said),
            ),
            _("offload both with `$offload all`"),
        )
    settings["offload"] = "all" if parameters else "optimizer" if optimizer else "none"
    said_by["offload"] = " ".join(said)
