"""The engine: names are built once, plans are small, what will not fit is refused, nothing outlives a call."""

import contextlib
import importlib.util
import json
import math
import os
import sys
import textwrap
import tracemalloc
from collections import Counter
from concurrent.futures import BrokenExecutor, Future, ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import threadpoolctl

import favorbench as fb
from favorbench.baselines import BASELINES
from favorbench.engine import cost as costs
from favorbench.engine import scenario as scenarios
from favorbench.engine import tasks, trial
from favorbench.engine.cost import LIBRARIES_BYTES, check_fits, cost
from favorbench.engine.plan import MAX_DRAWS, plan
from favorbench.engine.scenario import load_scenario
from favorbench.engine.study import Study
from favorbench.errors import ScenarioError, WorkerError
from favorbench.maps import MAPS
from favorbench.methods import METHODS
from favorbench.numerics.machine import Rates, keep_freed_memory, scipy_linalg
from favorbench.run import sweep
from favorbench.studies.verify.cost import counted, counting
from tests.command_line import python, run
from tests.conftest import random_heads, same_rows, small_scenario


@pytest.mark.parametrize("workers", [1, 2])
def test_every_name_is_looked_up_once(monkeypatch, workers):
    looked_up = Counter()

    def counted(builder):
        def build(spec, *layout):
            looked_up[spec] += 1
            return builder(spec, *layout)

        return build

    monkeypatch.setattr(scenarios, "MEMBERS", {key: counted(build) for key, build in scenarios.MEMBERS.items()})
    flags = {"seq_len": "24", "head_dim": "4", "num_projections": "4,8", "trials": "3", "baselines": "uniform,taylor-1"}
    sweep(
        {"maps": "positive,centre:trig", "samplers": "iid,orthogonal", "inputs": "gaussian,sphere"} | flags,
        "run",
        workers,
    )
    names = ("positive", "centre:trig", "iid", "orthogonal", "gaussian", "sphere", "uniform", "taylor-1")
    assert looked_up == Counter(names)


def test_a_plan_of_a_million_draws_is_as_small_as_one_of_three():
    small, large = (plan(Study.of(small_scenario(trials=trials))) for trials in (3, MAX_DRAWS))
    assert len(large) == MAX_DRAWS and len(vars(large)) == len(vars(small)) == 2
    assert large[2] == small[2] and large[MAX_DRAWS - 1].trial == MAX_DRAWS - 1
    assert large[-1] == large[MAX_DRAWS - 1] and large[1:3] == [large[1], large[2]]
    with pytest.raises(IndexError):
        large[MAX_DRAWS]
    assert cost(large).rows == MAX_DRAWS // 3 * cost(small).rows + cost(small).rows // 3
    with pytest.raises(ScenarioError, match="at most 1000000 fit in one run"):
        plan(Study.of(small_scenario(trials=MAX_DRAWS, scale="0.5,1")))
    many = {key: [*range(1, 2000)] for key in ("seq_len", "head_dim")} | {"scale": [i / 7 for i in range(1, 2000)]}
    with pytest.raises(ScenarioError, match="7988005999 cells x 3 trials"):  # without making them
        plan(Study.of(small_scenario(trials=3, **many)))


@pytest.mark.parametrize(
    "flags",
    [
        {"maps": "taylor(order=8)", "head_dim": "64"},
        {"maps": "positive", "samplers": "orthogonal", "num_projections": "1048576", "head_dim": "4096"},
        {"maps": "positive", "seq_len": "16777216", "head_dim": "4096"},
    ],
)
def test_too_large_requests_are_refused_before_computation(monkeypatch, flags):
    monkeypatch.setattr("favorbench.numerics.machine.available_memory", lambda: 24 << 30)
    with pytest.raises(ScenarioError, match=r"needs .*iB of memory, and 24 GiB are available: use a smaller"):
        sweep(small_scenario(**flags, trials=1), "run")
    assert not Path("run").exists()


def test_time_and_memory_by_hand(monkeypatch):
    """24 tokens, d = 4, R = m = 8, at 2 flops and 4 exponentials a second."""
    monkeypatch.setattr("favorbench.engine.cost._rates", lambda: Rates(2.0, 4.0, 1.0))
    fixed = {"maps": "positive", "samplers": "iid", "num_projections": "8", "methods": "clusters"}
    found = cost(plan(Study.of(small_scenario(**fixed, baselines="uniform", trials=5))))
    exact, clusters, positive = 4 * 24 * 24 * 4, 2 * (24 * 8 * 4 + 24 * 8 * (4 + 4)), 2 * 48 * 8 * (2 * 4 + 1)
    exponentials = 24 * 24 + 3 * 48 * 8
    assert found.seconds == 5 * ((exact + clusters + positive) / 2.0 + exponentials / 4.0)
    assert found.memory_bytes == 8 * (5 * 48 * 4 + 4 * 24 * 24)


def test_time_of_wide_values_by_hand(monkeypatch):
    """8 queries and keys of d = 4 with values of 100, R = 5."""
    monkeypatch.setattr("favorbench.engine.cost._rates", lambda: Rates(2.0, math.inf, 1.0))
    arrays = {name: np.ones((8, width)) for name, width in (("q", 4), ("k", 4), ("v", 100))}
    np.savez("wide.npz", **arrays)
    keys = {"maps": "positive", "samplers": "iid", "num_projections": 5, "methods": "none", "baselines": "uniform"}
    found = cost(plan(Study.of(load_scenario("quick", keys | {"inputs": "wide.npz", "trials": 1}))))
    assert found.seconds == (2 * 8 * 8 * (4 + 100) + 2 * 16 * 5 * (4 + 100 + 1)) / 2.0


def test_memory_of_the_features_of_a_causal_chunk():
    """20 features for each projection of hybrid, three times 128 positions at once; a tile has all 256."""
    fixed = {"maps": "hybrid", "samplers": "iid", "num_projections": "64", "seq_len": "256", "baselines": "uniform"}
    whole, causal = (cost(plan(Study.of(small_scenario(**fixed, causal=flag)))).memory_bytes for flag in (False, True))
    assert causal - whole == 8 * 64 * (20 * 3 * 128 - (20 + 2) * 256)


@pytest.mark.parametrize("name", [map.name for map in MAPS])
def test_the_memory_of_each_map_is_stated(name):
    check_memory_of(maps=name, methods="none", seq_len=1024, num_projections=2048)


@pytest.mark.parametrize(
    "name", [*(method.name for method in METHODS), "multipole(block=128)", "top(16):taylor", "window(64):nothing"]
)
def test_the_memory_of_each_method_is_stated(name):
    check_memory_of(maps="none", methods=name, seq_len=1024, num_projections=512)


@pytest.mark.parametrize("name", [baseline.name for baseline in BASELINES])
def test_the_memory_of_each_baseline_is_stated(name):
    """33,153 features of taylor-2."""
    check_memory_of(maps="elu", methods="none", baselines=name, seq_len=64, head_dim=256, num_projections=8)


def check_memory_of(**keys):
    draws = plan(Study.of(load_scenario("quick", {"samplers": "iid", "baselines": "uniform", "head_dim": 64, **keys})))
    stated = cost(draws).memory_bytes
    scipy_linalg()  # imported when it is needed
    tracemalloc.start()
    try:
        trial.run_draws(draws.study, [draws[0]])
        assert 0.5 * stated - 4e6 < tracemalloc.get_traced_memory()[1] < 2 * stated + 4e6
    finally:
        tracemalloc.stop()


def test_the_rate_of_a_product_is_of_its_two_flops_for_each_multiplication(monkeypatch):
    ones = np.ones
    monkeypatch.setattr("favorbench.engine.cost.rates", lambda product, flops: (product, flops))
    monkeypatch.setattr(np, "ones", lambda shape: counted(ones(shape)))
    product, flops = costs._rates()
    with counting() as multiplications:
        product()
    assert flops == 2 * multiplications[0] > 0


def test_draws_together_on_a_gpu_by_hand():
    """Two tiles of 2^26 numbers at 64 tokens and 1,024 features, where a quarter of the memory holds their inputs."""
    head = SimpleNamespace(query_len=64, seq_len=64, head_dim=8)
    inputs = 8 * 128 * (6 * 8 + 2)
    for free, width, draws in (
        (None, 1024, 1),
        (1 << 40, 1024, 2048),
        (1 << 40, 1000, 2097),
        (4 * 500 * inputs, 8, 500),
        (1, 8, 1),
    ):
        found = trial._automatic_batch(SimpleNamespace(free_memory=lambda free=free: free), head, width)
        assert found == draws and isinstance(found, int)


def test_errors_grow_with_values():
    once, twice = (sweep(small_scenario(value_scale=scale), f"run {scale}").trials for scale in (1.0, 2.0))
    np.testing.assert_allclose(twice["mse"], 4 * once["mse"], rtol=1e-12)
    np.testing.assert_allclose(twice["relative_error"], once["relative_error"], rtol=1e-12)


def test_memory_for_one_worker_may_not_suffice_for_four(monkeypatch):
    draws = plan(Study.of(small_scenario(seq_len="2000")))
    monkeypatch.setattr("favorbench.numerics.machine.available_memory", lambda: 2 * cost(draws).memory_bytes)
    check_fits(draws, 1)
    with pytest.raises(ScenarioError, match="with 4 `workers`"):
        check_fits(draws, 4)
    needed = 4 * (cost(draws).memory_bytes + LIBRARIES_BYTES)  # each worker loads its own libraries
    for available in (needed, needed - 1):
        monkeypatch.setattr("favorbench.numerics.machine.available_memory", lambda found=available: found)
        with contextlib.nullcontext() if available == needed else pytest.raises(ScenarioError):
            check_fits(draws, 4)


def test_the_stated_memory_is_of_the_draws_that_torch_computes_together(monkeypatch):
    """At most the five of a cell. nystrom takes arrays of one draw, so only inputs count for it."""
    pytest.importorskip("torch")
    keys = {"maps": "positive", "samplers": "iid", "num_projections": "8", "methods": "none", "backend": "torch"}
    draws = plan(Study.of(small_scenario(**keys, baselines="uniform", trials=5)))
    one = 8 * (5 * 48 * 4 + 8 * 4 + 3 * 8 * (4 + 1) + 3 * 8 * 24)
    assert [cost(draws, batch).memory_bytes for batch in (None, 1, 3, 99)] == [one, one, 3 * one, 5 * one]
    methods = plan(Study.of(small_scenario(**keys | {"maps": "none", "methods": "nystrom"}, baselines="uniform")))
    inputs = 8 * 5 * 48 * 4
    assert cost(methods, 2).memory_bytes - cost(methods).memory_bytes == inputs
    monkeypatch.setattr("favorbench.numerics.machine.available_memory", lambda: 2 * one)
    with pytest.raises(ScenarioError, match="or a smaller `batch`"):
        sweep(draws.study, "run", batch=3)
    flags = " ".join(f"--{key.replace('_', '-')} {value}" for key, value in keys.items())
    flags += " --baselines uniform -L 24 -d 4 --trials 5 --dry-run --json"
    assert json.loads(run(f"sweep {flags} --batch 3")[1])["memory_bytes"] == 3 * one


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_the_stated_memory_covers_what_a_worker_keeps(save, monkeypatch):
    """Exact answers of fixed heads are kept for later draws; a compressed file is whole in memory, in each process."""
    heads = np.random.default_rng(0).normal(size=(3, 200, 128, 16))
    save("many.npz", **dict(zip("qkv", heads, strict=True)))
    keys = {"maps": "none", "methods": "sinks(2):nothing", "baselines": "uniform", "inputs": "many.npz"}
    draws = plan(Study.of(load_scenario("quick", keys | {"trials": 1, "num_projections": 4})))
    inputs = heads.nbytes if save == np.savez_compressed else 0
    found = cost(draws).memory_bytes - inputs
    assert 200 * 128 * 16 * 8 < found < 200 * 128 * 16 * 8 + 8 * (6 * 256 * 16 + 4 * 128 * 128)
    tracemalloc.start()
    try:
        for draw in draws:
            trial.run_draws(draws.study, [draw])
        assert tracemalloc.get_traced_memory()[1] < 1.5 * found
    finally:
        tracemalloc.stop()
    for workers, needed in ((1, found), (2, 2 * (found + inputs + LIBRARIES_BYTES))):
        for available in (needed, needed - 1):
            monkeypatch.setattr("favorbench.numerics.machine.available_memory", lambda found=available: found)
            with contextlib.nullcontext() if available == needed else pytest.raises(ScenarioError):
                check_fits(draws, workers)


@pytest.mark.parametrize(
    ("shapes", "gradients"),
    [
        (((1, 512, 4), (1, 512, 4), (1, 512, 512)), 0),
        (((1, 1 << 17, 16), (1, 32, 16), (1, 32, 16)), 0),
        (((1, 512, 16),) * 3, 64),
    ],
    ids=["wide values", "few of many queries", "gradients"],
)
@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_the_stated_memory_of_a_file(save, shapes, gradients):
    arrays = {name: np.ones(shape) for name, shape in zip("qkv", shapes, strict=True)}
    arrays["attentions"] = np.ones((1, 4096, 2048))  # is not used
    if gradients:
        arrays |= {"gradients": np.ones((1, gradients, 512, 16)), "gradient_scales": np.ones((1, gradients))}
    save("heads.npz", **arrays)
    keys = {"maps": "elu", "methods": "none", "baselines": "uniform", "inputs": "heads.npz", "num_projections": 4}
    Study.of(load_scenario("quick", keys))  # what is imported when it is needed
    keep_freed_memory()  # once in a process
    tracemalloc.start()
    try:
        os.utime("heads.npz", ns=(0, 0))  # to be opened anew
        draws = plan(Study.of(load_scenario("quick", keys | {"trials": 1})))
        trial.run_draws(draws.study, [draws[0]])
        assert 0.6 < tracemalloc.get_traced_memory()[1] / cost(draws).memory_bytes < 1.4
    finally:
        tracemalloc.stop()


@pytest.mark.skipif(sys.platform != "linux", reason="units of ru_maxrss")
def test_the_stated_memory_of_a_worker_that_is_sent_arrays():
    script = """
        import multiprocessing, resource
        from concurrent.futures import ProcessPoolExecutor
        import numpy as np
        import favorbench as fb
        from favorbench.engine.cost import LIBRARIES_BYTES, cost
        from favorbench.engine.plan import plan
        from favorbench.engine.scenario import as_scenario
        from favorbench.engine.study import Study

        if __name__ == "__main__":
            keys = dict(maps="elu", methods="none", baselines="uniform", trials=1, num_projections=4, query_rows=16)
            keys["inputs"] = {"mine": tuple(np.ones((3, 4, 8192, 64)))}
            with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as worker:
                fb.sweep(None, workers=worker, **keys)
            used = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss << 10
            print(used / (cost(plan(Study.of(as_scenario(None, keys)))).memory_bytes + LIBRARIES_BYTES))
    """
    Path("script.py").write_text(textwrap.dedent(script))
    ended = python("script.py")
    assert 0.6 < float(ended.stdout or 0) < 1.3, ended


def threads():
    return [pool["num_threads"] for pool in threadpoolctl.threadpool_info()]


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
def test_what_a_users_estimator_imports_is_on_one_core_in_each_draw():
    """The first draw is computed again; each is an output and its row sums, for each of two functions."""
    source = "THREADS = []\n"
    for name in ("one", "two"):
        source += f"def {name}(query, key, value, size, rng):\n    import torch\n"
        source += "    THREADS.append(torch.get_num_threads())\n    return value\n"
    Path("lazy.py").write_text(source)
    keys = {"maps": "none", "methods": "lazy:one,lazy:two", "seq_len": "8", "head_dim": "4", "num_projections": "4"}
    code = f"import favorbench as fb, lazy; fb.sweep({keys | {'trials': 2}}, 'run'); print(lazy.THREADS)"
    done = python("-c", code, env=os.environ | {"OMP_NUM_THREADS": "2", "MKL_NUM_THREADS": "2"})
    assert done.stdout == f"{[2] * 2 + [1] * 8}\n", done.stderr


@pytest.mark.parametrize("entered", ["one_core()", "Backend().precision('float64')"])
def test_a_draw_waits_while_another_thread_imports_torch(entered):
    """It read torch's threads from a module that had none yet, and the row named the estimator."""
    source = "import time\nfrom types import SimpleNamespace as of\ntime.sleep(0.5)\nset_num_threads = print\n"
    Path("torch.py").write_text(source + "get_num_threads, backends = int, of(cuda=of(matmul=of(allow_tf32=False)))\n")
    code = "import sys, threading; from favorbench.numerics.machine import one_core\n"
    code += "from favorbench.numerics.backend import Backend\n"
    code += "thread = threading.Thread(target=__import__, args=('torch',)); thread.start()\n"
    code += "while 'torch' not in sys.modules: pass\n"
    done = python("-c", f"{code}with {entered}: pass")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("workers", [1, 3])
def test_an_executor_in_this_process_gets_its_threads_back(workers):
    with threadpoolctl.threadpool_limits(2):
        before = threads()
        with ThreadPoolExecutor(workers) as pool:
            found = sweep(small_scenario(trials=12), "run", pool)
        assert threads() == before
    same_rows(found.trials, sweep(small_scenario(trials=12), "here").trials)


def test_a_file_is_known_by_its_contents_not_by_the_spelling_of_its_path():
    arrays = random_heads(np.random.default_rng(0), 20, 4)
    Path("folder").mkdir()
    np.savez("folder/a.npz", **arrays)
    np.savez("b.npz", **arrays)
    flags = {"seq_len": None, "head_dim": None, "trials": 2}
    spellings = ("folder/a.npz", "./folder/a.npz", str(Path("folder/a.npz").resolve()), "b.npz")
    studies = [Study.of(small_scenario(inputs=spelling, **flags)) for spelling in spellings]
    assert len({study.digest for study in studies}) == 1
    assert [list(study.inputs) for study in studies] == [["a.npz"]] * 3 + [["b.npz"]]
    first = sweep(studies[0], "run")
    again = sweep(studies[1], "run")  # resumes: nothing is missing
    same_rows(again.trials, first.trials)
    np.savez("b.npz", **(arrays | {"v": 2 * arrays["v"]}))
    assert Study.of(small_scenario(inputs="b.npz", **flags)).digest != studies[0].digest


def test_two_files_of_one_name_keep_their_folders():
    for i, folder in enumerate(("one", "two")):
        Path(folder).mkdir()
        np.savez(f"{folder}/a.npz", **random_heads(np.random.default_rng(i), 20, 4))
    study = Study.of(small_scenario(inputs="one/a.npz,two/a.npz,gaussian", seq_len=None, head_dim=None))
    assert list(study.inputs) == ["one/a.npz", "two/a.npz", "gaussian"]


@pytest.mark.parametrize(
    "given", [{"inputs": [np.zeros((3, 4))]}, {"inputs": {"q": np.zeros(3)}}, {"scale": np.ones((2, 2))}]
)
def test_arrays_in_a_scenario_are_one_clear_line(given):
    with pytest.raises(ScenarioError) as caught:
        fb.sweep(given)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 400


@pytest.mark.parametrize(
    "text",
    ["maps = " + "[" * 3000, "seed = " + "9" * 5000, 'maps = "' + "trig," * 2_000_000 + '"'],
    ids=["deep", "digits", "long"],
)
def test_a_file_made_to_break_the_reader_is_one_clear_line(text):
    Path("bad.toml").write_text(f'samplers = "iid"\nR = 8\n{text}')
    with pytest.raises(ScenarioError) as caught:
        load_scenario("bad.toml")
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 2000


def test_a_study_finds_a_users_module_wherever_its_workers_start():
    """Members travel as objects: their module is looked for in the folder of the sweep, and only then."""
    Path("mine.py").write_text(
        "from dataclasses import dataclass\nfrom favorbench.maps.random_features import Positive\n\n\n"
        "@dataclass(frozen=True)\nclass Mine(Positive):\n    name = 'mine'\n"
    )
    results = sweep(small_scenario(maps="positive,mine:Mine"), "run", 2)
    assert os.getcwd() not in sys.path
    errors = results.trials.set_index(["estimator", "draw", "sampler", "num_projections"])["mse"]
    pd.testing.assert_series_equal(errors["mine"], errors["positive"])


class Vanishing(tasks.Pool):
    """A pool whose odd tasks wait for a worker that is gone, and whose even tasks kill theirs."""

    def __init__(self):
        self._submitted, self._lost = 0, set()

    slots = 1

    def submit(self, task):
        self._submitted += 1
        future = Future()
        if self._submitted % 2:
            self._lost.add(task)
        else:
            self._lost.discard(task)
            future.set_exception(BrokenExecutor())
        return future

    def has_lost(self, task):
        return task in self._lost


def test_a_task_whose_worker_is_gone_is_given_to_others_and_expected_of_no_one_else():
    """A result of the first submission, which never comes, was once waited for without end."""
    run = tasks.TaskRun(Vanishing(), iter([5]), 1, lambda why, item: f"{why}: {item}")
    with pytest.raises(WorkerError, match=r"died twice .*: 5"):
        list(run.results())


class Deserted(tasks.Pool):
    """A pool whose workers all die of each task, and are replaced."""

    slots, submitted = 1, 0

    def __init__(self):
        pass

    def submit(self, task):
        self.submitted += 1
        assert self.submitted < 20, "it is submitted for ever"
        return Future()

    def has_lost(self, task):
        return True


def test_a_task_that_loses_all_its_workers_again_and_again_is_given_up(monkeypatch):
    """A small cluster with nannies ran for ever: each submission is a new one to Dask, which counts deaths of one."""
    monkeypatch.setattr(tasks, "POLL_SECONDS", 0.01)
    run = tasks.TaskRun(Deserted(), iter([5]), 1, lambda why, item: f"{why}: {item}")
    with pytest.raises(WorkerError, match=r"died twice .*: 5"):
        list(run.results())
