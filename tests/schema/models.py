"""What a config model of DeepSpeed says of its keys: the fields of a pydantic class as rows."""

import ast
import inspect
import json
import re
import textwrap
import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

from deepspeed.runtime.config_utils import DeepSpeedConfigModel

from zerowiz.core.dsconfig.schema import BOUNDS

Row = dict[str, Any]

# pydantic reads 0 and 1 as truths, and no other number.
TRUTHS: Mapping[str, int] = {"ge": 0, "le": 1}

JSON_TYPES: Sequence[tuple[type, str]] = (
    (bool, "boolean"),
    (int, "integer"),
    (float, "number"),
    (str, "string"),
    (Path, "string"),
    (list, "array"),
    (tuple, "array"),
    (dict, "object"),
    (type(None), "null"),
)


def make_row(path: str, **said: Any) -> Row:
    return {"path": path, **said}


def section_row(path: str, model: type) -> Row:
    """The section that a model is made from."""
    return make_row(
        path,
        types=["object"],
        unknown=_extra(model),
        about=first_sentence(vars(model)["__doc__"] or ""),
        source=_source(model),
    )


def field_rows(section: str, model: Any) -> Iterator[Row]:
    """The keys of a section that is a pydantic model, and of the models in it."""
    about = _docstrings(model)
    for field, info in model.model_fields.items():
        name = info.alias or field
        path = f"{section}.{name}"
        shape = list(_shapes(info.annotation))
        inner = [kind for kind in shape if _is_model(kind)]
        extra = info.json_schema_extra or {}
        yield make_row(
            path,
            types=json_types(shape),
            default=_default(info),
            choices=_choices(info.annotation),
            bounds=TRUTHS if bool in shape else _bounds(info.metadata),
            aliases=[field] if info.alias else [],
            deprecated=bool(extra.get("deprecated")),
            new_path=_new_path(section, model, extra),
            unknown=_extra(inner[0]) if inner else "free" if dict in shape else None,
            about=about.get(field),
            source=_source(model),
        )
        for kind in inner:
            yield from field_rows(path, kind)


def _shapes(annotation: object) -> Iterator[object]:
    """The types that an annotation allows, without `Optional`, `Union` and what a list holds."""
    origin = get_origin(annotation)
    if origin in (Union, types.UnionType):
        for argument in get_args(annotation):
            yield from _shapes(argument)
    elif origin is Literal:
        yield from {type(value) for value in get_args(annotation)}
    elif isinstance(annotation, type) and issubclass(annotation, Enum):
        yield from {type(member.value) for member in annotation}
    else:
        yield origin or annotation


def json_types(shape: Iterable[object]) -> list[str]:
    """In JSON Schema's words, each once."""
    words = [_type(kind) for kind in shape if isinstance(kind, type)]
    return list(dict.fromkeys(word for word in words if word))


def _type(kind: type) -> str | None:
    if _is_model(kind):
        return "object"
    return next((word for of, word in JSON_TYPES if issubclass(kind, of)), None)


def _is_model(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, DeepSpeedConfigModel)


def _choices(annotation: object) -> list[str]:
    """As JSON; of the items where it is a list."""
    if get_origin(annotation) is Literal:
        return [json.dumps(value) for value in get_args(annotation)]
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return [json.dumps(member.value) for member in annotation]
    return [choice for argument in get_args(annotation) for choice in _choices(argument)]


def _bounds(metadata: Iterable[object]) -> dict[str, int]:
    found = {
        word: getattr(each, word) for each in metadata for word in BOUNDS if hasattr(each, word)
    }
    assert all(value == int(value) >= 0 for value in found.values()), found
    return {word: int(value) for word, value in found.items()}


def _default(info: Any) -> str | None:
    if info.is_required():
        return None
    return text_of_default(info.get_default(call_default_factory=True), null=True)


def text_of_default(value: object, *, null: bool = False) -> str | None:
    """A default as JSON; None for a section's, and for what JSON does not have."""
    if isinstance(value, Enum):
        value = value.value
    if value is None or isinstance(value, dict):
        return "null" if null and value is None else None
    return json.dumps(value) if isinstance(value, (bool, int, float, str, list)) else None


def _new_path(section: str, model: Any, extra: Mapping[str, Any]) -> str | None:
    """The new key by its documented name; None where it is no single key."""
    new = extra.get("new_param")
    if not extra.get("deprecated") or new not in model.model_fields:
        return None
    return f"{section}.{model.model_fields[new].alias or new}"


def _extra(model: Any) -> str:
    return "refused" if model.model_config.get("extra") == "forbid" else "ignored"


def _source(model: type) -> str:
    return f"{model.__module__.partition('.')[2].replace('.', '/')}.py {model.__name__}"


def _docstrings(model: type) -> dict[str, str]:
    """The first sentence under each field."""
    found: dict[str, str] = {}
    [body] = ast.parse(textwrap.dedent(inspect.getsource(model))).body
    assert isinstance(body, ast.ClassDef)
    for above, below in zip(body.body, body.body[1:], strict=False):
        if isinstance(above, ast.AnnAssign) and isinstance(below, ast.Expr):
            text = getattr(below.value, "value", None)
            if isinstance(text, str) and isinstance(above.target, ast.Name):
                found[above.target.id] = first_sentence(text)
    return found


LONGEST_ABOUT = 160


def first_sentence(text: str) -> str:
    plain = " ".join(text.replace("``", "`").split())
    [first, *_] = re.split(r"(?<=\w\.)\s(?=[A-Z])", plain, maxsplit=1)
    return textwrap.shorten(first, LONGEST_ABOUT, placeholder=" ...")
