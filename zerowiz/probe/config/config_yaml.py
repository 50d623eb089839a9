"""Find the DeepSpeed config in a YAML file, with the line and column of each key."""

import importlib
from collections.abc import Collection, Sequence
from typing import Any

from msgspec import Struct

from zerowiz.core import shell
from zerowiz.core.dsconfig.accelerate import AccelerateFile, is_accelerate, read_accelerate
from zerowiz.core.dsconfig.hjson import DEEPEST_LEVEL, Array, Member, Node, Object
from zerowiz.core.dsconfig.hjson_tokens import JsonTextError, KeyToken, Scalar, Span
from zerowiz.core.dsconfig.lint.source import ConfigText, render
from zerowiz.core.script.programs.table import read_program
from zerowiz.core.values import replace
from zerowiz.core.workload.choices import Integration
from zerowiz.errors import UsageError, ZerowizError
from zerowiz.words import _

# A YAML file is one of three: Accelerate's own (`core/dsconfig/accelerate.py`); that of a program
# around the Trainer (Axolotl, LLaMA-Factory), with the key `deepspeed`; or the config itself.

# A config has a few hundred nodes; aliases of aliases can make millions.
_MOST_NODES = 100_000
# PyYAML reads some 50,000 characters a second.
_LONGEST = 250_000


class NamedFile(Struct, frozen=True, kw_only=True):
    """A config in another file, whose path the YAML file holds."""

    path: str
    integration: Integration
    accelerate: AccelerateFile | None = None
    """The rest of the file, where it is Accelerate's."""


def read_yaml(file: ConfigText, known: Collection[str]) -> ConfigText | NamedFile:
    """The config in a YAML file.

    Args:
        file: The file, read as text.
        known: The keys at the top level of a config.

    Raises:
        UsageError: PyYAML is not installed, or there is no config in the file.
    """
    try:
        root = _YamlReader(file.path, file.text).root()
    except JsonTextError as fault:
        return replace(file, text="", fault=fault)
    values = _values(root)
    if isinstance(root, Object) and is_accelerate(values):
        return _of_accelerate(file.path, root)
    inline = values.get("deepspeed")
    if isinstance(inline, Object):
        return render(file.path, inline, Integration.HF)
    if path := _text(inline):
        return NamedFile(path=path, integration=Integration.HF)
    if "deepspeed" in values:
        # Axolotl's examples end with it, and train without DeepSpeed.
        raise UsageError(
            _("there is no DeepSpeed config in `{path}`: its `deepspeed` is empty", path=file.path),
            _("write the path of a config behind it, to train with DeepSpeed"),
        )
    if read_program(file.path, {name: _scalar(value) for name, value in values.items()}):
        raise UsageError(
            _("there is no DeepSpeed config in `{path}`: it has no `deepspeed`", path=file.path),
            _("choose a stage and write one: `zerowiz init {path}`", path=shell.quote(file.path)),
        )
    if values.keys() & set(known):
        return render(file.path, root, None)
    raise UsageError(
        _("there is no DeepSpeed config in `{path}`", path=file.path),
        _(
            "zerowiz looks under `deepspeed_config` (Accelerate) and `deepspeed`, or for a config"
            " alone"
        ),
    )


def _values(node: Node | None) -> dict[str, Node]:
    members = node.members if isinstance(node, Object) else ()
    return {member.key.name: member.value for member in members}


def _scalar(node: Node) -> str | float | bool | None:
    return node.value if isinstance(node, Scalar) else None


def _text(node: Node | None) -> str | None:
    return node.value if isinstance(node, Scalar) and isinstance(node.value, str) else None


def _of_accelerate(path: str, root: Object) -> ConfigText | NamedFile:
    """The file that Accelerate's own names, else the config that Accelerate builds of it."""
    read, reader = read_accelerate(path, root), Integration.ACCELERATE
    if read.config_file is not None:
        return NamedFile(path=read.config_file, integration=reader, accelerate=read)
    return replace(render(path, read.config, reader), accelerate=read)


def load_yaml(path: str, text: str) -> object:
    """The value of a YAML text, as a program has it that loads it by PyYAML.

    Args:
        path: What the error calls the file.
        text: What is in it.

    Raises:
        UsageError: PyYAML cannot parse the text.
        ZerowizError: It is not installed.
    """
    yaml = _import_yaml(path)
    try:
        return _load(yaml, text)
    except JsonTextError as error:
        where = _("line {line} column {column}", line=error.line, column=error.column)
        raise UsageError(
            _(
                "`{path}` is not YAML: {reason} at {where}",
                path=path,
                reason=error.reason,
                where=where,
            )
        ) from None


def _load(yaml: Any, text: str) -> object:  # noqa: ANN401 - PyYAML has no types
    if len(text) > _LONGEST:
        raise JsonTextError(_("more than {longest} characters", longest=_LONGEST), 1, 1)
    try:
        return yaml.load(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        raise _fault(error) from None
    except RecursionError:
        raise JsonTextError(_("too many levels"), 1, 1) from None
    except (ValueError, OverflowError) as error:
        raise JsonTextError(str(error), 1, 1) from None


# PyYAML has no types.
def _import_yaml(path: str) -> Any:  # noqa: ANN401
    try:
        return importlib.import_module("yaml")
    except ImportError:
        raise ZerowizError(
            _("`{path}` is YAML, and PyYAML is not installed", path=path), "`pip install pyyaml`"
        ) from None


class _YamlReader:
    """Parses a YAML text to a tree of values; PyYAML decides what a scalar is, as for a trainer."""

    def __init__(self, path: str, text: str) -> None:
        self.yaml = _import_yaml(path)
        self.text = text
        self.nodes = 0

    def root(self) -> Node:
        """The root of the tree.

        Raises:
            JsonTextError: PyYAML cannot parse the text, or it is no plain tree.
        """
        try:
            self.loader = self.yaml.SafeLoader(self.text)
            root = self.loader.get_single_node()
            return Object(place=_START, members=()) if root is None else self.node(root, 1)
        except self.yaml.YAMLError as error:
            raise _fault(error) from None
        except RecursionError:
            raise JsonTextError(_("too many levels"), 1, 1) from None

    # PyYAML has no types.
    def node(self, node: Any, level: int) -> Node:  # noqa: ANN401
        """A value with its members or items."""
        place = _place(node)
        self.nodes += 1
        if level > DEEPEST_LEVEL or self.nodes > _MOST_NODES:
            raise JsonTextError(_("too many levels or aliases"), place.line, place.column)
        if isinstance(node, self.yaml.MappingNode):
            self.loader.flatten_mapping(node)
            return Object(place=place, members=self.members(node.value, level))
        if isinstance(node, self.yaml.SequenceNode):
            items = tuple(self.node(item, level + 1) for item in node.value)
            return Array(place=place, items=items)
        return Scalar(place=place, value=self.scalar(node), quote="")

    def members(self, pairs: Sequence[tuple[Any, Any]], level: int) -> tuple[Member, ...]:
        """The members of an object; of equal keys the last one counts, as for a trainer."""
        last: dict[str, Member] = {}
        for name, value in pairs:
            key = KeyToken(place=_place(name), name=str(name.value), quote="")
            last[key.name] = Member(key=key, value=self.node(value, level + 1))
        return tuple(last.values())

    def scalar(self, node: Any) -> str | float | bool | None:  # noqa: ANN401
        """A scalar; a type that JSON lacks, such as a date, becomes its text."""
        try:
            value = self.loader.construct_object(node)
            if isinstance(value, int):
                str(value)  # a hexadecimal number can have more digits than Python writes
        except (ValueError, OverflowError) as error:
            place = _place(node)
            raise JsonTextError(str(error), place.line, place.column) from None
        return value if isinstance(value, str | int | float | None) else str(node.value)


def _place(node: Any) -> Span:  # noqa: ANN401
    mark = node.start_mark
    return Span(start=mark.index, end=mark.index, line=mark.line + 1, column=mark.column + 1)


_START = Span(start=0, end=0, line=1, column=1)


def _fault(error: Any) -> JsonTextError:  # noqa: ANN401
    """PyYAML's error, in one line."""
    mark = getattr(error, "problem_mark", None)
    reason = getattr(error, "problem", None) or getattr(error, "reason", None) or _("not YAML")
    line, column = (1, 1) if mark is None else (mark.line + 1, mark.column + 1)
    return JsonTextError(
        _("syntax error: {split}", split=" ".join(str(reason).split())), line, column
    )
