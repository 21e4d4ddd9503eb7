"""Small changes of a module's code: those of mutmut, and calls that matter here and that mutmut leaves alone.

Its changes of strings are left out, as are messages of errors: their wording is not a result. So are changes of a value
or an argument to None, which raise wherever the code is run at all. mutmut leaves out functions with a decorator, since
it calls a changed function by way of the unchanged one; here a change is written into the file, and those count, too.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import libcst as cst
import libcst.matchers as m
from libcst.metadata import MetadataWrapper, PositionProvider
from mutmut.mutation import file_mutation, mutators
from mutmut.mutation.pragma_handling import IgnoredCode

LEFT_OUT = {
    mutators.operator_string,
    mutators.operator_dict_arguments,
    mutators.operator_symmetric_string_methods_swap,
    mutators.operator_unsymmetrical_string_methods_swap,
    mutators.operator_assignment,
    mutators.operator_arg_removal,
}
PAIRS = (("min", "max"), ("argmin", "argmax"), ("sum", "mean"), ("any", "all"), ("zeros", "ones"), ("log", "exp"))
PAIRS += (("zeros_like", "ones_like"), ("clamp_min", "clamp_max"), ("amin", "amax"))
TYPES = m.If(m.Name("TYPE_CHECKING"))
OTHER_NAME = {one: other for pair in PAIRS for one, other in (pair, pair[::-1])}


class Change(NamedTuple):
    """One change of a file: its number among all of the file's changes, its lines, and what it makes of what."""

    file: str
    number: int
    line: int
    last: int
    change: str


def operator_method(node: cst.Call) -> Iterator[cst.BaseExpression]:
    """Call the opposite method, and keep gradients where they are cut."""
    if isinstance(node.func, cst.Attribute):
        name = node.func.attr.value
        if name == "detach":
            yield node.func.value
        if name in OTHER_NAME:
            yield node.with_deep_changes(node.func.attr, value=OTHER_NAME[name])


def operator_argument(node: cst.Call) -> Iterator[cst.BaseExpression]:
    """Leave out an argument."""
    yield from (new for new in mutators.operator_arg_removal(node) if len(new.args) < len(node.args))


def operator_statement(node: cst.Expr) -> Iterator[cst.Pass]:
    """Leave out a call whose value is not used."""
    if isinstance(node.value, cst.Call):
        yield cst.Pass()


def operator_sense(node: cst.If) -> Iterator[cst.If]:
    """Turn a condition around."""
    if not isinstance(node.test, cst.Comparison | cst.UnaryOperation) and not m.matches(node, TYPES):
        test = node.test.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
        yield node.with_changes(test=cst.UnaryOperation(cst.Not(), test))


OPERATORS = [
    *(entry for entry in mutators.mutation_operators if entry[1] not in LEFT_OUT),
    (cst.Call, operator_argument),
    (cst.Call, operator_method),
    (cst.Expr, operator_statement),
    (cst.If, operator_sense),
]


class _Visitor(file_mutation.MutationVisitor):
    """mutmut's, which also goes into functions with a decorator."""

    def _skip_node_and_children(self, node: cst.CSTNode) -> bool:
        if isinstance(node, cst.FunctionDef):
            return node.name.value in file_mutation.NEVER_MUTATE_FUNCTION_NAMES
        return bool(super()._skip_node_and_children(node))


class Module:
    """A module's code and all its changes.

    Args:
        code: What is in the file.
        file: Its name, for the changes.
    """

    def __init__(self, code: str, file: str) -> None:
        wrapper = MetadataWrapper(cst.parse_module(code))
        self.module, self.tree = wrapper.module, ast.parse(code)
        visitor = _Visitor(OPERATORS, IgnoredCode(self._not_code(), set(), set()))
        wrapper.visit(visitor)
        places = wrapper.resolve(PositionProvider)
        self.mutations, self.changes = [], []
        for mutation in visitor.mutations:
            place = places.get(mutation.original_node)
            if place is None:
                continue
            said = f"{self._short(mutation.original_node)} -> {self._short(mutation.mutated_node)}"
            block = isinstance(mutation.original_node, cst.BaseCompoundStatement)
            last = place.start.line if block else place.end.line
            self.changes.append(Change(file, len(self.changes), place.start.line, last, said))
            self.mutations.append(mutation)

    def with_change(self, number: int) -> str:
        """The code with one of the changes."""
        mutation = self.mutations[number]
        new = self.module.deep_replace(mutation.original_node, mutation.mutated_node)
        assert isinstance(new, cst.Module)
        return new.code

    def lines_run(self, change: Change) -> set[int]:
        """The lines that a test runs if it runs the change: of a default or a constant, those that may use it."""
        within = self._functions_around(change)
        if not within:
            return set(range(1, (self.tree.body[-1].end_lineno or 0) + 1))
        inner = within[-1]
        if change.line < inner.body[0].lineno:
            return set(range(inner.body[0].lineno, (inner.end_lineno or 0) + 1))
        return set(range(change.line, change.last + 1))

    def function_of(self, change: Change) -> str:
        """The qualified name of the function or method whose body has the change, empty if there is none."""
        within = self._functions_around(change)
        if not within or change.line <= max(within[0].lineno, within[0].body[0].lineno - 1):
            return ""
        classes = [n for n in ast.walk(self.tree) if isinstance(n, ast.ClassDef) and _has(n, change)]
        return ".".join([*(node.name for node in sorted(classes, key=lambda node: node.lineno)), within[0].name])

    def _functions_around(self, change: Change) -> list[ast.FunctionDef]:
        """Those whose lines have the change, the outermost first."""
        found = [node for node in ast.walk(self.tree) if isinstance(node, ast.FunctionDef) and _has(node, change)]
        return sorted(found, key=lambda node: node.lineno)

    def _not_code(self) -> set[int]:
        nodes = [n for n in ast.walk(self.tree) if isinstance(n, ast.Raise | ast.Assert | ast.Import | ast.ImportFrom)]
        return {line for node in nodes for line in range(node.lineno, (node.end_lineno or 0) + 1)}

    def _short(self, node: cst.CSTNode) -> str:
        text = " ".join(self.module.code_for_node(node).split())
        return text if len(text) <= 70 else f"{text[:67]}..."


def _has(node: ast.FunctionDef | ast.ClassDef, change: Change) -> bool:
    return node.lineno <= change.line <= (node.end_lineno or 0)


@cache
def module_of(file: Path, name: str) -> Module:
    """The changes of a file, read once."""
    return Module(file.read_text(), name)
