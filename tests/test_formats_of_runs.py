"""A run as version 0.2.0 stored it, with the column `map`, is still read; those of earlier formats are refused.

favorbench sweep --maps positive,trig --samplers iid,orthogonal -R 4,8 -L 16 -d 4 --trials 6 --baselines uniform
"""

import hashlib
import json
import shutil
from pathlib import Path

import pandas as pd
import pyarrow.parquet as pq
import pytest
from command_line import printed, refused, run
from numpy.testing import assert_allclose

import favorbench as fb
from favorbench.engine.columns import LABELS
from favorbench.engine.provenance import VERSION
from favorbench.engine.store import FORMAT
from favorbench.models.store import SCHEMA
from tests.conftest import REPOSITORY, change_manifest, parts, stop_after

RUN = Path(__file__).parent / "data" / "runs" / "format-5"
KEYS = {
    "maps": "positive,trig", "samplers": "iid,orthogonal", "num_projections": "4,8", "seq_len": 16, "head_dim": 4,
    "trials": 6, "baselines": "uniform",
}  # fmt: skip


@pytest.fixture(scope="module")
def now(tmp_path_factory):
    return fb.sweep(KEYS, tmp_path_factory.mktemp("now") / "run").trials


@pytest.fixture
def kept(tmp_path):
    return Path(shutil.copytree(RUN, tmp_path / "run"))


def test_its_rows_are_those_of_today(now):
    """Estimators, sizes and errors. Random numbers are of the same streams since the first version."""
    found = fb.load(RUN).trials
    assert list(found.columns) == list(now.columns) and (found.dtypes == now.dtypes).all()
    keys = ["draw", "estimator", "sampler", "num_projections"]
    both = now.merge(found, on=keys, suffixes=("", "_then"))
    assert len(both) == len(now)
    for column in now.columns.difference(keys):
        if now[column].dtype.kind == "f":
            assert_allclose(both[f"{column}_then"], both[column], rtol=1e-9, atol=1e-12)
        else:
            assert (both[f"{column}_then"] == both[column]).all()


def test_every_command_reads_it(kept):
    for command in ("table {}", "table {} --rank", "status {}", "table {} --rows", "report {}", "table {} --json"):
        assert printed(command.format(kept))
    code, _, err = run(f"compare {kept} {RUN}")
    assert code == 0 and "worse" not in err


def test_its_page_names_the_version_that_measured_it(kept, tmp_path):
    run(f"report {kept}")
    assert "favorbench 0.1.0, 20" in (kept / "report.html").read_text("utf-8")
    fb.recommend("minilm", target=0.9, heads="L0H1", methods="clusters", maps="none", out=tmp_path / "answer")
    change_manifest(tmp_path / "answer", favorbench="0.1.0")
    run(f"report {tmp_path / 'answer'}")
    assert "favorbench recommend, version 0.1.0, 20" in (tmp_path / "answer" / "report.html").read_text("utf-8")


def test_a_recommendation_of_version_0_2_0_is_refused_with_what_to_do(tmp_path):
    """It has no ``spec`` of its estimators, and was called damaged."""
    fb.recommend("minilm", target=0.9, heads="L0H1", methods="clusters", maps="none", out=tmp_path / "run")
    file = tmp_path / "run" / "recommendation.json"
    content = json.loads(file.read_text())
    del content["heads"][0]["estimator"]["spec"]
    file.write_text(json.dumps(content))
    for command in ("table", "report", "plot", "model minilm --text README.md --recommended"):
        said = refused(f"{command} {tmp_path / 'run'}")
        assert "if version 0.2.0 wrote it, run the same `favorbench recommend` command with another --out" in said


def test_a_recommendation_without_a_later_key_names_a_command_that_works(tmp_path):
    """Version 0.2.0 wrote no ``model``; the same command is refused in a directory of that version."""
    fb.recommend("minilm", target=0.9, heads="L0H1", methods="clusters", maps="none", out=tmp_path / "run")
    file = tmp_path / "run" / "recommendation.json"
    content = json.loads(file.read_text())
    del content["model"]
    file.write_text(json.dumps(content))
    for command in ("table", "report", "plot"):
        said = refused(f"{command} {tmp_path / 'run'}")
        assert "run the same `favorbench recommend` command with another --out" in said


def test_a_run_of_an_earlier_version_is_not_resumed(kept):
    change_manifest(kept, favorbench="0.1.0")
    before = {path: path.read_bytes() for path in kept.rglob("*") if path.is_file()}
    estimators = "--maps positive,trig --samplers iid,orthogonal --baselines uniform"
    said = refused(f"sweep {estimators} -R 4,8 -L 16 -d 4 --trials 6 --out {kept} -q")
    assert "holds another run" in said and "favorbench 0.1.0 there" in said and "use another --out" in said
    assert {path: path.read_bytes() for path in kept.rglob("*") if path.is_file() and path.name != ".lock"} == before


def test_a_finished_run_without_its_rows_is_not_written_over_by_another(kept):
    """Its summary and manifest are all that is left of it."""
    shutil.rmtree(kept / "trials")
    said = refused(f"sweep --maps positive -R 4 -L 16 -d 4 --trials 2 --out {kept} -q")
    assert "holds another run" in said and "use another --out" in said


def test_stored_draws_are_not_computed_again(kept, now):
    change_manifest(kept, favorbench=VERSION)
    calls = []
    found = fb.sweep(KEYS, kept, progress=lambda *now: calls.append(now))
    assert calls == [(6, 6)]
    pd.testing.assert_frame_equal(found.trials, now, rtol=1e-9)


def test_a_run_from_before_a_metric_existed_lacks_this_metric_alone(tmp_path, now):
    """Also where it was interrupted then, and is finished now."""
    with pytest.raises(KeyboardInterrupt):
        fb.sweep(KEYS, "run", progress=stop_after(3))
    (part,) = parts()
    table = pq.read_table(part)
    pq.write_table(table.drop_columns("cosine").replace_schema_metadata(table.schema.metadata), "older")
    digest = hashlib.sha256(Path("older").read_bytes()).hexdigest()[:20]
    part.unlink()
    Path("older").rename(part.with_name(f"part-000001-{digest}.parquet"))
    known = now.drop(columns="cosine")
    found = fb.load("run").trials
    pd.testing.assert_frame_equal(found, known[known["draw"].isin(found["draw"])].reset_index(drop=True))
    results = fb.sweep(KEYS, "run")
    assert results.manifest["complete"] and len(parts()) == 1
    pd.testing.assert_frame_equal(results.trials, known)
    assert printed("table run --metric skill") and printed("report run")
    assert "--metric cosine: run was measured before there was this metric" in refused("table run --metric cosine")


@pytest.mark.parametrize("number", [*range(1, FORMAT + 2), 0, "5", None, -1, 10**30, 5.0, True])
def test_other_formats_are_refused_with_the_version_that_reads_them(kept, number):
    change_manifest(kept, format=number, favorbench="9.1")
    if number in (FORMAT - 1, FORMAT) and type(number) is int:
        assert run(f"table {kept}")[0] == 0
        return
    for command in ("table", "report", "status", "plot"):
        said = refused(f"{command} {kept}")
        assert said.count("\n") <= 1
        if type(number) is int and 1 <= number < FORMAT - 1:
            assert f"is of format {number}, written by favorbench 9.1" in said and "version 0.2.0 reads it" in said
        elif number == FORMAT + 1:
            assert f"is of format {FORMAT + 1}, written by favorbench 9.1" in said and "use a newer one" in said
        else:
            assert "was not written by favorbench" in said


def test_every_column_is_in_the_documents():
    text = (REPOSITORY / "docs" / "formats.md").read_text(encoding="utf-8")
    assert [name for name in (*LABELS, *SCHEMA.names) if f"`{name}`" not in text] == []
