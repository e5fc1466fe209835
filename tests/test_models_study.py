"""The study of a model: planned, stored, resumed, summarised, and asked on the command line."""

import dataclasses
import json
import re
import shutil
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure
from numpy.testing import assert_allclose
from scipy.stats import spearmanr

from favorbench import style
from favorbench.engine.provenance import VERSION
from favorbench.errors import InputError, ModelError, ScenarioError, StoreError
from favorbench.models import summary
from favorbench.models.figures import charts
from favorbench.models.load import load, read_texts, tokenise
from favorbench.models.plan import ModelScenario, plan
from favorbench.models.predicted import predict
from favorbench.models.seconds import conditions, times
from favorbench.models.store import GROWING, SEARCH, merged_request, write_manifest
from favorbench.models.summary import ENCODER, LANGUAGE, lines_of, note, sections, sentence, sentences
from favorbench.results.status import statuses
from favorbench.sections import to_markdown
from tests.command_line import printed, refused, run
from tests.conftest import parts, stop_after
from tests.small_models import small_folder, small_text
from tests.test_held import SAME_TICKS, held, looks
from tests.test_models_swap import bert, llama

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers", minversion="5")
tokenizers = pytest.importorskip("tokenizers")

WORDS = [f"w{i}" for i in range(38)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two models with a tokenizer of whole words, and five texts."""
    home = tmp_path_factory.mktemp("models")
    vocabulary = {word: i for i, word in enumerate(["[UNK]", "[PAD]", *WORDS])}
    whole = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="[UNK]"))
    whole.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    for name, build in (("bert", bert), ("llama", llama)):
        build().float().save_pretrained(home / name)
        tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=whole, unk_token="[UNK]", pad_token="[PAD]")
        tokenizer.save_pretrained(home / name)
    rng = np.random.default_rng(3)
    for i in range(5):
        (home / f"text{i}.txt").write_text(" ".join(rng.choice(WORDS, 40)), encoding="utf-8")
    return home


def asked(folder, name="bert", texts=4, **more):
    paths = tuple(f"{folder}/text{i}.txt" for i in range(texts))
    small = {"length": 24, "maps": ("positive",), "methods": ("clusters",), "sizes": (4, 8), "draws": 2}
    return ModelScenario(f"{folder}/{name}", paths, **(small | more))


def study(scenario, out, **more):
    from favorbench.models.study import study  # which needs torch

    return study(scenario, Path(out), **more)


def studied(folder, out, name="bert", progress=None, repeats=0, **more):
    """Measure a small study, and return what is said of it."""
    return study(asked(folder, name, **more), out, progress=progress, repeats=repeats)


def read(out):
    return summary.read(Path(out))


def measured(out):
    return read(out).rows.to_json(orient="records", double_precision=15)


def test_requests_are_planned_text_by_text():
    small = ModelScenario("m", ("a", "b"), sizes=(4,), draws=2, layers="all,each,0,2", methods=("clusters",))
    planned = plan(small, ["a", "b"], [0, 1, 2])
    assert len(planned) == 2 * ((5 + 4) + 4 * (3 + 4))  # all has exact and the model in bfloat16 besides
    assert [unit.text for unit in planned] == sorted(unit.text for unit in planned)
    assert list(dict.fromkeys(unit.layers for unit in planned)) == ["all", "0", "1", "2", "0,2"]
    assert len({unit.key for unit in planned}) == len(planned)
    again = ModelScenario(
        "m", ("a", "b"), sizes=(4,), draws=2, layers="all,each,0,2", methods=("clusters", "uniform", "removed")
    )
    assert [unit.key for unit in plan(again, ["a", "b"], [0, 1, 2])] == [unit.key for unit in planned]
    assert [
        unit.replacement.kind
        for unit in plan(ModelScenario("m", ("a",), methods=("top(4):clusters",), maps=()), ["a"], [])
    ][-1] == "oracle"


def test_an_interrupted_study_is_resumed_bit_for_bit(folder):
    studied(folder, "whole", texts=2)

    with pytest.raises(KeyboardInterrupt):
        studied(folder, "half", texts=2, progress=stop_after(17))
    there = json.loads(Path("half/model.json").read_text())
    assert there["measurements_done"] == 17 and not there["complete"]
    for shown in (printed("table half"), Path(printed("report half").split()[0]).read_text()):
        assert "PARTIAL: not all measurements are there yet" in shown
    studied(folder, "half", texts=2)
    assert "PARTIAL" not in printed("table half")
    assert measured("half") == measured("whole")
    other = read("whole").rows
    assert len(other) == 2 * (5 + 2 * 2 * 2) and json.loads(Path("half/model.json").read_text())["complete"]
    studied(folder, "other", texts=2, seed=1)
    assert measured("other") != measured("whole")


def test_a_request_may_be_extended_but_not_changed(folder):
    studied(folder, "run", texts=2, draws=1)
    studied(folder, "run", texts=3, draws=1, sizes=(8, 12))
    rows = read("run").rows
    assert rows["text"].nunique() == 3 and set(rows["size"]) == {0, 4, 8, 12}
    studied(folder, "run", texts=1, draws=2, layers="0", heads=False)
    studied(folder, "run", texts=1, draws=1, layers="1", heads=False)
    asked = read("run").manifest["asked"]  # that of the last command alone would be said to have made all rows
    assert (asked["sizes"], asked["draws"], asked["layers"]) == ([4, 8, 12], 2, ["all", "0", "1"])
    for changed, said in (({"seed": 2}, "seed 0 there, 2 here"), ({"length": 20}, "length 24 there, 20 here")):
        with pytest.raises(StoreError, match=said):
            studied(folder, "run", **changed)
    Path("text0.txt").write_text("w1 w2 w3 w4 w5 w6 w7 w8 w9 w10 w11 w12", encoding="utf-8")
    other = ModelScenario(f"{folder}/bert/", ("text0.txt",), 24, sizes=(4,))  # as TAB completes it: the same model
    with pytest.raises(StoreError, match="study: text text0 has changed; "):
        study(other, "run")
    Path("else").mkdir()
    Path("else/mine.txt").write_text("kept")
    with pytest.raises(StoreError, match=r"not empty and not a favorbench run \(it has 'mine.txt'\)"):
        studied(folder, "else")


def test_the_rows_of_an_earlier_request_do_not_count_as_done(folder):
    studied(folder, "run", texts=2, draws=1, heads=False)
    assert statuses(Path("run"))[0].whole
    for more in ({"sizes": (12,), "heads": False}, {}):  # other estimators, and the same with errors of single heads
        with pytest.raises(KeyboardInterrupt):
            studied(folder, "run", texts=2, draws=1, progress=stop_after(12), **more)
        (found,) = statuses(Path("run"))
        manifest = json.loads(Path("run/model.json").read_text())
        assert (found.done, found.planned, found.state) == (12, manifest["measurements"], "stopped")
    studied(folder, "run", texts=2, draws=1)
    assert statuses(Path("run"))[0].whole


def test_another_version_does_not_add_to_a_study(folder):
    studied(folder, "run", texts=1, draws=1)
    manifest = json.loads(Path("run/model.json").read_text())
    Path("run/model.json").write_text(json.dumps(manifest | {"favorbench": "0.2.9"}))
    with pytest.raises(StoreError, match=r'run holds another study: favorbench "0\.2\.9" there'):
        studied(folder, "run", texts=2, draws=1)


def test_a_finished_study_without_its_rows_is_not_written_over(folder):
    """Such as one that was kept or sent without them: its summary would be replaced by that of the new rows alone."""
    studied(folder, "run", texts=1, draws=1)
    shutil.rmtree("run/trials")
    Path("run/summary.md").write_text("kept")
    with pytest.raises(StoreError, match=r"run has a summary, but not its measurements \(run/trials\)"):
        studied(folder, "run", texts=2, draws=1)
    assert Path("run/summary.md").read_text() == "kept"


def test_an_answer_without_its_rows_is_not_replaced_by_that_of_another_study(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    asked = {"model": "m", "weights": "a", SEARCH: True, "sources": {}, "calibrate": None}
    asked |= {key: {} for key in GROWING}
    write_manifest(Path("run"), asked, {"favorbench": VERSION}, 3, 3)
    assert merged_request(Path("run"), asked) == asked
    with pytest.raises(StoreError, match='run holds another study: weights "a" there, "b" here; use another `out`'):
        merged_request(Path("run"), asked | {"weights": "b"})


def test_a_text_that_is_replaced_meanwhile_is_read_once(folder, monkeypatch):
    """The tokens are those of the text whose digest is stored: of the one that was there at the beginning."""
    from favorbench.models import study as module

    text, load = Path("text.txt"), module.load
    text.write_bytes((folder / "text0.txt").read_bytes())
    small = ModelScenario(f"{folder}/bert", (str(text),), 24, sizes=(4,), draws=1, heads=False)
    study(small, "quiet")

    def replaced(*given, **more):
        text.write_text("w1 w2 w3 w4 w5 w6 w7")
        return load(*given, **more)

    monkeypatch.setattr(module, "load", replaced)
    study(small, "replaced")
    assert measured("replaced") == measured("quiet")
    digests = [read(name).manifest["asked"]["texts"]["text"] for name in ("quiet", "replaced")]
    assert digests[0] == digests[1]


def test_a_damaged_part_is_measured_again(folder):
    studied(folder, "run", texts=2)
    before = measured("run")
    part = parts()[0]
    part.write_bytes(part.read_bytes()[:-20])
    with pytest.raises(StoreError, match="is damaged"):
        read("run")
    assert studied(folder, "run", texts=2).set_aside == [part.name]
    assert measured("run") == before


def test_the_table_agrees_with_the_rows(folder):
    """Each number of it computed again from the rows, without pandas' groups."""
    studied(folder, "run", layers="all,1", draws=3)  # of two, the mean is the median
    found = read("run")
    assert found.measure is ENCODER
    rows = found.rows.query("layers == 'all'")

    def effects(name, size):
        some = [row for _, row in rows.iterrows() if (row["estimator"], row["size"]) == (name, size)]
        texts = sorted({row["text"] for row in some})
        return np.array([np.mean([row["embedding_loss"] for row in some if row["text"] == t]) for t in texts]), some

    uniform, _ = effects("uniform", 0)
    exact = {row["text"]: np.array(row["embedding"]) for _, row in rows.query("estimator == 'exact'").iterrows()}
    for name, size in (("positive", 4), ("positive", 8), ("clusters", 8)):
        line = found.lines.query("estimator == @name and size == @size").iloc[0]
        each, some = effects(name, size)
        assert line["worse"] == (np.median(each - uniform) > 0)
        values = [line[c] for c in ("effect", "low", "high", "worst", "texts", "draws")]
        assert_allclose(values, [np.median(each), each.min(), each.max(), each.max(), 4, 3], rtol=1e-12)
        ranks = [similarity(some, draw, exact) for draw in range(3)]
        assert_allclose(line["rank"], np.mean(ranks), rtol=1e-9)
        errors = np.concatenate([row["head_error"] for row in some])
        assert len(errors) == 4 * 3 * 8
        columns = ["head_median", "head_q90", "head_max"]
        assert_allclose(line[columns].tolist(), np.quantile(errors, [0.5, 0.9, 1.0]))
    failed = rows.index[(rows["estimator"] == "positive") & (rows["size"] == 4)][0]
    for value in (np.nan, 0.0):  # all pairs, not those that are left; an embedding of zeros has no direction
        rows.at[failed, "embedding"] = np.full(len(rows["embedding"].iloc[0]), value)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            ranks = lines_of(rows).set_index(["estimator", "size"])["rank"]
        assert np.isnan(ranks["positive", 4]) and not np.isnan(ranks["positive", 8])


def similarity(some, draw, exact):
    replaced = {row["text"]: np.array(row["embedding"]) for row in some if row["draw"] == draw}
    texts = sorted(exact)
    pairs = [(a, b) for i, a in enumerate(texts) for b in texts[i + 1 :]]
    cosines = [[e[a] @ e[b] / np.linalg.norm(e[a]) / np.linalg.norm(e[b]) for a, b in pairs] for e in (exact, replaced)]
    return spearmanr(*cosines).statistic


def rows_of(effects):
    """Rows of a study as they come from the store: {(kind, estimator): effect on each of two texts}."""
    empty = dict.fromkeys(("kl", "delta_nll", "top1", "late_kl", "late_delta_nll"), np.nan)
    fixed = {"layers": "all", "sampler": "-", "draw": 0, "seq_len": 9, "nonfinite": 0.0, "hidden_error": [0.1]}
    return pd.DataFrame(
        {**fixed, **empty, "text": text, "kind": kind, "estimator": name, "size": 4 if kind == "method" else 0,
         "embedding_loss": effect, "embedding": [1.0, effect], "head_error": None, "head_layer": None,
         "head_after_projection": None, "multiplications": 1.0, "left": 0,
         "exact_multiplications": 4.0}
        for (kind, name), each in effects.items() for text, effect in zip("ab", each, strict=True)
    )  # fmt: skip


HELD_STUDIES = {
    "bert": {"layers": "all,each", "samplers": ("iid", "orthogonal"), "methods": ("sinks(2):multipole",)},
    "llama": {"name": "llama", "layers": "all,0", "methods": ("window(4):sampled-keys",), "sizes": (3, 9)},
}


@pytest.mark.parametrize("case", HELD_STUDIES)
def test_a_study_is_what_it_was(case, folder):
    """Its lines and what is drawn of them; numbers to what processors differ by.

    An effect of some units in the last place of float32 is rounding. So is that of bfloat16, where axes begin.
    """
    studied(folder, "run", **HELD_STUDIES[case])
    results = read("run")
    lines = results.lines[results.lines["kind"] != "exact"]  # rounding of bfloat16 is of the processor
    rounding = 8 * float(np.finfo(np.float32).eps)
    held(f"model {case}: lines", [lines.columns.tolist(), *lines.to_numpy(object).tolist()], 1e-2, rounding)
    if SAME_TICKS:
        held(f"model {case}: figures", looks(charts(results)), 0.2, rounding)


def test_the_sentence_names_the_best_and_its_worst_text():
    given = {
        ("exact", "exact, model in bfloat16"): (0.001, 0.002), ("trivial", "uniform"): (0.4, 0.6),
        ("method", "good"): (0.01, 0.03), ("method", "bad"): (0.5, 0.7),
    }  # fmt: skip
    rows = rows_of(given)
    said = sentence(rows)
    assert said.startswith(
        "all layers, 2 texts of 9 tokens, 1 draw: none of 2 settings (cheaper than exact attention) replace"
    )
    assert "the best, good, m = 4, at 0.25 of its multiplications, leaves embeddings at cosine 0.98000 (worst" in said
    assert "(worst text 0.97000), where bfloat16 leaves embeddings at cosine 0.99850" in said
    marks = lines_of(rows).set_index("estimator")["worse"]
    assert marks["bad"] and not marks["good"] and not marks["uniform"]
    dearer = sentence(rows.assign(exact_multiplications=rows["kind"].map({"method": 0.5}).fillna(1.0)))
    assert "none of 2 settings (none of them cheaper than exact attention)" in dearer
    half = sentence(rows.assign(exact_multiplications=rows["estimator"].map({"good": 0.5}).fillna(4.0)))
    assert "none of 1 setting (cheaper than exact attention)" in half and "the best, bad" in half
    bare = sentence(rows[rows["kind"] != "exact"])
    assert "1 draw: 2 settings (cheaper than exact attention): the best, good" in bare and "bfloat16" not in bare
    grown = rows[(rows["estimator"] != "good") | (rows["text"] == "a")]
    assert "none of 1 setting (cheaper" in sentence(grown) and "the best, bad" in sentence(grown)
    failing = {**given, ("method", "good"): (0.01, np.inf), ("method", "bad"): (np.inf, np.inf)}
    unknown = rows_of(failing).assign(multiplications=np.nan)
    assert "(none of them known to be cheaper than exact attention)" in sentence(unknown)
    assert "the best, good, m = 4, leaves embeddings at cosine NaN (worst text NaN), where" in sentence(unknown)
    given["method", "good"] = (0.001, 0.002)
    assert "1 of 2 settings (cheaper than exact attention) replaces attention unnoticed" in sentence(rows_of(given))
    assert "hardly matters" not in sentence(rows_of(given))
    given["trivial", "uniform"] = (0.001, 0.001)
    assert sentence(rows_of(given)).endswith("unnoticed too: attention hardly matters in this model on these texts")
    for some in ({"layers": "1"}, {"left": 2}):  # the other layers are exact
        assert sentence(rows_of(given).assign(**some)).endswith("hardly matters in these layers on these texts")


@pytest.mark.parametrize("value, said", [(-1e-5, "0.000"), (0.0, "0.000"), (-0.2, "-0.200"), (0.0126, "0.013")])
def test_a_cost_that_rounds_to_nothing_has_no_sign(value, said):
    assert summary._costs(value, LANGUAGE) == f"costs {said} nats per token"


def test_a_small_divergence_keeps_its_digits():
    """Of three settings, bfloat16 and uniform attention the sentence said 0.000."""
    assert summary._costs(0.000123, summary.PREDICTION) == "costs a KL of 0.00012 nats"


def test_a_causal_model_with_calibrated_maps(folder):
    more = {"maps": ("calibrated:centre:positive",), "calibrate": f"{folder}/text4.txt", "layers": "all,each"}
    studied(folder, "run", "llama", texts=2, draws=1, **more)
    found = read("run")
    assert found.measure is LANGUAGE and set(found.rows["layers"]) == {"all", "0", "1"}
    assert found.rows["kl"].notna().all() and (found.rows["kl"] > -1e-6).all()
    everything = pd.Series(found.rows["kl"].to_numpy(), index=found.rows["estimator"])
    assert everything.loc["exact"].max() == 0 < everything.loc["uniform"].min()
    from favorbench import style
    from favorbench.models import figures
    from favorbench.models.summary import predictions

    predicted = predictions(found)
    assert predicted is not None and len(predicted.points) == 2 * 2 * 4
    for name in ("of_relative_error", "of_projected_error"):
        column = {"of_relative_error": "head_error"}.get(name, "head_after_projection")
        direct = spearmanr(predicted.points[column], predicted.points["effect"]).statistic
        assert abs(getattr(predicted, name) - direct) < 1e-12
    assert f"{predicted.of_projected_error:.2f} of |W_O error| / |h|" in " ".join(sentences(found))
    against = predicted._replace(of_projected_error=-0.3, of_relative_error=float("nan")).sentence
    assert "goes with" not in against and ": -0.30 of |W_O error| / |h|, over" in against

    files = style.write(figures.charts(found), Path("figures"))
    assert {file.stem for file in files} == {"effect", "hidden-error", "one-layer", "heads"}
    for size, panels in ((4, 1), (8, 2)):  # with one size there is no axis of sizes
        lines = found.lines[found.lines["size"] <= size]
        (effect,) = figures.effect(found._replace(lines=lines))
        assert len(effect.panels) == panels


def test_figures_name_what_they_cannot_draw(folder):
    """An estimator whose effect is infinite, or whose cost is unknown, was in the legend and nowhere else."""
    studied(folder, "run", texts=2, draws=1, layers="all,each", maps=(), methods=("clusters", "nystrom"))
    found = read("run")
    broken = found.lines["estimator"] == "nystrom"
    lines = found.lines.assign(cost=found.lines["cost"].mask(broken))
    infinite = {name: lines[name].mask(broken, np.inf) for name in ("effect", "low", "high", found.measure.positive)}
    for chart in charts(found._replace(lines=lines.assign(**infinite))):
        notes = [text.get_text() for drawn in style.draw(chart) for ax in drawn.axes for text in ax.texts]
        if chart.name in ("effect", "one-layer"):
            assert any("off scale: nystrom" in note for note in notes), chart.name
        assert ("they declare no cost: nystrom." in chart.caption) == (chart.name == "effect")


def test_a_figure_of_errors_that_are_0_has_no_panel(folder):
    """Most heads are exact, so medians over heads are 0: an empty panel, "nan (left)", and a warning of matplotlib."""
    for kept, panels in (("L0H0-2,L1H0-2", 1), ("L0H0", 2)):
        studied(folder, kept, texts=2, draws=1, layers="all,each", maps=(), methods=("clusters",), exact_heads=kept)
        (chart,) = [chart for chart in charts(read(kept)) if chart.name == "heads"]
        assert (len(chart.panels), "nan" in chart.caption) == (panels, False)


def test_a_figure_says_how_many_errors_are_0(folder):
    """All heads of a layer are exact: its dots are not there, on log axes, though the caption counted them."""
    kept = "L0H0-3"
    studied(folder, "run", texts=2, draws=1, layers="all,each", maps=(), methods=("clusters",), exact_heads=kept)
    captions = {chart.name: chart.caption for chart in charts(read("run"))}
    assert ", 8 points, " in captions["heads"] and "(4 are not drawn where an error is 0," in captions["heads"]


def test_each_sampler_has_its_own_line(folder):
    """One line went through the points of both samplers, in the colour and with the name of one."""
    studied(folder, "run", texts=2, draws=1, layers="all,each", samplers=("iid", "orthogonal"), methods=())
    found = read("run")
    for chart in charts(found):
        for panel in chart.panels:
            ax = Figure().subplots()
            panel.draw(ax)
            lines = {line.get_label(): line.get_xdata() for line in ax.lines}
            names = [name for name in lines if name.startswith("positive")]
            assert [name.partition(", R")[0] for name in sorted(names)] == ["positive", "positive, iid"], chart.name
            if chart.name != "heads":
                assert all((np.diff(lines[name]) > 0).all() for name in names), chart.name


@pytest.mark.parametrize(
    "changed, error, said",
    [
        (
            {"maps": ("centre:positive",)},
            ScenarioError,
            "centre:positive is not; `favorbench model` takes calibrated:centre:positive with `calibrate`",
        ),
        ({"methods": ("nystrom",)}, ScenarioError, "is causal, and nystrom is not"),
        ({"maps": ("calibrated:centre:positive",)}, ScenarioError, "`favorbench model` takes `calibrate` FILE"),
        ({"layers": "2"}, ScenarioError, "`layers` 2: .* has 2, 0 to 1"),
        ({"sizes": (30,)}, ScenarioError, "text0: .*size 30 given, allowed: at most 24, the number of keys"),
        ({"sizes": (30,), "exact_heads": "L0H0"}, ScenarioError, "text0: .*size 30 given, allowed: at most 24"),
        ({"length": 2000}, ModelError, "reads at most 64 tokens"),
    ],
)
def test_impossible_requests_are_refused_before_measuring(folder, changed, error, said):
    with pytest.raises(error, match=said):
        studied(folder, "run", "llama", **changed)
    assert not Path("run").exists()


@pytest.mark.parametrize(
    "changed, error, said",
    [
        ({"layers": "al"}, ScenarioError, "did you mean 'all'"),
        ({"redraw": "lager"}, ScenarioError, "did you mean 'layer'"),
        ({"methods": ("cluster",)}, ScenarioError, "did you mean 'clusters'"),
        ({"methods": ("clusters", "clusters(lloyd=0)")}, ScenarioError, "are both called 'clusters'"),
        ({"maps": ("positive", "positive()")}, ScenarioError, "are both called 'positive'"),
        ({"samplers": ("iid", "iid()")}, ScenarioError, "are both called 'iid'"),
        ({"draws": 0}, ScenarioError, "draws"),
        ({"texts": ()}, InputError, "give one file or more"),
        (
            {"maps": (), "methods": (), "recommended": ("rec",), "exact_heads": "L0H0"},
            ScenarioError,
            "`exact_heads` are for `maps` and `methods`, and neither is given; `recommended` has its own choices",
        ),
    ],
)
def test_senseless_values_are_one_line(changed, error, said):
    with pytest.raises(error, match=said):
        ModelScenario(**({"model": "m", "texts": ("a",)} | changed))


@pytest.mark.parametrize(
    "family, said",
    [
        ("bart", "is an encoder-decoder model; `favorbench model` measures encoders and language models"),
        ("vit", "reads pixel_values, not text: `favorbench capture module:function`"),
    ],
)
def test_models_that_answer_no_text_are_refused_in_one_line(family, said, folder):
    with pytest.raises(ModelError, match=re.escape(said)):
        study(ModelScenario(str(small_folder(family, family)), (f"{folder}/text0.txt",)), "run")
    assert not Path("run").exists()


def test_the_text_to_calibrate_on_may_be_longer_than_a_window(tmp_path):
    """A window of 8 keys masks the text that maps are fitted to, of 24 tokens, and not the one that is measured."""
    model = small_folder(tmp_path / "mistral", "mistral")
    texts = [small_text(tmp_path / f"{length}.txt", length, start=length) for length in (6, 24)]
    more = {"maps": ("calibrated:centre:positive",), "methods": (), "sizes": (4,), "draws": 1}
    study(ModelScenario(str(model), (str(texts[0]),), 24, calibrate=str(texts[1]), **more), "run")
    rows = read("run").rows.query("estimator == 'calibrated:centre:positive'")
    assert rows["replaced"].tolist() == [2] and np.isfinite(rows["embedding_loss"]).all()


def test_the_text_to_calibrate_on_is_none_of_those_measured(folder):
    copy = Path("copy.txt")
    copy.write_bytes((folder / "text1.txt").read_bytes())
    with pytest.raises(InputError, match="measured too, as text1"):
        studied(folder, "run", calibrate=str(copy))
    longer = Path("longer.txt")  # as two files under one licence
    longer.write_text(f"{(folder / 'text1.txt').read_text()} and more, which is not read")
    for length in (24, 64):  # where both are cut, and where neither is
        with pytest.raises(InputError, match="measured too, as text1"):
            studied(folder, "run", calibrate=str(longer), length=length)
    with pytest.raises(
        ScenarioError, match=r"text4\.txt: nothing asked for has parameters to fit; write calibrated:MAP"
    ):
        studied(folder, "run", calibrate=f"{folder}/text4.txt")
    twice = ModelScenario(f"{folder}/bert", (f"{folder}/text1.txt", str(copy)), 24)
    with pytest.raises(InputError, match="the same text as text1"):
        study(twice, "run")


def test_files_that_begin_alike_are_one_text_where_no_more_is_read(folder):
    """As files of code with one licence: their interval would be that of one text."""
    for name, end in (("a", "w5"), ("b", "w6")):
        Path(f"{name}.txt").write_text(" ".join([*WORDS[:24], end]))
    loaded, files = load(f"{folder}/bert"), read_texts(["a.txt", "b.txt"])
    with pytest.raises(InputError, match=r"`text` b\.txt: its first 24 tokens are those of a; give one of them"):
        tokenise(loaded, files, 24)
    assert len(tokenise(loaded, files, 25)) == 2  # the control


def test_the_command_measures_shows_and_resumes(folder):
    texts = [f"{folder}/text{i}.txt" for i in range(3)]
    small = "-L 24 -R 4,8 --draws 1 --methods clusters --no-heads --out run -q"
    command = f"model {folder}/bert --text {' '.join(texts)} {small}"
    out = printed(command)
    assert max(map(len, out.partition("1 - cos: ")[0].splitlines())) <= 80
    assert "all layers replaced" in out and "attention unnoticed: the best" in " ".join(out.split())
    code, out, err = run(f"{command} --json")
    assert json.loads(out)["manifest"]["complete"] and (code, err) == (0, "")
    summary = Path("run/summary.md").read_text()
    assert "| estimator | cost | 1 - cos |" in summary and "texts |" not in summary
    shown = {name for name in ("rank", "hidden", "head") if f"| {name} |" in summary}
    assert shown == {name for name in ("rank", "hidden", "head") if f"; {name}" in summary} == {"rank"}
    assert Path("run/summary.csv").exists() and Path("run/figures/effect.png").exists()


def test_a_study_that_grew_unevenly_says_how_many_texts_each_line_has(folder):
    for texts, sizes in ((3, (4,)), (1, (8,))):
        studied(folder, "run", texts=texts, sizes=sizes, draws=1, heads=False, methods=())
    found = read("run")
    given = {record["estimator"]: record["texts"] for record in sections(found)[0].rows}
    assert found.uneven and (given["positive, R = 4"], given["positive, R = 8"], given["uniform"]) == ("3", "1", "3")
    assert "Median over up to 3 texts" in to_markdown(sections(found))
    assert sentence(found.rows).startswith("all layers, 3 texts")


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_a_layer_that_is_left_in_one_text_is_left_in_all(folder, order, tmp_path):
    """A window of 8 keys masks the text of 24 tokens and not that of 6, whichever is the first."""
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 4}
    layers = {"layer_types": ["sliding_attention", "full_attention"], "num_hidden_layers": 2, "sliding_window": 8}
    size = {"vocab_size": 40, "hidden_size": 16, "intermediate_size": 16}
    torch.manual_seed(0)
    model = transformers.Gemma3ForCausalLM(transformers.Gemma3TextConfig(**heads, **layers, **size))
    model.save_pretrained(tmp_path / "windowed")
    for file in (folder / "llama").glob("token*"):
        (tmp_path / "windowed" / file.name).write_bytes(file.read_bytes())
    short = Path("short.txt")
    short.write_text(" ".join(WORDS[:6]), encoding="utf-8")
    texts = [(str(short), f"{folder}/text0.txt")[i] for i in order]
    given = {"length": 24, "maps": (), "methods": ("sampled-keys",), "sizes": (4,), "draws": 1, "layers": "all,each"}
    scenario = ModelScenario(str(tmp_path / "windowed"), tuple(texts), **given)
    left = study(scenario, "run", after=lambda model: predict(model, Path("run"), 2, None, lambda said: None)).left
    rows = read("run").rows
    assert len(left) == 1 and "window" in next(iter(left.values()))
    assert sentence(rows).startswith("all layers but 1, 2 texts of")
    assert set(rows.loc[rows["layers"] == "all", ["replaced", "left"]].itertuples(index=False)) == {(1, 1)}
    assert set(rows["layers"]) == {"all", "1"} and set(rows["head_layer"].dropna().explode()) == {1}
    assert read("run").lines.query("estimator == 'sampled-keys' and layers == 'all'")["predicted"].notna().all()
    single = rows.set_index(["layers", "estimator", "text"])["embedding_loss"].sort_index()
    assert_allclose(single["all", "sampled-keys"], single["1", "sampled-keys"])
    if order == (0, 1):
        study(dataclasses.replace(scenario, texts=texts[:1]), "grown")
        with pytest.raises(StoreError, match=r"left_layers null there, \[0\] here; use another `out`"):
            study(scenario, "grown")


def test_seconds_are_stored_with_the_study(folder):
    studied(folder, "run", "llama", methods=("clusters", "sampled-keys"), repeats=2)
    before = read("run")
    timed = before.lines[before.lines["kind"].isin(["map", "method"])]
    assert len(timed) == 6 and (timed["time"] > 0).all()
    assert before.lines.query("kind == 'trivial'")["time"].isna().all()
    assert "time: CPU seconds" in to_markdown(sections(before)) and "| time |" in to_markdown(sections(before))
    studied(folder, "run", "llama", methods=("clusters(lloyd=1)",), maps=(), repeats=1)
    kept = json.loads(Path("run/seconds.json").read_text())
    assert kept["threads"] == 1 and kept["layers"] == [0, 1] and len(kept["rows"]) == 8
    studied(folder, "other", "llama", texts=2)
    assert "time" not in read("other").lines
    Path("run/seconds.json").write_text("{}")
    with pytest.raises(StoreError, match=r"seconds.json is damaged"):
        read("run")


def test_times_of_two_commands_say_where_each_was_measured(folder, monkeypatch):
    studied(folder, "run", maps=(), sizes=(4,), draws=1, repeats=1)
    here = conditions(Path("run"))
    with monkeypatch.context() as patch:
        there = {"cpu": "another processor", "gpu": None, "platform": "", "cores": 1, "blas": []}
        patch.setattr("favorbench.models.seconds.machine", lambda backend: there)
        studied(folder, "run", maps=(), sizes=(8,), draws=1, repeats=1)
    other = "one thread of another processor, layers 0 and 1"
    assert conditions(Path("run")) == f"{here} or {other}" != here
    assert conditions(Path("run"), ("clusters", "-", 4)) == here
    assert conditions(Path("run"), ("clusters", "-", 8)) == other


def test_what_is_said_of_lines_of_fewer_texts_and_draws(folder, monkeypatch):
    """They have no interval of 95 %, and no prediction where it is of other texts or draws."""
    from favorbench.models.predicted import predict  # which needs torch

    monkeypatch.setattr("favorbench.models.summary.fewest_draws", lambda tests: 3)  # texts that have an interval
    monkeypatch.setattr("favorbench.statistics.fewest_draws", lambda tests: 3)
    scenario = asked(folder, maps=(), sizes=(4,), draws=1, texts=2)
    study(scenario, "run", after=lambda model: predict(model, Path("run"), 2, None, print))
    assert read("run").lines.set_index("estimator").loc[["uniform", "clusters"], "predicted"].notna().all()
    studied(folder, "run", maps=(), sizes=(4, 8), draws=2, texts=1)
    found = read("run")
    lines = found.lines.set_index(["estimator", "size"])
    assert lines.loc[("uniform", 0), "predicted"] > 0 and np.isnan(lines.loc[("clusters", 4), "predicted"])
    assert "2 texts of 24 tokens, up to 2 draws: " in sentence(found.rows)
    studied(folder, "run", maps=(), sizes=(4,), draws=2, texts=3)
    found = read("run")
    assert "3 texts of 24 tokens, 2 draws: " in sentence(found.rows)
    assert "95 % interval (smallest to largest of fewer than 3)" in note(found, ())
    assert np.isnan(found.lines.set_index("estimator").loc["uniform", "predicted"])


def test_intervals_over_texts_are_said_to_leave_out_the_draws_that_texts_share(folder):
    """Of one draw on 12 texts the interval of `multipole` covers its median effect in 82 % of draws, for 95 %."""
    for texts, says in ((1, False), (2, True)):
        studied(folder, "run", maps=(), sizes=(4, 8), draws=1, texts=texts)
        found = read("run")
        assert ("over texts, without the spread of the draws, which all texts share" in note(found, ())) == says
        assert "interval over texts, which share the draws" in charts(found)[0].caption


@pytest.mark.filterwarnings("ignore:24. .* does not know these words")
def test_the_stated_memory_of_gradients_is_that_of_the_longest_text(folder):
    texts = [str(small_text(f"{length}.txt", length)) for length in (6, 24)]
    scenario, said = asked(folder, maps=(), methods=(), draws=1), []
    for given in (texts, texts[::-1]):
        scenario = dataclasses.replace(scenario, texts=tuple(given))
        study(scenario, "run", after=lambda model: predict(model, Path("run"), 2, None, said.append))
    assert said == ["2 gradients of 2 layers: 12 KiB of memory"] * 2


def test_no_prediction_of_fewer_draws_is_shown(folder):
    """An interrupted command left the second draw of one text out: the mean over two draws stood beside one draw.

    What is shown is the sum over heads, its mean over draws, and the median of that over texts.
    """
    from favorbench.models.predicted import FILE, predict  # which needs torch

    scenario = asked(folder, maps=("positive",), methods=(), sizes=(4,), draws=3, texts=3)
    study(scenario, "run", after=lambda model: predict(model, Path("run"), 2, None, print))
    predicted = read("run").lines.set_index("estimator")["predicted"]
    stored = json.loads(Path("run", FILE).read_text())
    effects = {"uniform": ["uniform - 0 0"], "positive": [f"positive orthogonal 4 {draw}" for draw in range(3)]}
    for name, draws in effects.items():
        sums = [[sum(text[draw]) for draw in draws] for text in stored["texts"].values()]
        assert predicted[name] == pytest.approx(np.median(np.mean(sums, axis=1)), rel=1e-12)
    assert predicted.notna().sum() == 2
    *_, last = stored["texts"].values()
    del last["positive orthogonal 4 1"]
    Path("run", FILE).write_text(json.dumps(stored))
    predicted = read("run").lines.set_index("estimator")["predicted"]
    assert predicted["uniform"] > 0 and np.isnan(predicted["positive"])


def test_the_sentence_compares_settings_on_the_same_texts(folder):
    """The best of settings was named where each was measured on other texts, beside uniform attention on all."""
    scenario = asked(folder, maps=(), sizes=(4,), draws=1, texts=2)
    study(scenario, "run")
    others = tuple(f"{folder}/text{i}.txt" for i in (2, 3))
    study(dataclasses.replace(scenario, texts=others, methods=("clusters", "sampled-keys"), sizes=(8,)), "run")
    rows = read("run").rows
    alone = rows[rows["text"].isin(["text2", "text3"])]
    assert sentence(rows) == sentence(alone) and "2 texts of 24 tokens, 1 draw: " in sentence(rows)
    assert "of 2 settings" in sentence(rows)


def test_a_star_of_a_language_model_is_about_the_kl(folder):
    studied(folder, "run", "llama", texts=2)
    assert "*: worse than uniform attention by the KL, text by text" in note(read("run"), ())


def test_single_layers_have_stars_too(folder):
    """Beside "*: worse than uniform attention", the table of single layers had none, whatever its values were."""
    studied(folder, "run", texts=2, draws=1, layers="all,each,0,1", maps=("positive",), methods=("clusters",))
    lines = read("run").lines.query("layers != 'all'")
    *_, table, _ = sections(read("run"))
    shown = [text for row in table.rows for text in list(row.values())[1:] if text != "-"]
    assert lines["worse"].nunique() == 2 and lines["layers"].nunique() > 2
    assert sum(text.endswith("*") for text in shown) == lines["worse"].sum()


def test_seconds_are_those_of_the_called_function():
    """A replacement that works three times as long takes about three times as long; exact attention itself takes 1."""
    from favorbench.models.replacements import Exact, LayerHeads

    class Thrice(Exact):
        def outputs(self, *given):
            return torch.stack([super(Thrice, self).outputs(*given) for _ in range(3)])[0]

    heads = LayerHeads(*torch.randn((3, 1, 4, 512, 32), generator=torch.Generator().manual_seed(0)), True)
    found = times({0: heads, 3: heads}, [Exact(), Thrice()], repeats=9)
    assert [row["estimator"] for row in found] == ["exact", "exact"] and found[0]["low"] <= found[0]["ratio"]
    assert found[1]["ratio"] / found[0]["ratio"] > 1.5  # 3 on a quiet machine


def test_seconds_of_a_clock_with_long_steps(monkeypatch):
    """Windows counts CPU seconds in steps of 16 ms: what takes less took 0, and its ratio was NaN."""
    from favorbench.models.replacements import Exact, LayerHeads

    now, step = [0.0], 1 / 64

    def clock():
        now[0] += 1e-5
        return now[0] // step * step

    class Takes(Exact):
        def __init__(self, seconds):
            super().__init__()
            self.seconds = seconds

        def outputs(self, *given):
            now[0] += self.seconds

    monkeypatch.setattr("favorbench.models.seconds.Exact", lambda: Takes(0.002))
    monkeypatch.setattr("time.process_time", clock)
    heads = LayerHeads(*torch.zeros(3, 1, 1, 2, 2), True)
    for row, ratio in zip(times({0: heads}, [Takes(0.001), Takes(0.006)], repeats=3), (0.5, 3.0), strict=True):
        assert 9 / 11 < row["low"] / ratio <= row["high"] / ratio < 11 / 9  # a step of ten more or less in each


@pytest.mark.parametrize(
    "model, more, said",
    [
        ("bert", (), "--text: a model is measured on text"),
        ("bert", ("--text", "no.txt"), "cannot read text"),
        ("bert", ("--text", "TEXT", "--calibrate", "TEXT"), "--calibrate"),
        ("bert", ("--text", "TEXT", "--layers", "9"), "--layers 9:"),
        ("bert", ("--text", "TEXT", "-R", "x"), "-R: 'x' given"),
        ("nothing", ("--text", "TEXT"), "nothing"),
    ],
)
def test_the_command_explains_errors_in_one_line(model, more, said, folder):
    given = [f"{folder}/text0.txt" if one == "TEXT" else one for one in more]
    assert said in refused("model", f"{folder}/{model}", *given, "--out", "run")


def test_single_heads_may_be_measured_later(folder):
    study(asked(folder, texts=2, heads=False), "run")
    study(asked(folder, texts=2), "run")
    study(asked(folder, texts=2), "fresh")
    tables = [to_markdown(sections(summary.read(Path(out)))) for out in ("run", "fresh")]
    assert tables[0] == tables[1] and "single heads" in tables[0]


@pytest.mark.parametrize(
    "name, old, new",
    [("config.json", '"hidden_act": "gelu"', '"hidden_act": "relu"'), ("tokenizer_config.json", "{", "{ ")],
)
def test_a_model_of_another_configuration_is_another_one(folder, name, old, new):
    """Its weights are the same."""
    shutil.copytree(folder / "bert", "copy")
    one = dataclasses.replace(asked(folder, texts=1, maps=(), draws=1, heads=False), model="copy")
    study(one, "run")
    settings = Path("copy", name)
    settings.write_text(settings.read_text().replace(old, new))
    with pytest.raises(StoreError, match=f"run holds another study: {name} has changed"):
        study(one, "run")


def test_calibrated_maps_may_join_a_study_and_others_follow(folder):
    """Its other rows do not depend on the text: a command with it, or then without, was refused."""
    one = asked(folder, texts=1, maps=(), sizes=(4,), draws=1, heads=False)
    fitted = {"maps": ("calibrated:centre:aderf-sderf",), "calibrate": f"{folder}/text4.txt"}
    study(one, "run")
    study(dataclasses.replace(one, **fitted), "run")
    study(dataclasses.replace(one, methods=("sampled-keys",)), "run")
    assert {"calibrated:centre:aderf-sderf", "clusters", "sampled-keys"} <= {*read("run").rows["estimator"]}
    with pytest.raises(StoreError, match="run holds another study: the text of `calibrate` has changed"):
        study(dataclasses.replace(one, **fitted | {"calibrate": f"{folder}/text3.txt"}), "run")


def test_a_model_that_has_moved_is_the_same_one(folder):
    """As on another machine: its study could not be resumed, though each of its files has its digest there."""
    one = asked(folder, texts=1, maps=(), methods=(), draws=1, heads=False)
    study(one, "run")
    before = parts("run")
    shutil.copytree(folder / "bert", "moved/here")
    study(dataclasses.replace(one, model="moved/here"), "run")
    assert parts("run") == before and read("run").manifest["asked"]["model"] == "moved/here"


@pytest.mark.parametrize("first, then", [("aside.json", "added_tokens.json"), ("added_tokens.json", "aside.json")])
def test_a_file_of_a_tokenizer_that_came_or_went_makes_another_study(folder, first, then):
    """Its finished study was shown again, with the numbers of other tokens."""
    shutil.copytree(folder / "bert", "copy")
    Path("copy", first).write_text("{}")
    one = dataclasses.replace(asked(folder, texts=1, maps=(), draws=1, heads=False), model="copy")
    study(one, "run")
    Path("copy", first).rename(Path("copy", then))
    with pytest.raises(StoreError, match=r"run holds another study: added_tokens\.json has changed"):
        study(one, "run")


def test_a_text_that_was_measured_under_another_name_does_not_count_again(folder):
    """After a file was renamed, and for files that begin alike, its rows counted as those of two texts."""
    one = asked(folder, texts=1, maps=(), draws=1, heads=False)
    study(one, "run")
    Path("renamed.txt").write_bytes(Path(one.texts[0]).read_bytes())
    Path("longer.txt").write_bytes(Path(one.texts[0]).read_bytes() + b" and more")
    for name in ("renamed", "longer"):
        with pytest.raises(StoreError, match=f"another study: text {name} has the tokens of text0, measured there"):
            study(dataclasses.replace(one, texts=(f"{name}.txt",)), "run")
    assert len(read("run").rows["text"].unique()) == 1


MEAN = """
import numpy as np

def near(query, key, value, size, rng):
    return {} * np.mean(value, axis=0) + np.zeros((len(query), 1))
"""


def test_functions_of_one_name_in_two_modules_are_two_estimators(folder, module):
    """The second would be shown with the numbers of the first."""
    few = {"texts": 1, "maps": (), "draws": 1, "heads": False}
    for name, factor in (("first_near", 1), ("second_near", 2)):
        module(name, MEAN.format(factor))
    studied(folder, "run", methods=("first_near:near",), **few)
    with pytest.raises(StoreError, match="run holds another study: what is called near has changed"):
        studied(folder, "run", methods=("second_near:near",), **few)
    studied(folder, "run", methods=("first_near:near", "clusters"), **few)


@pytest.mark.parametrize("name", ["uniform", "exact"])
def test_a_function_may_not_have_the_name_of_a_reference(name, module):
    module("named_so", f"def {name}(query, key, value, size, rng):\n    return value")
    with pytest.raises(ScenarioError, match=f"an estimator of yours may not be called '{name}'"):
        ModelScenario("m", ("a",), methods=(f"named_so:{name}",))
