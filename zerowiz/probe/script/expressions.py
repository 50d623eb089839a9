"""Find the value of an expression without running it."""

import ast
from collections.abc import Callable, Iterator, Mapping
from itertools import product

from zerowiz.core.script.options import Scalar
from zerowiz.core.values import MOST_COUNT

_ARITHMETIC: Mapping[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: int.__add__,
    ast.Sub: int.__sub__,
    ast.Mult: int.__mul__,
}
# How many names are followed one after the other: two names may stand for each other.
MOST_STEPS = 8


class Scope:
    """The names that one function, one class or the module binds."""

    def __init__(
        self, parent: "Scope | None" = None, *, is_class: bool = False, function: str = ""
    ) -> None:
        self.parent = parent
        self.function = function
        """The name of the function; empty for a class and the module."""
        self.is_class = is_class
        self.values: dict[str, list[ast.expr | None]] = {}
        """The values that each name is bound to; None is a value that is not followed."""
        self.caps: dict[str, ast.expr] = {}
        """For `if x > MOST: x = MOST`, the condition by the name."""

    def bind(self, name: str, value: ast.expr | None) -> None:
        """Add a value to those of a name."""
        self.values.setdefault(name, []).append(value)

    def owner(self, name: str) -> "Scope":
        """The scope in which a name is found."""
        if name in self.values or self.parent is None:
            return self
        return self.parent.owner(name)

    def value(self, name: str) -> ast.expr | None:
        """The value of a name that is bound once; None for any other name."""
        if name not in self.values:
            return self.parent.value(name) if self.parent is not None else None
        values = self.values[name]
        return values[0] if len(values) == 1 else None


def last_name(expr: ast.expr | None) -> str:
    """The last part of a dotted name, or of the name of a called function."""
    if isinstance(expr, ast.Call):
        expr = expr.func
    return expr.attr if isinstance(expr, ast.Attribute) else getattr(expr, "id", "")


def key_path(expr: ast.expr) -> tuple[ast.expr, tuple[str, ...], bool]:
    """What `config["a"]["b"]` is an entry of, its keys, and whether all of them are constants."""
    keys: list[str] = []
    all_seen = True
    while isinstance(expr, ast.Subscript):
        match expr.slice:
            case ast.Constant(value=str(key)):
                keys.insert(0, key)
            case _:
                keys, all_seen = [], False
        expr = expr.value
    return expr, tuple(keys), all_seen


def unless_none(expr: ast.expr | None) -> ast.expr | None:
    """The expression; None where it is the literal None, which counts as not given."""
    return None if isinstance(expr, ast.Constant) and expr.value is None else expr


def entry_key(expr: ast.expr) -> str | None:
    """The constant key of `config["x"]`; None for any other, and for what is no entry."""
    match expr:
        case ast.Subscript(slice=ast.Constant(value=str(key))):
            return key
        case _:
            return None


def conjuncts(test: ast.expr) -> list[ast.expr]:
    """What has to hold together for a condition to hold."""
    match test:
        case ast.BoolOp(op=ast.And(), values=tests):
            return tests
        case _:
            return [test]


def capped_names(node: ast.If) -> Iterator[str]:
    """The names of `if x > MOST: x = MOST`; its condition may ask for more."""
    for test in () if node.orelse else conjuncts(node.test):
        match test:
            case ast.Compare(
                left=ast.Name(id=name), ops=[ast.Gt() | ast.GtE()], comparators=[most]
            ):
                sets = (each for each in node.body if isinstance(each, ast.Assign))
                if any(
                    [last_name(target) for target in each.targets] == [name]
                    and ast.unparse(each.value) == ast.unparse(most)
                    for each in sets
                ):
                    yield name
            case _:
                pass


def follow(expr: ast.expr, scope: Scope) -> ast.expr:
    """The expression, or the value of a name that is bound once."""
    for _ in range(MOST_STEPS):
        value = scope.value(expr.id) if isinstance(expr, ast.Name) else None
        if value is None:
            break
        expr = value
    return expr


def literal(expr: ast.expr | None, scope: Scope, depth: int = 0) -> Scalar:
    """The value of a constant, of a name or a `Path(...)` of one, or of arithmetic with them."""
    value = _literal(expr, scope, depth)
    # Python writes no number of more than `sys.get_int_max_str_digits()`.
    return None if isinstance(value, int) and abs(value) > MOST_COUNT else value


def _literal(expr: ast.expr | None, scope: Scope, depth: int) -> Scalar:
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
    """The items of a list of texts, joined by commas; None for any other expression."""
    expr = follow(expr, scope)
    if not isinstance(expr, ast.List | ast.Tuple | ast.Set):
        return None
    texts = [literal(item, scope) for item in expr.elts]
    named = [text for text in texts if isinstance(text, str)]
    return ",".join(named) if named and len(named) == len(texts) else None


def entries(expr: ast.expr, scope: Scope) -> dict[str, ast.expr] | None:
    """The values of a dict literal by its constant keys; None for any other expression."""
    match follow(expr, scope):
        case ast.Dict(keys=keys, values=values):
            names = [str(key.value) for key in keys if isinstance(key, ast.Constant)]
            return dict(zip(names, values, strict=True)) if len(names) == len(keys) else None
        case ast.Call(func=ast.Name(id="dict"), args=[], keywords=words):
            found = {word.arg: word.value for word in words if word.arg}
            return found if len(found) == len(words) else None
        case _:
            return None


# How many conditions are tried both ways.
_MOST_CONDITIONS = 4


def decide(test: ast.expr) -> tuple[str, bool]:
    """A condition without its `not`, and whether it has to hold."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return ast.unparse(test.operand), False
    return ast.unparse(test), True


def is_complete(branches: list[dict[str, bool]]) -> bool:
    """Whether one of these branches is taken, whatever the conditions are."""
    names = sorted({name for branch in branches for name in branch})
    return len(names) <= _MOST_CONDITIONS and all(
        any(branch.items() <= dict(zip(names, values, strict=True)).items() for branch in branches)
        for values in product((True, False), repeat=len(names))
    )
