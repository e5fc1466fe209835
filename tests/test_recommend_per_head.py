"""`recommend --model --per-head`: settings per head of least predicted effect, tested like any other candidate."""

import itertools
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose

import favorbench as fb
from favorbench.attention.exact import exact_attention
from favorbench.errors import ScenarioError
from favorbench.models import gradients, study
from favorbench.models.gradients import gradient_draws
from favorbench.models.load import load, read_texts, split_texts
from favorbench.models.plan import ModelScenario
from favorbench.models.predicted import with_predictions
from favorbench.models.recommended import by_head
from favorbench.models.replacements import replacement
from favorbench.models.store import read_measurements
from favorbench.models.study import MeasuredModel
from favorbench.models.summary import read
from favorbench.numerics.machine import check_memory
from favorbench.numerics.streams import stream
from favorbench.studies.recommend import per_head
from favorbench.studies.recommend.answer import sections, sentence
from favorbench.studies.recommend.per_head import allocate
from favorbench.studies.saved import saved_study
from tests.command_line import check_refused, printed, refused, run
from tests.test_models_study import WORDS, folder  # noqa: F401
from tests.test_recommend_model import embedding_loss

torch = pytest.importorskip("torch")

LENGTH = 60
#: Certified by seven texts that all hit.
EASY = {"probability": 0.5, "confidence": 0.6, "max_size": 32, "seq_len": LENGTH, "methods": "clusters", "maps": "none"}
TARGET = 1e-5  # at the cost of clusters at m = 16 only settings per head can reach it


@pytest.fixture(scope="module")
def model(folder, tmp_path_factory):  # noqa: F811
    """An encoder with heads 0 and 1 of each layer uniform: they have no queries. So the others can be exact."""
    loaded, path = load(f"{folder}/bert"), tmp_path_factory.mktemp("uneven") / "bert"
    with torch.no_grad():
        for name, parameter in loaded.model.named_parameters():
            if ".query." in name:
                parameter[: len(parameter) // 2] = 0
    loaded.model.save_pretrained(path)
    loaded.tokenizer.save_pretrained(path)
    return str(path)


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("texts") / "a.txt"
    path.write_text(" ".join(np.random.default_rng(6).choice(WORDS, 30 * LENGTH)), encoding="utf-8")
    return str(path)


def found_for(model, text, out, **more):
    return fb.recommend(model=model, texts=[text], out=out, **({"target": TARGET, "per_head": True} | EASY | more))


def test_settings_per_head_win_where_heads_differ(model, text, monkeypatch):
    found = found_for(model, text, Path("run"))
    (decision,) = found.decisions
    assert decision.outcome == "certified" and decision.setting.kind == "per head" and decision.share < 1
    assert {head[-2:] for head in decision.per_head} >= {"H0", "H1"}
    assert all(decision.per_head[f"L{layer}H{head}"].name == "uniform" for layer in range(2) for head in range(2))
    assert found.model.chosen_on == 10 and found.model.texts == 30
    assert sentence(found).startswith("Take settings per head, as costly as clusters at m = 16, at ")
    assert "One setting for all heads at no more cost is not certified: clusters at m = 16 has" in sentence(found)
    rows = read_measurements(Path("run"))
    chosen = [one.split()[0] for one in json.loads(Path("run/effects.json").read_text())["texts"]]
    assert len(chosen) == 10 and not {*chosen} & {*rows["text"]}  # none of them is a test as well
    study = saved_study(Path("run"))
    assert study is not None and study.sections == sections(found)
    loaded = load(model)
    by_name = {one.name: one.tokens for one in split_texts(loaded, read_texts([text]), LENGTH)}
    own = rows[rows["estimator"].str.startswith("per head")]
    assert len(own) == decision.draws
    for _, row in own.head(2).iterrows():
        expected = embedding_loss(loaded.model, by_name[row["text"]], recommended=found, draw=int(row["draw"]))
        assert_allclose(row["embedding_loss"], expected, rtol=1e-9, atol=1e-12)
    assert_allclose(own["multiplications"], decision.multiplications)
    applied = by_head("run")
    assert {f"L{layer}H{head}" for layer, heads in applied.choices.items() for head in heads} == {*decision.per_head}
    monkeypatch.setattr(MeasuredModel, "head_effects", None)
    assert found_for(model, text, Path("run")).decisions == found.decisions  # effects are stored


def test_effects_of_other_heads_do_not_win(model, text, monkeypatch):
    effects = per_head.predicted_effects
    monkeypatch.setattr(per_head, "predicted_effects", lambda *given: np.roll(effects(*given), 2, axis=1))
    (decision,) = found_for(model, text, Path("run")).decisions
    assert decision.per_head is None and any(one.setting.kind == "per head" for one in decision.points)


def test_where_one_setting_is_enough_it_is_the_answer(model, text):
    found = found_for(model, text, Path("run"), target=1.9, max_cost=9.0)
    (decision,) = found.decisions
    assert decision.outcome == "certified" and decision.setting.name == "uniform" and decision.per_head is None
    nothing = found_for(model, text, Path("run"), target=1e-14, max_cost=0.5)
    assert sentence(nothing).startswith("No candidate, settings per head included, is certified to keep 1 - cosine")


def test_effects_of_heads_follow_the_formula(model, text):
    scenario = ModelScenario(model, (text,), LENGTH, (), (), (), (1,), 1, heads=False)
    measured, gradients = MeasuredModel(scenario, False, split_texts), 4
    tokens = measured.texts["a#1"].tokens
    found = measured.head_effects("a#1", [replacement("uniform"), replacement("exact")], 3, gradients)
    captured = fb.capture(measured.model, {"input_ids": tokens})
    q, k, v = (getattr(captured, name).astype(float) for name in ("query", "key", "value"))
    errors = v.mean(axis=1, keepdims=True) - exact_attention(q, k, v)
    rng = stream(0, "gradients", 3)
    unit, drawn = gradient_draws(measured.model, lambda: measured.model(tokens), [0, 1], gradients, rng)
    stacked = [np.concatenate([part[layer][0].numpy() for layer in (0, 1)]) for part in drawn]
    expected = np.mean([np.einsum("hnd,hnd->h", part, errors) ** 2 / 2 for part in stacked], axis=0)
    assert unit == "1 - cosine"
    assert_allclose(found[0], expected, rtol=1e-3, atol=1e-9 * expected.max())
    assert_allclose(found[1], 0, atol=1e-9 * expected.max())
    assert expected[[0, 1, 4, 5]].max() < 1e-6 * expected[[2, 3, 6, 7]].min()


def test_a_study_predicts_the_effects_it_measures(model, text, monkeypatch):
    """Layer by layer, where memory holds no more, as all together; of each draw; and the sum is near the measured."""
    ask = f"model {model} --text {text} -L {LENGTH} --maps none --methods clusters --draws 2 --no-heads"
    code, shown, said = run(f"{ask} -R 16 --predict 64 --out one")
    assert code == 0 and "predicted: 1 - cos to second order, the sum of the effects of all heads" in shown
    assert "64 gradients of 2 layers: 960 KiB of memory" in said
    monkeypatch.setattr(study, "GRADIENT_BYTES", 1)
    assert "64 gradients of 2 layers, 1 at a time: 480 KiB" in run(f"{ask} -R 16 --predict 64 --out two")[2]
    one, two = (json.loads(Path(name, "effects.json").read_text())["texts"] for name in ("one", "two"))
    assert json.loads(Path("one", "effects.json").read_text())["heads"] == [
        f"L{i}H{j}" for i in (0, 1) for j in range(4)
    ]
    ((key, effects),) = one.items()
    assert list(effects) == ["uniform - 0 0", "clusters - 16 0", "clusters - 16 1"]
    for name, heads in effects.items():
        assert_allclose(heads, two[key][name], rtol=1e-6)
    short = {"texts": {key: two[key] | {"uniform - 0 0": [1.0]}}}  # effects of too few heads are computed again
    Path("two", "effects.json").write_text(json.dumps(short))
    assert run(f"{ask} -R 16 --predict 64 --out two")[0] == 0
    assert_allclose(
        json.loads(Path("two", "effects.json").read_text())["texts"][key]["uniform - 0 0"], effects["uniform - 0 0"]
    )
    code, _, said = run(f"{ask} -R 8 --predict 8 --out one")  # which would show the effects of 64 as those of 8
    assert code == 2 and "--predict 8 given, and one/effects.json is of 64 gradients: give --predict 64" in said
    assert set(read(Path("one")).lines["size"]) == {0, 16}  # nothing was measured first
    lines = read(Path("one")).lines.set_index("estimator")
    expected = np.mean([sum(effects[f"clusters - 16 {draw}"]) for draw in (0, 1)])
    assert_allclose(lines["predicted"]["clusters"], expected)
    check_refused(f"{ask} -R 16 --predict 64 --layers 0 => --predict is of all layers together: --layers '0' given")
    assert 0.5 < lines["predicted"]["clusters"] / lines["effect"]["clusters"] < 2
    assert np.isnan(lines["predicted"]["exact"])
    monkeypatch.setattr(gradients, "check_memory", lambda *given: check_memory(1e18, *given[1:]))
    assert "a gradient through" in refused(f"{ask} -R 8 --predict 65 --out three")


def test_predictions_of_a_sampler_with_several_parameters_are_found(tmp_path):
    row = {"estimator": "centre:positive", "sampler": "own(a=3, b=4)", "size": 4, "layers": "all"}
    effects = {"texts": {"a b 0f": {"centre:positive own(a=3, b=4) 4 0": [1.0, 2.0]}}}
    Path(tmp_path, "effects.json").write_text(json.dumps(effects))
    lines = with_predictions(pd.DataFrame([row]), pd.DataFrame([row | {"text": "a b", "draw": 0}]), tmp_path)
    assert lines["predicted"].tolist() == [3.0]  # was NaN, with the sampler "b=4)"


def test_no_choice_of_the_same_cost_has_less_effect():
    rng, heads, options = np.random.default_rng(0), 4, 5
    rows, worse = np.arange(heads), 0
    for _ in range(30):
        costs, effects = np.sort(rng.random((heads, options))), rng.random((heads, options)) ** 3
        every = np.array([*itertools.product(range(options), repeat=heads)])
        totals, sums = (array[rows, every].sum(axis=1) for array in (costs, effects))
        largest = np.ptp(effects, axis=1).max()
        for budget in np.linspace(totals.min(), totals.max(), 7):
            chosen = allocate(costs, effects, budget)
            spent, effect = costs[rows, chosen].sum(), effects[rows, chosen].sum()
            assert spent <= budget * (1 + 1e-9)
            assert effect <= sums[totals <= budget * (1 + 1e-9)].min() + largest
        for price in (0.03, 0.3, 3.0):  # what Lagrange's function is least for is best at its cost
            cheapest = (effects + price * costs).argmin(axis=1)
            cost = costs[rows, cheapest].sum()
            effect = effects[rows, allocate(costs, effects, cost)].sum()
            assert_allclose(effect, sums[totals <= cost * (1 + 1e-12)].min(), rtol=1e-12)
            worse += effects[rows, allocate(costs, np.roll(effects, 1, axis=0), cost)].sum() > effect * (1 + 1e-9)
    assert worse > 60  # of 90: of another head's effects


def test_a_failed_option_is_not_chosen():
    costs, effects = np.array([[0.0, 1.0, 2.0]]), np.array([[3.0, np.inf, 1.0]])
    assert [allocate(costs, effects, budget)[0] for budget in (1.0, 2.0)] == [0, 2]


def test_options_of_equal_gain_are_taken_one_by_one():
    costs, effects = np.array([[0.0, 1.0, 2.0]] * 2), np.array([[2.0, 1.0, 0.0]] * 2)
    assert [sorted(allocate(costs, effects, budget)) for budget in (0, 1, 2, 3)] == [[0, 0], [0, 1], [0, 2], [1, 2]]


def test_texts_that_have_tested_candidates_do_not_choose_where_texts_are_added(model, text):
    """And those that settings were chosen on do not test: else an added text would be another test."""
    words, files = Path(text).read_text(encoding="utf-8").split(), []
    for name, part in (("a.txt", words[: 15 * LENGTH]), ("b.txt", words[15 * LENGTH :])):
        Path(name).write_text(" ".join(part), encoding="utf-8")
        files.append(name)
    given = {"model": model, "target": 1.0, **EASY}
    first = fb.recommend(texts=files[:1], out="run", per_head=True, **given)
    added = fb.recommend(texts=files, out="run", per_head=True, **given)
    alone = fb.recommend(texts=files, out="alone", per_head=True, **given)
    assert [found.model.chosen_on for found in (first, added, alone)] == [5, 5, 10]
    with pytest.raises(fb.StoreError, match="chosen_on 5 there, null here; use another `out`"):
        fb.recommend(texts=files, out="run", **given)
    fb.recommend(texts=files[:1], out="plain", **given)
    with pytest.raises(fb.StoreError, match="chosen_on null there, 10 here; use another `out`"):
        fb.recommend(texts=files, out="plain", per_head=True, **given)


@pytest.mark.slow
def test_the_command(model, text):
    flags = f"--confidence 0.6 --max-size 32 -L {LENGTH} -q --methods clusters --maps none --per-head"
    command = f"recommend --model {model} --text {text} {flags}"
    shown = printed(f"{command} --probability 0.5 --target {TARGET} --out found/run")
    assert "Take settings per head" in shown and "replace_attention(model, recommended='found/run')" in shown
    assert "chosen on 10 of them" in " ".join(shown.split())
    assert "--per-head is for a model" in refused("recommend gaussian --per-head")
    few = refused(f"{command} --probability 0.9 --target 1 --out few")
    assert "20, where equal ones count once; 10 more are for the settings per head" in few
    assert not Path("few/effects.json").exists()
    with pytest.raises(ScenarioError, match="`per_head` is for a model"):
        fb.recommend("gaussian", per_head=True)
