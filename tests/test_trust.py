"""Files of other people may be read, and nothing else. docs/trust.md says who is trusted."""

import ast
import json
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType

import pytest
from command_line import python, refused, run

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
@pytest.mark.parametrize("text", [r"'run\x3aEvil'", r"'\162un:Evil'", "'run' ':Evil'"])
def test_a_module_cannot_be_hidden_in_an_argument(text):
    """By escapes, or in two pieces: the texts of a spec are checked as they are written."""
    spec = json.dumps(f"sinks(2, sampler={text}):positive")
    Path("theirs.toml").write_text(SCENARIO.format(maps='"positive"', methods=spec, sampler="iid"))
    assert "theirs.toml: " in refused("sweep theirs.toml --dry-run")
    assert not Path("PWNED").exists()
    assert fb.get_method("sinks(2, sampler='antithetic:iid'):positive").sampler == "antithetic:iid"


@pytest.mark.parametrize(
    "folder, keys",
    [("top", {"maps": '"top:X"'}), ("centre", {"methods": '"centre:X"'}), ("antithetic", {"maps": '"antithetic:X"'}),
     ("centre", {"sampler": "centre:X"}), ("centre", {"methods": "\"sinks(2, sampler='centre:X'):positive\""}),
     ("entre", {"methods": json.dumps(r"sinks(2, sampler='entre\x3apositive'):centre:positive")}),
     ("used_here", {"maps": '"used_here:X"'}), ("used_here", {"maps": '"used_here.inside:X"'})],
)  # fmt: skip
def test_a_folder_is_not_imported_for_a_prefix_or_a_file_of_its_name(folder, keys):
    """A downloaded folder may be called as a prefix is, as the end of one, or as a file of the user's."""
    for name in ("used_here", "used_here.inside"):
        Path(f"{name}.py").write_text("X = 1\n")
    Path(folder).mkdir()
    for name in ("__init__", "inside"):
        Path(f"{folder}/{name}.py").write_text("open('PWNED', 'w').close()\n")
    Path("theirs.toml").write_text(SCENARIO.format(**{"maps": '"positive"', "methods": "", "sampler": "iid"} | keys))
    assert "theirs.toml: " in refused("sweep theirs.toml --dry-run")
    assert not Path("PWNED").exists()


def test_a_folder_of_results_may_be_called_as_a_prefix_is():
    Path("centre").mkdir()
    Path("theirs.toml").write_text(SCENARIO.format(maps='"centre:positive"', methods="", sampler="iid"))
    assert run("sweep theirs.toml --dry-run")[0] == 0


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
    del manifest["scenario_digest"]  # as version 0.2 wrote it; with it, the run is refused
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


def test_a_flag_may_replace_the_estimator_that_the_file_names():
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
    "users.py": (
        {"importlib.import_module"},
        "import_object, whose callers are below, and modules that it has imported",
    ),
    "__init__.py": ({"importlib.import_module"}, "the package's own names"),
    "models/__init__.py": ({"import_module"}, "torch and transformers, whose names stand in the code"),
    "models/load.py": ({"eval"}, "torch's method that ends training, not Python's eval"),
    "engine/tasks.py": ({"pickle.loads", "pickle.dumps"}, "what our own parent process has pickled"),
    "engine/cluster.py": (
        {f"cloudpickle.{what}_pickle_by_value" for what in ("register", "unregister", "list_registry")},
        "modules of the user, sent to the cluster that the user has named",
    ),
}
#: Callers of import_object and of what builds objects from names of files, and where their names come from.
IMPORTERS = {
    "registry.py": "specs: the command line and Python; those of files pass check_trusted first",
    "methods/function.py": "the same",
    "models/load.py": "the model of the command line or of Python; no file names one that is loaded",
    "studies/audit.py": "the command line",
}
CHECKED = {
    "engine/scenario.py": "scenario files, and manifests of runs that are swept again",
    "models/recommended.py": "recommendations for heads and for models",
    "users.py": "check_trusted itself",
}


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


def test_every_place_that_imports_or_runs_by_name_is_known():
    package = Path(users.__file__).parent
    found = {
        path.relative_to(package).as_posix(): dangerous(ast.parse(path.read_text())) for path in package.rglob("*.py")
    }
    assert {path: calls for path, calls in found.items() if calls} == {
        path: calls for path, (calls, _) in DANGEROUS.items()
    }


@pytest.mark.parametrize("name, expected", [("import_object", IMPORTERS), ("check_trusted", CHECKED)])
def test_every_place_that_resolves_a_name_is_known(name, expected):
    package = Path(users.__file__).parent
    found = {path.relative_to(package).as_posix() for path in package.rglob("*.py") if f"{name}(" in path.read_text()}
    assert found - {"users.py"} == expected.keys() - {"users.py"}


@pytest.mark.parametrize(
    "source, seen",
    [("importlib.import_module(name)", True), ("import_module('torch')", False), ("eval(text)", True),
     ("pickle.loads(data)", True), ("np.load(f, allow_pickle=True)", True), ("np.load(f, allow_pickle=False)", False),
     ("json.loads(text)", False), ("re.compile(text)", False), ("torch.load(path)", True)],
)  # fmt: skip
def test_the_search_finds_planted_examples(source, seen):
    assert bool(dangerous(ast.parse(source))) == seen


def test_a_scenario_file_names_no_scheduler(tmp_path, monkeypatch):
    """Whoever runs a scheduler sends pickles to those who connect."""
    monkeypatch.chdir(tmp_path)
    text = 'maps = "positive"\nsamplers = "iid"\nR = 4\nL = 8\nd = 4\ntrials = 1\n'
    Path("s.json").write_text('{"address": "tcp://127.0.0.1:9"}')
    for cluster in ("tcp://127.0.0.1:9", "127.0.0.1:9", "s.json"):
        Path("theirs.toml").write_text(f'{text}cluster = "{cluster}"\n')
        for flags in ("", " --dry-run"):
            said = refused(f"sweep theirs.toml{flags}")
            assert f"theirs.toml: cluster '{cluster}': a scheduler can run any code" in said
        with pytest.raises(fb.ScenarioError, match="a scheduler can run any code"):
            fb.sweep("theirs.toml", "run")
    assert fb.sweep("theirs.toml", "run", cluster="none").manifest["complete"]


@pytest.mark.parametrize(
    "command", ["table run", *[f"sweep quick --maps trig -R 4 -L 8 -d 4 --trials 2 --workers {n} -q" for n in (1, 2)]]
)
def test_no_module_of_the_working_directory_is_imported_unasked(command, tmp_path):
    """Libraries try to import others that are not installed, and processes that are started import libraries anew.

    The command is a script, as it is when installed: Python's flag -P would keep all processes from that directory.
    """
    run("sweep quick --maps positive -R 4 -L 8 -d 4 --trials 2 --out run -q")
    Path("bin").mkdir()
    Path("bin/command.py").write_text(
        "from favorbench.__main__ import main\n\nif __name__ == '__main__':\n    main()\n"
    )
    for name in (
        "bottleneck", "numexpr", "org", "scipy", "filelock", "pyarrow", "numpy", "multiprocessing", "subprocess",
    ):  # fmt: skip
        Path(f"{name}.py").write_text("open('PWNED', 'w').close()\n")
    done = python("bin/command.py", *command.split())
    assert (done.returncode, done.stderr) == (0, "")
    assert not Path("PWNED").exists()


def test_the_command_itself_is_no_module_of_the_working_directory(monkeypatch):
    """In workers it has another name: in .venv/bin here, all that libraries try to import came from here."""
    for name in ("__main__", "__mp_main__"):
        command = ModuleType(name)
        command.__file__ = str(Path(".venv/bin/favorbench").absolute())
        monkeypatch.setitem(sys.modules, name, command)
    assert users.modules_here() == []


def test_a_long_name_in_a_file_takes_no_time():
    """A search for modules that began at every letter took the square of its length: hours for a file of 1 MB."""
    Path("theirs.toml").write_text(SCENARIO.format(maps=f'"{"a" * 500_000}"', methods="", sampler="iid"))
    start = time.process_time()
    assert "has 500000 characters; allowed: at most 1000" in refused("sweep theirs.toml")
    assert time.process_time() - start < 10
