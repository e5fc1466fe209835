"""The notebook of examples/: it runs, says what it said when it was written, and leaves no control characters."""

import json
import re

import pytest

from tests.conftest import REPOSITORY

NOTEBOOK = REPOSITORY / "examples" / "which_estimator.ipynb"

_NUMBER = re.compile(r"(?<![\w.])-?\d+(?:\.\d+)?(?:e-?\d+)?(?![\w.]*\w)")


def executed(path, folder):
    """The notebook as its kernel leaves it, run in a folder of its own."""
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    book = nbformat.read(path, as_version=4)
    return nbclient.NotebookClient(book, timeout=600, resources={"metadata": {"path": str(folder)}}).execute()


def texts(book):
    """The output of its cells, as text."""
    found = []
    for cell in book["cells"]:
        for output in cell.get("outputs", []):
            text = output.get("text") or output.get("data", {}).get("text/plain", "")
            found.append("".join(text))
    return found


def differences(ours, theirs):
    """Where two texts differ by more than one unit of the last digit that is printed: what rounding can turn over."""
    words = [_NUMBER.sub("#", text) for text in (ours, theirs)]
    numbers = [_NUMBER.findall(text) for text in (ours, theirs)]
    if words[0] != words[1] or len(numbers[0]) != len(numbers[1]):
        return [(ours, theirs)]
    pairs = zip(*numbers, strict=True)
    return [(a, b) for a, b in pairs if abs(float(a) - float(b)) > 1.001 * max(_unit(a), _unit(b))]


def _unit(number):
    """The unit of the last digit: 0.1 for "2.5", 1e-5 for "1.2e-4", 0 for a whole number."""
    mantissa, _, exponent = number.partition("e")
    digits = len(mantissa.partition(".")[2])
    return 10.0 ** (int(exponent or 0) - digits) if digits or exponent else 0.0


def test_the_comparison_finds_differences():
    same = "h0: error 0.081 of 12 draws, 1.6e-4"
    assert not differences(same, "h0: error 0.082 of 12 draws, 1.5e-4")
    changed = [("0.081", "0.083"), ("12 draws", "13 draws"), ("h0", "h1"), ("1.6e-4", "1.8e-4"), ("draws", "texts")]
    for old, new in changed:
        assert differences(same, same.replace(old, new)), new


def test_it_is_small_and_clean():
    text = NOTEBOOK.read_text(encoding="utf-8")
    book = json.loads(text)
    assert len(text) < 300_000 and "\\u001b" not in text and "/home" not in text and "/tmp" not in text
    code = [cell for cell in book["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == [*range(1, len(code) + 1)]  # from top to bottom, once
    outputs = [output for cell in code for output in cell["outputs"]]
    assert not [o for o in outputs if o["output_type"] == "error" or o.get("name") == "stderr"]
    assert sum("image/png" in output.get("data", {}) for output in outputs) == 2
    assert "decision" in "".join(book["cells"][-5]["source"])


@pytest.mark.slow  # about 15 s of CPU time, and a kernel
def test_it_runs_and_prints_the_committed_output(tmp_path):
    book = executed(NOTEBOOK, tmp_path)
    said, was = texts(book), texts(json.loads(NOTEBOOK.read_text(encoding="utf-8")))
    assert len(said) == len(was)
    assert [differences(a, b) for a, b in zip(said, was, strict=True)] == [[]] * len(said)
