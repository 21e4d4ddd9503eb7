"""Advisories, bounds and locked versions agree."""

import re
from datetime import date
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from benchmarks import advisories
from benchmarks.advisories import admitted, bounds, installed, overlap, read

LOCKED = Path(".ci/constraints.txt")


def locked() -> list[tuple[str, str]]:
    """Packages and versions; some have two, for other versions of Python."""
    return re.findall(r"^([\w.-]+)==([^\s;]+)", LOCKED.read_text(), re.MULTILINE)


def test_the_list_can_be_used():
    kept = read()
    assert len({(a.advisory, str(a.affected)) for a in kept}) == len(kept) > 40
    for entry in kept:
        assert re.fullmatch(r"(GHSA(-\w{4}){3}|CVE-\d{4}-\d+|PYSEC-\d{4}-\d+)", entry.advisory), entry
        assert date(2026, 1, 1) <= date.fromisoformat(entry.checked), entry
        assert len(entry.affected) > 0, entry
    assert {a.package for a in kept} >= {"lightning", "torch", "pillow", "ray", "wandb", "jinja2", "pyarrow"}


def test_no_bound_admits_an_advisory():
    assert list(admitted(read(), bounds())) == []


def test_nothing_installed_has_an_advisory():
    assert list(installed(read())) == []


def test_nothing_locked_has_an_advisory():
    for name, version in locked():
        assert list(installed(read(), {canonicalize_name(name): version})) == []


def test_locked_versions_are_within_our_bounds():
    """Every package that the project names is locked, each with hashes."""
    allowed = bounds()
    assert {canonicalize_name(name) for name, _ in locked()} >= allowed.keys() - {"codid-lightning"}
    for name, version in locked():
        assert allowed.get(canonicalize_name(name), SpecifierSet()).contains(version, prereleases=True), name
    blocks = re.split(r"\n(?=[\w.-]+==)", LOCKED.read_text())[1:]
    assert len(blocks) == len(locked()) > 100
    assert all("--hash=sha256:" in block for block in blocks)
    assert "://" not in LOCKED.read_text()


# ---------------------------------------------------------------------------------- the comparison finds what it should


@pytest.mark.parametrize(
    ("bound", "affected", "found"),
    [
        (">=2.6.6,<3", "<2.6.6", None),
        (">=2.6.5,<3", "<2.6.6", "2.6.5"),
        (">=2.5,<3", ">=2.6.2,<=2.6.3", "2.6.2"),
        (">=2.5,!=2.6.2,!=2.6.3", "==2.6.2", None),
        (">2.6.2,<3", ">=2.6.2,<=2.6.3", "2.6.3"),
        ("", "<1", "0"),
        (">=1", ">=0", "1"),
        (">=2.10", "<=2.10.0", "2.10"),
        (">=10,<11", ">=11,<12", None),
    ],
)
def test_overlap(bound, affected, found):
    version = overlap(SpecifierSet(bound), SpecifierSet(affected))
    assert (None if version is None else str(version)) == found


def entry(affected, unused="", package="lightning"):
    return advisories.Advisory(package, SpecifierSet(affected), "CVE-2026-1", "2026-11-19", unused)


def test_old_bounds_would_be_found(tmp_path):
    """With the bounds the project had before, the list names what they admit."""
    text = Path("pyproject.toml").read_text()
    for ours, before in (
        ("lightning>=2.6.6", "lightning>=2.5"),
        ("torch>=2.11", "torch>=2.9"),
        ("pillow>=12.3", "pillow>=10"),
    ):
        assert f'"{ours}' in text
        text = text.replace(f'"{ours}', f'"{before}')
    (tmp_path / "pyproject.toml").write_text(text)
    found = " ".join(admitted(read(), bounds(tmp_path / "pyproject.toml")))
    for advisory in ("GHSA-w37p-236h-pfx3", "GHSA-qqmf-gpg7-g8gw", "CVE-2026-24747", "GHSA-cfh3-3jmp-rvhc"):
        assert advisory in found


def test_a_bad_installed_version_is_found():
    assert list(installed([entry(">=2.6.2,<=2.6.3")], {"lightning": "2.6.3"}))
    assert list(installed([entry("<2.10.0", package="torch")], {"torch": "2.9.1+cpu"}))
    assert not list(installed([entry("<2.10.0", package="torch")], {"torch": "2.15.0+cpu"}))


def test_a_hole_that_our_source_does_not_reach_is_left_out_only_while_that_is_so():
    everything = {"lightning": SpecifierSet(">=2")}
    assert not list(admitted([entry("<99", unused="torch.jit")], everything))
    assert list(admitted([entry("<99", unused="torch.load")], everything))
