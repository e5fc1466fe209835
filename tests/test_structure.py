"""The shape of the code: imports run one way, start-up is light, public names and registries are complete."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import favorbench as fb
from favorbench.maps import MAPS
from favorbench.samplers import SAMPLERS
from tests.conftest import REPOSITORY

#: Top to bottom: a module imports only from those above it (and from its own package).
ORDER = [
    "errors", "formats", "papers", "arrays", "machine", "streams", "registry", "kernels", "logsum", "samplers", "maps",
    "causal", "attention", "theory", "targets", "inputs", "gram", "metrics", "landmarks", "baselines", "verify",
    "scenario", "plan", "trial", "worker", "provenance", "store", "summary", "speed", "tables", "ranking", "report",
    "run", "figures", "claims", "reproduce", "audit", "catalogue", "console", "cli", "__init__", "__main__",
]  # fmt: skip


def imports_of(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "favorbench":
            rest = node.module.split(".")[1:]
            found |= {rest[0]} if rest else {alias.name for alias in node.names}
    return found


def test_imports_run_one_way():
    package = REPOSITORY / "favorbench"
    for path in package.rglob("*.py"):
        parts = path.relative_to(package).with_suffix("").parts
        home = parts[0]
        assert home in ORDER, f"{path} has no place in the order"
        for other in imports_of(path) - {home}:
            assert ORDER.index(other) < ORDER.index(home), f"{path.name} imports {other}, which stands below it"


@pytest.mark.parametrize(
    ("arguments", "forbidden"),
    [
        (["--help"], {"numpy", "scipy", "pandas", "pyarrow", "matplotlib", "pydantic", "rich.table"}),
        (["list", "maps"], {"matplotlib", "pandas", "pyarrow", "scipy.stats", "scipy.special", "torch"}),
        (["sweep", "--dry-run"], {"matplotlib", "pandas", "pyarrow", "scipy.stats"}),
    ],
)
def test_heavy_modules_are_imported_only_where_needed(arguments, forbidden):
    code = f"""
import sys
from favorbench import cli
sys.argv = ["favorbench", *{arguments!r}]
try:
    cli.main()
except SystemExit:
    pass
print(*sys.modules, file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert set(done.stderr.split()) & forbidden == set()


def test_public_names_are_complete_and_importable():
    assert sorted(fb.__all__) == sorted(dir(fb))
    for name in fb.__all__:
        assert getattr(fb, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = fb.nothing  # pyright: ignore


@pytest.mark.parametrize("member", [*MAPS, *SAMPLERS], ids=lambda m: m.name)
def test_members_declare_their_claims(member):
    built = member()
    assert built == member() and hash(built) == hash(member()) and built.reference and member.__doc__
    registry = MAPS if member in MAPS else SAMPLERS
    assert [m.name for m in registry].count(member.name) == 1


def test_version_and_readme_lines_agree_with_the_project():
    version = subprocess.run(
        [sys.executable, "-m", "favorbench", "--version"], capture_output=True, text=True, check=True
    )
    project = (REPOSITORY / "pyproject.toml").read_text(encoding="utf-8")
    number = version.stdout.split()[1]
    assert f'version = "{number}"' in project
    assert f"## {number}" in (REPOSITORY / "CHANGELOG.md").read_text(encoding="utf-8")
    assert f"version: {number}" in (REPOSITORY / "CITATION.cff").read_text(encoding="utf-8")
