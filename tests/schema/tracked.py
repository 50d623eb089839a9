"""A config that notes which keys DeepSpeed asks of it, with which default, and who asks."""

import sys
from collections.abc import Iterator, KeysView, Mapping
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple, cast

NO_DEFAULT = object()

# deepspeed/runtime/config_utils.py: they ask on behalf of their callers.
_GO_BETWEENS = {"get_scalar_param", "get_list_param", "get_dict_param"}


class Read(NamedTuple):
    """One key that was asked for."""

    path: str
    default: object
    source: str | None


class Tracked(dict[str, Any]):
    """A config, or a section of one; what is asked of it goes into a list that all sections share."""

    def __init__(self, path: str, reads: list[Read], values: Mapping[str, Any]) -> None:
        super().__init__(values)
        self.path = path
        self.reads = reads

    def _note(self, name: object, default: object) -> None:
        if isinstance(name, str):
            path = f"{self.path}.{name}".lstrip(".")
            self.reads.append(Read(path, default, _asker(sys._getframe(2))))

    def get(self, key: str, default: Any = None) -> Any:
        self._note(key, default)
        return super().get(key, default)

    def __contains__(self, key: object) -> bool:
        self._note(key, NO_DEFAULT)
        return super().__contains__(key)

    def __getitem__(self, key: str) -> Any:
        self._note(key, NO_DEFAULT)
        return super().__getitem__(key)

    def keys(self) -> KeysView[str]:  # type: ignore[override]
        return cast("KeysView[str]", _Names(self))

    def __bool__(self) -> bool:
        """True, so that `if not section` reads on."""
        return True

    def __copy__(self) -> "Tracked":
        return self

    def __deepcopy__(self, _memo: object) -> "Tracked":
        return self


class _Names:
    """`keys()` of a config, for `name in config.keys()`."""

    def __init__(self, config: Tracked) -> None:
        self._config = config

    def __contains__(self, name: object) -> bool:
        return name in self._config

    def __iter__(self) -> Iterator[str]:
        return iter(list(dict.keys(self._config)))

    def __len__(self) -> int:
        return len(self._config)


def _asker(frame: FrameType | None) -> str | None:
    """The file and the function of DeepSpeed that asked."""
    while frame is not None:
        code = frame.f_code
        _, inside, file = code.co_filename.rpartition("/deepspeed/")
        if inside and code.co_name not in _GO_BETWEENS:
            return f"{file} {code.co_name}"
        frame = frame.f_back
    return None


def nested(path: str, value: object, reads: list[Read], base: Mapping[str, Any]) -> Tracked:
    """A config in which one path holds a value, on top of what every config needs."""
    root = Tracked("", reads, base)
    at, above = root, ""
    *sections, name = path.split(".")
    for section in sections:
        above = f"{above}.{section}".lstrip(".")
        inner = Tracked(above, reads, {})
        dict.__setitem__(at, section, inner)
        at = inner
    dict.__setitem__(at, name, value)
    return root


def package_folder(package: Any) -> Path:
    """Where an imported package lies."""
    return Path(package.__file__).parent
