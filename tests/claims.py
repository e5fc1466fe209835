"""The numbers of README.md and docs/findings.md (claims.toml): the functions that take them from the committed data."""

import json
import re
import tomllib
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from favorbench.engine.scenario import load_scenario
from favorbench.maps import MAPS
from tests import pages
from tests.conftest import REPOSITORY

COMPOSED = "sinks(4):window(128):multipole"
LENGTHS = (1024, 4096, 8192)


class Claim(NamedTuple):
    """Words around numbers, {} for each; texts or functions with arguments that give them; what prints them."""

    words: str
    parts: list
    command: str

    def numbers(self):
        return [text for part in self.parts for text in ([part] if isinstance(part, str) else _called(*part))]


def _called(function, *arguments):
    return globals()[function](*arguments)


_FILE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
SETTINGS, TABLES = _FILE["settings"], _FILE["tables"]
README, FINDINGS = (
    [Claim(one["words"], one["numbers"], _FILE["commands"][one["command"]]) for one in _FILE[page]]
    for page in ("readme", "findings")
)


def two(value):
    """Two significant digits, as README writes them: 0.0030, 1.0, 36, 2.1e4, 7.5e-6."""
    if 1e-5 <= abs(value) < 1e-4:
        return f"{value:.6f}"
    if value == 0 or 1e-4 <= abs(value) < 100:
        return format(value, "#.2g").rstrip(".") if value else "0"
    mantissa, exponent = f"{value:.1e}".split("e")
    return f"{mantissa}e{int(exponent)}"


# over the heads of a run


@cache
def over_heads(run):
    return pd.read_csv(REPOSITORY / "results" / run / "summary-heads.csv")


def over(run, estimator, size, fields="median worst", sampler=None):
    """An estimator over the heads of a run, mse / mse of uniform attention: some of median, quartiles, worst, cost, and
    the number of heads on which it is worse."""
    frame = over_heads(run)
    found = frame.query("estimator == @estimator and num_projections == @size")
    if sampler is not None:
        found = found[found["sampler"] == sampler]
    (row,) = found.to_dict("records")
    # exact attention: logits and weighted values, (d + d_v) products of every pair; d_v = d on these heads
    exact = row["query_len"] * row["seq_len"] * 2 * row["head_dim"]
    values = {
        "median": two(row["ratio_median"]), "quartiles": f"{two(row['ratio_q25'])}, {two(row['ratio_q75'])}",
        "worst": two(row["worst_ratio"]), "worse": str(row["worse"]), "cost": two(row["multiplications"] / exact),
    }  # fmt: skip
    return [values[field] for field in fields.split()]


def worse_on_none(run, estimator, size):
    """No further number; but "worse on none" must be true."""
    assert over(run, estimator, size, "worse") == ["0"]
    return []


def clusters_are_worse_on_none():
    frame = over_heads("minilm-72").query("num_projections in (64, 240)")
    built = frame[frame["estimator"].str.contains("clusters|multipole") & (frame["kind"] == "method")]
    assert (built["worse"] == 0).all()
    return []


def heads_of(run):
    (count,) = set(over_heads(run)["heads"])
    return [str(count)]


def tokens(run):
    return [str(over_heads(run)["seq_len"].iloc[0])]


# the catalogue


@cache
def _catalogue(inputs):
    """mse / mse of uniform attention of each estimator, sampler and head, medians of draws."""
    frame = pd.read_csv(REPOSITORY / "results" / "catalogue" / "summary.csv").query("input == @inputs")
    frame = frame.set_index(["estimator", frame["sampler"].fillna("-"), "head"])["mse_median"].sort_index()
    return frame / frame["uniform", "-"]


def best_unbiased(inputs):
    ratios = _catalogue(inputs)
    unbiased = {cls.name for cls in MAPS if getattr(cls, "unbiased", False)}
    return [two(ratios[[name.split("(")[0] in unbiased for name in ratios.index.get_level_values(0)]].min())]


def taylor_2(inputs):
    return [two(_catalogue(inputs)["taylor-2"].item())]


def least_over_heads(name, bound):
    least = _catalogue("minilm")[name].min()
    return [str(bound) if least > bound else f"{least:.0f}"]


# whole models


@cache
def _models(folder):
    frame = pd.read_csv(REPOSITORY / "results" / "models" / folder / "summary.csv", dtype={"layers": str})
    return frame.query("layers == 'all'")


def models(estimator, size, folder="minilm-512"):
    """The row of an estimator in the place of a model's attention."""
    frame = _models(folder)
    (row,) = frame.query("estimator == @estimator and size == @size").to_dict("records")
    return row


def _cells(row, *keys):
    return [two(row[key]) for key in keys]


def time(*which):
    return _cells(models(*which), "time")


def texts_and_draws():
    row = models("multipole", 64)
    return [f"{row['texts']:.0f}", pages.WORDS[int(row["draws"])]]


def of_more_draws():
    """The sizes of the one estimator that has more than one draw, and their number."""
    rows = _models("minilm-512").query("layers == 'all' and draws > 1")
    (draws,) = set(rows["draws"])
    assert set(rows["estimator"]) == {"sinks(4):multipole"}
    return [*(f"{size:.0f}" for size in sorted(rows["size"])), pages.WORDS[int(draws)]]


def unnoticed():
    """How many settings cheaper than exact attention there are; none may be as near as bfloat16 is."""
    frame = _models("minilm-512").query("kind in ('map', 'method') and cost < 1")
    assert frame["effect"].min() > models("exact, model in bfloat16", 0)["effect"]
    return [str(len(frame))]


def within():
    """For each length, the cheapest setting that keeps four texts within 0.1 nats, and within 0.02."""
    found = []
    for nats in (0.1, 0.02):
        found.append(str(nats))
        for length in LENGTHS:
            frame = _models(f"smollm2-{length}").query("kind in ('map', 'method') and cost < 1 and texts == 4")
            found.append(two(frame[frame["worst"] < nats]["cost"].min()))
    assert "nan" not in found
    return ["four", *found]


def an_eighth():
    """At 8,192 tokens: what an eighth of the cost loses, of four texts the median and the worst; nothing measured at it
    or below stays within 0.1."""
    eighth, frame = models(f"{COMPOSED}(lloyd=3)", 112, "smollm2-8192"), _models("smollm2-8192")
    assert eighth["texts"] == 4 and 0.12 < eighth["cost"] < 1 / 8
    assert frame[(frame["kind"] == "method") & (frame["cost"] < 1 / 8)]["worst"].min() > 0.1
    return _cells(eighth, "effect", "worst")


def by_head():
    """1 - cosine of a choice for each head, and of one setting for all at about the same cost."""
    each, one = models("recommended(minilm-0.2, 72 heads)", 0), models("sinks(4):multipole", 96)
    assert abs(each["cost"] - one["cost"]) < 0.01 and each["texts"] == one["texts"] == 20
    return [two(one["cost"]), *_cells(each, "effect", "worst"), *_cells(one, "effect", "worst")]


def all_above():
    """The composition that keeps every text's cosine above 0.99: the number of texts, and its cost."""
    row = models("sinks(4):multipole", 128)
    assert row["worst"] < 0.01
    return [f"{row['texts']:.0f}", "0.99", two(row["cost"])]


def encoder():
    row, above = models("sinks(4):multipole", 128), all_above()
    return [*above, above[0], pages.WORDS[int(row["draws"])], *_cells(row, "effect", "worst")]


def language_model():
    row = models(COMPOSED, 512, "smollm2-8192")
    texts, draws = (pages.WORDS[int(row[key])] for key in ("texts", "draws"))
    return [*_cells(row, "effect", "cost"), texts, draws, two(row["worst"])]


def fused(name, size=0):
    """At 8,192 tokens: seconds over fused attention, lowest and highest, and nats of the median and the worst text."""
    seconds, nats = (pd.read_csv(REPOSITORY / "benchmarks" / f"fused-{name}.csv") for name in ("seconds", "nats"))
    lost = nats[(nats["length"] == 8192) & nats["estimator"].str.contains(name)]
    lost = lost[lost["size"] == size]
    (timed,) = seconds.merge(lost[["length", "estimator", "size"]].drop_duplicates()).to_dict("records")
    texts = pages.WORDS[lost["text"].nunique()]
    return [*_cells(timed, "ratio", "low", "high"), two(lost["nats"].median()), texts, two(lost["nats"].max())]


def fused_window():
    """The nearest keys alone: fewest and most of a chunk, seconds, and nats of the median and the worst text."""
    nats = pd.read_csv(REPOSITORY / "benchmarks" / "fused-nats.csv").query("length == 8192")
    (keys,) = set(nats["estimator"].str.extract(r"window\((\d+)\)")[0].dropna())
    ratio, _, _, lost, _, worst = fused("window")
    return [keys, str(int(keys) + 127), ratio, lost, worst]


def certified(name):
    """A certified answer: confidence, target, length, size, seconds, texts, median and worst error."""
    found = json.loads((REPOSITORY / "results" / "recommend" / name / "recommendation.json").read_text())
    (decision,), model = found["heads"], found["model"]
    assert decision["certified"] and found["probability"] == 0.9  # nine of ten
    (point,) = [point for point in decision["points"] if point["verdict"] == "certified"]
    errors = [two(point[name]) for name in ("median", "worst")]
    size, seconds = str(point["estimator"]["size"]), f"{model['seconds']:.2g}"
    confidence = f"{100 * found['confidence']:g}"
    return [confidence, f"{found['target']:g}", f"{model['length']:,}", size, seconds, str(point["draws"]), *errors]


def stopped():
    """Of the run with m = 512 at 8,192 tokens that was stopped: its size, its texts, and the loss of the worst."""
    page = (REPOSITORY / "results" / "recommend" / "README.md").read_text("utf-8")
    (found,) = re.findall(r"8,192 tokens, 0.1 nats, m = (\d+): 35 of (36) texts hit, one loses (0.134)", page)
    return list(found)


def replaced_heads():
    """The heads of SmolLM2 but those that stay exact, and all: those of the committed groups."""
    heads = len(pd.read_csv(REPOSITORY / "benchmarks" / "fused-heads.csv")) * 3
    estimators = pd.read_csv(REPOSITORY / "benchmarks" / "fused-nats.csv")["estimator"]
    (kept,) = set(estimators.str.extract(r"(\d+) heads exact")[0].dropna())
    return [str(heads - int(kept)), str(heads)]


def shorter_than_fused():
    """Lengths below 8,192, the longer first, and the seconds of the setting for each over fused attention's."""
    timed = pd.read_csv(REPOSITORY / "benchmarks" / "fused-seconds.csv").query("model == 'smollm2' and length < 8192")
    timed = timed[timed["estimator"].str.contains("multipole")].drop_duplicates("length")
    return [
        text for length, ratio in timed[["length", "ratio"]].values[::-1] for text in (f"{length:,.0f}", two(ratio))
    ]


def saves_time_from():
    """The least length that was measured at which a setting for SmolLM2 takes less time than fused attention."""
    timed = pd.read_csv(REPOSITORY / "benchmarks" / "fused-seconds.csv").query("model == 'smollm2' and high < 1")
    return [f"{timed[timed['estimator'].str.contains('multipole')]['length'].min():,}"]


def none_faster_in_encoder():
    """The length, and how many estimators all take more time than fused attention there, at every size."""
    timed = pd.read_csv(REPOSITORY / "benchmarks" / "blocks.csv").query("model == 'minilm'")
    assert (timed["seconds_low"] > 1).all()
    return ["512", pages.WORDS[(timed["size"] == timed["size"].min()).sum()]]


# what is declared


def python():
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return [project["requires-python"].strip(">=")]


def default_target():
    from favorbench.studies.recommend.whole_model import target_of

    return [f"{target_of(None, 'relative_error'):g}"]


def default(command, name, times=1):
    import typer

    from favorbench.cli import app

    (parameter,) = (p for p in typer.main.get_command(app).commands[command].params if p.name == name)  # pyright: ignore
    return [f"{times * parameter.default:g}"]


def scenario(name, *keys):
    values = (getattr(load_scenario(name), key) for key in keys)
    return [str(value[0] if isinstance(value, tuple) else value) for value in values]


# the tables of docs/findings.md


def _line(*cells):
    return f"| {' | '.join(cells)} |"


def length_rows():
    """The lines of the table of lengths: median and worst head of SmolLM2's at each."""
    return [
        _line(f"`{name}`", *(", ".join(over(f"smollm2-{length}", name, 256, "median worst", *sampler))
                             for length in (1024, 2048, 4096, 8192)))
        for name, sampler in TABLES["by_length"].items()
    ]  # fmt: skip


def table_rows():
    """The lines of the other tables."""
    rows = []
    for label, (name, *sampler) in TABLES["heads"].items():
        cells = [over("minilm-72", name, size, "median quartiles worst worse cost", *sampler) for size in (64, 240)]
        rows.append(_line(label, *(c for median, q, *rest in cells for c in (f"{median} ({q})", *rest))))
    for label, which in TABLES["model"].items():
        rows.append(_line(label, *_cells(models(*which), "effect", "worst", "cost")))
    for length, label, *which in TABLES["language"]:
        row = models(*which, f"smollm2-{length}")
        rows.append(_line(f"{length:,}", f"{row['texts']:.0f}", label, *_cells(row, "effect", "worst", "cost")))
    return rows
