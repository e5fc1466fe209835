"""Recommended estimators of each head in place of a model's attention: random small models in float64."""

import json
import re
import shlex
import shutil
import warnings
from dataclasses import replace

import pytest

import favorbench as fb
from favorbench.errors import InputError, ScenarioError, StoreError
from favorbench.models.plan import ModelScenario, plan
from favorbench.models.recommended import ByHead, by_head
from favorbench.models.replacements import EstimatedAttention, Exact, LayerHeads, replacement
from favorbench.models.summary import read
from favorbench.models.swap import replace_attention
from tests.command_line import printed, refused, run
from tests.test_models_study import folder  # noqa: F401
from tests.test_models_swap import CLEAR, LENGTH, TOLERANCE, bert, difference, hidden, llama

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers", minversion="5")

CHOICES = {
    ("L0H0", "multipole", 6), ("L0H2", "multipole", 6), ("L0H3", "multipole", 3), ("L1H1", "window(4):multipole", 2),
}  # fmt: skip


@pytest.fixture(scope="module")
def tokens():
    return torch.randint(0, 40, (1, LENGTH), generator=torch.Generator().manual_seed(7))


@pytest.fixture(scope="module")
def found(tmp_path_factory, tokens):
    """A directory as ``recommend`` writes it, of the heads of a small model."""
    path = tmp_path_factory.mktemp("found") / "rec"
    captured = fb.capture(bert(), {"input_ids": tokens})
    fb.recommend(captured, target=0.9, max_size=8, methods="clusters,multipole", maps="positive", out=path)
    return path


def changed(found, to, change):
    """A copy of the directory with another recommendation."""
    shutil.copytree(found, to)
    content = json.loads((to / "recommendation.json").read_text())
    change(content)
    (to / "recommendation.json").write_text(json.dumps(content))
    return to


def chosen(content, choices=CHOICES):
    """These choices, and nothing certified for the other heads."""
    fixed = {"kind": "method", "sampler": None}
    estimators = {name: fixed | {"name": spec, "size": m, "spec": spec} for name, spec, m in choices}
    for head in content["heads"]:
        head["certified"] = head["head"] in estimators
        head["estimator"] = estimators.get(head["head"])


def by_hand(heads, method, size):
    return replacement(method, size).outputs(heads, 0, (0, "layer", 0))


def test_each_head_is_answered_by_its_own_choice(found, tmp_path):
    choices = by_head(changed(found, tmp_path / "mine", chosen))
    drawn = torch.randn((3, 2, 4, LENGTH, 8), dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    heads = LayerHeads(drawn[0], drawn[1], drawn[2], False)
    output = choices.outputs(heads, 0, (0, "layer", 0))
    exact = Exact().outputs(heads, 0, ())
    for head, expected in {0: ("multipole", 6), 1: None, 2: ("multipole", 6), 3: ("multipole", 3)}.items():
        one = (exact if expected is None else by_hand(heads, *expected))[:, [head]]
        assert difference(output[:, [head]], one) < TOLERANCE, head
    assert difference(output[:, [3]], by_hand(heads, "multipole", 6)[:, [3]]) > CLEAR  # of another head's size
    each = [replacement("multipole", m).multiplications(heads.shape) for m in (6, 6, 3)]
    assert choices.work(heads.shape, 4, 0) == sum(each) + Exact().multiplications(heads.shape)
    assert choices.work(heads.shape, 4, 7) == 4 * Exact().multiplications(heads.shape)  # a layer without any


def test_a_model_with_every_head_by_its_choice(found, tokens, tmp_path):
    """The same as heads replaced one after the other, in the last layer, where each adds what it adds."""
    model, path = bert(), changed(found, tmp_path / "last", lambda content: chosen(content, {("L1H1", "multipole", 3)}))
    with replace_attention(model, recommended=path) as record:
        output = hidden(model, tokens)
    with replace_attention(model, method="multipole", size=3, layers=[1], heads=[1]):
        assert difference(hidden(model, tokens), output) < TOLERANCE
    with replace_attention(model, method="multipole", size=3, layers=[1], heads=[2]):
        assert difference(hidden(model, tokens), output) > CLEAR
    assert record.replaced == 1  # the other layer is left as it is


def test_with_several_texts_a_head_gets_the_most_expensive_choice_if_each_has_one(found, tmp_path):
    def several(content):
        four = {("L0H0", "multipole", 3), ("L0H1", "multipole", 6), ("L0H2", "clusters", 4), ("L0H3", "clusters", 5)}
        chosen(content, four)
        renamed = {"L0H0@b": 1.0, "L0H0@a": 2.0, "L0H1@a": 1.0, "L0H2@a": 1.0, "L0H1@b": 3.0}
        for head, (name, cost) in zip(content["heads"], renamed.items(), strict=False):
            head.update(head=name, multiplications=cost)  # on the last of them nothing is certified
        del content["heads"][5:]

    made = by_head(changed(found, tmp_path / "texts", several)).choices
    assert {layer: {head: (one.label, one.size) for head, one in heads.items()} for layer, heads in made.items()} == {
        0: {0: ("multipole", 6), 2: ("clusters", 5)}
    }


def test_written_recommendations_are_read_back(found, tokens):
    written = {one["head"]: one for one in json.loads((found / "recommendation.json").read_text())["heads"]}
    choices = by_head(str(found))
    assert choices.label == "recommended(rec, 8 heads)" and len(written) == 8
    assert any(one["certified"] for one in written.values())
    for name, one in written.items():
        layer, head = map(int, re.findall(r"\d+", name))
        made = choices.choices.get(layer, {}).get(head)
        assert (made is not None) == one["certified"]
        if made is not None:
            estimator = one["estimator"]
            assert isinstance(made, EstimatedAttention) and (made.kind == "map") == (estimator["kind"] == "map")
            assert made.label == estimator["name"] and made.size in (estimator["size"], None)


def test_recommended_estimators_are_measured_in_a_model(folder, found, tmp_path):  # noqa: F811
    """From a model to its heads, to a choice for each, to what that does to the model on another text."""
    model, texts = str(folder / "bert"), [str(folder / f"text{i}.txt") for i in range(3)]
    assert run("capture", model, "--text", texts[0], "-L", "24", "--out", "heads.npz", "-q")[0] == 0
    rec = shlex.split("recommend heads.npz --max-size 8 --methods multipole --maps none --out rec -q")
    assert run(*rec, "--target", "0.9")[0] == 0
    ask = ["model", model, "--text", *texts[1:], "--recommended", "rec"]
    ask += shlex.split("--maps none --methods multipole -R 4 --draws 1 -L 24 --out run -q")
    out = printed(*ask)
    assert by_head("rec").label in out
    rows = read(tmp_path / "run").rows
    mine = rows[rows["estimator"] == by_head("rec").label]
    assert len(mine) == 2 and set(mine["kind"]) == {"method"} and mine["embedding_loss"].gt(0).all()
    content = json.loads((tmp_path / "rec" / "recommendation.json").read_text())
    exact = mine["exact_multiplications"].iloc[0] / 8
    expected = sum(one["multiplications"] if one["certified"] else exact for one in content["heads"])
    assert mine["multiplications"].tolist() == [expected] * 2
    assert run(*ask, "--json")[0] == 0  # resumed: nothing is measured again
    assert len(read(tmp_path / "run").rows) == len(rows)
    assert run(*rec, "--target", "0.01")[0] == 0  # uniform is chosen for five heads fewer, whatever is drawn
    assert "recommendation rec has changed; use another --out" in refused(*ask)


@pytest.mark.parametrize(
    "change, error, said",
    [
        (
            lambda content: chosen(content, set()),
            InputError,
            "nothing is certified there for any head; recommend with a weaker `target`",
        ),
        (
            lambda content: (chosen(content, set()), content.update(complete=False)),
            InputError,
            "nothing is certified there for any head; its search is not finished: rerun it",
        ),
        (
            lambda content: (chosen(content, set()), content.update(complete=False, model={"texts": 9})),
            InputError,
            "nothing is certified there for the model; its search is not finished: rerun it",
        ),
        (
            lambda content: content["heads"][0].update(head="first"),
            InputError,
            "'first', which is not a head of a model",
        ),
        (lambda content: content.pop("heads"), StoreError, "is damaged"),
        (lambda content: content["heads"][0]["estimator"].pop("spec"), StoreError, "is damaged"),
        (lambda content: chosen(content, {("L0H0", "clustrs", 4)}), ScenarioError, "did you mean 'clusters'"),
    ],
)
def test_a_recommendation_that_cannot_be_used_is_one_line(change, error, said, found, tmp_path):
    def certain(content):
        content["heads"][0]["certified"] = True
        change(content)

    with pytest.raises(error, match=said):
        by_head(changed(found, tmp_path / "other", certain))


def test_the_recommendation_for_another_model_is_refused(found, tokens, tmp_path):
    with pytest.raises(InputError, match=re.escape("has no recommendation.json: give a directory")):
        by_head(tmp_path)
    for name, said in (
        ("L9H0", "recommended(a, 1 head): layers 9: not in this model; it has 2 layers"),
        ("L1H7", "this model has 4 heads"),
    ):
        shutil.rmtree(tmp_path / "a", ignore_errors=True)
        path = changed(found, tmp_path / "a", lambda content, name=name: _renamed(content, name))
        with pytest.raises(InputError, match=re.escape(said)), replace_attention(model := bert(), recommended=path):
            hidden(model, tokens)
    uncausal = {("L0H0", "nystrom", 4)}
    path = changed(found, tmp_path / "nystrom", lambda content: chosen(content, uncausal))
    with pytest.raises(ScenarioError, match="cannot be causal"), replace_attention(model := llama(), recommended=path):
        hidden(model, tokens)


def _renamed(content, name):
    chosen(content, {("L0H0", "multipole", 4)})
    content["heads"][0]["head"] = name


def test_layers_without_a_choice_are_not_said_to_be_replaced(folder, found, tmp_path):  # noqa: F811
    from favorbench.models.study import study

    path = changed(found, tmp_path / "one", lambda content: chosen(content, {("L0H0", "multipole", 4)}))
    given = dict.fromkeys(("maps", "methods"), ())
    one = ModelScenario(
        str(folder / "bert"), (str(folder / "text0.txt"),), 24, layers="1", recommended=(str(path),), **given
    )
    with pytest.raises(InputError, match=r"`layers` 1: recommended\(one, 1 head\) has no choice there, but in \[0\]"):
        study(one, tmp_path / "run")
    planned = plan(replace(one, layers="all,each"), ["a"], [0, 1])
    assert [*dict.fromkeys(unit.layers for unit in planned if unit.replacement.layers)] == ["all", "0"]


def test_texts_of_another_length_than_the_heads_are_named(folder, found):  # noqa: F811
    """Of the texts, not of -L: a text may be shorter. LENGTH is that of the heads."""
    from favorbench.models.study import MeasuredModel

    given = dict.fromkeys(("maps", "methods"), ())
    asked = str(folder / "bert"), (str(folder / "text0.txt"),)
    with pytest.warns(UserWarning, match=f"rec is certified for texts of {LENGTH} tokens; these have 11$"):
        MeasuredModel(ModelScenario(*asked, 11, recommended=(str(found),), **given))
    with warnings.catch_warnings(action="error"):
        MeasuredModel(ModelScenario(*asked, LENGTH, recommended=(str(found),), **given))


def test_two_of_one_name_are_refused(found, tmp_path):
    other = changed(found, tmp_path / "rec", lambda content: None)
    with pytest.raises(ScenarioError, match="another recommendation is called 'rec', too; rename one of them"):
        ModelScenario("m", ("a",), recommended=(str(found), str(other)))


def test_an_estimator_may_not_have_the_name_of_a_recommended_one(found, module, tmp_path):
    """One of the two was left out, or a later command was shown with the numbers of the other."""
    for name in ("first_near", "second_near"):
        module(name, "def near(query, key, value, size, rng):\n    return value")
    settings = {"estimator": {"kind": "method", "name": "near", "sampler": None, "size": 3, "spec": "first_near:near"}}
    one = [{"head": "L0H1", "multiplications": 1.0, "certified": True} | settings]
    for number, model in enumerate(({}, None)):  # for all heads, or for this one
        changes = {"heads": one, "model": model}
        other = changed(found, tmp_path / str(number), lambda content, changes=changes: content.update(changes))
        with pytest.raises(ScenarioError, match="'first_near:near' and 'second_near:near' are both called 'near'"):
            ModelScenario("m", ("a",), None, (), ("second_near:near",), sizes=(3,), recommended=(str(other),))


def test_answers_with_other_exact_heads_are_other_estimators(folder, found, tmp_path):  # noqa: F811
    """They had one name: the second was left out, or shown with the numbers of the first."""

    def whole(*heads):
        def change(content):
            chosen(content, {("L0H0", "clusters", 3)})
            content["model"] = {"exact_heads": list(heads)}

        return change

    first, second = (changed(found, tmp_path / name, whole(f"L0H{name}")) for name in "12")
    asked = f"model {folder}/bert --text {folder}/text0.txt -L {LENGTH} --maps none --draws 1 --no-heads -q"
    apart = {}
    for heads in (first, second):
        printed(f"{asked} --methods none --recommended {heads} --out {tmp_path}/run-{heads.name}")
        rows = read(tmp_path / f"run-{heads.name}").rows.set_index("estimator")
        apart[heads.name] = rows.loc[f"clusters, 1 head exact in {heads.name}", "embedding_loss"]
    assert apart["1"] != apart["2"]
    printed(f"{asked} --methods clusters -R 3 --exact-heads L0H3 --recommended {first},{second} --out {tmp_path}/all")
    effects = read(tmp_path / "all").rows.set_index("estimator")["embedding_loss"]
    assert {name: effects[f"clusters, 1 head exact in {name}"] for name in apart} == apart
    assert effects["clusters, 1 head exact"] not in apart.values()
    second.joinpath("recommendation.json").write_text(first.joinpath("recommendation.json").read_text())
    again = refused(f"{asked} --methods none --recommended {second} --out {tmp_path}/run-2")
    assert "recommendation exact in 2 has changed" in again


def test_the_result_of_recommend_is_accepted(found, tokens, tmp_path):
    captured = fb.capture(model := bert(), {"input_ids": tokens})
    unsaved = fb.recommend(captured, target=2.0, methods="clusters", max_size=4)
    with pytest.raises(InputError, match="recommend with `out`"), replace_attention(model, recommended=unsaved):
        pass
    saved = fb.recommend(captured, target=2.0, methods="clusters", max_size=4, out=tmp_path / "saved")
    with replace_attention(model, recommended=saved):
        one = hidden(model, tokens)
    with replace_attention(model, recommended=tmp_path / "saved" / "recommendation.json"):
        assert torch.equal(hidden(model, tokens), one)


def test_heads_that_are_scaled_are_not_those_of_the_model(tokens, tmp_path):
    captured = fb.capture(bert(), {"input_ids": tokens})
    fb.recommend(captured, target=2.0, methods="clusters", max_size=4, scale=0.5, out=tmp_path / "half")
    with pytest.raises(InputError, match=r"multiplied by 0\.5: recommend with `scale` 1"):
        by_head(tmp_path / "half")


def test_it_is_called_directly_and_by_name_on_the_command_line(found, folder):  # noqa: F811
    with pytest.raises(ScenarioError, match="give `map`, `method` or `recommended`, one of them"):  # noqa: SIM117
        with replace_attention(bert(), method="clusters", recommended=found):
            pass
    assert ModelScenario("m", ("a",), recommended=(str(found),)).replacements[-1].label == by_head(found).label
    assert isinstance(by_head(found), ByHead)
    text = str(folder / "text0.txt")
    said = refused("model", str(folder / "bert"), "--text", text, "--recommended", "nowhere", "--out", "run")
    assert "'nowhere' has no recommendation.json" in said
