"""The benchmark of a GPU: its rehearsal on torch's CPU build, and that it refuses wrong numbers."""

import sys

import pytest

pytest.importorskip("torch")

from benchmarks import gpu


def run(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["gpu", "--device", "cpu", *arguments])
    gpu.main()


def test_the_benchmark_of_a_gpu_is_rehearsed(monkeypatch, capsys):
    run(monkeypatch, "--quick")
    said = capsys.readouterr().out
    assert "WRONG" not in said and "sinks(4):window(16):multipole, causal" in said
    for part in (
        "blog's table, 4 draws",
        "L = 2^11",
        "bfloat16: positive, R = 64: faster from",
        "products and exp alone",
    ):
        assert part in said


def test_wrong_numbers_are_not_timed(monkeypatch, capsys):
    """A part in a thousand, in one method, on the device alone."""
    right = gpu.method_attention

    def wrong(query, *others, **options):
        off = 1.001 if options["method"] == "monarch" and type(query).__module__ == "torch" else 1.0
        return right(query, *others, **options) * off

    monkeypatch.setattr(gpu, "method_attention", wrong)
    with pytest.raises(SystemExit, match="1 estimators differ from NumPy's"):
        run(monkeypatch, "--quick")
    said = capsys.readouterr().out
    assert said.count("WRONG") == 1 and "blog's table" not in said
