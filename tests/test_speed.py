"""favorbench speed: what is timed, where the curves cross, and that nothing else shares the machine."""

import importlib.util
import itertools
import json
import math
import os
import time
import tracemalloc

import numpy as np
import pytest
from typer.testing import CliRunner

from favorbench.cli import app
from favorbench.errors import ScenarioError
from favorbench.formats import plain
from favorbench.maps import get_map
from favorbench.methods.features import LinearAttention
from favorbench.numerics.backend import Backend
from favorbench.studies.speed import calls
from favorbench.studies.speed import study as speed
from favorbench.studies.speed.calls import call_of
from tests.command_line import check_refused, printed, python, refused

HAS_TORCH = importlib.util.find_spec("torch") is not None


@pytest.mark.parametrize(
    "linear, exact, crossing",
    [
        ([4.0, 4.0, 4.0], [1.0, 4.0, 16.0], 200.0),  # equal at the second length
        ([8.0, 8.0, 8.0], [1.0, 4.0, 16.0], 200.0 * math.sqrt(2.0)),  # halfway between, in log L
        ([0.5, 1.0, 2.0], [1.0, 4.0, 16.0], 0.0),
        ([32.0, 32.0, 32.0], [1.0, 4.0, 16.0], math.inf),
        ([0.5, 8.0, 8.0], [1.0, 4.0, 16.0], 200.0 * math.sqrt(2.0)),  # the last crossing counts
    ],
)
def test_crossings_are_interpolated_in_log_log(linear, exact, crossing):
    assert speed._crossing([100, 200, 400], linear, exact) == pytest.approx(crossing)


def slope(lengths, seconds):
    return speed._slope_bounds(lengths, seconds, seconds)[0]


def test_slopes_are_exponents():
    lengths = [100, 200, 400, 800]
    assert slope(lengths, [1e-9 * n**2 for n in lengths]) == pytest.approx(2.0)
    assert slope(lengths, [1.0, 1.0, 4.0, 8.0]) == pytest.approx(1.0)  # overhead at small L is left out
    assert math.isnan(slope([100], [1.0]))


def test_a_slope_of_a_busy_machine_is_not_taken_for_one():
    """Times that may be off by a factor of 2 leave room for one more in the exponent; bounds by trying every corner."""
    lengths = [256, 512, 1024, 2048]
    seconds = np.array([1e-6 * n for n in lengths])
    low, high = speed._slope_bounds(lengths, seconds / 2, seconds * 2)
    corners = [slope(lengths, seconds * np.array(factors)) for factors in itertools.product((0.5, 2), repeat=4)]
    assert (low, high) == pytest.approx((min(corners), max(corners)))
    assert speed.Crossover("busy", 1.0, 1.0, low, high).uncertain
    quiet = speed._slope_bounds(lengths, seconds * 0.98, seconds * 1.02)
    assert not speed.Crossover("quiet", 1.0, 1.0, *quiet).uncertain
    assert not speed.Crossover("one length", 1.0, math.nan, math.nan, math.nan).uncertain


def test_exact_attention_is_quadratic_and_linear_attention_linear():
    """Memory, which is not noisy: linear attention's peak grows with its output only, and so does tiled exact's."""
    found = speed.study(["positive", "phase"], [16], [256, 512, 1024, 2048], head_dim=8, repeats=3)
    names = [c.estimator for c in found.crossovers]
    assert names == ["exact", *(["exact, torch SDPA"] if HAS_TORCH else []), "positive, R = 16", "phase, R = 16"]
    for timing in found.timings:
        assert 0 < timing.low <= timing.seconds <= timing.high
    exact, linear = found.of("exact")[-1], found.of("positive, R = 16")[-1]
    assert exact.memory_bytes < 8 * 2048**2 and linear.memory_bytes < 8 * 2048**2  # never an L x L array
    assert plain(found)["where"] == "NumPy, one core"


def first_keys(query, key, value, size, rng):
    return np.tile(np.mean(value[:size], axis=0), (len(query), 1))


def test_methods_are_timed_with_maps():
    methods = ["clusters", "sinks(4):positive", "nystrom", f"{__name__}:first_keys"]
    found = speed.study(["phase"], [8, 16], [64, 128], 8, 3, methods=methods)
    names = [c.estimator for c in found.crossovers if not c.estimator.startswith("exact")]
    labels = ["phase", "clusters", "sinks(4):positive", "nystrom", "first_keys"]
    assert names == [f"{name}, R = {size}" for name in labels for size in (8, 16)]
    assert all(0 < timing.low <= timing.seconds for timing in found.timings)
    with pytest.raises(ScenarioError, match="size 256 given, allowed: at most 64, the number of keys"):
        speed.study(["phase"], [256], [64, 512], 8, 3, methods=["clusters"])
    assert "positive" not in printed("speed --maps none --methods clusters -R 8 -L 64,128 -d 8 --repeats 3 --out only")
    check_refused("speed --methods clustres => unknown method 'clustres' (did you mean 'clusters'?)")


def test_a_users_function_is_called_once_for_each_timing(monkeypatch):
    """A sweep asks it a second time, for its weights."""
    asked = []
    monkeypatch.setattr(f"{__name__}.first_keys", lambda q, k, v, size, rng: asked.append(size) or v)
    call_of(speed.get_method(f"{__name__}:first_keys"), 4, 2, Backend(), "float64")(*np.zeros((3, 8, 2)))
    assert asked == [4]


@pytest.mark.skipif(not HAS_TORCH, reason="torch is not installed")
def test_a_users_function_of_torch_is_timed():
    call = call_of(speed.get_method(softmax_of_torch), 4, 2, Backend(), "float64")
    np.testing.assert_array_equal(call(*np.ones((3, 8, 2))), np.ones((8, 2)))


@pytest.mark.skipif(not HAS_TORCH, reason="torch is not installed")
def test_the_memory_of_a_users_function_of_torch_is_not_stated():
    """It makes an L x L tensor, of which NumPy's backend sees nothing."""
    names = [f"{__name__}:softmax_of_torch", f"{__name__}:first_keys"]
    found = speed.study([], [8], [256], 8, 3, methods=names)
    assert found.of("softmax_of_torch, R = 8")[0].memory_bytes is None
    assert found.of("first_keys, R = 8")[0].memory_bytes > 0


def softmax_of_torch(query, key, value, size, rng):
    return importlib.import_module("torch").softmax(query @ key.mT, -1) @ value


@pytest.mark.skipif(not HAS_TORCH, reason="torch is not installed")
def test_maps_with_integer_exponents_are_timed_in_bfloat16():
    """Of 8,192 uniform numbers some round to 1, where the law of the exponents ends: it failed."""
    backend = Backend("torch")
    call = call_of(LinearAttention(get_map("geometric(p=0.5)")), 256, 32, backend, "bfloat16")
    assert call(*calls.on_backend(np.ones((3, 8, 32)), backend, "bfloat16")).isfinite().all()


@pytest.mark.skipif(not HAS_TORCH, reason="torch is not installed")
def test_fused_attention_is_timed_on_one_core():
    """Beside NumPy, too, where nothing had imported torch before."""
    code = """
from favorbench.numerics.backend import Backend
from favorbench.studies.speed.study import study
found = set()
def fused_attention(self, *arrays):
    import torch
    found.add(torch.get_num_threads())
Backend.fused_attention = fused_attention
study(["positive"], [4], [16], 4, 3)
print(found)
"""
    done = python("-c", code, env=os.environ | {"OMP_NUM_THREADS": "2", "MKL_NUM_THREADS": "2"})
    assert done.stdout == "{1}\n", done.stderr


@pytest.mark.skipif(not HAS_TORCH, reason="torch is not installed")
def test_torch_is_timed_against_its_own_fused_attention():
    found = speed.study(["phase"], [8], [64, 128], 8, 3, Backend("torch", "cpu"), "float32")
    assert [c.estimator for c in found.crossovers] == ["exact", "exact, torch SDPA", "phase, R = 8"]
    timed = speed.study(["phase"], [8], [64, 128], 8, 3, Backend("torch", "cpu"), "float32", methods=["clusters"])
    assert timed.crossovers[-1].estimator == "clusters, R = 8"
    assert found.dtype == "float32" and found.of("phase, R = 8")[0].memory_bytes is None


def test_the_command_prints_a_table_and_draws_a_figure():
    arguments = ["speed", "--maps", "positive", "-R", "8", "-L", "64,128,256", "-d", "4", "--repeats", "3"]
    done = CliRunner().invoke(app, [*arguments, "--out", "here"], catch_exceptions=False)
    assert done.exit_code == 0
    assert "faster from L" in done.stdout and "positive, R = 8" in done.stdout and "here/speed.png" in done.stdout
    done = CliRunner().invoke(app, [*arguments, "--out", "here", "--json"], catch_exceptions=False)
    assert {"timings", "crossovers", "files"} <= set(json.loads(done.stdout))


@pytest.mark.parametrize(
    "maps, size, length, dim",
    [(["positive"], 8, 1 << 24, 4096), (["positive"], 1 << 20, 256, 4096), (["taylor(order=12)"], 8, 16, 64)],
)
def test_too_large_requests_are_refused_before_allocation(monkeypatch, maps, size, length, dim):
    monkeypatch.setattr("favorbench.numerics.machine.available_memory", lambda: 16 << 30)
    start = time.process_time()
    said = r"`seq_len` \d+ with `head_dim` \d+ and \d+ features needs .+[GTP]iB of memory, and 16 GiB are available: "
    with pytest.raises(ScenarioError, match=said):
        speed.study(maps, [size], [length], dim, 3)
    assert time.process_time() - start < 1.0
    line = refused("speed -L 16777216 -d 4096")
    assert "-L 16777216 with -d 4096 and 512 features needs" in line and "use a smaller -L, -R or -d" in line


@pytest.mark.slow
def test_stated_memory_is_the_memory_that_is_used(monkeypatch):
    """The least of it: not more than what is allocated at the peak, nor less than half."""
    said = []
    monkeypatch.setattr(speed, "check_memory", lambda needed, *_: said.append(needed))
    monkeypatch.setattr(speed, "_peak_memory", lambda call, *_: call() is None)
    monkeypatch.setattr(calls, "seconds_of", lambda *_: 1.0)
    tracemalloc.start()
    try:
        speed.study(["positive"], [2048], [32768, 2048], 64, 3)
        assert said[0] <= tracemalloc.get_traced_memory()[1] < 2 * said[0]
    finally:
        tracemalloc.stop()


def test_estimators_of_one_name_are_refused(module):
    """The times of the first were left out."""
    source = "def near(query, key, value, size, rng):\n    return query"
    module("first", source), module("second", source)
    with pytest.raises(ScenarioError, match="'second:near' and 'first:near' are both called 'near'"):
        speed.study([], [4], [16], 4, 3, methods=["first:near", "first:near", "second:near"])


def test_speed_refuses_several_workers():
    with pytest.raises(ScenarioError, match=r"--workers 2: speed times one worker, alone on the machine"):
        CliRunner().invoke(app, ["speed", "--workers", "2"], catch_exceptions=False)


def test_a_map_without_projections_is_timed_once_and_a_single_length_has_no_slope():
    found = speed.study(["elu", "positive"], [4, 8], [64], head_dim=4, repeats=3)
    names = [c.estimator for c in found.crossovers if not c.estimator.startswith("exact")]
    assert names == ["elu", "positive, R = 4", "positive, R = 8"]
    assert all(math.isnan(c.slope) for c in found.crossovers)
    for length in (48.0, math.inf):  # only where something breaks even
        crossover = found.crossovers[0]._replace(seq_len=length)
        caption = speed.chart(found._replace(crossovers=(crossover,)), "speed").caption
        assert ("Dotted: the break-even length" in caption) == math.isfinite(length)
    assert {c["slope"] for c in plain(found)["crossovers"]} == {None}


def test_short_calls_are_timed_the_second_time(monkeypatch):
    """The first finds caches and allocator as another method left them."""
    clock, takes = [0.0], iter([0.04, 0.01, 0.06, 0.01])
    monkeypatch.setattr(calls.time, "perf_counter", lambda: clock[0])

    def call():
        clock[0] += next(takes)

    assert calls.seconds_of(call, Backend()) == pytest.approx(0.01)
    assert calls.seconds_of(call, Backend()) == pytest.approx(0.06)
    assert next(takes) == 0.01  # the long call was made once
