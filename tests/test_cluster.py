"""Sweeps on a Dask cluster: the same bits as in one process, with nothing shared but a port, and clear refusals."""

import importlib
import json
import logging
import os
import pickle
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("distributed")

import favorbench as fb
from favorbench.engine.cluster import Cluster, ClusterPool, WorkerState, _pack, within
from favorbench.engine.plan import plan
from favorbench.engine.study import Study
from favorbench.errors import ScenarioError, StoreError, WorkerError
from favorbench.results.findings import sentences
from favorbench.run import sweep
from tests.clusters import cluster, first_query, wait_for
from tests.command_line import check_refused, python, read_table, refused, run
from tests.conftest import parts, random_heads, small_scenario

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # Dask's own, of sockets closed late

MINE = """
from my_helper import factor, finish


def mine(query, key, value, size, rng):
    return finish(factor * value.mean(0) + 0 * query @ key.T @ value)
"""


@pytest.fixture(scope="module")
def processes(tmp_path_factory):
    with cluster(tmp_path_factory.mktemp("cluster")) as found:
        yield found


def same(one, other):
    assert one.trials.equals(other.trials)
    assert one.manifest["digest"] == other.manifest["digest"]


def test_the_same_bits_as_in_one_process(processes):
    scenario = small_scenario(trials=40, methods="clusters")
    alone, calls = sweep(scenario, "alone"), []
    found = sweep(scenario, "run", cluster=processes.address, progress=lambda *now: calls.append(now))
    same(alone, found)
    assert calls[0] == (0, 40) and calls[-1] == (40, 40) and found.manifest["complete"]
    assert len(found.manifest["workers"]) == 1, found.manifest["workers"]
    (machine,) = found.manifest["workers"]
    assert machine["done"] == 40 and machine["blas"] and machine["host"] == socket.gethostname()
    assert "workers" not in alone.manifest


def test_work_of_machines_is_counted_for_each_run_of_a_connection(processes):
    with Cluster(processes.address) as place:
        runs = [sweep(small_scenario(trials=trials), f"run-{trials}", workers=place) for trials in (4, 6, 7)]
    assert [sum(machine["done"] for machine in run.manifest["workers"]) for run in runs] == [4, 6, 7]


def test_the_library_leaves_logs_alone_and_the_command_silences_those_of_dask(processes):
    loggers = [logging.getLogger(name) for name in ("distributed", "tornado", "asyncio")]
    before = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.INFO)
        sweep(small_scenario(), "library", cluster=processes.address)
        assert [logger.level for logger in loggers] == [logging.INFO] * 3
        arguments = ("sweep", "-R", "4", "-L", "8", "-d", "4", "--trials", "2", "-q", "--out", "command")
        assert run(*arguments, "--cluster", processes.address)[0] == 0
        assert [logger.level for logger in loggers] == [logging.CRITICAL] * 3
    finally:
        for logger, level in zip(loggers, before, strict=True):
            logger.setLevel(level)


def test_stored_draws_are_not_repeated_and_need_no_cluster(processes):
    scenario = small_scenario(trials=6)
    sweep(scenario, "run", cluster=str(processes.file))
    before = parts()
    assert sweep(scenario, "run", cluster="tcp://127.0.0.1:9").manifest["complete"]
    assert parts() == before


def test_a_client_of_ones_own_stays_open(processes):
    from distributed import Client

    with Client(processes.address, set_as_default=False) as client:
        same(sweep(small_scenario(), "one"), sweep(small_scenario(), "two", workers=client))
        same(fb.load("one"), sweep(small_scenario(), "executor", workers=client.get_executor(pure=False)))
        assert client.status == "running"


def test_files_arrays_and_calibrations_travel(processes, rng):
    heads = random_heads(rng, 2, 20, 4)
    np.savez("mine.npz", **heads)
    os.mkdir("folder")
    for name, array in heads.items():
        np.save(f"folder/{name}.npy", 2 * array)
    np.savez_compressed("other.npz", **random_heads(rng, 2, 20, 4))
    asked = small_scenario(
        inputs="mine.npz,folder", calibrate="other.npz", maps="positive,calibrated:centre:aderf-sderf",
        seq_len=None, head_dim=None,
    )  # fmt: skip
    same(sweep(asked, "one"), sweep(asked, "two", cluster=processes.address))
    held = {"inputs": {"mine": tuple(heads.values())}, "num_projections": [4], "trials": 2}
    same(sweep(held, "three"), sweep(held, "four", cluster=processes.address))


def test_files_that_are_too_large_to_send_are_read_where_they_are(processes, rng, monkeypatch):
    np.savez("mine.npz", **random_heads(rng, 2, 20, 4))
    monkeypatch.setattr("favorbench.engine.cluster.MAX_SENT", 100)
    asked = {"inputs": "mine.npz", "num_projections": [4], "trials": 2}
    same(sweep(asked, "one"), sweep(asked, "two", cluster=processes.address))
    monkeypatch.setattr("favorbench.inputs.fixed.File.digest", lambda file: "of another file")
    with pytest.raises(WorkerError, match=r"worker tcp.*: .*mine\.npz is not there, or is another"):
        sweep(asked, "three", cluster=processes.address)


@pytest.mark.parametrize("order", ["small.npz,large.npz", "large.npz,small.npz"])
def test_a_small_file_is_sent_next_to_one_that_is_too_large(order, rng, monkeypatch):
    np.savez("small.npz", **random_heads(rng, 2, 10, 4))
    np.savez("large.npz", **random_heads(rng, 2, 200, 4))
    monkeypatch.setattr("favorbench.engine.cluster.MAX_SENT", 10_000)
    study = Study.of(fb.load_scenario(None, {"inputs": order}))
    _, there = pickle.loads(_pack(print, study, study.specs, study.backend)[0])
    assert {name: type(source.law).__name__ for name, source in there.inputs.items()} == {
        "small.npz": "Arrays",
        "large.npz": "File",
    }


@pytest.fixture
def mine(module):
    """A method of the user's in the working directory, which imports another file there."""

    def written(factor):
        lines = "\n" * int(factor)  # another length, or bytecode of the same second would be taken for this file's
        module("my_helper", f"factor = {factor}\n{lines}def finish(answer):\n    return answer\n")
        module("my_method", MINE)

    return written


def test_a_users_modules_travel_and_changed_ones_are_not_those_of_before(processes, mine):
    found = []
    for factor in (1.0, 3.0):
        mine(factor)
        scenario = small_scenario(methods="my_method:mine", trials=4)
        found.append(sweep(scenario, f"cluster-{factor}", cluster=processes.address))
        same(sweep(scenario, f"alone-{factor}"), found[-1])
    assert not found[0].trials["mse"].equals(found[1].trials["mse"])


def test_a_module_with_two_names_is_packed_and_one_that_the_user_registered_stays_so(mine, monkeypatch):
    """In a spawned process the script is both __main__ and __mp_main__."""
    import cloudpickle

    mine(1.0)
    study = Study.of(small_scenario(methods="my_method:mine"))
    monkeypatch.setitem(sys.modules, "my_alias", sys.modules["my_method"])
    cloudpickle.register_pickle_by_value(sys.modules["my_helper"])
    try:
        _pack(print, study, study.specs, study.backend)
        assert cloudpickle.list_registry_pickle_by_value() == {"my_helper"}
    finally:
        cloudpickle.unregister_pickle_by_value(sys.modules["my_helper"])


def test_an_installed_module_that_differs_is_refused(processes, monkeypatch, tmp_path_factory):
    installed = tmp_path_factory.mktemp("installed")
    (installed / "somewhere_else.py").write_text("def mine(query, key, value, size, rng):\n    return 0 * query\n")
    monkeypatch.syspath_prepend(str(installed))
    with pytest.raises(WorkerError, match=r"worker tcp.*: somewhere_else \(not installed\) there, .* here"):
        sweep(small_scenario(methods="somewhere_else:mine"), "run", cluster=processes.address)
    sys.modules.pop("somewhere_else", None)


def test_an_installed_module_that_is_edited_is_refused_by_workers_that_run_the_old_one(monkeypatch, tmp_path_factory):
    """Its file is the same there and here, but a worker does not import it anew."""
    installed = tmp_path_factory.mktemp("installed")
    code = "def mine(query, key, value, size, rng):\n    return 0 * query + {}\n"
    (installed / "edited_later.py").write_text(code.format(1))
    monkeypatch.syspath_prepend(str(installed))
    scenario = small_scenario(methods="edited_later:mine")
    with cluster("c", 0) as processes:
        processes.worker(PYTHONPATH=os.pathsep.join([str(installed), os.environ.get("PYTHONPATH", "")]))
        processes.wait_for_workers(1)
        sweep(scenario, "old", cluster=processes.address)
        (installed / "edited_later.py").write_text(code.format(20))
        importlib.reload(sys.modules["edited_later"])
        with pytest.raises(WorkerError, match=r"worker tcp.*edited_later\.py has changed since Python imported it"):
            sweep(scenario, "new", cluster=processes.address)
    sys.modules.pop("edited_later", None)


def test_what_a_module_imports_from_elsewhere_is_compared(module, monkeypatch, tmp_path_factory):
    """It is not sent: a worker that had imported it ran its old code after an edit, and the rows were those of it.

    Nor is what is built, as from C: of workers without it, favorbench was to be installed again. What is for a type
    checker only is not imported: workers without it were left out.
    """
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    code = "factor = 1\nif not factor:\n    import my_kinds\n"
    (elsewhere / "my_library.py").write_text(code, encoding="utf-8")
    (elsewhere / "my_kinds.py").write_text("", encoding="utf-8")
    monkeypatch.syspath_prepend(str(elsewhere))
    built = Path(f"my_kernel{EXTENSION_SUFFIXES[0]}").resolve()
    built.write_text("of C", encoding="utf-8")
    monkeypatch.setitem(sys.modules, "my_kernel", SimpleNamespace(__name__="my_kernel", __file__=str(built)))
    code = "import json, my_kernel, my_library\ndef mine(query, key, value, size, rng):\n"
    code += "    return my_library.factor * query\n"
    module("my_method", code)
    study = Study.of(small_scenario(methods="my_method:mine"))
    versions = _pack(print, study, study.specs, study.backend)[1]
    assert {*versions} == {"python", "favorbench", "numpy", "scipy"} | {
        f"{name} (imported, and not sent)" for name in ("my_kernel", "my_library")
    }


OF_TWO = """
from dataclasses import dataclass
import favorbench as fb

def mine(query, key, value, size, rng):
    return 0 * query + {0}

@dataclass(frozen=True)
class Law(fb.Sampler):
    name, reference, coupling = "law", "-", "independent"

    def sample(self, rng, num_projections, head_dim):
        return {0} * rng.standard_normal((num_projections, head_dim))
"""


def test_the_sampler_of_a_prefix_is_sent(module):
    """A worker imported its own, and not anew after an edit: the rows were those of the old one."""
    module("of_prefix", OF_TWO.format(1))
    scenario = small_scenario(methods="sinks(1, sampler='of_prefix:Law'):positive")
    with cluster("c", 0) as own:
        own.worker(PYTHONPATH=os.pathsep.join([os.getcwd(), os.environ.get("PYTHONPATH", "")]))
        own.wait_for_workers(1)
        old = sweep(scenario, "old", cluster=own.address)
        same(old, sweep(scenario, "alone"))
        module("of_prefix", OF_TWO.format(3))
        scenario = small_scenario(methods="sinks(1, sampler='of_prefix:Law'):positive")
        new = sweep(scenario, "new", cluster=own.address)
        same(new, sweep(scenario, "new alone"))
        with pytest.raises(AssertionError):
            same(new, old)


def test_a_file_that_a_function_imports_is_compared_on_workers_that_have_it(processes, module):
    """It is not sent: a worker imports its own, and not anew after an edit."""
    late, mine = "def finish(answer):\n    return answer + {}\n", "def mine(query, key, value, size, rng):\n    {}\n"
    module("my_late", late.format(1))
    module("my_method", mine.format("from my_late import finish; return finish(0 * query)"))
    scenario = small_scenario(methods="my_method:mine")
    with cluster("c", 0) as own:
        own.worker(PYTHONPATH=os.pathsep.join([os.getcwd(), os.environ.get("PYTHONPATH", "")]))
        own.wait_for_workers(1)
        same(sweep(scenario, "old", cluster=own.address), sweep(scenario, "alone"))
        Path("my_late.py").write_text(late.format(20), encoding="utf-8")
        for name in ("my_late", "my_method"):
            importlib.reload(sys.modules[name])
        with pytest.raises(WorkerError, match=r"my_late \(imported in a function\) \w{8} there, \w{8} here"):
            sweep(scenario, "new", cluster=own.address)
    module("my_script", "raise SystemExit('it was run')")
    module("my_method", mine.format("return 0 * query") + "def unused():\n    import my_script\n")
    sweep(small_scenario(methods="my_method:mine"), "unused", cluster=processes.address)


@pytest.mark.parametrize("name", ["numpy", "favorbench"])
def test_if_every_worker_has_other_versions_the_run_ends_in_one_line(processes, monkeypatch, name):
    from favorbench.engine import cluster

    here = cluster._version
    monkeypatch.setattr(cluster, "_version", lambda library: "0.0.1" if library == name else here(library))
    with pytest.raises(WorkerError, match=rf"worker tcp.*: {name} .* there, 0\.0\.1 here; install the same"):
        sweep(small_scenario(), "run", cluster=processes.address)


def test_nothing_that_was_sent_remains_on_workers(processes, rng):
    from distributed import Client

    from favorbench.engine.tasks import load_bundle

    inputs = {"mine": tuple(rng.normal(size=(3, 2, 20, 4)))}
    sweep({"inputs": inputs, "num_projections": [4], "trials": 4}, "run", cluster=processes.address)
    with Client(processes.address, set_as_default=False) as client:
        wait_for(lambda: not any(client.has_what().values()))
        assert {info.currsize for info in client.run(load_bundle.cache_info).values()} == {0}


@pytest.mark.parametrize(
    "file, method",
    [
        ("of_two.py", "of_two:mine"),
        ("site-packages/of_two/inner.py", "of_two:mine"),
        ("of_two.py", "sinks(1, sampler='of_two:Law'):positive"),
    ],
)
def test_a_worker_that_differs_is_left_out_and_named(tmp_path_factory, monkeypatch, file, method):
    """Also in a file of an installed package that the named module imports, and in the sampler of a prefix."""
    here, there = (tmp_path_factory.mktemp(name) for name in ("here", "there"))
    for folder, factor in ((here, 1), (there, 2)):
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_text(OF_TWO.format(factor))
        if file.endswith("inner.py"):
            (folder / file).with_name("__init__.py").write_text("from of_two.inner import mine\n")
    here, there = (str((folder / file.partition("of_two")[0]).resolve()) for folder in (here, there))
    monkeypatch.syspath_prepend(here)
    left_out, scenario = [], small_scenario(methods=method)
    with cluster("c", 0) as processes:
        for folder in (there, here):
            processes.worker(PYTHONPATH=os.pathsep.join([folder, os.environ.get("PYTHONPATH", "")]))
        processes.wait_for_workers(2)
        with Cluster(processes.address, say=left_out.append) as place:
            found = sweep(scenario, "run", workers=place)
    same(sweep(scenario, "alone"), found)
    for name in [name for name in sys.modules if name.partition(".")[0] == "of_two"]:
        del sys.modules[name]
    assert len(left_out) == 1
    assert re.fullmatch(
        r"worker tcp:\S+: of_two \w{8} there, \w{8} here; install the same; it is left out", left_out[0]
    )


def test_a_worker_at_the_address_of_another_is_compared_and_may_be_mended(tmp_path_factory, monkeypatch):
    """Behind a firewall workers have fixed ports: one of another version computes nothing, until it is replaced."""
    here, there = (tmp_path_factory.mktemp(name) for name in ("here", "there"))
    source = "import time\n\ndef mine(query, key, value, size, rng):\n    time.sleep(0.05)\n    return {} + 0 * query\n"
    for folder, factor in ((here, 1), (there, 2)):
        (folder / "of_three.py").write_text(source.format(factor))
    monkeypatch.syspath_prepend(str(here))
    left_out, scenario, begun = [], small_scenario(methods="of_three:mine", trials=60), []
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    with cluster("c", 0) as processes:

        def started(folder):
            path = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
            return processes.worker("--worker-port", port, "--host", "127.0.0.1", PYTHONPATH=path)

        def ended(worker):
            worker.kill()
            worker.wait()

        def mend(wrong):
            wait_for(lambda: left_out)
            ended(wrong)
            time.sleep(3.0)  # until the run has seen that it is gone
            started(here)

        def replace(done, total):
            if done >= 5 and not begun:
                begun.append(done)
                ended(good)
                threading.Thread(target=mend, args=[started(there)], daemon=True).start()

        good = started(here)
        processes.wait_for_workers(1)
        with Cluster(processes.address, say=left_out.append) as place:
            found = sweep(scenario, "run", workers=place, progress=replace)
    same(sweep(scenario, "alone"), found)
    sys.modules.pop("of_three", None)
    (said,) = left_out
    assert re.fullmatch(rf"worker tcp:\S+:{port}: of_three \w{{8}} there, .* install the same; it is left out", said)


WITHOUT_ROOM = """
import os, time
from favorbench.inputs import Gaussian

draw, failures = Gaussian.draw, []


def fails(*given):
    failures.append(given)
    if len(failures) == 3:
        Gaussian.draw = draw
    open(TRIED, "w").close()
    raise ERROR


def mine(query, key, value, size, rng):
    if os.getpid() == BAD and not failures:
        Gaussian.draw = fails
    while os.getpid() != BAD and not os.path.exists(TRIED):  # the other worker may start slowly
        time.sleep(0.05)
    time.sleep(0.02)
    return 0 * query
"""


@pytest.mark.parametrize("error, said", [
    ("MemoryError('no room')", "MemoryError: no room"),
    ("OSError(28, 'No space left on device')", "OSError: [Errno 28] No space left on device"),
])  # fmt: skip
def test_a_worker_without_memory_or_disk_is_named_and_others_compute_its_draws(processes, module, error, said):
    """It fails three times in a row, and gets no more work."""
    from distributed import Client

    with Client(processes.address, set_as_default=False) as client:
        bad, process = min(client.run(os.getpid).items())
    names = {"BAD": str(process), "TRIED": repr(str(Path("tried").resolve())), "ERROR": error}
    module("without_room", re.sub("BAD|TRIED|ERROR", lambda found: names[found[0]], WITHOUT_ROOM))
    lines, scenario = [], small_scenario(methods="without_room:mine", trials=30)
    with Cluster(processes.address, say=lines.append) as place:
        assert sweep(scenario, "run", workers=place).manifest["complete"]
    assert [line for line in lines if bad in line and said in line and "left out" in line]


def test_an_estimator_that_fails_on_a_draw_keeps_the_rows_of_the_others(processes, mine):
    Path("my_method.py").write_text(
        "def fails(query, key, value, size, rng):\n"
        "    if abs(query[0, 0] - LAST) < 1e-9:\n        raise ZeroDivisionError('oh')\n    return 0 * query\n"
    )
    scenario = small_scenario(trials=30)
    draw = plan(Study.of(scenario))[29]
    last = first_query(draw)
    text = Path("my_method.py").read_text().replace("LAST", repr(last))
    Path("my_method.py").write_text(text)
    results = sweep(small_scenario(trials=30, methods="my_method:fails"), "run", cluster=processes.address)
    assert results.failed == {"fails": {"ZeroDivisionError: oh": [29]}}
    there = results.trials.groupby("estimator")["draw"].agg(set)
    assert there["fails"] == set(range(29)) and there["positive"] == set(range(30))


def test_different_machines_are_named_next_to_the_table(processes):
    results = sweep(small_scenario(trials=4), "run", cluster=processes.address)
    assert "machine" not in Path("run/summary.md").read_text()
    manifest = json.loads(Path("run/manifest.json").read_text())
    other = manifest["workers"][0] | {"blas": [{"internal_api": "mkl", "version": "1", "architecture": "x"}]}
    manifest["workers"] = [manifest["workers"][0] | {"done": 3}, other | {"done": 1}]
    Path("run/manifest.json").write_text(json.dumps(manifest))
    (said,) = [line for line in sentences(fb.load("run")) if "machine" in line]
    assert "2 kinds of machine" in said and "last digits" in said and "mkl" in said
    assert len(results.trials)


@pytest.mark.parametrize(
    "where, said",
    read_table("""
        local:0 => allowed after local: is a number from 1 to 1024
        local:two => after local:
        my-cluster => 'my-cluster' given, allowed: an address
        http://host:80 => allowed: an address
        missing.json => `cluster`: cannot read the scheduler file 'missing.json': No such file
        broken.json => not a scheduler file
        nowhere.json => not a scheduler file
        binary.json => not a scheduler file
        tcp://127.0.0.1:99999 => allowed: an address
        127.0.0.1:0 => allowed: an address
    """),
)
def test_values_that_are_not_clusters_are_refused(where, said):
    Path("broken.json").write_text("[1")
    Path("nowhere.json").write_text('{"address": "nowhere"}')
    Path("binary.json").write_bytes(b"PK\x03\x04\xb4")
    with pytest.raises(ScenarioError, match=said):
        sweep(small_scenario(), "run", cluster=where)
    assert not Path("run").exists()
    line = refused("sweep", "-R", "4", "--cluster", where, "--out", "run")
    assert "--cluster" in line


def test_an_error_names_the_origin_of_the_cluster(monkeypatch):
    def unknown_host(*arguments):
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown_host)  # a real look-up may take as long as it likes
    scenario = 'maps = "positive"\nsamplers = "iid"\nR = 4\nL = 8\nd = 4\ncluster = "nowhere.invalid:2"\n'
    Path("mine.toml").write_text(scenario)
    unknown = "nowhere.invalid:2: no machine is known here as 'nowhere.invalid'; allowed: an address (tcp://host:8786)"
    assert "mine.toml: cluster 'nowhere.invalid:2': a scheduler can" in refused("sweep mine.toml -q")
    with pytest.raises(ScenarioError, match=r"the scenario's `cluster` 'nowhere\.invalid:2': a scheduler can"):
        sweep("mine.toml")
    assert f"--cluster {unknown}" in refused("sweep -R 4 --cluster nowhere.invalid:2")
    monkeypatch.setenv("FAVORBENCH_CLUSTER", "nonsense")
    for command in (("sweep", "-R", "4"), ("verify", "positive"), ("recommend", "gaussian", "--target", "0.5")):
        assert refused(*command).startswith("favorbench: FAVORBENCH_CLUSTER 'nonsense' given, allowed: an address")
    with pytest.raises(ScenarioError, match="FAVORBENCH_CLUSTER 'nonsense' given"):
        sweep(small_scenario())


def test_one_of_cluster_and_workers():
    with pytest.raises(ScenarioError, match="give only one of the two"):
        sweep(small_scenario(), "run", workers=2, cluster="local:2")
    check_refused("""
        sweep -R 4 --workers 2 --cluster local:2 => give only one of the two
        recommend gaussian --target 0.5 --workers 2 --cluster local:2 => give only one of the two
    """)


def test_the_variable_gives_way_to_workers_and_does_not_concern_a_model(monkeypatch):
    """It is set for all commands, so it refuses none."""
    monkeypatch.setenv("FAVORBENCH_CLUSTER", "tcp://127.0.0.1:9")  # nothing answers there
    wanted = "--target 3 --probability 0.5 --methods clusters --maps none -R 4 -L 16 -d 4 --workers 2 --out run"
    assert run(f"recommend gaussian {wanted}")[0] == 0
    line = refused("recommend --model nowhere --text nowhere.txt --target 0.5")
    assert "--cluster" not in line and "nowhere" in line
    check_refused("recommend --model minilm --text a.txt --target 1 --cluster local:2 => --cluster is about heads, and")


def test_flag_environment_and_file_name_a_cluster_and_none_is_none(processes, monkeypatch):
    text = 'maps = "positive"\nsamplers = "iid"\nR = 4\nL = 8\nd = 4\ntrials = 2\ncluster = "tcp://127.0.0.1:9"\n'
    Path("mine.toml").write_text(text)
    plain = fb.load_scenario("mine.toml")
    assert plain.cluster == "tcp://127.0.0.1:9" and "cluster" not in plain.model_dump()
    arguments = ("sweep", "mine.toml", "-q", "--out")
    assert run(*arguments, "none", "--cluster", "none")[0] == 0
    assert run(*arguments, "flag", "--cluster", processes.address)[0] == 0
    monkeypatch.setenv("FAVORBENCH_CLUSTER", str(processes.file))
    assert run(*arguments, "environment")[0] == 0
    manifests = [json.loads(Path(run_, "manifest.json").read_text()) for run_ in ("none", "flag", "environment")]
    assert ["workers" in one for one in manifests] == [False, True, True]
    assert len({one["digest"] for one in manifests}) == 1
    assert all(one["scenario"] == manifests[0]["scenario"] for one in manifests)


def test_the_memory_of_a_machine_that_computes_nothing_is_no_limit(processes, rng, monkeypatch):
    alone = sweep(small_scenario(), "alone")
    heads = tuple(random_heads(rng, 2, 20, 4).values())
    monkeypatch.setattr("favorbench.numerics.machine.available_memory", lambda: 1000)
    same(alone, sweep(small_scenario(), "run", cluster=processes.address))
    wanted = {"target": 3.0, "probability": 0.5, "methods": "clusters", "maps": "none", "num_projections": [4]}
    assert fb.recommend(heads, cluster=processes.address, **wanted).complete
    for where, inputs in (("local:2", heads), (processes.address, [a[:1] for a in heads])):
        with pytest.raises(ScenarioError, match=r"needs .* of memory"):  # it would be computed here
            fb.recommend(inputs, cluster=where, **wanted)


def test_an_address_that_does_not_answer_is_one_line(monkeypatch):
    monkeypatch.setenv("FAVORBENCH_CLUSTER_TIMEOUT", "2")
    with socket.socket() as silent:  # it takes connections and says nothing
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        for port in (9, silent.getsockname()[1]):
            line = refused("sweep", "-R", "4", "--cluster", f"tcp://127.0.0.1:{port}", "--out", "run")
            assert f"--cluster tcp://127.0.0.1:{port}: no scheduler answers (tried for 2 s); is it running" in line
    line = refused("sweep -R 4 --cluster tls://127.0.0.1:9 --out run")
    assert "TLS expects a ssl_context" in line
    files = dict.fromkeys(("distributed.comm.tls.ca-file", "distributed.comm.tls.client.cert"), "missing.pem")
    with pytest.importorskip("dask").config.set(files):
        line = refused("sweep -R 4 --cluster tls://127.0.0.1:9 --out run")
    assert "distributed.comm.tls cannot be used: No such file or directory\n" in line
    monkeypatch.setenv("FAVORBENCH_CLUSTER_TIMEOUT", "soon")
    check_refused("sweep -R 4 --cluster tcp://127.0.0.1:9 => allowed: seconds from 1")


def test_an_address_without_a_scheduler_is_one_line(monkeypatch):
    monkeypatch.setenv("FAVORBENCH_CLUSTER_TIMEOUT", "5")
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()

        def answer():
            talk, _ = other.accept()
            talk.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n" * 10)

        threading.Thread(target=answer, daemon=True).start()
        line = refused("sweep", "-R", "4", "--cluster", f"127.0.0.1:{other.getsockname()[1]}", "--out", "run")
        assert "what answers there is not a Dask scheduler (tried for 5 s)" in line


def test_a_scheduler_without_workers_is_one_line(monkeypatch):
    monkeypatch.setenv("FAVORBENCH_CLUSTER_TIMEOUT", "2")
    with cluster("empty", workers=0) as empty:
        line = refused("sweep", "-R", "4", "--cluster", empty.address, "--out", "run")
    assert "no worker within 2 s; start some: dask worker tcp://" in line


def test_a_local_cluster_listens_on_loopback_alone():
    """And the control: what listens everywhere is seen."""
    with socket.socket() as everywhere:
        everywhere.bind(("", 0))
        everywhere.listen()
        assert any(not is_loopback(address) for address in listening({os.getpid()}))
    before = listening(family())
    with Cluster("local:2"):
        opened = listening(family()) - before
    assert len(opened) >= 3 and all(is_loopback(address) for address in opened)


def test_processes_of_this_machine_import_nothing_from_a_folder_of_all_users(monkeypatch, tmp_path):
    """Dask's folder has one name for all users of a machine: whoever makes it can leave a module there."""
    (tmp_path / "dask-scratch-space").mkdir()
    (tmp_path / "dask-scratch-space/threadpoolctl.py").write_text("raise ImportError('of somebody else')\n")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    sweep(small_scenario(trials=2), "run", cluster="local:1")
    assert str(tmp_path / "dask-scratch-space") not in sys.path
    assert not [*tmp_path.glob("favorbench-*")]


def family():
    """This process and all that it has started."""
    import psutil

    return {os.getpid(), *(child.pid for child in psutil.Process().children(recursive=True))}


def listening(pids):
    import psutil

    found = set()
    for pid in pids:
        for connection in psutil.Process(pid).net_connections(kind="inet"):
            if connection.status == psutil.CONN_LISTEN:
                found.add((connection.laddr.ip, connection.laddr.port))
    return found


def is_loopback(address):
    return address[0] in ("127.0.0.1", "::1")


@pytest.mark.parametrize("threads, seconds", [(1, 1.0), (200, 1.0), (1000, 5.0)])
def test_tasks_are_longer_on_many_workers(threads, seconds):
    """A scheduler handles 200 tasks a second, not one of each of 1000 workers."""
    pool = ClusterPool.__new__(ClusterPool)
    pool._workers = {"a": WorkerState(threads - 1, machine={"cpu": "x"}), "b": WorkerState(1, machine={"cpu": "x"})}
    pool._workers["c"] = WorkerState(100, left_out="another version")
    assert (pool.chunk_seconds, pool.slots) == (seconds, 2 * threads)


def test_a_process_that_was_stopped_does_not_take_the_scheduler_for_silent(monkeypatch):
    """As by Ctrl-Z and fg. Control: a scheduler that is silent while this process looks every second."""
    pool, now = ClusterPool.__new__(ClusterPool), [0.0]
    monkeypatch.setattr("favorbench.engine.cluster.time", SimpleNamespace(monotonic=lambda: now[0]))
    pool._cluster, pool.name = SimpleNamespace(reply_timeout=60.0, name="a"), "the scheduler a"
    pool._heard = pool._manned = pool._looked = 0.0
    said = []
    for now[0] in (1.0, 2.0, *range(500, 562)):
        said.append(pool.trouble())
    assert said == 63 * [""] + ["the scheduler a has not answered for 60 s"]


def test_a_call_that_never_returns_is_left():
    for_ever = threading.Event()
    with pytest.raises(TimeoutError):
        within(0.05, for_ever.wait)
    for_ever.set()
    with pytest.raises(ZeroDivisionError):
        within(1.0, lambda: 1 / 0)
    assert within(1.0, lambda: 7) == 7


def test_without_dask_a_cluster_is_refused_and_nothing_else_changes():
    code = """
import sys
sys.modules["distributed"] = None
from favorbench import cli
sys.argv = ["favorbench", "sweep", "-R", "4", "-L", "8", "-d", "4", "--trials", "1", *sys.argv[1:]]
cli.main()
"""
    done = python("-c", code, "--cluster", "local:2")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "favorbench: --cluster: Dask is not installed: pip install 'favorbench[dask]'\n"
    assert subprocess.run([sys.executable, "-c", code, "-q"], capture_output=True).returncode == 0


def test_recommendations_are_the_same_and_resumed(processes, rng):
    np.savez("mine.npz", **random_heads(rng, 3, 24, 4))
    asked = {"inputs": "mine.npz", "target": 0.4, "max_size": 16, "confidence": 0.9}
    alone = fb.recommend(**asked, out="alone")
    calls = []
    found = fb.recommend(
        **asked, out="run", cluster=processes.address, progress=lambda *now, step="": calls.append((*now, step))
    )
    assert found._replace(path=None) == alone._replace(path=None) and found.complete
    assert {step for *_, step in calls} == {"h0", "h1", "h2"}
    one, two = (
        fb.load(run_).trials.sort_values(["draw", "kind", "estimator", "sampler", "num_projections"], ignore_index=True)
        for run_ in ("alone", "run")
    )
    assert one.equals(two)
    before = parts()
    code, out, _ = run("recommend", "mine.npz", "--target", "0.4", "--max-size", "16", "--confidence", "0.9",
                       "--out", "run", "--cluster", processes.address)  # fmt: skip
    assert code == 0 and "L = 24" in out and parts() == before


def test_a_search_on_a_cluster_does_not_recommend_workers_which_it_refuses(monkeypatch):
    given = []
    monkeypatch.setattr("favorbench.cli.choose.with_hint", lambda report, workers: given.append(workers))
    monkeypatch.setattr("favorbench.studies.recommend.study.recommend", lambda *_, **__: 1 / 0)
    for flags in ("--cluster local:2", "--workers 2", ""):
        run(f"recommend gaussian --target 0.5 {flags}")
    assert given == [0, 2, 1]


def test_a_search_that_is_interrupted_names_its_machines(processes, rng):
    np.savez("mine.npz", **random_heads(rng, 3, 24, 4))

    def stop(done, total, step=""):
        if done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fb.recommend(
            inputs="mine.npz", target=0.4, max_size=16, confidence=0.9, out="run", cluster=processes.address,
            progress=stop,
        )  # fmt: skip
    (machine,) = json.loads(Path("run/manifest.json").read_text())["workers"]
    assert machine["done"] >= 1


def test_verify_says_the_same_of_a_module_that_travels(processes, mine):
    mine(1.0)
    from favorbench.studies.verify import verify

    steps = []
    with Cluster(processes.address) as place:
        subjects = ["positive/iid", "my_method:mine"]
        found = verify(subjects, 400, progress=lambda *now: steps.append(now), cluster=place)
    assert found == verify(subjects, 400)
    assert steps[-1][0] == steps[-1][1] == len(steps)


def test_reproduce_on_a_cluster(processes):
    arguments = ("reproduce", "iid-vs-ortho", "--as", "corrected", "-q")
    alone = run(*arguments, "--workers", "1", "--out", "alone")
    found = run(*arguments, "--cluster", processes.address, "--out", "blog")
    assert found[:2] == (alone[0], alone[1].replace("alone/", "blog/"))
    assert (Path("alone") / "iid-vs-ortho.md").read_text() == (Path("blog") / "iid-vs-ortho.md").read_text()


def test_a_run_in_processes_and_on_a_cluster_can_take_turns(processes):
    """A run that was cut short in one goes on in the other, and they are the same."""
    scenario = small_scenario(trials=30)
    alone = sweep(scenario, "alone")

    class Enough(Exception):
        pass

    def stop(done, total):
        if done >= 10:
            raise Enough

    with pytest.raises(Enough):
        sweep(scenario, "run", progress=stop)
    same(alone, sweep(scenario, "run", cluster=processes.address))
    found = fb.load("run")
    assert sum(machine["done"] for machine in found.manifest["workers"]) == 20
    assert not [line for line in sentences(found) if "kinds of machine" in line]  # SciPy's own BLAS counted in some


def test_a_full_disk_here_is_one_line_and_the_rest_is_computed_when_there_is_room(processes, monkeypatch):
    scenario = small_scenario(trials=30)

    def full(*arguments):
        raise StoreError("cannot use run: No space left on device; saved results are intact")

    with monkeypatch.context() as patch, pytest.raises(StoreError, match="No space left"):
        patch.setattr("favorbench.engine.rows.write_whole", full)
        sweep(scenario, "run", cluster=processes.address)
    same(sweep(scenario, "alone"), sweep(scenario, "run", cluster=processes.address))
