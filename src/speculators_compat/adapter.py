"""The record that describes one broken contract, and the helpers with which its probe looks at real symbols."""

from __future__ import annotations

import importlib.util
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from types import CodeType
from typing import Any

from speculators_compat.errors import ContractError
from speculators_compat.import_hooks import GENERATOR_MODULE, WORKER_MODULE

GENERATOR_CLASS = "VllmHiddenStatesGenerator"
EXTENSION_CLASS = "HiddenStatesWorkerExtension"


# A wrapt wrapper: gets the original, the instance, args and kwargs, and decides how the original is called.
Wrapper = Callable[[Callable[..., Any], Any, tuple[Any, ...], dict[str, Any]], Any]


@dataclass(frozen=True)
class Patch:
    """One name in one of upstream's modules, and what stands in front of it.

    Attributes:
        module: `GENERATOR_MODULE` or `WORKER_MODULE`.
        target: A module global (`Scheduler`) or a method (`VllmHiddenStatesGenerator.generate`).
        wrapper: Called in place of the target, with the target as its first argument.
        stand_in: For a target that is not called, such as a module: makes what stands in its place.
        optional: Whether a release of speculators may lack the target.
    """

    module: str
    target: str
    wrapper: Wrapper | None = None
    stand_in: Callable[[Any], Any] | None = None
    optional: bool = False

    @property
    def is_global(self) -> bool:
        return "." not in self.target

    def __str__(self) -> str:
        return f"{self.module}.{self.target}"


@dataclass(frozen=True)
class Preparation:
    """What one of upstream's modules needs before it can be executed.

    Attributes:
        module: `SPECULATORS`, `GENERATOR_MODULE` or `WORKER_MODULE`.
        action: Called each time before the module is executed; must not mind being called again.
    """

    module: str
    action: Callable[[], None]


def generator_global(name: str, wrapper: Wrapper) -> Patch:
    """A collaborator that upstream's generator module imports by name."""
    return Patch(GENERATOR_MODULE, name, wrapper)


def generator_method(name: str, wrapper: Wrapper) -> Patch:
    """A method of upstream's generator."""
    return Patch(GENERATOR_MODULE, f"{GENERATOR_CLASS}.{name}", wrapper)


def worker_method(name: str, wrapper: Wrapper) -> Patch:
    """A method of upstream's worker extension, which becomes a method of vLLM's worker."""
    return Patch(WORKER_MODULE, f"{EXTENSION_CLASS}.{name}", wrapper)


def executor(wrapper: Wrapper) -> Patch:
    """The constructor of the executor that starts the worker processes."""
    return generator_global("MultiprocExecutor", wrapper)


class Need(Enum):
    """What a probe found out about a contract."""

    BROKEN = "broken"
    INTACT = "intact"


@dataclass(frozen=True)
class Finding:
    """A probe's answer: whether the contract is broken here, and what was seen that says so."""

    need: Need
    reason: str

    @classmethod
    def broken(cls, reason: str) -> Finding:
        return cls(Need.BROKEN, reason)

    @classmethod
    def intact(cls, reason: str) -> Finding:
        return cls(Need.INTACT, reason)


@dataclass(frozen=True)
class Adapter:
    """One contract between speculators and vLLM that broke, and how it is restored.

    Attributes:
        name: The name to switch it off by, the same as its module's.
        contract: What upstream relies on, in one sentence.
        symptom: What a user sees without the adapter: the error's text, or what is silently wrong.
        vllm: Releases of vLLM on which the contract was seen broken.
        speculators: Releases of speculators that rely on it.
        broken_by: The vLLM change or file that the break comes from.
        removable_when: What has to be true before the adapter can be deleted.
        probe: Looks at the real symbols; raises `ContractError` where it does not recognise them.
        patches: What is put in front of which name.
        preparations: What is put right before one of upstream's modules is executed.
    """

    name: str
    contract: str
    symptom: str
    vllm: str
    speculators: str
    broken_by: str
    removable_when: str
    probe: Callable[[], Finding]
    patches: tuple[Patch, ...] = ()
    preparations: tuple[Preparation, ...] = ()


def parameters(function: Callable[..., Any], name: str) -> dict[str, inspect.Parameter]:
    """The parameters of a real vLLM or speculators callable.

    Raises:
        ContractError: If the callable has no signature to read.
    """
    try:
        return dict(inspect.signature(function).parameters)
    except (TypeError, ValueError) as error:
        raise ContractError(f"{name}: found {function!r}, which has no readable signature") from error


def accepts(function: Callable[..., Any], parameter: str, name: str) -> bool:
    """Whether `function` can be called with the keyword `parameter`."""
    known = parameters(function, name)
    return parameter in known or any(p.kind is p.VAR_KEYWORD for p in known.values())


def require(holder: Any, where: str, *names: str) -> None:
    """See that a real vLLM or speculators module or class has what an adapter builds on.

    Args:
        holder: The module or class.
        where: What it is called in the message.
        names: Its attributes.

    Raises:
        ContractError: If one is missing.
    """
    for name in names:
        if not hasattr(holder, name):
            raise ContractError(f"{where} has no {name}")


def code_of(module: str, *path: str) -> CodeType:
    """The code of a class or function, as the loader of its module has it, without importing that: it may take long.

    Args:
        module: Its full name.
        path: Names from the module on, such as those of a class and its method.

    Raises:
        ContractError: If the module has no such code.
    """
    spec = importlib.util.find_spec(module)
    loader: Any = spec.loader if spec is not None else None
    code: CodeType | None = loader.get_code(module) if hasattr(loader, "get_code") else None
    for name in path:
        nested = [inner for inner in (code.co_consts if code else ()) if isinstance(inner, CodeType)]
        code = next((inner for inner in nested if inner.co_name == name), None)
    if code is None:
        raise ContractError(f"{module}.{'.'.join(path)} has no code that can be read")
    return code


def mentions(method: str, word: str) -> bool:
    """Whether upstream's generator uses `word` in `method`, as a name, an attribute, a keyword or a constant.

    Looks at the code that the loader has, not at what stands on the class: a user may have wrapped it.

    Raises:
        ContractError: If the module has no such code.
    """
    return any(word in _words(nested) for nested in _codes(code_of(GENERATOR_MODULE, GENERATOR_CLASS, method)))


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _words(code: CodeType) -> set[str]:
    words = {*code.co_names, *code.co_varnames, *code.co_cellvars, *code.co_freevars}
    for constant in code.co_consts:
        if isinstance(constant, str):
            words.add(constant)
        elif isinstance(constant, tuple):
            words.update(word for word in constant if isinstance(word, str))
    return words
