"""A script's syntax tree: imports, definitions, calls, and the values of expressions."""

import ast
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import product
from typing import Any

from msgspec import Struct, field

from zerowiz.core.script.arguments import ARGUMENT_CLASSES, Release, Scalar
from zerowiz.core.structs import MOST_COUNT
from zerowiz.core.workload import NEWEST_TRL

# Find the value of an expression without running it.

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
        self,
        parent: "Scope | None" = None,
        node: ast.FunctionDef | ast.AsyncFunctionDef | None = None,
        class_name: str = "",
    ) -> None:
        self.parent, self.node = parent, node
        self.function = "" if node is None else node.name
        """The name of the function; empty for a class and the module."""
        self.class_name = class_name
        """Of a class, or of that which a method is of."""
        self.values: dict[str, list[ast.expr | None]] = {}
        """The values that each name is bound to; None is a value that is not followed."""
        self.caps: set[str] = set()
        """The names of `if x > MOST: x = MOST`."""

    def bind(self, name: str, value: ast.expr | None) -> None:
        """Add a value to those of a name."""
        self.values.setdefault(name, []).append(value)

    def owner(self, name: str) -> "Scope":
        """The scope in which a name is found."""
        if name in self.values or self.parent is None:
            return self
        return self.parent.owner(name)

    def value(self, name: str) -> ast.expr | None:
        """The value of a name that is bound once, or to one option; None for any other name."""
        if name not in self.values:
            return self.parent.value(name) if self.parent is not None else None
        first, *others = self.values[name]
        if others and isinstance(first, ast.Attribute):
            # `batch_size = args.batch_size` in each branch.
            others = [v for v in others if v is None or ast.dump(v) != ast.dump(first)]
        return None if others else first


def last_name(expr: ast.expr | None) -> str:
    """The last part of a dotted name, or of the name of a called function."""
    if isinstance(expr, ast.Call):
        expr = expr.func
    return expr.attr if isinstance(expr, ast.Attribute) else getattr(expr, "id", "")


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


# Names for the number of a rank, and for whether it is the first one.
_RANKS = re.compile(r"(get_)?((local|global|world|node)_)?(rank|process_index)$", re.IGNORECASE)
_FIRST = re.compile(
    r"is_((local|world)_)?((main|master|first)(_(process|rank))?|process_zero)$"
    r"|(main|master)_(process|rank)$|is_(global_zero|rank_?(zero|0))$|should_save$"
)
_UNDISTRIBUTED = re.compile(r"rank\w* == -1$")


def is_one_rank(test: ast.expr, *, holds: bool = True) -> bool:
    """Whether only a part of the ranks comes to what stands under a condition.

    Args:
        test: The condition.
        holds: Whether it has to hold there.
    """
    match test:
        case ast.UnaryOp(op=ast.Not(), operand=inner):
            return is_one_rank(inner, holds=not holds)
        case ast.BoolOp(op=op, values=values):
            if isinstance(op, ast.And) is holds:
                return any(is_one_rank(value, holds=holds) for value in values)
            parts = [v for v in values if not _UNDISTRIBUTED.search(ast.unparse(v))]
            return bool(parts) and all(is_one_rank(part, holds=holds) for part in parts)
        case ast.Compare(left=left, ops=[_], comparators=[right]):
            is_number = "0" in re.findall(r"-?\d+", ast.unparse(right))
            return is_number and _RANKS.match(last_name(left)) is not None
        case ast.Call(func=func, args=[]) | (ast.Attribute() | ast.Name() as func):
            return _FIRST.match(last_name(func)) is not None
        case _:
            return False


def capped_names(node: ast.If) -> Iterator[str]:
    """The names of `if x > MOST: x = MOST`; its condition may ask for more."""
    for test in () if node.orelse else conjuncts(node.test):
        match test:
            case ast.Compare(
                left=ast.Name(id=name), ops=[ast.Gt() | ast.GtE()], comparators=[most]
            ):
                sets = (assign for assign in node.body if isinstance(assign, ast.Assign))
                if any(
                    [last_name(target) for target in assign.targets] == [name]
                    and ast.unparse(assign.value) == ast.unparse(most)
                    for assign in sets
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
            first, second = (literal(side, scope, depth + 1) for side in (left, right))
            if isinstance(first, int) and isinstance(second, int):
                return _ARITHMETIC[type(op)](first, second)
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
            by_name = {word.arg: word.value for word in words if word.arg}
            return by_name if len(by_name) == len(words) else None
        case ast.IfExp(test=test, body=body, orelse=orelse):
            first, second = entries(body, scope), entries(orelse, scope)
            if first is None or second is None:
                return None
            unset = ast.copy_location(ast.Constant(value=None), test)
            return {
                name: ast.copy_location(
                    ast.IfExp(
                        test=test, body=first.get(name, unset), orelse=second.get(name, unset)
                    ),
                    test,
                )
                for name in first | second
            }
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


FROM_PARSED = "from_argparse_args"
"""lightning 1.9, pytorch/trainer/trainer.py: it takes each option of a Trainer by its name."""
INSTANTIATE = "instantiate"
"""hydra 1.3, utils.py: it calls what its first argument names, with what else that has."""
LIGHTNING = ("lightning", "pytorch_lightning")
HF_LIBRARIES = frozenset({"transformers", "trl", "sentence_transformers"})
ACCELERATOR = ("accelerate", "Accelerator")
HF_PARSERS = frozenset({"HfArgumentParser", "TrlParser"})


def parse_quietly(text: str | bytes) -> ast.Module:
    """The syntax tree of a script, without Python's warnings, such as of invalid escapes.

    Raises:
        SyntaxError: It is not Python.
        ValueError: It has a zero byte.
        MemoryError: It has too many levels, also a RecursionError.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.parse(text)


def words_of(node: ast.Call) -> dict[str | None, ast.expr]:
    """What a call passes by keyword; by None, what stands behind `**`."""
    return {word.arg: word.value for word in node.keywords}


class FunctionCall(Struct, frozen=True, kw_only=True, eq=False):
    """A call, with its scope and the conditions that it is under."""

    node: ast.Call
    method: str
    """The last part of the called function's name."""
    words: Mapping[str | None, ast.expr]
    """Those of `words_of`."""
    scope: Scope
    tests: tuple[ast.expr, ...]
    """The conditions around it."""
    target: str
    """The names that its result is assigned to, separated by spaces."""
    function: str
    """The name of the function that it stands in."""
    around: tuple[ast.expr, ...] = ()
    """What the `with` blocks around it enter, and the conditions on which its function was left."""
    may_be_skipped: bool = False
    """Whether its function returns before on a condition."""

    @property
    def line(self) -> int:
        """The line at which it begins."""
        return self.node.lineno

    @property
    def name(self) -> str:
        """The called function, as it is written."""
        return ast.unparse(self.node.func)

    def keyword(self, *names: str) -> ast.expr | None:
        """The value of the first of these keywords that the call has; None for none."""
        return next(filter(None, map(self.words.get, names)), None)

    def argument(self, name: str, position: int) -> ast.expr | None:
        """An argument by keyword or by position; a literal None counts as not given."""
        value = self.keyword(name)
        if value is None and len(self.node.args) > position:
            value = self.node.args[position]
        return unless_none(value)


_Tests = tuple[ast.expr, ...] | None


def default_of(function: ast.FunctionDef | ast.AsyncFunctionDef, name: str) -> ast.expr | None:
    """The constant that a parameter is by default; None where a decorator may give it another."""
    spec = function.args
    positional = (*spec.posonlyargs, *spec.args)
    given = [*zip(reversed(positional), reversed(spec.defaults), strict=False)]
    given += [(a, d) for a, d in zip(spec.kwonlyargs, spec.kw_defaults, strict=True) if d]
    value = next((default for arg, default in given if arg.arg == name), None)
    is_plain = isinstance(value, ast.Constant) and not function.decorator_list
    return unless_none(value) if is_plain else None


class Source(Struct, frozen=True, kw_only=True, eq=False):
    """The names and calls of a script; `walk` collects them from the syntax tree."""

    tree: ast.Module
    trl_release: Release = NEWEST_TRL
    """Whose defaults the arguments classes have."""
    imports: dict[str, str] = field(default_factory=dict)
    """The dotted origin of each imported name."""
    stars: list[str] = field(default_factory=list)
    """The modules of `from ... import *`."""
    classes: dict[str, ast.ClassDef] = field(default_factory=dict)
    functions: dict[str, ast.FunctionDef | ast.AsyncFunctionDef] = field(default_factory=dict)
    methods: set[str] = field(default_factory=set)
    """The names of functions that belong to a class."""
    bases: set[str] = field(default_factory=set)
    """The names of what its classes are kinds of."""
    parameters: dict[str, str] = field(default_factory=dict)
    """What a loop over all parameters of a model goes over, by the names that stand for each."""
    unfrozen: list[ast.expr | ast.stmt] = field(default_factory=list)
    """What lets parameters of a model train: `p.requires_grad = True`, `p.requires_grad_()`."""
    fired: set[str] = field(default_factory=set)
    """The functions of whose parameters `fire.Fire` makes options."""
    calls: list[FunctionCall] = field(default_factory=list)
    by_method: dict[str, list[FunctionCall]] = field(default_factory=dict)
    """The same by the last part of the called function's name."""
    by_origin: dict[tuple[str, str], list[FunctionCall]] = field(default_factory=dict)
    """The same by the library and the name of what it calls."""
    known: dict[ast.expr, tuple[str, str]] = field(default_factory=dict)
    """What `imported` returns of each function that is called."""
    reads: dict[str, set[str]] = field(default_factory=dict)
    """What each attribute is read of, also by `getattr`, other than to set what is generated."""
    altered: set[str] = field(default_factory=set)
    """Attributes that are assigned."""
    tied: set[str] = field(default_factory=set)
    """Layers whose weight is made that of another."""
    changed: dict[str, set[str | None]] = field(default_factory=dict)
    """Names of containers that are changed after they were made, with the keys of which the values
    are set there; None is any."""
    option_texts: set[str] = field(default_factory=set)
    """The texts that begin like an option."""
    namespaces: set[str] = field(default_factory=set)
    """Names that may hold parsed arguments."""
    opened: dict[ast.Call, ast.expr] = field(default_factory=dict)
    """For a call like `json.load(f)`, the expression that the `with` around it opened as `f`."""
    module: Scope = field(default_factory=Scope)
    text: str = ""
    """All that the script and its modules say."""
    own_lines: int = 0
    """The lines of the script, where others come after them."""

    def origin(self, expr: ast.expr) -> str:
        """The dotted name that an expression was imported from."""
        if isinstance(expr, ast.Attribute):
            base = self.origin(expr.value)
            return f"{base}.{expr.attr}" if base else ""
        if not isinstance(expr, ast.Name):
            return ""
        known = expr.id in ARGUMENT_CLASSES or expr.id in HF_PARSERS
        star = f"{self.stars[0]}." if known and len(self.stars) == 1 else ""
        return self.imports.get(expr.id, f"{star}{expr.id}")

    def lineage(self, expr: ast.expr) -> tuple[list[ast.ClassDef], list[ast.expr]]:
        """The classes of the script that a class is, and the others that it is a kind of."""
        own: list[ast.ClassDef] = []
        others: list[ast.expr] = []
        todo = [expr]
        for each in todo:
            node = self.classes.get(each.id) if isinstance(each, ast.Name) else None
            # A class may have the name of one that it is made of.
            if node is None or node in own:
                others.append(each)
            else:
                own.append(node)
                todo += node.bases
        return own, others

    def imported(self, expr: ast.expr) -> tuple[str, str]:
        """The library that a name was imported from, and its last part; empty for other names."""
        known = self.known.get(expr)
        if known is not None:
            return known
        library, *rest = self.origin(expr).split(".")
        return (library, rest[-1]) if rest else ("", "")

    def calls_to(self, library: str, name: str) -> list[FunctionCall]:
        """The calls of one function or class of a library."""
        return self.by_origin.get((library, name), [])

    def lightning_trainers(self) -> list[FunctionCall]:
        """The calls that build a Trainer of Lightning; those beside a call of `fit` come first."""
        names = product(LIGHTNING, ("Trainer", FROM_PARSED))
        built = [call for library, name in names for call in self.calls_to(library, name)]
        uses = any(origin.partition(".")[0] in LIGHTNING for origin in self.imports.values())
        made = self.by_method.get(INSTANTIATE, []) if uses else []
        built = built or [call for call in made if "strategy" in call.words]
        # Another one may only evaluate.
        fits = {call.function for call in self.by_method.get("fit", [])}
        return sorted(built, key=lambda call: call.function not in fits)

    def callers(self, function: str) -> list[FunctionCall]:
        """The calls of a function of the script; `trainer.train()` is none of its own `train`."""
        calls = self.by_method.get(function, []) if function else []
        by_name = [call for call in calls if isinstance(call.node.func, ast.Name)]
        return calls if function in self.methods else by_name

    def tests_of(
        self, call: FunctionCall, known: "dict[str, list[_Tests]] | None" = None
    ) -> "_Tests":
        """The conditions around a call, and around the calls of the function that it stands in.

        Args:
            call: The call.
            known: Those around the calls of functions, as far as they are known.

        Returns:
            None where that function is called under different conditions.
        """
        known = {} if known is None else known
        if call.function not in known:
            known[call.function] = []  # of one that calls itself
            callers = self.callers(call.function)
            known[call.function] = [self.tests_of(caller, known) for caller in callers]
        around = known[call.function]
        texts = {None if tests is None else (*map(ast.unparse, tests),) for tests in around}
        if len(texts) > 1 or None in texts:
            return None
        return (*((around and around[0]) or ()), *call.tests)

    def passed(self, name: ast.Name, scope: Scope) -> tuple[ast.expr, FunctionCall] | None:
        """What a parameter gets, and the only call that passes it; None for any other name.

        That of `__init__` gets it where the class is called. One that the call leaves out gets its
        default, if that is a constant.
        """
        owner = scope.owner(name.id)
        function, calls = owner.node, self.callers(owner.function)
        hidden, skipped = self.methods | self.fired, 0
        if owner.function == "__init__" and owner.class_name not in self.bases:
            calls, hidden, skipped = self.by_method.get(owner.class_name, []), set(), 1
        if function is None or len(calls) != 1 or owner.function in hidden:
            return None
        names = [arg.arg for arg in (*function.args.posonlyargs, *function.args.args)][skipped:]
        known = {*names, *(arg.arg for arg in function.args.kwonlyargs)}
        if name.id not in known or owner.values.get(name.id) != [None]:
            return None
        node = calls[0].node
        if any(isinstance(arg, ast.Starred) for arg in node.args):
            return None
        by_position = dict(zip(names, node.args, strict=False))
        value = calls[0].keyword(name.id) or by_position.get(name.id)
        if value is None and None not in calls[0].words:
            value = default_of(function, name.id)
        return None if value is None else (value, calls[0])

    def keywords(self, call: FunctionCall) -> tuple[dict[str, ast.expr], bool]:
        """The keyword arguments of a call, also behind `**`, and whether others are hidden."""
        keywords: dict[str, ast.expr] = {}
        hidden = call.method == INSTANTIATE
        for word in call.node.keywords:
            entries = {word.arg: word.value} if word.arg else self.entries(word.value, call.scope)
            keywords |= entries or {}
            hidden = hidden or entries is None
        return keywords, hidden

    def entry(self, expr: ast.expr, key: str, scope: Scope) -> ast.expr | None:
        """The value of a dict literal by one key; None where the script changes that one."""
        changed = self.changed.get(last_name(expr), set())
        values = None if changed & {key, None} else entries(expr, scope)
        return (values or {}).get(key)

    def entries(self, expr: ast.expr, scope: Scope) -> dict[str, ast.expr] | None:
        """The values of a dict literal by its constant keys; None where the script changes it."""
        changed = isinstance(expr, ast.Name) and expr.id in self.changed
        return None if changed else entries(expr, scope)


# Collect what a script imports, defines and calls, in one pass over its syntax tree.

# transformers 5.23, hf_argparser.py, and trl 1.x, scripts/utils.py.
HF_PARSE_CALLS = frozenset({"parse_args_into_dataclasses", "parse_args_and_config"})
# Calls that turn the command line into values.
PARSE_CALLS = HF_PARSE_CALLS | {"parse_args", "parse_known_args", "parse_intermixed_args"}
# deepspeed 0.19.8, __init__.py: what `initialize` alone takes, whatever its name is.
_OF_INITIALIZE = frozenset({"model", "model_parameters"})
# Methods that change the dict or the list that they are called on.
_CHANGING = frozenset({"update", "setdefault", "pop", "append", "extend", "insert", "remove"})
# torch 2, nn/modules/module.py: the methods that return all parameters of a module.
_ALL_PARAMETERS = frozenset({"parameters", "named_parameters"})
OPTIMIZER = re.compile(r"(?<![a-z])opt(im\w*)?\b")
"""An optimizer among what Accelerate prepares, by its name."""
GENERATES = re.compile(r"generat|(?<![a-z])gen(?![a-z])", re.IGNORECASE)
"""What sets how something is generated, by its name."""
# One under a condition that is false by itself is no engine; of a Trainer, settings decide.
_ENGINES = frozenset({("deepspeed", "initialize"), ACCELERATOR})
# Functions that may bind any name of the module.
_BINDING = frozenset({"exec", "globals", "locals", "vars"})
# Calls after which nothing runs.
_EXITS = {"exit": ("sys.exit(", "exit("), "quit": ("quit(",), "_exit": ("os._exit(",)}
# Names of a whole model; `model.vision_model` is a part of one.
_MODELS = frozenset({"model", "net", "unet", "transformer"})
# Names that stand for no parsed arguments.
_SELF = frozenset({"self", "cls", "module", "state"})


# What holds no other node: kinds of nodes, and fields of the others.
_LEAVES = (ast.Constant, ast.Global, ast.MatchSingleton, ast.Nonlocal)
_NO_NODES = frozenset(
    {
        *("arg", "asname", "attr", "conversion", "ctx", "id", "is_async", "kind", "kwd_attrs"),
        *("level", "lineno", "module", "name", "op", "ops", "rest", "simple", "type_comment"),
    }
)
_KINDS = [
    kind for kind in vars(ast).values() if isinstance(kind, type) and issubclass(kind, ast.AST)
]
# The fields of each kind of node that hold others.
_FIELDS = {
    kind: tuple(n for n in kind._fields if n not in _NO_NODES and not issubclass(kind, _LEAVES))
    for kind in _KINDS
}


def children(node: ast.AST) -> list[ast.AST]:
    """What stands directly under a node, but for its context and its operators."""
    found: list[ast.AST] = []
    for name in _FIELDS[type(node)]:
        value = getattr(node, name, None)
        if isinstance(value, list):
            found += filter(None, value)
        elif value is not None:
            found.append(value)
    return found


def nodes_of(node: ast.AST) -> list[ast.AST]:
    """A node and all under it; `ast.walk` takes twice as long."""
    nodes = [node]
    for inner in nodes:
        nodes += children(inner)
    return nodes


def walk(tree: ast.Module, own_lines: int = 0) -> Source:
    """The names and calls of a syntax tree.

    Args:
        tree: The script, and after it what it uses of its modules.
        own_lines: Those of the script alone; 0 for all.
    """
    return _ScopeVisitor(tree, own_lines).source


class _ScopeVisitor(ast.NodeVisitor):
    """Visits the tree, with the scope, function, conditions and files around the present node."""

    def __init__(self, tree: ast.Module, own_lines: int) -> None:
        self.source = Source(tree=tree, own_lines=own_lines)
        self._scope = self.source.module
        self._function = ""
        self._tests: tuple[ast.expr, ...] = ()
        self._around: tuple[ast.expr, ...] = ()
        self._returned = False
        self._target = ""
        self._generates = False
        self._files: dict[str, ast.expr] = {}
        """The expressions that the `with` blocks around opened, by name."""
        self._results: list[tuple[list[str], ast.expr]] = []
        self._parsing_functions: set[str] = set()
        self._bound_elsewhere: set[str] = set()
        """The names of `global` and `nonlocal`."""
        self._unfreezing: list[tuple[str, ast.expr | ast.stmt]] = []
        self.visit(tree)
        self._find_namespaces()
        for call in self.source.calls:
            origin = self.source.imported(call.node.func)
            if call.words.keys() >= _OF_INITIALIZE:
                # `ds_init(...)`, `self.backend_module.initialize(...)`
                origin = ("deepspeed", "initialize")
            if origin in _ENGINES and any(self._fails(test, call.scope) for test in call.tests):
                continue
            self.source.known[call.node.func] = origin
            self.source.by_origin.setdefault(origin, []).append(call)
        fires = (call.node.args[:1] for call in self.source.calls_to("fire", "Fire"))
        self.source.fired.update(a.id for given in fires for a in given if isinstance(a, ast.Name))
        self.source.unfrozen.extend(
            node for name, node in self._unfreezing if name in self.source.parameters
        )

    def _fails(self, test: ast.expr, scope: Scope) -> bool:
        """Whether the script itself makes a condition false, in every run."""
        names = {node.id for node in nodes_of(test) if isinstance(node, ast.Name)}
        # nanoGPT's train.py: what it executes sets its variables.
        is_open = bool(self.source.stars) or not _BINDING.isdisjoint(self.source.by_method)
        if names and (is_open or names & {*self.source.imports, *self._bound_elsewhere}):
            return False
        wanted = [(literal(getattr(p, "operand", p), scope), decide(p)[1]) for p in conjuncts(test)]
        return any(value is not None and bool(value) is not holds for value, holds in wanted)

    def _find_namespaces(self) -> None:
        """Collect the names of what `parse_args()`, or a function that calls it, returns."""
        for names, value in self._results:
            # `parse_args_into_dataclasses()[0]` is one of what it returns.
            call = value.value if isinstance(value, ast.Subscript) else value
            if isinstance(call, ast.Call) and (
                getattr(call.func, "attr", "") in PARSE_CALLS
                or getattr(call.func, "id", "") in self._parsing_functions
            ):
                self.source.namespaces.update(names)

    def visit(self, node: ast.AST) -> None:
        """As that of the base, which looks at the context of each name as well."""
        _VISITORS[type(node)](self, node)

    def generic_visit(self, node: ast.AST) -> None:
        """Visit what stands under a node."""
        for child in children(node):
            _VISITORS[type(child)](self, child)

    def _visit_all(self, nodes: Iterable[Any]) -> None:
        """Visit the statements of a block, up to one that leaves it.

        What a module defines stands behind the script, also if that has left before.
        """
        has_left = False
        for node in nodes:
            if not has_left or 0 < self.source.own_lines < node.lineno:
                self.visit(node)
                has_left = has_left or _leaves(node)

    def visit_Module(self, node: ast.Module) -> None:
        self._visit_all(node.body)

    def visit_Global(self, node: ast.Global | ast.Nonlocal) -> None:
        self._bound_elsewhere.update(node.names)

    visit_Nonlocal = visit_Global  # noqa: N815 - the name ast looks for

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            whole = alias.name if alias.asname else alias.name.partition(".")[0]
            self.source.imports[alias.asname or whole] = whole

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        module = "." * node.level + (node.module or "")
        for alias in node.names:
            if alias.name == "*":
                self.source.stars.append(module)
            self.source.imports[alias.asname or alias.name] = f"{module}.{alias.name}"

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self._scope.bind(node.name, None)
        outer, function = self._scope, self._function
        around, self._around = (self._around, self._returned), ()
        self._returned = False
        is_method = bool(outer.class_name) and outer.node is None
        class_name = outer.class_name if is_method else ""
        self._scope = Scope(outer.parent if is_method else outer, node, class_name)
        self._function = node.name
        self.source.functions[node.name] = node
        if is_method:
            self.source.methods.add(node.name)
        spec = node.args
        for arg in (*spec.posonlyargs, *spec.args, *spec.kwonlyargs, spec.vararg, spec.kwarg):
            if arg is not None:
                self._scope.bind(arg.arg, None)
                self.source.namespaces.update({arg.arg} - _SELF)
        self._visit_all(node.body)
        self._scope, self._function = outer, function
        self._around, self._returned = around

    visit_AsyncFunctionDef = visit_FunctionDef  # noqa: N815 - the name ast looks for

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self.source.classes[node.name] = node
        self.source.bases.update(map(last_name, node.bases))
        outer, self._scope = self._scope, Scope(self._scope, class_name=node.name)
        self._visit_all(node.body)
        self._scope = outer

    def visit_Assign(self, node: ast.Assign) -> None:
        match node:
            case ast.Assign(
                targets=[ast.Attribute(value=ast.Name(id=name), attr="requires_grad")],
                value=ast.Constant(value=True),
            ):
                self._unfreezing.append((name, node))
            case ast.Assign(targets=[ast.Attribute(value=value, attr="requires_grad")]):
                self._visit_method(node, value, "requires_grad_", node.value)
            case ast.Assign(
                targets=[ast.Attribute(value=value, attr="gradient_checkpointing")]
            ) if last_name(value) in _MODELS or self._is_config(value):
                outer, self._tests = self._tests, (*self._tests, node.value)
                self._visit_method(node, value, "gradient_checkpointing_enable")
                self._tests = outer
            case _:
                pass
        self._assign(node.targets, node.value)

    def _is_config(self, expr: ast.expr) -> bool:
        """Whether a model is loaded by it, which then checkpoints as it says."""
        made = self._scope.value(expr.id) if isinstance(expr, ast.Name) else None
        return made is not None and "Config.from_pretrained" in ast.unparse(made)

    def _visit_method(self, node: ast.Assign, base: ast.expr, name: str, *args: ast.expr) -> None:
        """Visit an attribute that is set as the method that does the same."""
        method = ast.Attribute(value=base, attr=name, ctx=ast.Load())
        call = ast.Call(func=method, args=[*args], keywords=[])
        self.visit(ast.fix_missing_locations(ast.copy_location(call, node)))

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self._assign([node.target], node.value)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self._bind(node.target, None)
        if isinstance(node.target, ast.Name):  # twice: it is then no name that is bound once
            self._bind(node.target, None)
        self.visit(node.value)

    def visit_Delete(self, node: ast.Delete) -> None:
        for target in node.targets:
            if isinstance(target, ast.Subscript):
                self._bind(target, None)

    def _note_change(self, name: str, key: str | None) -> None:
        self.source.changed.setdefault(name, set()).add(key)

    def visit_NamedExpr(self, node: ast.NamedExpr) -> None:
        self._bind(node.target, node.value)
        self.visit(node.value)

    def visit_For(self, node: ast.For) -> None:
        self._bind(node.target, None)
        self._note_parameters(node.target, node.iter)
        self._visit_all(children(node))

    def visit_comprehension(self, node: ast.comprehension) -> None:
        self._note_parameters(node.target, node.iter)
        self.generic_visit(node)

    def _note_parameters(self, target: ast.expr, values: ast.expr) -> None:
        """Remember the names that stand for each of a model's parameters."""
        if any(
            last_name(node) in _ALL_PARAMETERS
            for node in nodes_of(values)
            if isinstance(node, ast.Call)
        ):
            names = (node.id for node in nodes_of(target) if isinstance(node, ast.Name))
            self.source.parameters.update(dict.fromkeys(names, ast.unparse(values)))

    def visit_With(self, node: ast.With) -> None:
        outer, around = self._files, self._around
        for item in node.items:
            self.visit(item.context_expr)
            self._around = (*self._around, item.context_expr)
            if isinstance(item.optional_vars, ast.Name):
                self._files = {**self._files, item.optional_vars.id: item.context_expr}
            if item.optional_vars is not None:
                self._bind(item.optional_vars, None)
        self._visit_all(node.body)
        self._files, self._around = outer, around

    def _assign(self, targets: list[ast.expr], value: ast.expr) -> None:
        for target in targets:
            self._bind(target, value)
            if isinstance(target, ast.Subscript):
                self.visit(target)
        names = [n.id for t in targets for n in nodes_of(t) if isinstance(n, ast.Name)]
        names += [t.attr for t in targets if isinstance(t, ast.Attribute)]
        self._results.append((names, value))
        outer, self._target = (self._target, self._generates), " ".join(names)
        self._generates = outer[1] or GENERATES.search(self._target) is not None
        self.visit(value)
        self._target, self._generates = outer

    def _bind(self, target: ast.expr, value: ast.expr | None) -> None:
        match target:
            case ast.Name(id=name):
                self._scope.bind(name, value)
            case ast.Attribute() as attribute:
                self._set_attribute(attribute, value)
            case ast.Subscript(value=ast.Name(id=name)):
                self._note_change(name, entry_key(target))
            case ast.Subscript(value=ast.Subscript() as whole):
                self._bind(whole, None)
            case ast.Subscript(value=ast.Attribute(attr="argv")):
                self.source.altered.add("argv")
            case ast.Tuple(elts=targets) | ast.List(elts=targets):
                values: list[ast.expr | None] = [None] * len(targets)
                if isinstance(value, ast.Tuple) and len(value.elts) == len(targets):
                    values = [*value.elts]
                for element, its in zip(targets, values, strict=True):
                    self._bind(element, its)
            case ast.Starred(value=inner):
                self._bind(inner, None)
            case _:
                pass

    def _set_attribute(self, target: ast.Attribute, value: ast.expr | None) -> None:
        # `model_args.max_length = training_args.max_length`: it stays what it is.
        stays = isinstance(value, ast.Attribute) and value.attr == target.attr
        base, own_lines = last_name(target.value), self.source.own_lines
        # A module assigns to configs of its own, and a class of it while it trains.
        of_run = "arg" in base and self._function not in self.source.methods
        is_own = not own_lines or target.lineno < own_lines
        if base not in _SELF and not stays and (is_own or of_run):
            self.source.altered.add(target.attr)
        if stays and target.attr == "weight":
            self.source.tied.add(last_name(target.value))

    def _note_read(self, name: str, base: ast.expr) -> None:
        if not self._generates:
            self.source.reads.setdefault(name, set()).add(last_name(base))

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if isinstance(node.ctx, ast.Load):
            self._note_read(node.attr, node.value)
        self.visit(node.value)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, str) and node.value.startswith("--"):
            self.source.option_texts.add(node.value)

    def visit_While(self, node: ast.While) -> None:
        self._visit_all(() if _is_off(node.test) else (node.test, *node.body))
        self._visit_all(node.orelse)

    def visit_If(self, node: ast.If) -> None:
        if _is_off(node.test):
            self._visit_all(node.orelse)
            return
        self._scope.caps.update(capped_names(node))
        self._visit_branches(node.test, node.body, node.orelse)
        if isinstance(node.body[-1], ast.Return | ast.Raise):
            self._around = (*self._around, node.test)
        self._returned = self._returned or isinstance(node.body[-1], ast.Return)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self._visit_branches(node.test, [node.body], [node.orelse])

    def _visit_branches(
        self, test: ast.expr, body: Sequence[ast.AST], orelse: Sequence[ast.AST]
    ) -> None:
        self.visit(test)
        outer = self._tests
        if not is_main_guard(test):
            self._tests = (*outer, test)
        self._visit_all(body)
        self._tests = (*outer, _negate(test))
        self._visit_all(orelse)
        self._tests = outer

    def visit_Call(self, node: ast.Call) -> None:
        call = FunctionCall(
            node=node,
            method=last_name(node),
            words=words_of(node),
            scope=self._scope,
            tests=self._tests,
            target=self._target,
            function=self._function,
            around=self._around,
            may_be_skipped=self._returned,
        )
        self.source.calls.append(call)
        self.source.by_method.setdefault(call.method, []).append(call)
        if call.method in PARSE_CALLS:
            self._parsing_functions.add(self._function)
        match node.func, node.args:
            case (
                ast.Attribute(value=ast.Name(id=name), attr="requires_grad_"),
                [] | [ast.Constant(value=True)],
            ):
                self._unfreezing.append((name, node))
            case ast.Name(id="setattr"), [_, ast.Constant(value=str(attr)), *_]:
                self.source.altered.add(attr)
            case ast.Attribute(value=ast.Name(id=name), attr=attr), _ if attr in _CHANGING:
                self._note_change(name, None)
            case ast.Attribute(value=ast.Name(id=name), attr="read"), _ if name in self._files:
                self.source.opened[node] = self._files[name]
            case _, [ast.Name(id=name), *_] if name in self._files:
                self.source.opened[node] = self._files[name]
            case ast.Name(id="getattr"), [base, ast.Constant(value=str(attr)), *_]:
                self._note_read(attr, base)
            case _:
                pass
        outer = self._generates
        self._generates = outer or GENERATES.search(call.method) is not None
        self.generic_visit(node)
        self._generates = outer


# What visits each kind of node.
_VISITORS: Mapping[type[ast.AST], Callable[[_ScopeVisitor, Any], None]] = {
    kind: getattr(_ScopeVisitor, f"visit_{kind.__name__}", _ScopeVisitor.generic_visit)
    for kind in _KINDS
}


def _is_off(test: ast.expr) -> bool:
    """Whether a condition is false by itself, or for a type checker alone."""
    is_false = isinstance(test, ast.Constant) and not test.value
    return is_false or last_name(test) == "TYPE_CHECKING"


def _leaves(node: ast.AST) -> bool:
    """Whether nothing after a statement of a block runs."""
    if isinstance(node, ast.Expr) and (calls := _EXITS.get(last_name(node.value))):
        return ast.unparse(node).startswith(calls)
    return isinstance(node, ast.Return | ast.Raise | ast.Break | ast.Continue) or (
        isinstance(node, ast.If)
        and bool(node.orelse)
        and all(_leaves(branch[-1]) for branch in (node.body, node.orelse))
    )


def _negate(test: ast.expr) -> ast.expr:
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return test.operand
    return ast.copy_location(ast.UnaryOp(op=ast.Not(), operand=test), test)


def is_main_guard(test: ast.expr) -> bool:
    """Whether a condition is that of `if __name__ == "__main__"`."""
    return isinstance(test, ast.Compare) and getattr(test.left, "id", "") == "__name__"
