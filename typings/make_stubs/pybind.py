"""From a module written with pybind11 to a strict stub: pybind11-stubgen reads it, and what it cannot know is mended.

Stricter than the library: whole numbers are ``int`` and fractions ``float`` (pybind11 converts more), and what would be
``Any`` is mended or left out.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tempfile
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from make_stubs.syntax import (
    NO_CONSTRUCTOR,
    check_known,
    member_name,
    mend_class,
    names_in,
    paths_in,
    without_docstrings,
)

# Of Python's own names these carry nothing that a caller needs.
BORING = {"__getstate__", "__setstate__", "__repr__", "__str__", "__ne__", "__del__", "__nonzero__"}
OPEN = {"Any", "Annotated", "CapsuleType", "OPEN"}
TYPES = {"SupportsInt": "int", "SupportsFloat": "float"}
MODULES = ("typing", "typing_extensions")
COMPARISONS = ("__lt__", "__le__", "__gt__", "__ge__")


@dataclass(frozen=True)
class Source:
    """A module to read, the classes and functions to keep (None: all), and what to mend in them.

    ``mends`` replaces members by *Class.member*; ``added`` are members of classes that pybind11-stubgen cannot see;
    ``spelling`` are replacements of regular expressions that make its output valid Python; ``imports`` and ``tail`` are
    what the mends need and what the package defines outside the module.
    """

    module: str
    keep: Collection[str] | None = None
    constants: Collection[str] = ()
    mends: Mapping[str, str] = field(default_factory=dict)
    added: Mapping[str, str] = field(default_factory=dict)
    spelling: Mapping[str, str] = field(default_factory=dict)
    imports: Sequence[str] = ()
    tail: str = ""


def read(source: Source) -> tuple[ast.Module, list[str]]:
    """The mended stub, and the public members that were left out of it."""
    text = _stubgen(source.module)
    for wrong, right in source.spelling.items():
        text = re.sub(wrong, right, text)
    tree = _Plain().visit(without_docstrings(ast.parse(text)))
    assert isinstance(tree, ast.Module)
    check_known([*source.mends, *(source.keep or ())], paths_in(tree), f"the stub of {source.module}")
    classes = {node.name for node in tree.body if isinstance(node, ast.ClassDef)}
    unknown = OPEN | (set() if source.keep is None else classes - set(source.keep))
    body: list[ast.stmt] = []
    left_out: list[str] = []
    for node in tree.body:
        name = member_name(node)
        if isinstance(node, ast.ClassDef) and (source.keep is None or node.name in source.keep):
            left_out += _mend(node, source, unknown)
            body.append(node)
        elif isinstance(node, ast.FunctionDef):
            if node.name in source.mends:
                body += ast.parse(source.mends[node.name]).body
            elif source.keep is None or node.name in source.keep:
                if names_in(node) & unknown:
                    left_out.append(node.name)
                else:
                    body.append(node)
        elif isinstance(node, ast.AnnAssign) and name in source.constants:
            node.value = None
            body.append(node)
    body += ast.parse(source.tail).body
    return ast.Module([*imports(body, source.imports), *body], []), left_out


def _stubgen(module: str) -> str:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pybind11_stubgen", "--ignore-all-errors", "-o", folder, module]
        subprocess.run(command, check=True, capture_output=True)
        stem = Path(folder, *module.split("."))
        return next(path for path in (stem.with_suffix(".pyi"), stem / "__init__.pyi") if path.exists()).read_text()


def _mend(node: ast.ClassDef, source: Source, unknown: set[str], outer: str = "") -> list[str]:
    nested = [inner for inner in node.body if isinstance(inner, ast.ClassDef)]
    left_out = [name for inner in nested for name in _mend(inner, source, unknown, f"{node.name}.")]
    is_enum = any(member_name(member) == "__members__" for member in node.body)
    kept: list[ast.stmt] = []
    for member in node.body:
        if member_name(member) in BORING:
            continue
        if isinstance(member, ast.FunctionDef):
            if any(argument.arg == "this" for argument in member.args.args):
                continue
            _name_operands(member, outer + node.name)
            if is_enum and member.name == "__init__":
                member.args.args[0].annotation = None
        kept.append(member)
    node.body = kept
    left_out += mend_class(node, source.mends, unknown)
    if not node.bases and not any(member_name(member) == "__init__" for member in node.body):
        node.body.insert(0, ast.parse(NO_CONSTRUCTOR).body[0])
    if node.name in source.added:
        node.body += ast.parse(source.added[node.name]).body
    return left_out


def _name_operands(member: ast.FunctionDef, owner: str) -> None:
    """Equality takes anything; an order is among values of one enumeration."""
    if member.name in ("__eq__", *COMPARISONS) and len(member.args.args) == 2 and not member.decorator_list:
        kind = "object" if member.name == "__eq__" else owner
        member.args.posonlyargs = [ast.arg("self"), ast.arg("other", ast.Name(kind))]
        member.args.args = []


class _Plain(ast.NodeTransformer):
    """Bare names for those of ``typing``; ``int`` and ``float`` for what converts; open types under one name."""

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        if isinstance(node.value, ast.Name) and node.value.id in MODULES:
            return ast.Name(TYPES.get(node.attr, node.attr))
        if ast.unparse(node).startswith("collections.abc."):
            return ast.Name(node.attr)
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        self.generic_visit(node)
        arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        for argument in arguments:
            argument.annotation = _open(argument.annotation)
        for default, argument in zip(reversed(node.args.defaults), reversed(node.args.args), strict=False):
            is_none = isinstance(default, ast.Constant) and default.value is None
            if is_none and argument.annotation is not None and "None" not in ast.unparse(argument.annotation):
                argument.annotation = ast.BinOp(argument.annotation, ast.BitOr(), ast.Constant(None))
        if re.fullmatch(r"arg\d", node.args.args[-1].arg if node.args.args else ""):  # nameless in the library
            node.args.posonlyargs, node.args.args = node.args.args, []
        is_setter = any(isinstance(each, ast.Attribute) and each.attr == "setter" for each in node.decorator_list)
        node.returns = ast.Constant(None) if is_setter else _open(node.returns)
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AnnAssign:
        self.generic_visit(node)
        node.annotation = _open(node.annotation) or node.annotation
        return node


def _open(annotation: ast.expr | None) -> ast.expr | None:
    """``OPEN`` where a type says too little: one that pybind11-stubgen could not read, or a bare container."""
    if annotation is None:
        return None
    is_ellipsis = isinstance(annotation, ast.Constant) and annotation.value is ...
    is_bare = isinstance(annotation, ast.Name) and annotation.id in ("tuple", "list", "dict")
    return ast.Name("OPEN") if is_ellipsis or is_bare else annotation


def imports(body: Sequence[ast.stmt], extra: Sequence[str] = ()) -> list[ast.stmt]:
    """The imports that a stub's definitions need, after ``extra`` ones."""
    used = set().union(*(names_in(node) for node in body))
    lines = list(extra)
    for module, names in {
        "collections.abc": ("Iterable", "Iterator", "Mapping", "Sequence"),
        "typing": ("ClassVar", "TypedDict", "overload"),
        "typing_extensions": ("Buffer", "Never", "Self"),
    }.items():
        if found := [name for name in names if name in used]:
            lines.append(f"from {module} import {', '.join(found)}")
    return ast.parse("\n".join(lines)).body
