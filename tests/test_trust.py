"""What files of somebody else may do: nothing but be read. docs/trust.md says who is trusted."""

import ast
import json
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from command_line import refused, run

import favorbench as fb
from favorbench import users
from favorbench.errors import ScenarioError

SCENARIO = """
maps = [{maps}]
samplers = ["{sampler}"]
methods = [{methods}]
R = [4]
L = [16]
d = [4]
trials = 2
baselines = ["uniform"]
"""

#: Each would make the file PWNED when it is constructed, called or imported.
ATTACKS = {
    "a class of the standard library": {"maps": "\"subprocess:Popen(args=['touch','PWNED'])\""},
    "a function": {"methods": '"os:system"'},
    "inside a transform": {"maps": "\"centre:subprocess:Popen(args=['touch','PWNED'])\""},
    "behind spaces": {"maps": "\"centre: subprocess :Popen(args=['touch','PWNED'])\""},
    "as a sampler": {"sampler": "subprocess:Popen(args=['touch','PWNED'])"},
    "in an argument": {"methods": "\"linear(positive, sampler='subprocess:Popen')\""},
    "in a package of the working directory": {"maps": '"run.evil:Evil"'},
    "as a package of the working directory": {"maps": '"run:Evil"'},
}  # fmt: skip


@pytest.fixture
def folder_with_code(monkeypatch):
    """A run of somebody else that is also a package: importing it makes PWNED."""
    Path("run").mkdir()
    for name in ("__init__", "evil"):
        Path(f"run/{name}.py").write_text("open('PWNED', 'w').close()\nclass Evil: pass\n")
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] == "run"]:
        del sys.modules[name]


def scenario_of(attack):
    return SCENARIO.format(**{"maps": '"positive"', "methods": "", "sampler": "iid"} | ATTACKS[attack])


@pytest.mark.usefixtures("folder_with_code")
@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.parametrize("more", [[], ["--dry-run"]])
def test_a_scenario_file_imports_nothing(attack, more):
    Path("theirs.toml").write_text(scenario_of(attack))
    said = refused("sweep", "theirs.toml", "--out", "mine", *more)
    assert "theirs.toml: " in said and "FAVORBENCH_TRUST" in said
    assert not Path("PWNED").exists() and not Path("mine").exists()


@pytest.mark.usefixtures("folder_with_code")
@pytest.mark.parametrize("attack", ATTACKS)
def test_a_run_imports_nothing(attack):
    """Its manifest, through every command that reads a run."""
    fb.sweep(
        "quick", maps="positive", samplers="iid", num_projections=4, seq_len=16, head_dim=4, trials=2, out="theirs"
    )
    Path("theirs.toml").write_text(scenario_of(attack))
    file = Path("theirs/manifest.json")
    manifest = json.loads(file.read_text())
    values = {"maps": ["positive"], "methods": [], "sampler": "iid"}
    values |= {key: [ast.literal_eval(text)] if key != "sampler" else text for key, text in ATTACKS[attack].items()}
    changed = {"maps": values["maps"], "methods": values["methods"], "samplers": [values["sampler"]]}
    manifest["scenario"] |= changed
    file.write_text(json.dumps(manifest))
    for command in ("speed", "table", "table --rank", "plot", "report", "status", "table --rows"):
        name, *more = command.split()
        run(name, "theirs", *more)
        assert not Path("PWNED").exists(), command
    with pytest.raises(ScenarioError, match=r"the manifest of the run.*FAVORBENCH_TRUST"):
        fb.sweep(fb.load("theirs").scenario, "again")
    with pytest.raises(ScenarioError, match="FAVORBENCH_TRUST"):
        fb.sweep(fb.load("theirs").scenario, "again", trials=3)
    assert not Path("PWNED").exists()


def test_a_flag_in_the_place_of_what_the_file_names_is_enough():
    Path("theirs.toml").write_text(scenario_of("a class of the standard library"))
    code, _, err = run("sweep theirs.toml --maps positive --out mine -q")
    assert (code, err) == (0, "")


MODULE = """
from dataclasses import dataclass
import favorbench as fb

@dataclass(frozen=True)
class Mine(type(fb.get_map("positive"))):
    name = "mine"
"""


def test_modules_of_the_working_directory_and_those_that_are_trusted(monkeypatch):
    Path("trusted_here.py").write_text(MODULE)
    Path("mine.toml").write_text(SCENARIO.format(maps='"centre:trusted_here:Mine"', methods="", sampler="iid"))
    assert fb.load_scenario("mine.toml").maps == ("centre:trusted_here:Mine",)
    Path("elsewhere").mkdir()
    Path("elsewhere/trusted_there.py").write_text(MODULE)
    monkeypatch.syspath_prepend("elsewhere")
    Path("mine.toml").write_text(SCENARIO.format(maps='"trusted_there:Mine"', methods="", sampler="iid"))
    with pytest.raises(ScenarioError, match="set FAVORBENCH_TRUST=trusted_there"):
        fb.load_scenario("mine.toml")
    assert fb.load_scenario("mine.toml", {"maps": "trusted_there:Mine"}).maps == ("trusted_there:Mine",)
    monkeypatch.setenv("FAVORBENCH_TRUST", "another,trusted_there")
    assert fb.load_scenario("mine.toml").maps == ("trusted_there:Mine",)


BUILT = []


@dataclass(frozen=True)
class NotAnEstimator:
    """Says when it is constructed."""

    value: int = 0
    name: str = field(default="nothing")

    def __post_init__(self):
        BUILT.append(self.value)


@pytest.mark.parametrize("build", [fb.get_map, fb.get_sampler, fb.get_method, fb.get_baseline])
def test_a_class_of_another_kind_is_not_constructed(build, monkeypatch):
    """On the command line and in Python too: a typing error starts no program."""
    monkeypatch.setitem(sys.modules, "trust_module", sys.modules[__name__])
    with pytest.raises(ScenarioError, match=r"is of type NotAnEstimator; it must be .*a frozen dataclass derived from"):
        build("trust_module:NotAnEstimator(value=3)")
    assert BUILT == []


#: Calls that run code which a text or a file names, and where they may stand, each with its reason.
DANGEROUS = {
    "users.py": "import_object: the command line and Python; of files, what check_trusted lets through",
    "__init__.py": "the package's own names",
    "registry.py": "modules that import_object has imported",
    "models/__init__.py": "torch and transformers, whose names stand in the code",
    "models/load.py": "transformers and torch load weights: weights_only, and code of a model only by a flag",
    "engine/tasks.py": "what our own parent process has pickled",
    "pytest_plugin.py": "modules of the tests that ask for it",
}
NAMES = {"import_module", "__import__", "eval", "exec", "compile", "loads", "load", "read_pickle", "Unpickler"}


def dangerous(tree):
    """Calls that may run code: imports of a computed name, eval, pickles."""
    found = set()
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        function = node.func
        name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
        owner = getattr(getattr(function, "value", None), "id", "")
        constant = bool(node.args) and isinstance(node.args[0], ast.Constant)
        if (name in ("import_module", "__import__") and not constant) or (
            (name in ("eval", "exec", "compile") and not owner)
            or owner in ("pickle", "cloudpickle", "marshal", "joblib", "dill")
            or (owner == "torch" and name == "load")
            or (name == "load" and any(word.arg == "allow_pickle" and word.value.value for word in node.keywords))
        ):
            found.add(f"{owner}.{name}" if owner else name)
    return found


def test_every_place_that_runs_what_a_text_names_is_known():
    package = Path(users.__file__).parent
    found = {
        path.relative_to(package).as_posix(): dangerous(ast.parse(path.read_text())) for path in package.rglob("*.py")
    }
    found = {path: calls for path, calls in found.items() if calls}
    assert "importlib.import_module" in found["users.py"]  # or this test sees nothing
    unknown = {path: calls for path, calls in found.items() if path not in DANGEROUS and "cluster" not in path}
    assert unknown == {}


@pytest.mark.parametrize(
    "source, seen",
    [("importlib.import_module(name)", True), ("import_module('torch')", False), ("eval(text)", True),
     ("pickle.loads(data)", True), ("np.load(f, allow_pickle=True)", True), ("np.load(f, allow_pickle=False)", False),
     ("json.loads(text)", False), ("re.compile(text)", False), ("torch.load(path)", True)],
)  # fmt: skip
def test_the_search_sees_what_it_looks_for(source, seen):
    assert bool(dangerous(ast.parse(source))) == seen
