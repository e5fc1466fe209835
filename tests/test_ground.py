"""Foundations: values as text and JSON, checks of parameters, the memory there is."""

import itertools
import math
import subprocess
import sys
import tracemalloc

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy import stats

from favorbench.errors import ScenarioError
from favorbench.formats import format_bytes, shortened
from favorbench.numerics import machine
from favorbench.numerics.arrays import indices_by_share
from favorbench.numerics.logsum import tiles
from favorbench.parameters import check_between, check_positive, check_whole
from favorbench.statistics import mean_interval


def test_texts_of_any_length_fit_into_a_message():
    assert shortened("x" * 80) == "x" * 80
    assert shortened("x" * 5000) == "x" * 77 + "..."


@pytest.mark.parametrize("length, width, count", [(4096, 1536, 32), (1 << 16, 7, 3), (100, 10, 1), (1, 1 << 30, 1)])
def test_tiles_hold_three_times_two_to_the_sixteen_numbers(length, width, count):
    parts = tiles(length, width, np.zeros(1))
    assert (parts[0].start, parts[-1].stop, len(parts)) == (0, length, count)
    assert all(a.stop == b.start for a, b in itertools.pairwise(parts))


@pytest.mark.parametrize(
    "count, text",
    [(0, "0 bytes"), (1023, "1023 bytes"), (1024, "1.0 KiB"), (3 << 30, "3.0 GiB"), (700 << 40, "700 TiB")],
)
def test_bytes_have_the_unit_that_fits(count, text):
    assert format_bytes(count) == text


NO_NUMBERS = [True, math.nan, math.inf, "1", None, [1.0], 10**400, np.array(1.0)]


@pytest.mark.parametrize("value", [*NO_NUMBERS, 0, -1.0])
def test_values_that_are_not_positive_numbers_are_refused(value):
    with pytest.raises(ScenarioError, match=r"^eps must be a positive number, got ") as caught:
        check_positive("eps", value)
    assert len(str(caught.value)) < 120


@pytest.mark.parametrize("value", [*NO_NUMBERS, 1.0, 0.4])
def test_values_out_of_range_are_refused(value):
    with pytest.raises(ScenarioError, match=r"^p must be a number from 0.5 up to, but not, 1, got "):
        check_between("p", value, 0.5, 1.0)


@pytest.mark.parametrize("value", [*NO_NUMBERS, 2.0, 0, 5])
def test_values_that_are_not_whole_numbers_are_refused(value):
    with pytest.raises(ScenarioError, match=r"^n must be a whole number from 1 to 4, got "):
        check_whole("n", value, 1, 4)


def test_numbers_are_taken():
    check_positive("eps", 1e-300)
    check_positive("eps", 3, most=3)
    check_between("p", 0.5, 0.5, 1)
    check_whole("n", 4, 1, 4)
    with pytest.raises(ScenarioError, match="at most 3, or left out, got 4"):
        check_positive("eps", 4, most=3, otherwise="left out")


def test_mean_intervals_are_those_of_student():
    values = np.random.default_rng(0).normal(size=9)
    low, high = stats.t.interval(0.95, 8, loc=values.mean(), scale=stats.sem(values))
    assert_allclose(mean_interval(values), (values.mean(), low, high), rtol=1e-12)
    assert mean_interval(values[:1])[0] == values[0] and math.isnan(mean_interval(values[:1]).low)


def test_draws_by_shares_take_two_bytes_for_each_draw_and_key(rng):
    shares, uniforms = np.full(4096, 1 / 4096), rng.random(256)
    tracemalloc.start()
    try:
        indices_by_share(shares, uniforms)
        assert tracemalloc.get_traced_memory()[1] < 3 * 4096 * 256
    finally:
        tracemalloc.stop()


def test_there_is_memory_and_more_than_all_of_it_is_refused(monkeypatch):
    available = machine.available_memory()
    assert available is None or 1 << 20 < available < 1 << 50
    monkeypatch.setattr(machine, "available_memory", lambda: 1 << 30)
    machine.check_memory(1 << 30, "this", "use less")
    with pytest.raises(ScenarioError, match=r"^this needs 2.0 GiB of memory, and 1.0 GiB are available: use less$"):
        machine.check_memory(2 << 30, "this", "use less")
    monkeypatch.setattr(machine, "available_memory", lambda: None)
    machine.check_memory(1 << 60, "this", "unknown remedy")


def test_the_memory_of_a_container_counts(monkeypatch, tmp_path):
    """Version 2 and version 1 of control groups, with what a parent allows; files in the cache can be given up."""
    (tmp_path / "a" / "b").mkdir(parents=True)
    for folder, limit, used in ((tmp_path, "max", 9), (tmp_path / "a", "1000", 600), (tmp_path / "a/b", "max", 500)):
        (folder / "memory.max").write_text(f"{limit}\n")
        (folder / "memory.current").write_text(f"{used}\n")
        (folder / "memory.stat").write_text("anon 1\ninactive_file 100\n")
    assert list(machine.left_in_group(tmp_path, "/a/b", machine.VERSION_2)) == [500]
    (tmp_path / "a" / "memory.limit_in_bytes").write_text("2000")
    (tmp_path / "a" / "memory.usage_in_bytes").write_text("600")
    assert list(machine.left_in_group(tmp_path, "/a/b", machine.VERSION_1)) == [1500]
    assert list(machine.left_in_group(tmp_path, "/absent", machine.VERSION_1)) == []


def test_each_thread_computes_on_one_core_and_gives_the_others_back():
    """From threadpoolctl 3.8 on, only the first thread that has set the threads of OpenBLAS can set them."""
    code = """
from concurrent.futures import ThreadPoolExecutor
import threadpoolctl
from favorbench.numerics.machine import one_core
import numpy as np
def threads():
    return {pool["num_threads"] for pool in threadpoolctl.threadpool_info()}
def inside():
    with one_core():
        return threads()
with ThreadPoolExecutor(1) as one, ThreadPoolExecutor(1) as other:
    one.submit(threadpoolctl.threadpool_limits, 2).result()
    assert [pool.submit(call).result() for pool in (one, other) for call in (inside, threads)] == [{1}, {2}] * 2
    early, late = one_core(), one_core()
    one.submit(early.__enter__).result()
    other.submit(late.__enter__).result()
    one.submit(early.__exit__, None, None, None).result()
    assert threads() == {1}
    other.submit(late.__exit__, None, None, None).result()
    assert threads() == {2}
    one.submit(threadpoolctl.threadpool_limits, 3).result()
    assert threads() == {3}
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_library_call_leaves_the_threads_and_the_allocator_as_they_were():
    """No mallopt: that would hold for the rest of the caller's program."""
    code = """
import ctypes
class Watched(ctypes.CDLL):
    def __getattr__(self, name):
        assert name != "mallopt"
        return super().__getattr__(name)
ctypes.CDLL = Watched
import threadpoolctl
from favorbench.numerics.machine import one_core
import numpy as np
threads = lambda: {pool["num_threads"] for pool in threadpoolctl.threadpool_info()}
threadpoolctl.threadpool_limits(2)
assert threads() == {2}
one, other = one_core(), one_core()
for change in (one.__enter__, other.__enter__, lambda: one.__exit__(None, None, None)):
    change()
    assert threads() == {1}
other.__exit__(None, None, None)
assert threads() == {2}
"""
    subprocess.run([sys.executable, "-c", code], check=True)
