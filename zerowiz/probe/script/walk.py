"""Collect what a script imports, defines and calls, in one pass over its syntax tree."""

import ast
from collections.abc import Iterable
from typing import TypeGuard

from zerowiz.probe.script.expressions import Scope, capped_names, entry_key, last_name
from zerowiz.probe.script.source import DictEntry, FunctionCall, SetAttribute, Source

# transformers 5.23, hf_argparser.py, and trl 1.x, scripts/utils.py.
HF_PARSE_CALLS = frozenset({"parse_args_into_dataclasses", "parse_args_and_config"})
# Calls that turn the command line into values.
PARSE_CALLS = HF_PARSE_CALLS | {"parse_args", "parse_known_args", "parse_intermixed_args"}
# Methods that change the dict or the list that they are called on.
_CHANGING = frozenset({"update", "setdefault", "pop", "append", "extend", "insert", "remove"})
# torch 2, nn/modules/module.py: the methods that return all parameters of a module.
_ALL_PARAMETERS = frozenset({"parameters", "named_parameters"})
_SELF = frozenset({"self", "cls"})


def walk(tree: ast.Module) -> Source:
    """The names and calls of a syntax tree."""
    return _ScopeVisitor(tree).source


class _ScopeVisitor(ast.NodeVisitor):
    """Visits the tree, with the scope, function, conditions and files around the present node."""

    def __init__(self, tree: ast.Module) -> None:
        self.source = Source()
        self._scope = self.source.module
        self._function = ""
        self._tests: tuple[ast.expr, ...] = ()
        self._around: tuple[ast.expr, ...] = ()
        self._target = ""
        self._guarded = False
        self._files: dict[str, ast.expr] = {}
        """The expressions that the `with` blocks around opened, by name."""
        self._results: list[tuple[list[str], ast.expr]] = []
        self._parsing_functions: set[str] = set()
        self._parameters: set[str] = set()
        self._unfreezing: list[tuple[str, ast.expr | ast.stmt]] = []
        self.visit(tree)
        self._find_namespaces()
        self.source.unfrozen.extend(
            node for name, node in self._unfreezing if name in self._parameters
        )

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

    def _visit_all(self, nodes: Iterable[ast.stmt]) -> None:
        for node in nodes:
            self.visit(node)

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
        outer, function, guarded = self._scope, self._function, self._guarded
        around, self._around = self._around, ()
        self._guarded = False
        parent = outer.parent if outer.is_class else outer
        self._scope, self._function = Scope(parent, function=node.name), node.name
        self.source.functions[node.name] = node
        if outer.is_class:
            self.source.methods.add(node.name)
        spec = node.args
        for arg in (*spec.posonlyargs, *spec.args, *spec.kwonlyargs, spec.vararg, spec.kwarg):
            if arg is not None:
                self._scope.bind(arg.arg, None)
                self.source.namespaces.update({arg.arg} - _SELF)
        self._visit_all(node.body)
        self._scope, self._function, self._guarded = outer, function, guarded
        self._around = around

    visit_AsyncFunctionDef = visit_FunctionDef  # noqa: N815 - the name ast looks for

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self.source.classes[node.name] = node
        outer, self._scope = self._scope, Scope(self._scope, is_class=True)
        self._visit_all(node.body)
        self._scope = outer

    def visit_Assign(self, node: ast.Assign) -> None:
        match node:
            case ast.Assign(
                targets=[ast.Attribute(value=ast.Name(id=name), attr="requires_grad")],
                value=ast.Constant(value=True),
            ):
                self._unfreezing.append((name, node))
            case _:
                pass
        self._assign(node.targets, node.value)

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

    def visit_Subscript(self, node: ast.Subscript) -> None:
        self._use_entry(node)
        expr: ast.expr = node
        while isinstance(expr, ast.Subscript):
            self.visit(expr.slice)
            expr = expr.value
        self.visit(expr)

    def _set_entry(self, target: ast.Subscript, value: ast.expr | None) -> None:
        self._use_entry(target, sets=True, value=value)
        if isinstance(target.value, ast.Name):
            self._note_change(target.value.id, entry_key(target))

    def _note_change(self, name: str, key: str | None) -> None:
        self.source.changed.setdefault(name, set()).add(key)

    def _use_entry(
        self, node: ast.Subscript, *, sets: bool = False, value: ast.expr | None = None
    ) -> None:
        self.source.entries_used.append(
            DictEntry(
                node=node,
                scope=self._scope,
                tests=self._tests,
                function=self._function,
                guarded=self._guarded,
                sets=sets,
                value=value,
            )
        )

    def visit_Try(self, node: ast.Try) -> None:
        outer, self._guarded = self._guarded, True
        self.generic_visit(node)
        self._guarded = outer

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        first, *others = node.values
        self.visit(first)
        outer, self._guarded = self._guarded, True
        for value in others:
            self.visit(value)
        self._guarded = outer

    def visit_NamedExpr(self, node: ast.NamedExpr) -> None:
        self._bind(node.target, node.value)
        self.visit(node.value)

    def visit_For(self, node: ast.For) -> None:
        self._bind(node.target, None)
        self._note_parameters(node.target, node.iter)
        self.generic_visit(node)

    def visit_comprehension(self, node: ast.comprehension) -> None:
        self._note_parameters(node.target, node.iter)
        self.generic_visit(node)

    def _note_parameters(self, target: ast.expr, values: ast.expr) -> None:
        """Remember the names that stand for each of a model's parameters."""
        if any(last_name(each) in _ALL_PARAMETERS for each in ast.walk(values) if _is_call(each)):
            names = {each.id for each in ast.walk(target) if isinstance(each, ast.Name)}
            self._parameters |= names

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
        names = [n.id for t in targets for n in ast.walk(t) if isinstance(n, ast.Name)]
        names += [t.attr for t in targets if isinstance(t, ast.Attribute)]
        self._results.append((names, value))
        outer, self._target = self._target, " ".join(names)
        self.visit(value)
        self._target = outer

    def _bind(self, target: ast.expr, value: ast.expr | None) -> None:
        match target:
            case ast.Name(id=name):
                self._scope.bind(name, value)
            case ast.Attribute() as attribute:
                self._set_attribute(attribute, value)
            case ast.Subscript():
                self._set_entry(target, value)
            case ast.Tuple(elts=targets) | ast.List(elts=targets):
                values: list[ast.expr | None] = [None] * len(targets)
                if isinstance(value, ast.Tuple) and len(value.elts) == len(targets):
                    values = [*value.elts]
                for one, its in zip(targets, values, strict=True):
                    self._bind(one, its)
            case ast.Starred(value=inner):
                self._bind(inner, None)
            case _:
                pass

    def _set_attribute(self, target: ast.Attribute, value: ast.expr | None) -> None:
        # `model_args.max_length = training_args.max_length`: it stays what it is.
        stays = isinstance(value, ast.Attribute) and value.attr == target.attr
        if last_name(target.value) not in _SELF and not stays:
            self.source.altered.add(target.attr)
        if isinstance(target.value, ast.Name):
            self.source.attributes.append(
                SetAttribute(
                    owner=target.value.id,
                    name=target.attr,
                    value=value,
                    scope=self._scope,
                    tests=self._tests,
                    function=self._function,
                )
            )

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, str) and node.value.startswith("--"):
            self.source.option_texts.add(node.value)

    def visit_If(self, node: ast.If) -> None:
        self.visit(node.test)
        outer = self._tests
        if not is_main_guard(node.test):
            self._tests = (*outer, node.test)
        self._scope.caps.update(dict.fromkeys(capped_names(node), node.test))
        self._visit_all(node.body)
        self._tests = (*outer, _negate(node.test))
        self._visit_all(node.orelse)
        self._tests = outer
        if isinstance(node.body[-1], ast.Return | ast.Raise):
            self._around = (*self._around, node.test)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self.visit(node.test)
        outer = self._tests
        self._tests = (*outer, node.test)
        self.visit(node.body)
        self._tests = (*outer, _negate(node.test))
        self.visit(node.orelse)
        self._tests = outer

    def visit_Call(self, node: ast.Call) -> None:
        call = FunctionCall(
            node=node,
            scope=self._scope,
            tests=self._tests,
            target=self._target,
            function=self._function,
            around=self._around,
        )
        self.source.calls.append(call)
        if call.method in PARSE_CALLS:
            self._parsing_functions.add(self._function)
        match node.func, node.args:
            case (
                ast.Attribute(value=ast.Name(id=name), attr="requires_grad_"),
                [] | [ast.Constant(value=True)],
            ):
                self._unfreezing.append((name, node))
            case _, [ast.Name(id=name), *_] if self.source.imported(node.func) == ("fire", "Fire"):
                self.source.fired.add(name)
            case ast.Name(id="setattr"), [_, ast.Constant(value=str(attr)), *_]:
                self.source.altered.add(attr)
            case ast.Attribute(value=ast.Name(id=name), attr=attr), _ if attr in _CHANGING:
                self._note_change(name, None)
            case ast.Attribute(value=ast.Name(id=name), attr="read"), _ if name in self._files:
                self.source.opened[node] = self._files[name]
            case _, [ast.Name(id=name), *_] if name in self._files:
                self.source.opened[node] = self._files[name]
            case _:
                pass
        self.generic_visit(node)


def _is_call(node: ast.AST) -> TypeGuard[ast.Call]:
    return isinstance(node, ast.Call)


def _negate(test: ast.expr) -> ast.expr:
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return test.operand
    return ast.copy_location(ast.UnaryOp(op=ast.Not(), operand=test), test)


def is_main_guard(test: ast.expr) -> bool:
    """Whether a condition is that of `if __name__ == "__main__"`."""
    return isinstance(test, ast.Compare) and getattr(test.left, "id", "") == "__name__"
