"""What README says of models with their attention replaced is what results/models has."""

import json
import re

import pandas as pd
import pytest

from favorbench.maps import MAPS, get_map
from favorbench.methods import get_method
from favorbench.methods.base import Shape
from favorbench.methods.features import FromMap
from tests.conftest import REPOSITORY

RESULTS = REPOSITORY / "results" / "models"

#: Column of README's tables, and of summary.csv.
COLUMNS = {
    "1 - cos": "effect", "nats": "effect", "worst text": "worst", "cost": "cost", "time": "time", "texts": "texts",
}  # fmt: skip

WORDS = {"exact, whole model in bfloat16": "exact, model in bfloat16", "the mean of V": "uniform"}


def section() -> str:
    readme = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    return readme.split("### In a whole model\n")[1].split("\n## ")[0]


def rows_of(text):
    """The rows of all its tables, as {heading: cell}."""
    for table in re.findall(r"(?:^\|.*\n)+", text, flags=re.MULTILINE):
        head, _, *rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines())
        yield from (dict(zip(head, row, strict=True)) for row in rows)


def only_timed(folder, name, size):
    """Cost and time of what was timed at a length at which its effect is not measured."""
    timed = json.loads((RESULTS / folder / "seconds.json").read_text(encoding="utf-8"))
    (ratio,) = (row["ratio"] for row in timed["rows"] if (row["estimator"], row["size"]) == (name, size))
    length = timed["seq_len"]
    method = FromMap(get_map(name), "orthogonal") if name in {one.name for one in MAPS} else get_method(name)
    work = method.multiplications(Shape(length, length, 64, 64, causal=True), size)
    return {"time": ratio, "cost": work / (length * (length + 1) / 2 * (64 + 64))}


def differing(row):
    """The cells that are not the number of the committed summary, to the digits that are printed."""
    folder = f"smollm2-{row['tokens'].replace(',', '')}" if "tokens" in row else "minilm-512"
    name, _, size = row["in the place of attention"].partition("`, ")
    number = re.search(r"\d+$", size)
    name, cells = name.strip("`"), {heading: cell for heading, cell in row.items() if heading in COLUMNS and cell}
    if cells.get("nats") == "not measured":
        line = only_timed(folder, name, int(number[0]))
        del cells["nats"]
    else:
        lines = pd.read_csv(RESULTS / folder / "summary.csv", dtype={"layers": str})
        key = (lines["estimator"] == WORDS.get(name, name)) & (lines["size"] == (int(number[0]) if number else 0))
        (line,) = lines[key & (lines["layers"] == "all")].to_dict("records")
    return [
        f"{row}: {heading} is {line[COLUMNS[heading]]}"
        for heading, cell in cells.items()
        if abs(float(cell) - line[COLUMNS[heading]]) > 0.5001 * 10.0 ** -len(cell.partition(".")[2])
    ]


def test_each_number_is_the_committed_one():
    rows = list(rows_of(section()))
    assert len(rows) >= 12
    assert [said for row in rows for said in differing(row)] == []


def test_a_number_that_is_not_is_found():
    first = next(rows_of(section()))
    for heading, cell in first.items():
        if heading in COLUMNS and float(cell):
            last = f"{float(cell) + 10.0 ** -len(cell.partition('.')[2]):.{len(cell.partition('.')[2])}f}"
            assert len(differing(first | {heading: last})) == 1


@pytest.mark.parametrize("folder", sorted(path.parent.name for path in RESULTS.glob("*/summary.csv")))
def test_each_folder_is_told_of(folder):
    told = (RESULTS / "README.md").read_text(encoding="utf-8")
    (row,) = (line for line in told.splitlines() if f"({folder}/summary." in line)
    lines = pd.read_csv(RESULTS / folder / "summary.csv")
    if "| not complete: " in row:
        return
    assert {"uniform", "removed", "exact, attention in bfloat16"} <= {*lines["estimator"]}


def test_the_results_are_small():
    assert sum(path.stat().st_size for path in RESULTS.rglob("*") if path.is_file()) < 3_000_000
