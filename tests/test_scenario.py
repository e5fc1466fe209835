"""Scenarios: files, flags, and one clear line for every mistake."""

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from favorbench.engine.cost import cost
from favorbench.engine.plan import plan
from favorbench.engine.scenario import as_scenario, load_scenario, shipped_scenarios
from favorbench.engine.study import Study
from favorbench.errors import InputError, ScenarioError
from tests.command_line import read_table
from tests.conftest import small_scenario


def test_every_shipped_scenario_is_valid_and_has_a_title():
    assert set(shipped_scenarios()) >= {"quick", "iid-vs-ortho", "trig-vs-positive", "real-heads", "scales"}
    for name in shipped_scenarios():
        scenario = load_scenario(name)
        assert scenario.name == name and scenario.title and plan(Study.of(scenario))


def test_flags_win_over_the_file(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text('maps = "trig"\nsamplers = ["iid"]\nR = 8\ntrials = 4\n')
    scenario = load_scenario(str(file), {"trials": 2, "num_projections": "4,dlogd", "scale": None})
    assert scenario.name == "mine" and scenario.maps == ("trig",) and scenario.trials == 2
    assert scenario.num_projections == (4, "dlogd")


@pytest.mark.parametrize("text", ['\ufefftitle = "x"\nR = 8\n', 'title = "x"\r\nR = 8\r\n'])
def test_files_of_windows_are_read(tmp_path, text):
    lines = ["maps = 'trig'", "samplers = 'iid'", "trials = 4", "L = 8", "d = 2"]
    tmp_path.joinpath("mine.toml").write_bytes((text + "\n".join(lines)).encode())
    scenario = load_scenario(str(tmp_path / "mine.toml"), {})
    assert (scenario.title, scenario.num_projections) == ("x", (8,))


def test_a_title_is_kept_only_by_the_study_it_belongs_to():
    quick = load_scenario("quick")
    assert load_scenario(None, {"maps": "positive,trig"}).title == quick.title
    assert load_scenario(None, {"maps": "trig"}).title == "quick, changed by flags"
    assert as_scenario(quick, {"trials": quick.trials, "cluster": "none"}).title == quick.title
    assert as_scenario(quick, {"trials": "3", "num_projections": "8,16"}).title == "quick, changed by flags"
    assert as_scenario(quick, {"trials": 3, "title": "mine"}).title == "mine"


def test_dlogd_is_the_papers_rule_of_thumb():
    scenario = small_scenario(num_projections="8,dlogd")
    assert scenario.sizes(16) == (8, 44)  # int(16 ln 16) = int(44.36)
    assert scenario.sizes(64) == (8, 266)  # int(64 ln 64) = int(266.2)
    assert scenario.sizes(1) == (1, 8)  # never 0


@pytest.mark.parametrize(
    "flag, said",
    read_table("""
        maps positve => `maps`: unknown map 'positve' (did you mean 'positive'?); allowed: trig,
        maps positive, => `maps` 'positive,': an item of the list is empty
        maps positive,positive-eps(eps=-1) => eps must be a positive number, got -1
        maps positive-eps(1) => write parameters as name(parameter=value, ...)
        maps positive-eps(epsilon=1) => no parameter 'epsilon' (did you mean 'eps'?); it has eps
        maps nowhere:Map => cannot be imported: ModuleNotFoundError
        maps math:pi => is of type float; it must be a frozen dataclass derived from favorbench.FeatureMap
        samplers orthogonl => did you mean 'orthogonal'
        num_projections 0 => `num_projections`: 0 given, allowed: greater than or equal to 1, or 'dlogd'
        num_projections 1.5 => `num_projections`: 1.5 given, allowed: a valid integer, or 'dlogd'
        num_projections x => `num_projections`: 'x' given, allowed: a valid integer, or 'dlogd'
        head_dim 0 => `head_dim`: 0 given
        seq_len -3 => `seq_len`: -3 given
        trials -1 => `trials`: -1 given, allowed: greater than or equal to 1
        scale nan => `scale`: nan given
        scale 0 => `scale`: 0 given
        dtype float65 => `dtype`: 'float65' given, allowed: 'float64', 'float32', 'tf32', 'bfloat16' or
        inputs minlm => did you mean 'minilm'
        budget feature => `budget`: 'feature' given, allowed: 'projections', 'features' or 'cost'
        seed -1 => `seed`: -1 given
    """),
)
def test_a_wrong_flag_is_named_with_the_allowed_values(flag, said):
    key, value = flag.split()
    with pytest.raises(ScenarioError, match=re.escape(said)) as caught:
        load_scenario(None, {key: int(value) if key in ("trials", "seed") else value})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("given", [len, [len], {"mine": len}])
@pytest.mark.parametrize("key", ["maps", "methods", "samplers"])
def test_a_function_in_place_of_a_name_is_told_the_form_of_names(key, given):
    with pytest.raises(ScenarioError, match=r"built-in function len>.* given, allowed: names, .* 'module:object'$"):
        load_scenario("quick", {key: given})


@pytest.mark.parametrize(
    "text, said",
    [
        *read_table("""
        trials = 2.5 => trials: 2.5 given
        R = [16, true] => R: True given
        R = [] => R: the list is empty
        maps = 3 => maps: 3 given, allowed: names, in a list or with commas, such as 'module:object'
        scale = 'big' => scale: 'big' given, allowed: a valid number
        maps = [ => is not valid TOML
    """),
        ("trails = 3", "unknown key 'trails' (did you mean 'trials'?); allowed: "),
        ('trials = "3"', "trials: '3' given, allowed: a valid integer"),
        ("[sweep]\ntrials = 3", "unknown key 'sweep'"),
    ],
)
def test_a_wrong_file_is_named_with_its_key(tmp_path, text, said):
    file = tmp_path / "wrong.toml"
    base = {"maps": '"trig"', "samplers": '"iid"', "R": "8"}
    lines = [f"{key} = {value}" for key, value in base.items() if not text.startswith(f"{key} ")]
    file.write_text("\n".join([text, *lines]) if text[0] != "[" else "\n".join([*lines, text]))
    with pytest.raises(ScenarioError, match=re.escape(said)) as caught:
        load_scenario(str(file))
    assert str(file) in str(caught.value) and "\n" not in str(caught.value)


def test_a_key_that_is_mistyped_is_named_before_the_one_that_is_missing(tmp_path):
    (tmp_path / "wrong.toml").write_text('maps = "trig"\nsampler = "iid"\nR = 8\n')
    with pytest.raises(ScenarioError, match=re.escape("unknown key 'sampler' (did you mean 'samplers'?)")):
        load_scenario(str(tmp_path / "wrong.toml"))


def test_files_that_cannot_be_read_are_named(tmp_path):
    with pytest.raises(ScenarioError, match=re.escape("unknown scenario 'quik' (did you mean 'quick'?)")):
        load_scenario("quik")
    with pytest.raises(ScenarioError, match="No such file"):
        load_scenario("absent.toml")
    with pytest.raises(ScenarioError, match="it is a directory"):
        load_scenario(str(tmp_path))
    (tmp_path / "latin.toml").write_bytes(b'title = "\xe9"')
    with pytest.raises(ScenarioError, match="not valid TOML"):
        load_scenario(str(tmp_path / "latin.toml"))


def test_the_digest_is_of_the_content():
    a, b = small_scenario(), small_scenario()
    assert Study.of(a).digest == Study.of(b).digest
    assert Study.of(small_scenario(trials=4)).digest != Study.of(a).digest
    assert Study.of(a.model_copy(update={"name": "other", "title": "other"})).digest == Study.of(a).digest


def test_the_plan_covers_every_cell_before_the_next_trial():
    draws = plan(Study.of(small_scenario(scale="0.5,1", head_dim="2,4", trials=2)))
    assert len(draws) == 8 and [d.index for d in draws] == list(range(8))
    assert [d.trial for d in draws] == [0] * 4 + [1] * 4
    assert {(d.scale, d.head.head_dim) for d in draws[:4]} == {(0.5, 2), (0.5, 4), (1.0, 2), (1.0, 4)}


def test_redraw_for_every_size_makes_a_draw_of_each():
    draws = plan(Study.of(small_scenario(redraw="R", trials=2)))
    assert [d.sizes for d in draws] == [(3,), (8,), (20,)] * 2
    assert len({d.stream_names for d in draws}) == 6


@pytest.mark.parametrize("limit", [24 * 24 - 1, 24 * 24])
def test_the_estimate_counts_rows_exactly(monkeypatch, limit):
    """best-rank has no rows where its matrix is beyond the limit."""
    from favorbench.engine.trial import run_draws

    for module in ("baselines.members", "engine.cost"):
        monkeypatch.setattr(f"favorbench.{module}.MATRIX_LIMIT", limit)
    maps, methods = "positive,trig,taylor,poisson,tensorsketch", "clusters,nystrom,wildcat"
    baselines = "uniform,taylor-1,sampled-keys,best-rank,top-keys"
    scenario = small_scenario(maps=maps, methods=methods, baselines=baselines)
    draws = plan(Study.of(scenario))
    found = cost(draws)
    assert found.rows == sum(len(rows) for rows in run_draws(Study.of(scenario), draws[:1]) * len(draws))
    assert (found.draws, found.cells) == (3, 1) and found.seconds > 0 and found.memory_bytes > 0


def test_budget_features_needs_multiples():
    with pytest.raises(ScenarioError, match=r"use a multiple of 2, e\.g\. 8"):
        plan(Study.of(small_scenario(budget="features", num_projections="7")))
    with pytest.raises(ScenarioError, match="no head 'L9H9'"):
        plan(Study.of(load_scenario(None, {"inputs": "minilm", "heads": "L9H9"})))


@given(
    st.dictionaries(
        st.sampled_from(
            ["maps", "samplers", "R", "L", "d", "scale", "trials", "seed", "dtype", "inputs", "heads", "x"]
        ),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
            lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
            max_leaves=4,
        ),
        max_size=4,
    )
)
@example({"inputs": [False, False, False]})  # no arrays
@example({"inputs": [[True], [1.0], [2]]})  # arrays that cannot be measured
def test_any_content_is_a_scenario_or_one_clear_line(content):
    """Never another exception, whatever the keys and values are."""
    try:
        as_scenario(
            {{"R": "num_projections", "L": "seq_len", "d": "head_dim"}.get(k, k): v for k, v in content.items()}
        )
    except (ScenarioError, InputError) as error:
        assert "\n" not in str(error)
