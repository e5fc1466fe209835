"""The numbers of README.md and docs/findings.md: in which sentence, from which data, printed by which command."""

import tomllib
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import pandas as pd

from favorbench.engine.scenario import load_scenario
from favorbench.maps import MAPS
from tests import pages
from tests.conftest import REPOSITORY

SWEEP_72 = "favorbench table results/minilm-72 --over heads"
SWEEP_GPL = "favorbench sweep estimators --inputs minilm72-gpl.npz"
SINKS = "favorbench sweep sinks --inputs smollm2-last256-8192.npz -R 64,256,1024"
CATALOGUE = "favorbench table results/catalogue --rank"
MODEL = "favorbench model minilm -L 512 --draws 1 --no-heads --text doc-types.txt"  # all of it in results/models
LANGUAGE_MODEL = "favorbench model smollm2 -L 8192 --draws 1 --no-heads --seconds 1 --text doc-types.txt"


def two(value):
    """Two significant digits, as README writes them: 0.0030, 1.0, 36, 2.1e4, 7.5e-6."""
    if 1e-5 <= abs(value) < 1e-4:
        return f"{value:.6f}"
    if value == 0 or 1e-4 <= abs(value) < 100:
        return format(value, "#.2g").rstrip(".") if value else "0"
    mantissa, exponent = f"{value:.1e}".split("e")
    return f"{mantissa}e{int(exponent)}"


@cache
def over_heads(run):
    return pd.read_csv(REPOSITORY / "results" / run / "summary-heads.csv")


class Over(NamedTuple):
    """An estimator over the heads of a run: mse / mse of uniform attention."""

    median: str
    quartiles: tuple[str, str]
    worst: str
    worse: str
    cost: str


def over(run, estimator, size, sampler=None):
    frame = over_heads(run)
    found = frame[(frame["estimator"] == estimator) & (frame["num_projections"] == size)]
    if sampler is not None:
        found = found[found["sampler"] == sampler]
    (row,) = found.to_dict("records")
    # exact attention: logits and weighted values, (d + d_v) products of every pair; d_v = d on these heads
    exact = row["query_len"] * row["seq_len"] * 2 * row["head_dim"]
    quartiles = two(row["ratio_q25"]), two(row["ratio_q75"])
    return Over(
        two(row["ratio_median"]),
        quartiles,
        two(row["worst_ratio"]),
        str(row["worse"]),
        two(row["multiplications"] / exact),
    )


def heads_of(run):
    (count,) = set(over_heads(run)["heads"])
    return str(count)


@cache
def _catalogue(inputs):
    """mse / mse of uniform attention of each estimator and sampler, medians of draws."""
    frame = pd.read_csv(REPOSITORY / "results" / "catalogue" / "summary.csv").query("input == @inputs")
    frame = frame.set_index(["estimator", frame["sampler"].fillna("-")])["mse_median"]
    return frame / frame["uniform", "-"]


def best_unbiased(inputs):
    ratios = _catalogue(inputs)
    unbiased = {cls.name for cls in MAPS if getattr(cls, "unbiased", False)}
    names = ratios.index.get_level_values(0)
    return ratios[[name.split("(")[0] in unbiased for name in names]].min()


@cache
def _models(folder):
    frame = pd.read_csv(REPOSITORY / "results" / "models" / folder / "summary.csv", dtype={"layers": str})
    return frame[frame["layers"] == "all"]


def models(estimator, size, folder="minilm-512"):
    """The row of an estimator in the place of a model's attention."""
    frame = _models(folder)
    (row,) = frame[(frame["estimator"] == estimator) & (frame["size"] == size)].to_dict("records")
    return row


def _unnoticed():
    """How many settings cheaper than exact attention there are; none may be as near as bfloat16 is."""
    frame = _models("minilm-512").query("kind in ('map', 'method') and cost < 1")
    assert frame["effect"].min() > models("exact, model in bfloat16", 0)["effect"]
    return [str(len(frame))]


def _cheapest(tokens, nats):
    """The least cost at which every one of four texts stays within a number of nats."""
    frame = _models(f"smollm2-{tokens}").query("kind in ('map', 'method') and cost < 1 and texts == 4")
    return [*frame[frame["worst"] < nats]["cost"].sort_values()[:1]]


def _within():
    """For each length, the cheapest setting that keeps four texts within 0.1 nats, and within 0.02."""
    found = [[two(cost) for tokens in MODEL_LENGTHS for cost in _cheapest(tokens, nats)] for nats in (0.1, 0.02)]
    assert [len(one) for one in found] == [3, 3]
    return ["four", "0.1", *found[0], "0.02", *found[1]]


def _an_eighth():
    """At 8,192 tokens: what an eighth of the cost loses, of four texts the median and the worst; nothing measured at it
    or below stays within 0.1."""
    eighth, frame = models(WITH_LLOYD, 112, "smollm2-8192"), _models("smollm2-8192")
    assert eighth["texts"] == 4 and 0.12 < eighth["cost"] < 1 / 8
    assert frame[(frame["kind"] == "method") & (frame["cost"] < 1 / 8)]["worst"].min() > 0.1
    return [two(eighth["effect"]), two(eighth["worst"])]


def _by_head():
    """1 - cosine of a choice for each head, and of one setting for all at about the same cost."""
    each, one = models("recommended(minilm-0.2, 72 heads)", 0), models("sinks(4):multipole", 96)
    assert abs(each["cost"] - one["cost"]) < 0.01 and each["texts"] == one["texts"] == 20
    return [two(one["cost"]), *(two(row[key]) for row in (each, one) for key in ("effect", "worst"))]


def _all_above():
    """The composition that keeps every text's cosine above 0.99: the number of texts, and its cost."""
    row = models("sinks(4):multipole", 128)
    assert row["worst"] < 0.01
    return [f"{row['texts']:.0f}", "0.99", two(row["cost"])]


def _tokens(run):
    return str(over_heads(run)["seq_len"].iloc[0])


def _encoder():
    row = models("sinks(4):multipole", 128)
    texts, cosine, cost = _all_above()
    draws = pages.WORDS[int(row["draws"])]
    return [texts, cosine, cost, texts, draws, two(row["effect"]), two(row["worst"])]


def _language_model():
    row = models(COMPOSED, 512, "smollm2-8192")
    texts, draws = (pages.WORDS[int(row[key])] for key in ("texts", "draws"))
    return [two(row["effect"]), two(row["cost"]), texts, draws, two(row["worst"])]


def _fused():
    """At 8,192 tokens: seconds over fused attention, lowest and highest, and nats of the median and the worst text."""
    seconds, nats = (pd.read_csv(REPOSITORY / "benchmarks" / f"fused-{name}.csv") for name in ("seconds", "nats"))
    lost = nats.query("length == 8192")
    (timed,) = seconds.merge(lost[["length", "estimator", "size"]].drop_duplicates()).to_dict("records")
    ratios = [two(timed[name]) for name in ("ratio", "low", "high")]
    return [*ratios, two(lost["nats"].median()), pages.WORDS[lost["text"].nunique()], two(lost["nats"].max())]


def _shorter_than_fused():
    """Lengths below 8,192, the longer first, and the seconds of the setting for each over fused attention's."""
    timed = pd.read_csv(REPOSITORY / "benchmarks" / "fused-seconds.csv").query("causal and length < 8192")
    return [
        text for length, ratio in timed[["length", "ratio"]].values[::-1] for text in (f"{length:,.0f}", two(ratio))
    ]


class Claim(NamedTuple):
    """Words around numbers, {} for each; what they must be; the command that prints them."""

    words: str
    numbers: Callable[[], list[str]]
    command: str


def _project():
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extra = next(x for x in project["optional-dependencies"]["models"] if x.startswith("transformers"))
    return {"python": project["requires-python"].strip(">="), "transformers": extra.partition(">=")[2]}


def _statistics(run, *which, fields="median worst"):
    def numbers():
        return [getattr(over(run, *one), field) for one in which for field in fields.split()]

    return numbers


README = [
    Claim("Python {} or newer", lambda: [_project()["python"]], "favorbench --version"),
    Claim(
        "keeps all {} embeddings above a cosine of {} at {} of the multiplications ({} texts of 512 tokens, {} draws; "
        "median 1 - cosine {}, worst text {})",
        _encoder,
        MODEL,
    ),
    Claim(
        "increases the loss by {} nats per token at {} of the multiplications (median of {} texts of 8,192 tokens, {} "
        "draw; worst text {})",
        _language_model,
        LANGUAGE_MODEL,
    ),
    Claim(
        "on the {} heads of all-MiniLM-L6-v2 ({} tokens, {} draws, {} features)",
        lambda: [heads_of("minilm-72"), _tokens("minilm-72"), str(load_scenario("estimators").trials), "240"],
        SWEEP_72,
    ),
    Claim(
        "its error is {} times that of the mean of V in the median, {} times on the worst head, and larger on {} heads",
        _statistics("minilm-72", ("positive", 240, "orthogonal"), fields="median worst worse"),
        SWEEP_72,
    ),
    Claim(
        "For softmax over {} random keys it is {} times, {} on the worst head",
        lambda: ["240", *_statistics("minilm-72", ("sampled-keys", 240, None))()],
        SWEEP_72,
    ),
    Claim(
        "takes {} times the CPU seconds of torch's fused attention ({} to {} in five runs, one thread), and increases "
        "the loss of SmolLM2-135M by {} nats per token (median of {} texts of different kinds, worst {})",
        _fused,
        "python -m benchmarks.fused 8192",
    ),
    Claim(
        "At {} tokens such a setting takes {} times, at {} tokens {} times",
        _shorter_than_fused,
        "python -m benchmarks.fused --seconds",
    ),
    Claim("over all {} heads: further left", lambda: [heads_of("minilm-72")], SWEEP_72),
    Claim("over the {} heads of all-MiniLM-L6-v2]", lambda: [heads_of("minilm-72")], SWEEP_72),
    Claim(
        '"relative error <= {} with probability >= {}"',
        lambda: [_default("recommend", "target"), _default("recommend", "probability")],
        "favorbench recommend --help",
    ),
    Claim(
        "(a sequential test, {} % confidence for all heads together)",
        lambda: [f"{100 * float(_default('recommend', 'confidence')):.0f}"],
        "favorbench recommend --help",
    ),
    Claim("on the {} heads that are included", lambda: [pages.WORDS[4]], "favorbench list inputs"),
]

FINDINGS = [
    Claim(
        "over the {} heads of all-MiniLM-L6-v2 ({} tokens, {} draws, m = 240)",
        lambda: [
            heads_of("minilm-72"),
            str(over_heads("minilm-72")["seq_len"].iloc[0]),
            str(load_scenario("estimators").trials),
        ],
        SWEEP_72,
    ),
    Claim(
        "they have {} times its error in the median and {} times on the worst head, worse on {};",
        _statistics("minilm-72", ("positive", 240, "orthogonal"), fields="median worst worse"),
        SWEEP_72,
    ),
    Claim(
        "`centre:aderf-sderf`, has {} times, {} on the worst, worse on {}.",
        _statistics("minilm-72", ("centre:aderf-sderf", 240, "antithetic:orthogonal"), fields="median worst worse"),
        SWEEP_72,
    ),
    Claim("win on these {} heads**", lambda: [heads_of("minilm-72")], SWEEP_72),
    Claim(
        "**: {} times in the median, {} on the worst head, worse than uniform on none.",
        lambda: _statistics("minilm-72", ("multipole", 240, None))() + _none("minilm-72", "multipole", 240),
        SWEEP_72,
    ),
    Claim("another text it is {} and {}.", _statistics("minilm-72-gpl", ("multipole", 240, None)), SWEEP_GPL),
    Claim("At m = 240 of {} keys", lambda: [str(over_heads("minilm-72")["seq_len"].iloc[0])], SWEEP_72),
    Claim("at m = 64 it is {} and {}.", _statistics("minilm-72", ("multipole", 64, None)), SWEEP_72),
    Claim(
        "the error to beat**: {} in the median and {} on the worst of the {} heads;",
        lambda: [*_statistics("minilm-72", ("sampled-keys", 240, None))(), heads_of("minilm-72")],
        SWEEP_72,
    ),
    Claim(
        "(`hyperattention` {} and {}, `kdeformer` {} and {})",
        _statistics("minilm-72", ("hyperattention", 240, None), ("kdeformer", 240, None)),
        SWEEP_72,
    ),
    Claim(
        "on {} heads of SmolLM2-135M (8,192 tokens, {} draws, m = 256)",
        lambda: [heads_of("smollm2-8192"), str(load_scenario("sinks").trials)],
        SINKS,
    ),
    Claim(
        "has {} times uniform's error in the median, {} on the worst head; with",
        _statistics("smollm2-8192", ("clusters", 256, None)),
        SINKS,
    ),
    Claim(
        "with four exact first keys {} and {},", _statistics("smollm2-8192", ("sinks(4):clusters", 256, None)), SINKS
    ),
    Claim(
        "`multipole(lloyd=3)` with them {} and {}, worse than uniform on none;",
        lambda: (
            _statistics("smollm2-8192", ("sinks(4):multipole(lloyd=3)", 256, None))()
            + _none("smollm2-8192", "sinks(4):multipole(lloyd=3)", 256)
        ),
        SINKS,
    ),
    Claim("none; `positive` {} and {}.", _statistics("smollm2-8192", ("positive", 256, "orthogonal")), SINKS),
    Claim(
        "(L = {}, d = {}, {} draws, {} features)",
        lambda: _of_the_catalogue("seq_len", "head_dim", "trials", "num_projections"),
        CATALOGUE,
    ),
    Claim("The best has {} times its error", lambda: [two(best_unbiased("gaussian"))], CATALOGUE),
    Claim("`taylor-2` {};", lambda: [two(_catalogue("gaussian")["taylor-2", "-"])], CATALOGUE),
    Claim(
        "standard deviation of 0.25 `taylor-2` has {}.",
        lambda: [two(_catalogue("gaussian(std=0.25)")["taylor-2", "-"])],
        CATALOGUE,
    ),
    Claim("Error over that of uniform attention on the {} heads", lambda: [heads_of("minilm-72")], SWEEP_72),
    Claim(
        "with all 6 layers replaced ({} texts of 512 tokens, {} draw)",
        lambda: [f"{models('uniform', 0)['texts']:.0f}", pages.WORDS[int(models("multipole", 64)["draws"])]],
        MODEL,
    ),
    Claim("all {} settings cheaper than exact attention change the embedding more than bfloat16", _unnoticed, MODEL),
    Claim("keeps all {} embeddings above a cosine of {} at {} of the cost", _all_above, MODEL),
    Claim(
        "so that all heads have the same relative error, is worse: at about the same cost, {}, it leaves {} (worst "
        "text {}), and one setting for all heads {} ({})",
        _by_head,
        MODEL,
    ),
    Claim(
        "keep all {} texts within {} nats at {} of the cost at 1,024 tokens, {} at 4,096 tokens and {} at 8,192 "
        "tokens, and within {} at {} at 1,024 tokens, {} at 4,096 tokens and {} at 8,192 tokens",
        _within,
        LANGUAGE_MODEL,
    ),
    Claim("An eighth of the cost, at 8,192 tokens, loses {} (worst text {})", _an_eighth, LANGUAGE_MODEL),
    Claim(
        "it takes {} times the CPU seconds of torch's fused attention",
        lambda: [two(models(COMPOSED, 512, "smollm2-8192")["time"])],
        LANGUAGE_MODEL,
    ),
    Claim("## {} heads of an encoder", lambda: [heads_of("minilm-72")], SWEEP_72),
    Claim(
        "on none of the heads, at m = 64 and at m = 240. `nystrom` is worse on {} heads at m = 240, by up to {} times",
        lambda: [*_none_of_the_clusters(), *_statistics("minilm-72", ("nystrom", 240, None), fields="worse worst")()],
        SWEEP_72,
    ),
    Claim(
        "`nystrom(guard='cells')` is worse on none (up to {} times)",
        lambda: [
            *_none("minilm-72", "nystrom(guard='cells')", 240),
            over("minilm-72", "nystrom(guard='cells')", 240).worst,
        ],
        SWEEP_72,
    ),
    Claim("`eva` {} and {};", _statistics("minilm-72", ("eva", 64, None)), SWEEP_72),
    Claim(
        "number of keys of each chunk, {} and {};",
        _statistics("minilm-72", ("eva(form='released')", 64, None)),
        SWEEP_72,
    ),
    Claim("`nystromformer` {} and {};", _statistics("minilm-72", ("nystromformer", 64, None)), SWEEP_72),
    Claim("approximate, {} and {}.", _statistics("minilm-72", ("nystromformer(inverse='pinv')", 64, None)), SWEEP_72),
    Claim("{} heads of SmolLM2-135M, the last 256", lambda: [heads_of("smollm2-8192")], SINKS),
    Claim(
        "at {} features each, {} draws, d = {}, L = {}",
        lambda: _of_the_catalogue("num_projections", "trials", "head_dim", "seq_len"),
        CATALOGUE,
    ),
    Claim(
        "and has more than {} times the error of uniform attention on all four heads",
        lambda: ["1000"] if _least_onover_heads("trig") > 1000 else [f"{_least_onover_heads('trig'):.0f}"],
        CATALOGUE,
    ),
]

#: Names, settings and bounds of the text itself, which are not measurements.
SETTINGS = [
    r"all-MiniLM-L6-v2", r"SmolLM2-135M", r"m = \d+", r"8,192 tokens", r"512 tokens", r"all 6 layers",
    r"standard deviation of 0\.25", r"1 - cos", r"all 30 layers", r"R=\d+",
    r"first 4 keys", r"at 1,024 tokens", r"at 4,096 tokens", r"at 8,192 tokens",
    r"N\(0, I\)", r"L0H5", r"1/sqrt\(R\)", r"a 2 pi", r"\(2020\)", r"last 256 queries", r"the 256 queries",
    r"its six iterations",
    r"1,024 to 8,192 tokens", r"SmolLM2, 4,096 tokens", r"\[[1248],\d+\]", r"\[results/[\w-]+\]", r"\| L = [\d,]+",
    r"exits 1", r"on 21 heads of SmolLM2, 4,096",
]  # fmt: skip

TABLE = {  # of the 72 heads
    "`positive`, orthogonal (FAVOR+)": ("positive", "orthogonal"),
    "`centre:aderf-sderf`, antithetic (the best map)": ("centre:aderf-sderf", "antithetic:orthogonal"),
    "`sampled-keys`": ("sampled-keys", None),
    "`nystrom`": ("nystrom", None),
    "`nystromformer`": ("nystromformer", None),
    "`monarch`": ("monarch", None),
    "`clusters`": ("clusters", None),
    "`multipole`": ("multipole", None),
    "`sinks(4):window(32):multipole`": ("sinks(4):window(32):multipole", None),
}

MODEL_TABLE = {  # all layers of all-MiniLM-L6-v2 replaced
    "exact, whole model in bfloat16": ("exact, model in bfloat16", 0),
    "`sinks(4):multipole(lloyd=3)`, m = 160": ("sinks(4):multipole(lloyd=3)", 160),
    "`sinks(4):multipole(lloyd=3)`, m = 96": ("sinks(4):multipole(lloyd=3)", 96),
    "`sinks(4):multipole`, m = 128": ("sinks(4):multipole", 128),
    "`sinks(4):multipole`, m = 64": ("sinks(4):multipole", 64),
    "`multipole`, m = 64": ("multipole", 64),
    "`nystromformer`, m = 64": ("nystromformer", 64),
    "`sampled-keys`, m = 240": ("sampled-keys", 240),
    "`positive`, R = 240": ("positive", 240),
    "the mean of V": ("uniform", 0),
}

COMPOSED = "sinks(4):window(128):multipole"
WITH_LLOYD = "sinks(4):window(128):multipole(lloyd=3)"
MODEL_LENGTHS = (1024, 4096, 8192)

LANGUAGE_TABLE = [  # tokens, label, estimator, size: all layers of SmolLM2-135M replaced
    (1024, f"`{COMPOSED}`, m = 128", COMPOSED, 128),
    (1024, f"`{WITH_LLOYD}`, m = 32", WITH_LLOYD, 32),
    (1024, "`sinks(4):multipole`, m = 64", "sinks(4):multipole", 64),
    (1024, "`positive`, R = 512", "positive", 512),
    (1024, "the mean of V", "uniform", 0),
    (4096, f"`{COMPOSED}`, m = 512", COMPOSED, 512),
    (4096, f"`{WITH_LLOYD}`, m = 128", WITH_LLOYD, 128),
    (4096, "`sinks(4):window(128):sampled-keys`, m = 256", "sinks(4):window(128):sampled-keys", 256),
    (8192, f"`{COMPOSED}`, m = 1,024", COMPOSED, 1024),
    (8192, f"`{COMPOSED}`, m = 512", COMPOSED, 512),
    (8192, f"`{COMPOSED}`, m = 384", COMPOSED, 384),
    (8192, f"`{WITH_LLOYD}`, m = 256", WITH_LLOYD, 256),
    (8192, f"`{WITH_LLOYD}`, m = 112", WITH_LLOYD, 112),
    (8192, "the mean of V", "uniform", 0),
]


def _default(command, name):
    import typer

    from favorbench.cli import app

    (parameter,) = (p for p in typer.main.get_command(app).commands[command].params if p.name == name)  # pyright: ignore
    return f"{parameter.default:g}"


def _none(run, estimator, size):
    """No further number; but "worse on none" must be true."""
    assert over(run, estimator, size).worse == "0"
    return []


def _of_the_catalogue(*keys):
    values = (getattr(load_scenario("catalogue"), key) for key in keys)
    return [str(value[0] if isinstance(value, tuple) else value) for value in values]


def _none_of_the_clusters():
    frame = over_heads("minilm-72").query("num_projections in (64, 240)")
    names = ("clusters", "multipole")
    built = frame[frame["estimator"].str.contains("|".join(names)) & (frame["kind"] == "method")]
    assert (built["worse"] == 0).all()
    return []


def _least_onover_heads(name):
    frame = pd.read_csv(REPOSITORY / "results" / "catalogue" / "summary.csv").query("input == 'minilm'")
    uniform = frame[frame["estimator"] == "uniform"].set_index("head")["mse_median"]
    found = frame[frame["estimator"] == name].set_index("head")["mse_median"]
    return float((found / uniform.loc[found.index]).min())


LENGTHS = (1024, 2048, 4096, 8192)
BY_LENGTH = {
    "positive": "orthogonal", "sampled-keys": None, "clusters": None, "sinks(4):positive": None,
    "sinks(4):sampled-keys": None, "sinks(4):clusters": None, "sinks(4):multipole(lloyd=3)": None,
}  # fmt: skip


def length_rows():
    """The lines of the table of docs/findings.md: median and worst head of SmolLM2's at each length."""
    rows = []
    for estimator, sampler in BY_LENGTH.items():
        cells = [over(f"smollm2-{length}", estimator, 256, sampler) for length in LENGTHS]
        rows.append(f"| `{estimator}` | " + " | ".join(f"{cell.median}, {cell.worst}" for cell in cells) + " |")
    return rows


def table_rows():
    """The lines of the other tables of docs/findings.md."""
    rows = []
    for label, (estimator, sampler) in TABLE.items():
        cells = [label]
        for size in (64, 240):
            one = over("minilm-72", estimator, size, sampler)
            cells += [f"{one.median} ({', '.join(one.quartiles)})", one.worst, one.worse, one.cost]
        rows.append("| " + " | ".join(cells) + " |")
    for label, (estimator, size) in MODEL_TABLE.items():
        row = models(estimator, size)
        cells = [label, *(two(row[key]) for key in ("effect", "worst", "cost"))]
        rows.append("| " + " | ".join(cells) + " |")
    for tokens, label, estimator, size in LANGUAGE_TABLE:
        row = models(estimator, size, f"smollm2-{tokens}")
        cells = [f"{tokens:,}", f"{row['texts']:.0f}", label, *(two(row[key]) for key in ("effect", "worst", "cost"))]
        rows.append("| " + " | ".join(cells) + " |")
    return rows
