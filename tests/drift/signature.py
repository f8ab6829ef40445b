"""Says in one line what a definition looks like to those who use it."""

from __future__ import annotations

import ast
import copy


def describe(node: ast.AST) -> str:
    """`def (parameters)`, `property`, `class`, `module`, `block`, `call`, `value` or `value = default`, `attribute`.

    What a user of the name does not see is left out: annotations, values that are computed, and bodies.
    """
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            if any(ast.unparse(decorator).endswith("property") for decorator in node.decorator_list):
                return "property"
            return f"{'async ' * isinstance(node, ast.AsyncFunctionDef)}def ({_parameters(node.args)})"
        case ast.ClassDef():
            return "class"
        case ast.Module():
            return "module"
        case ast.With():
            return "block"
        case ast.Call():
            return "call"
        case ast.Assign(targets=[ast.Name(), *_], value=value):
            return f"value{_default(value)}"
        case ast.AnnAssign(target=ast.Name(), value=value):
            return f"value{_default(value)}"
    return "attribute"


def _parameters(arguments: ast.arguments) -> str:
    """Names, kinds, and `...` where there is a default."""
    bare = copy.deepcopy(arguments)
    for node in ast.walk(bare):
        if isinstance(node, ast.arg):
            node.annotation = None
    bare.defaults = [ast.Constant(...) for _ in bare.defaults]
    bare.kw_defaults = [default and ast.Constant(...) for default in bare.kw_defaults]
    return ast.unparse(bare)


def _default(value: ast.expr | None) -> str:
    """Nothing where there is none, ` = x` for a constant, ` = ...` for what is computed, within `Field` and `field` too."""
    match value:
        case None:
            return ""
        case ast.Constant(value=constant):
            return f" = {constant!r}"
        case ast.Call(func=ast.Name(id="Field" | "field"), args=args, keywords=keywords):
            given = [*args, *(keyword.value for keyword in keywords if keyword.arg == "default")]
            made = any(keyword.arg in ("default_factory", "init") for keyword in keywords)
            required = not made and (not given or (isinstance(given[0], ast.Constant) and given[0].value is ...))
            return "" if required else _default(given[0]) if given else " = ..."
    return " = ..."
