"""Tell what an expression stands for, without running it."""

import ast
from collections.abc import Callable, Mapping

from zerowiz.core.script import Scalar

_ARITHMETIC: Mapping[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: int.__add__,
    ast.Sub: int.__sub__,
    ast.Mult: int.__mul__,
}
# A name that stands for a name, and so on; so many steps, as two may stand for each other.
MOST_STEPS = 8


class Scope:
    """The names that one function, one class or the module binds."""

    def __init__(
        self, parent: "Scope | None" = None, *, is_class: bool = False, function: str = ""
    ) -> None:
        self.parent = parent
        self.function = function
        """The function whose names these are."""
        self.is_class = is_class
        self.values: dict[str, list[ast.expr | None]] = {}
        """None stands for a value that is not followed."""

    def bind(self, name: str, value: ast.expr | None) -> None:
        """Note one more value of a name."""
        self.values.setdefault(name, []).append(value)

    def owner(self, name: str) -> "Scope | None":
        """The scope that a name is looked up in."""
        if name in self.values or self.parent is None:
            return self
        return self.parent.owner(name)

    def value(self, name: str) -> ast.expr | None:
        """What a name that is bound once stands for."""
        if name not in self.values:
            return self.parent.value(name) if self.parent is not None else None
        values = self.values[name]
        return values[0] if len(values) == 1 else None


def last_name(expr: ast.expr | None) -> str:
    """The last part of a dotted name, or of what is called by it."""
    if isinstance(expr, ast.Call):
        expr = expr.func
    return expr.attr if isinstance(expr, ast.Attribute) else getattr(expr, "id", "")


def unless_none(expr: ast.expr | None) -> ast.expr | None:
    """An expression, but for a literal None, which counts as not given."""
    return None if isinstance(expr, ast.Constant) and expr.value is None else expr


def follow(expr: ast.expr, scope: Scope) -> ast.expr:
    """Replace a name that is bound once by what it stands for."""
    for _ in range(MOST_STEPS):
        value = scope.value(expr.id) if isinstance(expr, ast.Name) else None
        if value is None:
            break
        expr = value
    return expr


def literal(expr: ast.expr | None, scope: Scope, depth: int = 0) -> Scalar:
    """The value of a constant, of a name or a path for one, or of a product of them."""
    if depth == MOST_STEPS:
        return None
    match expr and follow(expr, scope):
        case ast.Constant(value=bool() | int() | float() | str() as value):
            return value
        case ast.Call(func=ast.Name(id="Path"), args=[path], keywords=[]):
            return literal(path, scope, depth + 1)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            number = literal(operand, scope, depth + 1)
            return -number if isinstance(number, int | float) else None
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _ARITHMETIC:
            one, other = (literal(each, scope, depth + 1) for each in (left, right))
            if isinstance(one, int) and isinstance(other, int):
                return _ARITHMETIC[type(op)](one, other)
        case _:
            pass
    return None


def words(expr: ast.expr, scope: Scope) -> str | None:
    """A list of texts, with commas between them."""
    expr = follow(expr, scope)
    if not isinstance(expr, ast.List | ast.Tuple | ast.Set):
        return None
    texts = [literal(item, scope) for item in expr.elts]
    named = [text for text in texts if isinstance(text, str)]
    return ",".join(named) if named and len(named) == len(texts) else None


def entries(expr: ast.expr, scope: Scope) -> dict[str, ast.expr] | None:
    """A dict literal with constant keys, or None when the dict cannot be seen."""
    match follow(expr, scope):
        case ast.Dict(keys=keys, values=values):
            names = [str(key.value) for key in keys if isinstance(key, ast.Constant)]
            return dict(zip(names, values, strict=True)) if len(names) == len(keys) else None
        case ast.Call(func=ast.Name(id="dict"), args=[], keywords=words):
            found = {word.arg: word.value for word in words if word.arg}
            return found if len(found) == len(words) else None
        case _:
            return None
