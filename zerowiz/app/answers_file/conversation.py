"""Ask anew what the answers file says: what was answered before is the default of each question."""

from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct

from zerowiz.app.answers_file.layers import Layers
from zerowiz.app.options import Options
from zerowiz.core.decision.questions import OWN_MICRO_BATCH, QUESTIONS
from zerowiz.core.values import replace


class Conversation(Struct, frozen=True, kw_only=True):
    """What a conversation starts with."""

    options: Options
    script: str | None
    before: Mapping[str, str]
    """What the file answers, by the keys of the questions: their defaults."""


def ask_anew(layers: Layers) -> Conversation:
    """What a conversation starts with: what the file answers is asked anew."""
    by_file = {name for name in layers.origins if name not in layers.typed.origins}
    asked = {*(question.key for question in QUESTIONS), "objective"} & by_file - {"script"}
    said = {name: getattr(layers.options, name) for name in asked}
    before = {name: _answer(value) for name, value in said.items()}
    own = OWN_MICRO_BATCH if "micro_batch" in said else None
    if goal := before.pop("objective", own):
        before["goal"] = goal
    typed = {name: getattr(layers.typed.options, name) for name in asked}
    is_gone = "script" in by_file and not Path(str(layers.script)).is_file()
    is_gone = is_gone and not layers.options.module
    return Conversation(
        options=replace(layers.options, **typed),
        script=None if is_gone else layers.script,
        before=before,
    )


def _answer(value: object) -> str:
    """A setting as one answers its question."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value)
