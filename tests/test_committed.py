"""The runs in results/: each can be given to what reads a run, and is what its folder's tables say."""

import csv
import json
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import favorbench as fb
from benchmarks.committed import COMMANDS, compact
from favorbench.engine.rows import part_paths
from favorbench.engine.store import find_runs
from favorbench.results.heads import over_heads
from favorbench.results.sections import write_summary
from tests.claims import two
from tests.command_line import printed, run
from tests.conftest import same_rows

REPOSITORY = Path(__file__).parent.parent
RESULTS = REPOSITORY / "results"
RUNS = sorted(  # a user's own runs stand in results/ too
    file.parent
    for pattern in ("*", "blog/runs/*")
    for file in RESULTS.glob(f"{pattern}/manifest.json")
    if file.relative_to(RESULTS).parts[0] in COMMANDS
)
SMALL = [path for path in RUNS if part_paths(path / "trials")[0].stat().st_size < 100_000]
DRAWN = [*RUNS, *(file.parent for file in sorted(RESULTS.glob("recommend/*/recommendation.json")))]
LIMIT = 25e6  # bytes of the work tree

everywhere = pytest.mark.parametrize(
    "path",
    [path if path in SMALL else pytest.param(path, marks=pytest.mark.slow) for path in RUNS],
    ids=lambda path: path.name,
)


@pytest.mark.slow
@everywhere
@pytest.mark.parametrize(
    "command", ["table", "table --over heads", "table --rank", "compare", "table --rows", "report"]
)
def test_a_committed_run_can_be_read(path, command):
    name, *flags = command.split()
    if name == "compare":
        code, out, err = run(f"compare {path} {path} --json")
        assert {row["mark"] for row in json.loads(out)["rows"]} == {"="}
    elif "--rows" in flags:
        code, out, err = run(f"table {path} --rows --out rows.csv")
        with open("rows.csv", newline="") as file:
            assert len(list(csv.reader(file))) == len(fb.load(path).trials) + 1
    elif name == "report":
        code, out, err = run(f"report {path} --out page.html")
        assert Path("page.html").stat().st_size < 1e6
    else:
        code, out, err = run(name, str(path), *flags, "--json")
        if code == 2:  # of a run without heads there is no table over heads
            assert flags and fb.load(path).summary["head"].nunique() == 1
            return
        assert json.loads(out)
    assert code == 0 and "PARTIAL" not in err


def differs(kept, found, column):
    """Whether two tables have other rows, or numbers that six digits tell apart."""
    if len(kept) != len(found) or kept["estimator"].tolist() != found["estimator"].tolist():
        return True
    shown = kept[column] != 0  # what is rounding is kept as 0
    return not np.allclose(kept[column][shown], found[column][shown], rtol=5e-6 * (1 + 1e-9), atol=0, equal_nan=True)


@everywhere
def test_the_tables_next_to_a_run_are_those_of_the_run(path):
    results = fb.load(path)
    assert results.manifest["complete"]
    for name, found, column in (
        ("summary.csv", results.summary, "mse_median"),
        ("summary-heads.csv", over_heads(results), "ratio_median"),
    ):
        if (path / name).exists():
            kept = pd.read_csv(path / name)
            assert not differs(kept, found, column)
            changed = kept.copy()
            changed.loc[len(kept) - 1, column] *= 1.0001
            assert differs(changed, found, column)
    write_summary(results._replace(path=Path()))
    written = {"summary.md": Path("summary.md").read_text(encoding="utf-8")}
    written["heads.md"] = run(f"table {path} --format md")[1]
    for name, text in written.items():
        if (path / name).exists():
            assert words(text) == words((path / name).read_text(encoding="utf-8"))


def words(text):
    """The lines of a document, and of its tables the columns."""
    lines = text.splitlines()
    return [line for i, line in enumerate(lines) if not line.startswith("|") or not lines[i - 1].startswith("|")]


def test_a_run_is_made_small_without_losing_a_bit():
    before = fb.sweep({"trials": 3, "num_projections": [4, 8], "seq_len": [16]}, "run")
    for _ in range(2):
        assert compact(Path("run")) > 0
        after = fb.load("run")
        same_rows(after.trials, before.trials)
        assert len(part_paths(Path("run/trials"))) == 1


@pytest.mark.parametrize("command", ["table", "report", "plot"])
@pytest.mark.parametrize(
    "folder, said",
    [
        ("speed", "favorbench speed wrote it; look at .*speed.csv"),
        ("models/minilm-512", "favorbench model wrote it; look at .*summary.md"),
        ("models", r"it holds what favorbench model wrote \(minilm-512, "),
        ("blog", "it holds 2 runs; give one of them, e.g. .*trig-vs-positive|e.g. .*iid-vs-ortho"),
    ],
)
def test_directories_without_a_run_are_named(folder, said, command):
    if (folder, command) != ("blog", "plot"):  # which draws all runs below a folder
        code, out, err = run(f"{command} {RESULTS}/{folder} {'--out x.html' * (command == 'report')}")
        assert (code, out) == (2, "") and re.search(said, err.replace("\n", " "))


def test_what_plot_draws_by_name_it_draws_below_a_folder():
    """It left out recommendations for a whole model, and studies of models with their measurements."""
    assert RESULTS / "recommend/minilm-0.01" in find_runs(RESULTS)
    study = Path("below/study")
    (study / "trials").mkdir(parents=True)
    (study / "model.json").touch()
    assert find_runs(Path("below")) == [study]


@pytest.mark.slow
def test_one_is_plotted():
    out = printed(f"plot {RESULTS}/smollm2-1024 --out figures --json -q")
    assert any(file.endswith("error-vs-cost.png") for file in json.loads(out)["figures"])


def test_every_run_has_its_command():
    assert {path.relative_to(RESULTS).parts[0] for path in RUNS} == set(COMMANDS)


def test_the_first_commands_of_the_readme_leave_a_clone_clean():
    """Their output is neither tracked by git nor untracked: it is ignored."""
    kept = subprocess.run(["git", "ls-files", "results/quick"], cwd=REPOSITORY, capture_output=True, text=True)
    asked = ["git", "check-ignore", "results/quick/summary.csv", "results/catalogue/.lock", "results/dtype/report.html"]
    ignored = subprocess.run(asked, cwd=REPOSITORY, capture_output=True, text=True)
    if kept.returncode == 0:  # not in a source distribution
        assert kept.stdout == "" and len(ignored.stdout.splitlines()) == 3


def test_the_work_tree_is_small():
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=REPOSITORY, capture_output=True, text=True)
    if listed.returncode == 0:
        files = [REPOSITORY / name for name in listed.stdout.split("\0")[:-1]]
        assert sum(file.stat().st_size for file in files if file.exists()) < LIMIT


@pytest.mark.slow
@pytest.mark.rendered
@pytest.mark.parametrize("path", DRAWN, ids=lambda path: path.name)
def test_the_words_of_committed_figures_are_those_of_the_code(path):
    """Captions were those of an older version, so drawing them again changed a clean clone."""
    assert run(f"plot {path} --out figures --format svg -q")[0] == 0
    drawn, kept = (
        {file.name: re.findall(r"<text[^>]*>([^<]*)", file.read_text("utf-8")) for file in folder.glob("*.svg")}
        for folder in (Path("figures"), path / "figures")
    )
    assert drawn == kept and all(map(len, kept.values()))


@pytest.mark.slow
@pytest.mark.rendered
@pytest.mark.parametrize("name", ["real-heads", "dtype", "smollm2-1024"])
def test_drawing_a_committed_run_changes_nothing(name):
    """The files and their numbers are those that are committed; images are drawn alike twice, whatever draws them."""
    kept = REPOSITORY / "results" / name
    shutil.copytree(kept, "run")
    drawn = []
    for _ in range(2):
        shutil.rmtree("run/figures")
        assert run("plot run -q")[0] == 0
        drawn.append({path.name: path.read_bytes() for path in Path("run/figures").rglob("*.*")})
    assert drawn[0] == drawn[1]
    committed = {path.name: path.read_bytes() for path in (kept / "figures").rglob("*.*")}
    assert drawn[0].keys() == committed.keys()
    assert all(drawn[0][file] == data for file, data in committed.items() if file.endswith(".csv"))


def test_what_the_document_says_of_rounding():
    """It said that rounding dominates in `trig`."""
    rows = pd.read_csv(RESULTS / "dtype/figures/error-vs-dtype.csv")
    rows["share"] = rows["rounding_median"] / rows["relative_error_median"]
    worst = rows.groupby(["estimator", "dtype", "panel"])["share"].max()
    assert (worst < 1).all() and worst.idxmax() == ("trig", "bfloat16", "scale = 1")
    trig, positive = (worst[name, "bfloat16", "scale = 1"] for name in ("trig", "positive"))
    said = (REPOSITORY / "docs/gpu.md").read_text(encoding="utf-8")
    assert (
        f"rounding error is {trig:.1f} times the error of the estimate, and that of `positive` {positive:.2f}" in said
    )


def test_what_the_document_says_of_the_seconds_of_blocks():
    """Blocks of 16 queries take longer than it said of all blocks."""
    rows = (
        pd.read_csv(REPOSITORY / "benchmarks/blocks.csv").query("model == 'smollm2'").set_index("estimator")["seconds"]
    )
    blocks = rows[rows.index.str.contains("block=128")]
    single = rows["sinks(4):multipole"].to_numpy()
    said = (REPOSITORY / "docs/block-sparse.md").read_text(encoding="utf-8")
    assert f"in blocks of 128 takes {blocks.min():.2f} to {blocks.max():.2f} of them" in said
    assert (
        rows["sinks(4):multipole(block=16)"].to_numpy() / single < 0.2
    ).all() and "at a fifth of the seconds" in said
    assert blocks.max() / single.min() < 0.1


def test_what_the_document_says_of_all_heads_in_blocks():
    """The numbers of an older setting of twice its size stood there."""
    rows = pd.read_csv(REPOSITORY / "benchmarks/fused-nats.csv").query("length == 8192")
    said = " ".join((REPOSITORY / "docs/multipole.md").read_text(encoding="utf-8").split())
    ((size, share, *nats),) = re.findall(
        r"m = (\d+) in all heads, ([\d.]+) of the multiplications, the four texts below lose ([\d.]+), ([\d.]+), "
        r"([\d.]+) and ([\d.]+) at 8,192 tokens",
        said,
    )
    everywhere = rows[~rows["estimator"].str.contains("heads exact") & (rows["size"] == int(size))]
    assert list(map(float, nats)) == pytest.approx(everywhere["nats"].tolist(), abs=0.00051)
    assert f"{everywhere['multiplications'].median():.2f}" == share


def benchmark(name):
    return pd.read_csv(REPOSITORY / "benchmarks" / f"{name}.csv")


def seconds_beside_fused_attention():
    for row in benchmark("fused-seconds").itertuples():
        heads, name = "one head of random keys, all keys visible", row.estimator
        if row.model == "smollm2":
            heads = f"SmolLM2, causal, {'42 of 45' if row.length > 8192 else '252 of 270'} heads"
            name = re.sub(r"multipole\(.*\)", "multipole", name.removesuffix(", 18 heads exact"))
        segments = ", segments of 256 keys" * ("segment=256" in row.estimator)
        seconds = f"{row.ratio:.2f} ({row.low:.2f} to {row.high:.2f})"
        yield f"| {heads}, `{name}`{segments} | {row.length:,} | {row.size or '-'} | {seconds} |"


def methods_at_equal_seconds():
    rows = benchmark("blocks")
    alone = rows["estimator"].str.contains("nothing")
    rows["name"] = ("`" + rows["estimator"].str.removeprefix("sinks(4):") + "`").mask(alone, "window alone")
    rows = rows.set_index(["model", "size", "name"])

    def errors(row):
        return f"{two(row['median'])} [{two(row['median_low'])}, {two(row['median_high'])}] | {two(row['worst'])}"

    def beside(row):
        worst = row["beside_worst"]
        return f"{two(row['beside_median'])} ({two(worst) if worst < 99.5 else round(worst)})"

    for name in rows.index.unique("name"):
        encoder, model, larger = (
            rows.loc[(*key, name)] for key in (("minilm", 128), ("smollm2", 512), ("smollm2", 1024))
        )
        parts = [f"{two(row['seconds'])} | {errors(row)}" for row in (encoder, model)]
        yield f"| {name} | {' | '.join(parts)} |"
        seconds = [two(larger[key]) for key in ("seconds", "seconds_low", "seconds_high")]
        yield f"| {name} | {seconds[0]} ({seconds[1]} to {seconds[2]}) | {errors(larger)} |"
        if "multipole(" in name:
            sizes = {"minilm, shipped heads": (64, 128, 256), "minilm": (64, 128, 256), "smollm2": (512, 1024)}
            cells = [", ".join(beside(rows.loc[key, size, name]) for size in sizes[key]) for key in sizes]
            yield f"| {name} | {' | '.join(cells)} |"


@pytest.mark.parametrize(
    "page, lines, count",
    [("multipole", seconds_beside_fused_attention, 18), ("block-sparse", methods_at_equal_seconds, 26)],
)
def test_the_tables_of_seconds_are_those_of_the_benchmarks(page, lines, count):
    """Nothing compared them: a number of either could be changed alone."""
    said = (REPOSITORY / f"docs/{page}.md").read_text(encoding="utf-8").splitlines()
    assert set(lines()) <= set(said) and len([*lines()]) == count


def test_the_table_of_losses_is_that_of_the_benchmark():
    """The loss of each text, then its increase at each length, and that of nearest keys alone."""
    said = (REPOSITORY / "docs/multipole.md").read_text(encoding="utf-8")
    rows = benchmark("fused-nats").query("estimator.str.contains('heads exact')")
    rows = rows[rows["size"].isin([0, 512]) | (rows["length"] == 2048)]  # of each length the size of the first table
    for text, losses in rows.groupby("text"):
        ((loss, *increases),) = re.findall(rf"{text} \| (\S+)" + r" \| (\S+) \((\S+)\)" * 3, said)
        assert float(loss) == pytest.approx(losses["exact"].iloc[0], abs=0.0051)
        assert [*map(float, increases)] == pytest.approx(losses["nats"].tolist(), abs=0.00051)  # of four digits
