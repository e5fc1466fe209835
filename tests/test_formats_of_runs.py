"""Runs of every format that was ever written are read: the same sweep, kept as it was stored by the code of its time.

    favorbench sweep --maps positive,trig --samplers iid,orthogonal -R 4,8 -L 16 -d 4 --trials 6 --baselines uniform

(the default baselines in format 1, with taylor-1 in format 4; 5a without the metrics that format 5 has since).
"""

import json
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from command_line import refused, run

import favorbench as fb
from favorbench.engine.earlier import FORMAT
from favorbench.metrics import METRICS

RUNS = Path(__file__).parent / "data" / "runs"
FORMATS = sorted(path.name.removeprefix("format-") for path in RUNS.iterdir())
KEYS = {
    "maps": "positive,trig", "samplers": "iid,orthogonal", "num_projections": "4,8", "seq_len": 16, "head_dim": 4,
    "trials": 6, "baselines": "uniform",
}  # fmt: skip


@pytest.fixture(scope="module")
def now(tmp_path_factory) -> pd.DataFrame:
    return fb.sweep(KEYS, tmp_path_factory.mktemp("now") / "run").trials


@pytest.fixture
def kept(request, tmp_path) -> Path:
    return Path(shutil.copytree(RUNS / f"format-{request.param}", tmp_path / "run"))


def test_every_format_is_kept():
    assert {int(name.rstrip("ab")) for name in FORMATS} == set(range(1, FORMAT + 1))
    for name in FORMATS:
        assert json.loads((RUNS / f"format-{name}" / "manifest.json").read_text())["format"] == int(name.rstrip("ab"))


@pytest.mark.parametrize("name", FORMATS)
def test_its_rows_are_those_of_today(name, now):
    """All that it has: estimators, sizes and errors. Random numbers are of the same streams since the first version."""
    found = fb.load(RUNS / f"format-{name}").trials
    assert list(found.columns) == list(now.columns) and (found.dtypes == now.dtypes).all()
    keys = ["draw", "map", "sampler", "num_projections"]
    both = now.merge(found, on=keys, suffixes=("", "_then"))
    assert len(both) == len(now)
    for column in ("mse", "relative_error", "max_abs_error", "query_rows", "num_features"):
        np.testing.assert_allclose(both[f"{column}_then"].astype(float), both[column].astype(float), rtol=1e-9)
    assert (both["causal_then"] == both["causal"]).all()
    missing = {metric for metric in METRICS if found[metric].isna().all()}
    assert missing <= {"rounding", "relative_l1", "cosine", "unnormalised_rows"} and (missing == set()) == (
        name == "5b"
    )


@pytest.mark.parametrize("kept", FORMATS, indirect=True)
def test_every_command_reads_it(kept):
    commands = (["table"], ["rank"], ["status"], ["export", "--csv", "--out", "x.csv"], ["report"], ["table", "--json"])
    for name, *more in commands:
        code, out, err = run(name, str(kept), *more)
        assert (code, err) == (0, ""), (name, err)
        assert out
    code, out, err = run("compare", str(kept), str(RUNS / "format-5b"))
    assert code == 0 and "worse" not in err


@pytest.mark.parametrize("kept", [name for name in FORMATS if name != "5b"], indirect=True)
def test_it_is_not_resumed_with_other_columns(kept):
    before = sorted(kept.rglob("*"))
    said = refused(
        "sweep", "--maps", "positive,trig", "--samplers", "iid,orthogonal", "-R", "4,8", "-L", "16", "-d", "4",
        "--trials", "6", "--baselines", "uniform", "--out", str(kept), "-q",
    )  # fmt: skip
    assert "holds another run" in said and "use another --out" in said
    assert [path for path in sorted(kept.rglob("*")) if path.name != ".lock"] == before


@pytest.mark.parametrize("kept", ["5b"], indirect=True)
def test_one_of_today_is_resumed(kept, now):
    """What was stored then is not computed again, and what is missing is."""
    (part,) = kept.glob("trials/part-*")
    part.unlink()
    found = fb.sweep(KEYS, kept).trials
    pd.testing.assert_frame_equal(found, now, rtol=1e-9)


@pytest.mark.parametrize("kept", ["5b"], indirect=True)
@pytest.mark.parametrize("number", [FORMAT + 1, 0, "5", None])
def test_a_format_that_is_not_known_is_refused_with_its_number(kept, number):
    file = kept / "manifest.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"format": number, "favorbench": "9.1"}))
    said = refused("table", str(kept))
    if number == FORMAT + 1:
        assert f"is of format {FORMAT + 1}, written by favorbench 9.1" in said and "use a newer one" in said
    else:
        assert "was not written by favorbench" in said
