"""The benchmark of a GPU, rehearsed on torch's CPU build, refuses wrong numbers; others print what is committed."""

import sys

import pandas as pd
import pytest

pytest.importorskip("torch")

from benchmarks import fused, gpu
from favorbench.models.recommended import ByHead
from favorbench.models.replacements import replacement
from tests.conftest import REPOSITORY


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


def test_predicted_and_measured_effects_of_texts(tmp_path, monkeypatch, capsys):
    """The command of docs/own-model.md: a row for each text and size, all of it numbers."""
    from benchmarks import effects
    from tests.small_models import small_folder, small_text

    texts = [str(small_text(tmp_path / f"{name}.txt", start=start)) for start, name in enumerate("ab", 5)]
    model = str(small_folder(tmp_path / "model"))
    monkeypatch.setattr(sys, "argv", ["effects", model, *texts, "-L", "24", "--sizes", "4,8"])
    assert effects.main() == 0
    title, _, *rows = (line.strip("| ").split(" | ") for line in capsys.readouterr().out.splitlines())
    assert [row[:2] for row in rows] == [[f"{text}#0", size] for text in "ab" for size in "48"]
    assert all(len(row) == len(title) and float(row[2]) > 0 and float(row[3]) > 0 for row in rows)


def test_the_committed_shares_of_multiplications_of_blocks_are_those_stated_now():
    for row in pd.read_csv(REPOSITORY / "benchmarks" / "fused-nats.csv").itertuples():
        estimator, exact, _ = row.estimator.partition(", 18 heads exact")
        chosen = replacement(estimator, row.size or 1)
        chosen = ByHead.but_exact(chosen, fused.EXACT_HEADS) if exact else chosen
        assert row.multiplications == round(fused.share_of_multiplications(chosen, row.tokens), 3)
