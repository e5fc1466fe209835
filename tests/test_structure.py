"""The shape of the code: imports run one way, start-up is light, public names and registries are complete."""

import ast
import fnmatch
import graphlib
import importlib
import inspect
import pkgutil
import re

import numpy as np
import pytest

import favorbench as fb
from favorbench import maps, samplers
from favorbench.inputs import INPUTS, InputSource
from favorbench.kernels import softmax_kernel
from favorbench.maps import MAPS, FeatureMap
from favorbench.methods import METHODS, PREFIXES, Method
from favorbench.methods.features import FromMap, LinearAttention
from favorbench.methods.function import Function
from favorbench.samplers import SAMPLERS, Sampler
from favorbench.studies.kernel.targets import KERNELS, Kernel
from tests.command_line import in_a_process, python
from tests.conftest import REPOSITORY, THOROUGH

#: Top to bottom: a module imports only from those above it (and from its own package).
ORDER = [
    "errors", "formats", "sections", "parameters", "progress", "papers", "files", "statistics", "style", "numerics",
    "users", "registry", "kernels", "samplers",
    "maps", "attention", "inputs", "metrics", "methods", "baselines", "engine", "results", "run", "models",
    "studies", "catalogue", "console", "cli", "pytest_plugin", "__init__", "__main__",
]  # fmt: skip


def imports_of(path):
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


class RunTime(ast.NodeTransformer):
    """Leaves out what only type checkers read."""

    def visit_If(self, node):
        return None if ast.unparse(node.test) == "TYPE_CHECKING" else self.generic_visit(node)


def imported_files(text, files):
    """The files that a file imports, also inside functions."""
    nodes = [node for node in ast.walk(RunTime().visit(ast.parse(text))) if isinstance(node, ast.ImportFrom)]
    names = [(node.module, f"{node.module}.{alias.name}") for node in nodes for alias in node.names]
    return {name if name in files else module for module, name in names} & {*files}


def test_no_files_import_one_another_in_a_circle():
    paths = (REPOSITORY / "favorbench").rglob("*.py")
    files = {".".join(p.relative_to(REPOSITORY).with_suffix("").parts).removesuffix(".__init__"): p for p in paths}
    graph = {name: imported_files(path.read_text("utf-8"), files) for name, path in files.items()}
    assert graph["favorbench.run"] and list(graphlib.TopologicalSorter(graph).static_order())
    graph["favorbench.errors"] = imported_files("def late():\n    from favorbench.run import sweep", files)
    with pytest.raises(graphlib.CycleError):  # the control
        graphlib.TopologicalSorter(graph).prepare()


def test_no_benchmark_imports_the_program_that_runs_them():
    for path in (REPOSITORY / "benchmarks").glob("*.py"):
        modules = {n.module for n in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(n, ast.ImportFrom)}
        assert "benchmarks.__main__" not in modules


@pytest.mark.parametrize(
    "arguments, forbidden",
    [
        (["--help"], {"numpy", "scipy", "pandas", "pyarrow", "matplotlib", "pydantic", "rich.table", "jaxtyping"}),
        (["list", "maps"], {"matplotlib", "pandas", "pyarrow", "scipy.stats", "scipy.special", "torch", "jaxtyping"}),
        (["sweep", "--dry-run"], {"matplotlib", "pandas", "pyarrow", "scipy.stats", "jaxtyping"}),
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
"""
    assert imported_by(code) & forbidden == set()


def test_workers_import_neither_pandas_nor_pyarrow():
    """A worker imports the script that started it, and so what that imports."""
    found = imported_by("from favorbench import run, sweep")
    assert "favorbench.engine.tasks" in found
    assert found & {"matplotlib", "pandas", "pyarrow", "jaxtyping", "rich"} == set()


def imported_by(code):
    """The modules that are there after some code has run in an interpreter of its own."""
    code += "\nimport sys\nprint(*sys.modules, file=sys.stderr)"
    done = python("-c", code, check=True)
    return set(done.stderr.split())


@pytest.mark.skipif(not THOROUGH, reason="shapes are checked where THOROUGH is set (tests/conftest.py)")
def test_shapes_in_signatures_are_checked():
    with pytest.raises(Exception, match=r"(?s)softmax_kernel.*x: Float"):
        softmax_kernel(np.zeros(3), np.zeros((2, 3)))
    with pytest.raises(Exception, match=r"(?s)Positive.features.*projection: Float"):
        MAPS[2]().features(np.zeros((4, 3)), np.zeros((5, 2)), fb.Sample(np.zeros((2, 3))))
    with pytest.raises(Exception, match=r"(?s)relative_variance.*y: Float"):
        MAPS[2]().relative_variance(np.zeros((4, 3)), np.zeros((4, 2)), 1)


#: Concrete classes that are no members, and why.
NO_MEMBERS = {
    "BlockSampler": "what samplers of square blocks share",
    "Sparse": "what block-sparse methods share", "InBlocks": "what block-sparse methods share",
    "Scored": "what block-sparse methods share", "Nothing": "a method behind prefixes only",
    "Centred": "what clusters and multipole share", "Polynomial": "what taylor-1 and taylor-2 share",
    "Unsized": "what baselines without a size share",
    "Trigonometric": "what trig, phase and their published variants share",
    "WrappedMap": "what transforms and controls derive from",
    "TimesNorm": "a map of exp(x.y) as one of the Gaussian kernel",
    "Explicit": "of the polynomial kernel: in Polynomial.map",
    "PolynomialSketch": "of the polynomial kernel: in Polynomial.map",
    "Shifted": "a map's features without its stabilisers, for verify",
    "PerformerSampler": "another's, for audit", "Implementation": "another's, for audit",
    "Arrays": "what a sweep makes of inputs in memory",
    "CalibratedElsewhere": "what calibrated:map is while verify asks it",
    "ClaimedMap": "a control", "PerKeyRowMax": "a control", "MissingNormalisation": "a control",
    "HyperbolicHalf": "a control", "ClaimedSampler": "a control", "ChiSquareNorms": "a control",
    "RepeatedBlocks": "a control",
}  # fmt: skip

FAMILIES = [
    (FeatureMap, {*MAPS, *maps.TRANSFORMS}), (Sampler, {*SAMPLERS, *samplers.TRANSFORMS}),
    (Method, {*METHODS, *PREFIXES, *fb.BASELINES, FromMap, LinearAttention, Function}),
    (InputSource, set(INPUTS)), (Kernel, set(KERNELS)),
]  # fmt: skip


def defined_classes():
    """Every class that a module of the package defines, whether anything imports that module or not."""
    found = set()
    for module in pkgutil.walk_packages(fb.__path__, "favorbench."):
        if module.name != "favorbench.__main__":
            members = inspect.getmembers(importlib.import_module(module.name), inspect.isclass)
            found |= {cls for _, cls in members if cls.__module__ == module.name}
    return found


def forgotten(base, registered):
    members = {cls for cls in defined_classes() if issubclass(cls, base) and not inspect.isabstract(cls)}
    return {cls.__name__ for cls in members - registered}


@pytest.mark.parametrize("base, registered", FAMILIES, ids=[base.__name__ for base, _ in FAMILIES])
def test_a_member_that_is_defined_is_registered(base, registered):
    """And the control: one that is taken out of its tuple is missed."""
    assert forgotten(base, registered) <= set(NO_MEMBERS)
    for member in registered:
        assert member.__name__ in forgotten(base, registered - {member})


def test_classes_that_are_not_members_exist():
    assert set(NO_MEMBERS) <= {cls.__name__ for cls in defined_classes()}


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


def test_the_check_runs_every_file_that_skips_without_torch():
    check = REPOSITORY / ".ci" / "run"
    if not check.exists():
        pytest.skip("not in a source distribution")
    named = re.findall(r"tests/(test_[\w*]+\.py)", check.read_text(encoding="utf-8"))
    files = (REPOSITORY / "tests").glob("test_*.py")
    need = [file.name for file in files if re.search(r'importorskip\("torch"\)', file.read_text("utf-8"))]
    left = [name for name in need if not any(fnmatch.fnmatch(name, pattern) for pattern in named)]
    assert len(need) > 15 and left == []


def test_version_and_readme_lines_agree_with_the_project():
    version = in_a_process("--version", check=True)
    project = (REPOSITORY / "pyproject.toml").read_text(encoding="utf-8")
    number = version.stdout.split()[1]
    assert f'version = "{number}"' in project
    assert f"## [{number}]" in (REPOSITORY / "CHANGELOG.md").read_text(encoding="utf-8")
    assert f"version: {number}" in (REPOSITORY / "CITATION.cff").read_text(encoding="utf-8")
