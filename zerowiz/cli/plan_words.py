"""Read the words of `plan`: a value that may be left out, and the options of another plan."""

import shlex
from typing import Any

from zerowiz.cli.usage import PlainCommand
from zerowiz.core.settings import COMPARE, EXPLAIN
from zerowiz.core.strategies import find_strategy

CHOSEN = "chosen"
"""What `--explain` is without a value."""


class PlanCommand(PlainCommand):
    """The command whose `--explain` may stand alone, and whose `--compare` opens other options."""

    # click's context is typer's own or click's, by typer's release.
    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401 - as said above
        """Give each of the two the value that typer asks for."""
        own, script = self._split(ctx, args)
        words, _, other = _partition(own, COMPARE.flag)
        given = [
            f"{word}={CHOSEN}" if word == EXPLAIN.flag and not _names(words, place) else word
            for place, word in enumerate(words)
        ]
        compared = [f"{COMPARE.flag}={shlex.join(other)}"] if COMPARE.flag in own else []
        return super().parse_args(ctx, [*given, *compared, *script])

    def _split(self, ctx: Any, args: list[str]) -> tuple[list[str], list[str]]:  # noqa: ANN401 - as above
        """The words up to the script, and the script with the words after it."""
        params: list[Any] = self.get_params(ctx)
        valued = {
            name
            for param in params
            if param.param_type_name == "option" and not param.is_flag
            for name in (*param.opts, *param.secondary_opts)
        } - {COMPARE.flag, EXPLAIN.flag}
        place = 0
        while place < len(args) and args[place].startswith("-") and args[place] != "--":
            takes_next = args[place] in valued or (
                args[place] == EXPLAIN.flag and _names(args, place)
            )
            place += 2 if takes_next else 1
        return args[:place], args[place:]


def _names(words: list[str], place: int) -> bool:
    """Whether the word behind this one is a strategy."""
    return place + 1 < len(words) and find_strategy(words[place + 1]) is not None


def _partition(words: list[str], at: str) -> tuple[list[str], bool, list[str]]:
    """The words before one, whether it is there, and those behind it."""
    if at not in words:
        return words, False, []
    place = words.index(at)
    return words[:place], True, words[place + 1 :]
