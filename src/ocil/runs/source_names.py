"""Which names of a module or class have values that may differ from process to process, though its code is the same.

The source tells: a counter that functions count up, a time, a random number, what a machine has, and what is put into a
module once it is needed, such as a part of a package that a function imports. Of a module without a source, as in a
notebook, nothing is known, and no name is said to vary.
"""

import ast
import inspect
import sys
from collections.abc import Iterable
from functools import cache
from types import ModuleType

FIXED = (ast.Constant, ast.Name, ast.UnaryOp, ast.BinOp, ast.unaryop, ast.operator, ast.expr_context)
"""What an expression consists of that has one value in all processes: it calls nothing and looks nothing up."""
DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def bound_in_module(module: ModuleType) -> set[str] | None:
    """The names that the statements of a module give it, rather than code that runs later; None: they are not known."""
    found = set() if (tree := _tree_of(module)) is None else _bound(tree.body)
    return None if tree is None or "*" in found else found


def varying_in_module(module: ModuleType) -> set[str]:
    return set() if (tree := _tree_of(module)) is None else _computed(tree.body) | _written_later(tree)


def varying_in_class(kind: type) -> set[str]:
    module = sys.modules.get(kind.__module__)
    if module is None or (tree := _tree_of(module)) is None:
        return set()
    name = kind.__qualname__.rpartition(".")[2]
    classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and node.name == name]
    return set(_written_later(tree)).union(*(_computed(each.body) for each in classes))


def _tree_of(module: ModuleType) -> ast.Module | None:
    try:
        return _parsed(inspect.getsource(module))
    except (OSError, TypeError, SyntaxError):  # no source: a notebook, a compiled module
        return None


@cache
def _parsed(source: str) -> ast.Module:
    return ast.parse(source)


def _bound(statements: Iterable[ast.stmt]) -> set[str]:
    """The names that statements bind; "*" stands for all that a module has."""
    found = set[str]()
    for statement in statements:
        for node in [statement] if isinstance(statement, DEFINITIONS) else ast.walk(statement):
            if isinstance(node, DEFINITIONS):
                found.add(node.name)
            elif isinstance(node, ast.alias):
                found.add(node.asname or node.name.partition(".")[0])
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                found.add(node.id)
    return found


def _computed(statements: Iterable[ast.stmt]) -> set[str]:
    """The names that are bound to what has to be computed, or under a condition."""
    plain = (*DEFINITIONS, ast.Import, ast.ImportFrom)
    return _bound(each for each in statements if not isinstance(each, plain) and not _is_fixed(each))


def _is_fixed(statement: ast.stmt) -> bool:
    if not isinstance(statement, ast.Assign | ast.AnnAssign) or statement.value is None:
        return False
    return all(isinstance(node, FIXED) for node in ast.walk(statement.value))


@cache
def _written_later(tree: ast.Module) -> frozenset[str]:
    """The names of globals and attributes that functions write. Those of ``self`` leave the class as it is."""
    found = set[str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Global):
            found.update(node.names)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and not _is_self(node.value):
            found.add(node.attr)
    return frozenset(found)


def _is_self(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id == "self"
