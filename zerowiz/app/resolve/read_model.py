"""A model as it was read, and what that reading rests on."""

from msgspec import Struct

from zerowiz.core.memory.forward.traced import Traced
from zerowiz.core.model.types import Model


class ReadModel(Struct, frozen=True, kw_only=True):
    """A model, and the trace of it if there was one."""

    model: Model
    traced: Traced | None = None
    notes: tuple[str, ...] = ()
