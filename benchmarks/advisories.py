"""Compare the kept list of security advisories with our bounds and with what is installed, then run pip-audit.

    make audit

`advisories.csv` lists releases with known holes: the package, its affected versions, the advisory, and the day it was
looked up. `unused` names, where our bounds admit such versions, what the hole needs and our source does not have.
pip-audit knows all advisories; it is run where its service can be reached.
"""

from __future__ import annotations

import csv
import importlib.metadata
import subprocess
import sys
import tomllib
import urllib.request
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[1]
KEPT = Path(__file__).with_suffix(".csv")
SOURCE = ("codid_lightning", "datamodules")
SERVICE = "https://pypi.org/pypi/pip/json"  # what pip-audit asks for each package


@dataclass(frozen=True)
class Advisory:
    """A hole in some versions of a package."""

    package: str
    affected: SpecifierSet
    advisory: str
    checked: str
    unused: str  # what the hole needs, and our source does not have; empty if our bounds must exclude it

    def __str__(self) -> str:
        return f"{self.advisory} in {self.package} {self.affected}"


def read(file: Path = KEPT) -> list[Advisory]:
    """The kept list."""
    with file.open() as lines:
        return [Advisory(**{**row, "affected": SpecifierSet(row["affected"])}) for row in csv.DictReader(lines)]


def bounds(project: Path = ROOT / "pyproject.toml") -> dict[str, SpecifierSet]:
    """Our bounds of every package that the project or one of its extras names, and of the build."""
    content = tomllib.loads(project.read_text())
    named = [*content["project"]["dependencies"], *content["build-system"]["requires"]]
    for extra in content["project"]["optional-dependencies"].values():
        named += extra
    found: dict[str, SpecifierSet] = {}
    for requirement in map(Requirement, named):
        name = canonicalize_name(requirement.name)
        found[name] = found.get(name, SpecifierSet()) & requirement.specifier
    return found


def overlap(one: SpecifierSet, other: SpecifierSet) -> Version | None:
    """The lowest version that both contain, if there is one; pre-releases count."""
    edges = {Version("0"), *(Version(s.version.removesuffix(".*")) for s in (*one, *other))}
    nearby = {*edges, *(Version(f"{edge.public}.post1") for edge in edges if not edge.is_postrelease)}
    return next((v for v in sorted(nearby) if one.contains(v, True) and other.contains(v, True)), None)


def admitted(advisories: Iterable[Advisory], allowed: dict[str, SpecifierSet]) -> Iterator[str]:
    """Advisories whose versions our bounds admit, unless our source does not use what they need."""
    for advisory in advisories:
        bound = allowed.get(canonicalize_name(advisory.package))
        version = None if bound is None else overlap(bound, advisory.affected)
        if version is not None and (not advisory.unused or used(advisory.unused)):
            yield f"{advisory}: our bound {bound} admits {version}"


def installed(advisories: Iterable[Advisory], versions: dict[str, str] | None = None) -> Iterator[str]:
    """Advisories of installed versions, unless our source does not use what they need."""
    here = installed_versions() if versions is None else versions
    for advisory in advisories:
        version = here.get(canonicalize_name(advisory.package))
        if version is None or not advisory.affected.contains(version, prereleases=True):
            continue
        if not advisory.unused or used(advisory.unused):
            yield f"{advisory}: {version} is installed"


def installed_versions() -> dict[str, str]:
    """Every installed package and its version."""
    return {canonicalize_name(d.metadata["Name"]): d.version for d in importlib.metadata.distributions()}


def used(name: str) -> bool:
    """Whether our source has this text."""
    return any(name in file.read_text() for package in SOURCE for file in (ROOT / package).rglob("*.py"))


def pip_audit() -> int:
    """Run pip-audit on what is installed here; its exit code, or 0 with a message if its service cannot be reached."""
    try:
        urllib.request.build_opener().open(SERVICE, timeout=10).close()  # with the proxies of this moment
    except OSError as error:
        print(f"pip-audit is left out: its service cannot be reached ({error}). The kept list was compared.")
        return 0
    frozen = subprocess.run(
        [sys.executable, "-m", "uv", "pip", "freeze", "--exclude-editable", "--python", sys.executable],
        capture_output=True,
        check=True,
    )
    command = [sys.executable, "-m", "uv", "tool", "run", "pip-audit", "--disable-pip", "--no-deps", "-r", "/dev/stdin"]
    return subprocess.run(command, input=frozen.stdout, check=False).returncode  # noqa: S603


def main() -> int:
    """Print what was found; the exit code is 1 if anything was."""
    advisories = read()
    found = [*admitted(advisories, bounds()), *installed(advisories)]
    print(*found, sep="\n", end="\n" if found else "")
    print(f"{len(advisories)} advisories were compared with {len(installed_versions())} packages: {len(found)} apply.")
    return int(bool(found)) or pip_audit()


if __name__ == "__main__":
    sys.exit(main())
