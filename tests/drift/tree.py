"""Finds what a dotted name of vLLM stands for, in a wheel or a directory that holds `vllm/`, without importing any of it."""

from __future__ import annotations

import ast
import re
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from packaging.version import Version

# Where a name leads: to a statement, or, when it is imported, to another dotted name.
Target = ast.AST | str


@dataclass(frozen=True)
class Found:
    """What defines a name, and the module in which the names that it uses are looked up."""

    module: str
    node: ast.AST


class Tree:
    """The Python sources of one vLLM. A file is read when a name leads to it.

    Attributes:
        release: The release that the wheel, or the metadata in the directory, says this is; None for a bare checkout.
    """

    def __init__(self, path: Path) -> None:
        self._read: Callable[[str], bytes]
        if path.is_dir():
            found = (*path.glob("vllm/**/*.py"), *path.glob("vllm*.dist-info/METADATA"))
            names = [file.relative_to(path).as_posix() for file in found]
            self._read = lambda name: (path / name).read_bytes()
        else:
            archive = zipfile.ZipFile(path)
            names, self._read = archive.namelist(), archive.read
        self.release = _release(names)
        self._files = {_module(name): name for name in sorted(names) if re.fullmatch(r"vllm/.*\.py", name)}
        if "vllm" not in self._files:
            raise FileNotFoundError(f"{path} holds no vllm/__init__.py; expected a vLLM wheel, or a directory with vllm/ in it")
        self._bodies: dict[str, ast.Module] = {}
        self._found: dict[str, Found | None] = {}

    def find(self, dotted: str) -> Found | None:
        """What `dotted` stands for, through re-exports, base classes and the types of values; None if there is no such name."""
        if dotted not in self._found:
            self._found[dotted] = None  # should the way lead back here, as where a package imports its own module
            self._found[dotted] = self._member(dotted) or self._submodule(dotted)
        return self._found[dotted]

    def elsewhere(self, dotted: str) -> list[str]:
        """Where else `dotted` leads to something, if its module is gone or no longer has what `dotted` names in it."""
        parts = dotted.split(".")
        missing = next(at for at in range(len(parts)) if self.find(".".join(parts[: at + 1])) is None)
        holder = self.find(".".join(parts[:missing]))
        if holder is None or not isinstance(holder.node, ast.Module):
            return []
        for start in range(missing, len(parts)):
            definition = re.compile(rf"^(class |def |async def )?{parts[start]}\b\s*[(:=]".encode(), re.MULTILINE)
            modules = [module for module, name in self._files.items() if definition.search(self._read(name))]
            if places := [place for module in modules if self.find(place := ".".join((module, *parts[start:])))]:
                return places
        return []

    def _submodule(self, dotted: str) -> Found | None:
        return Found(dotted, self._body(dotted)) if dotted in self._files else None

    def _body(self, module: str) -> ast.Module:
        if module not in self._bodies:
            name = self._files[module]
            self._bodies[module] = ast.parse(self._read(name), filename=name)
        return self._bodies[module]

    def _member(self, dotted: str) -> Found | None:
        parent, _, name = dotted.rpartition(".")
        holder = self.find(parent) if parent else None
        if holder is None:
            return None
        targets: Iterator[Target]
        match holder.node:
            case ast.Module(body=body):
                folder = self._files[holder.module].rpartition("/")[0]
                targets = _in_body(body, name, folder.split("/"))
            case ast.ClassDef() as cls:
                targets = _in_class(cls, name, holder.module)
            case ast.With() as block:
                targets = _calls(block.body, name)
            case value:
                targets = chain(_blocks(value, name), (f"{holder.module}.{kind}.{name}" for kind in _types(value)))
        for target in targets:
            found = self.find(target) if isinstance(target, str) else Found(holder.module, target)
            if found is not None:
                return found
        return None


def _release(names: list[str]) -> Version | None:
    """A nightly and a post-release count as the release they belong to, as in `speculators_compat.detection`."""
    found = (re.match(r"vllm[^/]*-([^/-]+)\.dist-info/", name) for name in names)
    return next((Version(Version(match[1]).base_version) for match in found if match), None)


def _module(name: str) -> str:
    return name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def _in_body(body: list[ast.stmt], name: str, package: Sequence[str] = ()) -> Iterator[Target]:
    """What may define `name`, in order. Blocks of `if` and `try` count; overloads and setters do not."""
    for statement in body:
        match statement:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef() if statement.name == name:
                if not any(re.search(r"\b(overload|setter|deleter)$", ast.unparse(d)) for d in statement.decorator_list):
                    yield statement
            case ast.Assign() | ast.AnnAssign() if any(isinstance(t, ast.Name) and t.id == name for t in _stored(statement)):
                yield statement
            case ast.ImportFrom(level=level, names=aliases):
                base = package[: len(package) + 1 - level] if level else ()
                source = ".".join(filter(None, (*base, statement.module)))
                for alias in aliases:
                    if name == (alias.asname or alias.name):
                        yield f"{source}.{alias.name}"
                    elif alias.name == "*":
                        yield f"{source}.{name}"
            case ast.Import(names=aliases):
                yield from (alias.name for alias in aliases if alias.asname == name)
            case ast.If() | ast.Try() | ast.With() | ast.ExceptHandler():
                for block in ("body", "handlers", "orelse", "finalbody"):
                    yield from _in_body(getattr(statement, block, []), name, package)


def _in_class(cls: ast.ClassDef, name: str, module: str) -> Iterator[Target]:
    """What may define the attribute `name`: the class, a method that sets it, or a base class."""
    yield from _in_body(cls.body, name)
    for node in ast.walk(cls):
        for target in _stored(node):
            if isinstance(target, ast.Attribute) and target.attr == name and ast.unparse(target.value) == "self":
                yield node
    for base in cls.bases:
        yield f"{module}.{ast.unparse(base).partition('[')[0]}.{name}"


def _blocks(function: ast.AST, guard: str) -> Iterator[ast.With]:
    """The blocks `with self.guard():` in a function."""
    blocks = (node for node in ast.walk(function) if isinstance(node, ast.With))
    return (block for block in blocks if any(_calls([item.context_expr for item in block.items], guard)))


def _calls(nodes: Sequence[ast.AST], method: str) -> Iterator[ast.Call]:
    """The calls of `self.method` in them."""
    for node in (inner for outer in nodes for inner in ast.walk(outer)):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == f"self.{method}":
            yield node


def _stored(node: ast.AST) -> Iterator[ast.AST]:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return (inner for target in targets for inner in ast.walk(target) if isinstance(getattr(inner, "ctx", None), ast.Store))


def _types(node: ast.AST) -> Iterator[str]:
    """The names of what a value may be an instance of: those in its annotation, or what makes it."""
    match node:
        case (
            ast.AnnAssign(annotation=expression)
            | ast.Assign(value=ast.Call(func=expression))
            | ast.FunctionDef(returns=ast.expr() as expression)
        ):
            text = expression.value if isinstance(expression, ast.Constant) else ast.unparse(expression)
            yield from (name.strip() for name in str(text).split("|"))
