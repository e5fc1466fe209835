"""Every dependency has a lower bound, and none admits a version with a known vulnerability."""

import tomllib

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from tests.conftest import REPOSITORY

PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text("utf-8"))["project"]
REQUIREMENTS = [
    *PROJECT["dependencies"],
    *(line for extra in PROJECT["optional-dependencies"].values() for line in extra),
]
ADVISORIES = {
    package: Version(fixed)
    for line in (REPOSITORY / "tests" / "data" / "advisories.txt").read_text("utf-8").splitlines()
    if not line.startswith("#")
    for package, fixed, *_ in [line.split()]
}


def fault(line):
    """The fault of a requirement; empty if it has none."""
    requirement = Requirement(line)
    bounds = [Version(part.version) for part in requirement.specifier if part.operator == ">="]
    if not bounds:
        return f"{line}: no lower bound"
    fixed = ADVISORIES.get(requirement.name)
    return f"{line}: a known vulnerability below {fixed}" if fixed is not None and max(bounds) < fixed else ""


@pytest.mark.parametrize("line", sorted(set(REQUIREMENTS)))
def test_a_dependency_has_a_lower_bound_without_known_vulnerabilities(line):
    assert fault(line) == ""


@pytest.mark.parametrize("line", ["accelerate", "filelock>=3.13", "torch>=2.3", "distributed>=2024.8"])
def test_the_bounds_of_version_0_2_are_refused(line):
    assert fault(line) != ""


def test_every_advisory_is_of_a_dependency():
    assert ADVISORIES.keys() <= {Requirement(line).name for line in REQUIREMENTS}
