"""What every generated stub goes through: docstrings and private members out, holes mended or left out, short lines."""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

NO_CONSTRUCTOR = "def __init__(self, *args: Never, **kwargs: Never) -> None: ..."
"""Of a class whose objects only other calls make."""


def without_docstrings(tree: ast.Module) -> ast.Module:
    """The same module with ``...`` in place of every docstring and every body of a function."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            node.body = [ast.Expr(ast.Constant(...))]
        elif isinstance(node, ast.ClassDef | ast.Module) and ast.get_docstring(node) is not None:
            node.body = node.body[1:]
        if isinstance(node, ast.ClassDef) and not node.body:
            node.body = [ast.Expr(ast.Constant(...))]
    return tree


def is_public(name: str) -> bool:
    """Whether users may rely on a name: no leading underscore, or one of Python's own such as ``__int__``."""
    return not name.startswith("_") or (name.startswith("__") and name.endswith("__"))


def is_complete(function: ast.FunctionDef) -> bool:
    """Whether every argument but ``self`` or ``cls``, and the result, have a type."""
    arguments = function.args
    plain = [*arguments.posonlyargs, *arguments.args]
    is_static = any(isinstance(d, ast.Name) and d.id == "staticmethod" for d in function.decorator_list)
    checked = [*(plain if is_static else plain[1:]), *arguments.kwonlyargs]
    checked += [star for star in (arguments.vararg, arguments.kwarg) if star is not None]
    return function.returns is not None and all(argument.annotation is not None for argument in checked)


def names_in(node: ast.AST) -> set[str]:
    """Every bare name that a definition uses."""
    return {inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name)}


def parse_members(text: str) -> list[ast.stmt]:
    """The statements of a piece of stub text, such as the replacement of one method by its overloads."""
    return ast.parse(text).body


def mend_class(node: ast.ClassDef, mends: Mapping[str, str], unknown: set[str]) -> list[str]:
    """Clean one class in place and return the names of the public members that were left out.

    Private members go; those in ``mends`` (by *Class.member*) are replaced; those that lack a type or use a name in
    ``unknown`` are left out.
    """
    kept: list[ast.stmt] = []
    left_out: list[str] = []
    done: set[str] = set()
    for member in node.body:
        name = member_name(member)
        if name is None or not is_public(name):
            if not isinstance(member, ast.Assign | ast.AnnAssign | ast.FunctionDef):
                kept.append(member)
            continue
        path = f"{node.name}.{name}"
        if path in mends:
            if path not in done:
                kept += parse_members(mends[path])
            done.add(path)
        elif (isinstance(member, ast.FunctionDef) and not is_complete(member)) or names_in(member) & unknown:
            left_out.append(path)
        else:
            kept.append(member)
    node.body = kept or [ast.Expr(ast.Constant(...))]
    return left_out


def member_name(member: ast.stmt) -> str | None:
    """The name that a statement of a class or module defines, where it defines one."""
    if isinstance(member, ast.FunctionDef | ast.ClassDef):
        return member.name
    if isinstance(member, ast.AnnAssign) and isinstance(member.target, ast.Name):
        return member.target.id
    if isinstance(member, ast.Assign) and isinstance(member.targets[0], ast.Name):
        return member.targets[0].id
    return None


def paths_in(tree: ast.Module) -> set[str]:
    """Every name that a module defines, and *Class.member* of its classes."""
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    members = {f"{node.name}.{member_name(member)}" for node in classes for member in node.body}
    return members | {name for name in map(member_name, tree.body) if name is not None}


def check_known(paths: Iterable[str], known: set[str], what: str) -> None:
    """Raise ``KeyError`` for paths that a library no longer has."""
    if gone := set(paths) - known:
        raise KeyError(f"{what} names what the library does not have: {', '.join(sorted(gone))}")


def write(path: Path, head: Sequence[str], tree: ast.Module) -> None:
    """Write a stub: ``head`` as comments, then the module, with one-line bodies."""
    text = re.sub(r":\n\s+\.\.\.(?=\n|$)", ": ...", ast.unparse(ast.fix_missing_locations(tree)))
    text = re.sub(r"\n\n(?=    )", "\n", text)
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [line for paragraph in head for line in textwrap.wrap(paragraph, 118, break_on_hyphens=False)]
    path.write_text("".join(f"# {line}\n" for line in lines) + "\n" + text + "\n")
