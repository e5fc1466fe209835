"""One grammar of names: parsed to objects, printed back in one spelling, which is what everything is keyed by."""

import dataclasses
import inspect
import math
import re
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

import favorbench as fb
from favorbench import maps, samplers
from favorbench.baselines import get_baseline
from favorbench.engine.study import Study, default_directory
from favorbench.errors import ScenarioError
from favorbench.maps import MAPS, TRANSFORMS, get_map
from favorbench.maps.base import FeatureMap, WrappedMap
from favorbench.maps.random_features import Positive
from favorbench.maps.transforms import Calibrated, Centre, calibrations
from favorbench.methods import METHODS, PREFIXES, get_method
from favorbench.methods.function import Function
from favorbench.parameters import nearest
from favorbench.registry import build, canonical, label, split_list
from favorbench.samplers import SAMPLERS, Sampler, get_sampler
from favorbench.users import import_object
from tests.command_line import python, read_table
from tests.conftest import small_scenario


@dataclass(frozen=True)
class Shifted(Sampler):
    """A transform with a parameter, as a sampler's could be."""

    inner: Sampler
    by: float = 1.0
    prefix: ClassVar[str] = "shifted"
    name: ClassVar[str] = "shifted"
    reference: ClassVar[str] = "-"
    gaussian_rows: ClassVar[bool] = False
    coupling: ClassVar[str] = "independent"

    def sample(self, rng, num_projections, head_dim):
        return self.inner.sample(rng, num_projections, head_dim) + self.by


def shifted_sampler(spec):
    return build("sampler", spec, SAMPLERS, Sampler, (*samplers.TRANSFORMS, Shifted))


@dataclass(frozen=True)
class Window(WrappedMap):
    """A transform that needs a parameter and has another."""

    w: int
    by: float = 1.0
    prefix: ClassVar[str] = "window"


@dataclass(frozen=True)
class Top(WrappedMap):
    """A transform that needs two parameters, one of them a text."""

    share: float
    law: str
    prefix: ClassVar[str] = "top"


def windowed_map(spec):
    return build("map", spec, MAPS, FeatureMap, (*maps.TRANSFORMS, Window, Top))


def parameters_of(member):
    """Values for the parameters of a member, from those that its constructor takes: those it needs, and any others."""
    needed, others = {}, {}
    for field in dataclasses.fields(member):
        required = field.default is dataclasses.MISSING
        values = needed if required else others
        if field.init and "float" in str(field.type):
            numbers = st.floats(0.01, 0.99) | st.floats(1e-9, 1e9) | st.integers(1, 256)
            values[field.name] = numbers if required else numbers | st.just(field.default)
        elif field.init and field.type is int:
            values[field.name] = st.integers(1, 12)
        elif field.init and field.type is str and required:
            values[field.name] = st.text("a,:()'\\=é \n", max_size=5)
    return st.fixed_dictionaries(needed, optional=others)


def built(kind, transforms):
    """Any registered member with any parameters inside up to three transforms, with any parameters too."""

    def allowed(member, parameters):
        try:
            return member(**parameters)
        except ValueError:
            return None

    def make(member):
        made = parameters_of(member).map(lambda parameters: allowed(member, parameters)).filter(lambda m: m is not None)
        outer = st.sampled_from(transforms).flatmap(lambda t: st.tuples(st.just(t), parameters_of(t)))
        return st.tuples(made, st.lists(outer, max_size=3)).map(wrap) if transforms else made

    def wrap(pair):
        inside, outer = pair
        try:
            for transform, parameters in outer:
                inside = transform(inside, **parameters)
        except ScenarioError:  # one that stands before all others, or not before this member
            return pair[0]
        return inside

    return st.sampled_from(kind).flatmap(make)


@given(built(MAPS, maps.TRANSFORMS))
def test_a_printed_map_is_the_map(member):
    assert get_map(label(member)) == member
    assert label(get_map(label(member))) == label(member) == canonical(label(member), member)


@given(built(MAPS, (*maps.TRANSFORMS, Window, Top)))
def test_a_printed_map_with_its_required_parameters_is_the_map(member):
    name = label(member)
    assert windowed_map(name) == member
    assert label(windowed_map(name)) == name == canonical(name, member)


@given(built(SAMPLERS, (*samplers.TRANSFORMS, Shifted)))
def test_a_printed_sampler_is_the_sampler(member):
    assert shifted_sampler(label(member)) == member
    assert label(shifted_sampler(label(member))) == label(member)


@pytest.mark.parametrize("member", MAPS, ids=lambda m: m.name)
@pytest.mark.parametrize("transform", maps.TRANSFORMS, ids=lambda t: t.prefix)
def test_every_transform_takes_every_map(member, transform, rng):
    name = f"{transform.prefix}:{member.name}"
    if transform is Calibrated and member.fit_needs_omega:
        with pytest.raises(ScenarioError, match="depends on omega"):
            get_map(name)
        return
    wrapped = get_map(name)
    assert wrapped == transform(member()) and label(wrapped) == wrapped.name == name
    q, k, v = 0.4 * rng.normal(size=(3, 20, 4))
    sample = fb.sample_omega("iid", 10, 4, rng, map=name)
    ready = fb.calibrate(q, k, wrapped) if calibrations(wrapped) else wrapped
    assert np.all(np.isfinite(fb.linear_attention(q, k, v, sample, map=ready)))


SPELLINGS = [
    ("oprf", ["oprf", " oprf ", "oprf()", "oprf(rho=None)", "oprf( rho = None )"]),
    ("oprf(rho=1.0)", ["oprf(rho=1)", "oprf(rho=1.0)", "oprf( rho=1e0 )", "oprf(rho=1.0,)"]),
    ("positive-eps", ["positive-eps(eps=0.0001)", "positive-eps(eps=1e-4)"]),
    ("centre:oprf(rho=0.5)", ["centre:oprf(rho=.5)", "centre : oprf( rho=0.5 )", "centre():oprf(rho=5e-1)"]),
    ("centre:centre:trig", ["centre: centre :trig"]),
]


@pytest.mark.parametrize("spelling, others", SPELLINGS)
def test_all_spellings_print_the_same_and_are_one_study(spelling, others):
    digests, rows = set(), []
    for other in others:
        assert label(get_map(other)) == canonical(other, get_map(other)) == spelling
        scenario = small_scenario(maps=other, trials=1)
        assert scenario.maps == (spelling,)
        digests.add((Study.of(scenario).digest, default_directory(Study.of(scenario))))
        rows.append(fb.sweep(scenario).trials)
    assert len(digests) == 1
    for table in rows[1:]:
        assert table.equals(rows[0])
    assert spelling in set(rows[0]["estimator"])


def test_other_parameters_are_another_study():
    assert Study.of(small_scenario(maps="oprf(rho=1)")).digest != Study.of(small_scenario(maps="oprf(rho=2)")).digest
    assert Study.of(small_scenario(maps="centre:trig")).digest != Study.of(small_scenario(maps="trig")).digest


def test_parameters_of_a_transform_are_its_own():
    spec = "shifted( by=2 ):shifted:iid"
    member = shifted_sampler(spec)
    assert member == Shifted(Shifted(get_sampler("iid")), by=2.0)
    assert label(member) == canonical(spec, member) == "shifted(by=2.0):shifted:iid"


@pytest.mark.parametrize("cls", [*MAPS, *TRANSFORMS, Function], ids=lambda cls: cls.__name__)
def test_a_member_is_shown_by_what_makes_it(cls):
    """Not by arrays it was fitted to, and not by where a function is from."""
    assert {field.name for field in dataclasses.fields(cls) if field.repr and not field.init} <= {"name"}


@pytest.mark.parametrize(
    "spelling, others",
    [
        ("window(128):positive", ["window( 128 ) : positive", "window(w=128):positive", "window(128, by=1):positive"]),
        ("window(64, by=2.0):oprf(rho=0.5)", ["window(64,by=2):oprf(rho=.5)", "window(by=2.0, w=64):oprf(rho=0.5)"]),
        ("top(30.0, 'a,:)'):trig", ['top(30, law="a,:)"):trig', "top(law='a,:)', share=3e1):trig"]),
        ("window(4):centre:window(4, by=3.0):elu", ["window(4) :centre(): window(4, by=3) : elu"]),
    ],
)  # fmt: skip
def test_parameters_without_a_default_are_printed_by_position(spelling, others):
    member = windowed_map(spelling)
    for other in (spelling, *others):
        assert windowed_map(other) == member
        assert label(windowed_map(other)) == canonical(other, member) == spelling


def test_zero_has_one_spelling():
    assert {label(get_method(f"multipole(exact={zero})")) for zero in ("-0.0", "0.0", "0")} == {"multipole(exact=0.0)"}


@pytest.mark.parametrize(
    "spec, said",
    read_table("""
        window:positive => map 'window:positive': window needs w, e.g. window(64)
        window():positive => map 'window():positive': window needs w, e.g. window(64)
        window(by=2):positive => map 'window(by=2):positive': window needs w, e.g. window(64)
        centre:top(0.5):trig => map 'centre:top(0.5):trig': top needs law, e.g. top(0.5, 'text')
        top:window(3):trig => map 'top:window(3):trig': top needs share, law, e.g. top(0.5, 'text')
        window(1, 2):positive => map 'window(1, 2):positive': window takes w by position, not 2 values; write other \
            parameters as name=value: by
        top(1, 'a', 2):trig => map "top(1, 'a', 2):trig": top takes share, law by position, not 3 values; it has no \
            other parameter
        window(1, w=2):positive => map 'window(1, w=2):positive': window has w twice, by position and by name
        window(1, wide=2):trig => map 'window(1, wide=2):trig': no parameter 'wide'; it has w, by
        window(1, wrapped=2):trig => map 'window(1, wrapped=2):trig': no parameter 'wrapped'; it has w, by
        window(w):trig => map 'window(w):trig': values are numbers, or texts in quotes: law='poisson'
        window(by=2, 1):trig => map 'window(by=2, 1):trig': write parameters as name(parameter=value, ...)
        window(*[1]):trig => map 'window(*[1]):trig': write parameters as name(parameter=value, ...)
        centre(1):trig => map 'centre(1):trig': write parameters as name(parameter=value, ...)
        window(3):oprf(0.5) => map 'window(3):oprf(0.5)': write parameters as name(parameter=value, ...)
        windw(1):trig => map 'windw(1):trig': unknown transform 'windw' (did you mean 'window'?); allowed: centre, \
            calibrated, window, top
        window(1)::trig => 'window(1)::trig' is not a valid map: write name, name(parameter=value), centre:map, \
            calibrated:map, window(w):map, top(share, law):map or module:object
    """),
)  # fmt: skip
def test_requirements_of_a_transform_are_named(spec, said):
    with pytest.raises(ScenarioError) as caught:
        windowed_map(spec)
    assert str(caught.value) == said


def test_allowed_estimators_name_their_required_parts():
    with pytest.raises(
        ScenarioError,
        match=re.escape("positive-eps, centre:MAP, calibrated:MAP, window(w):MAP, top(share, law):MAP, or"),
    ):
        windowed_map("window(3):nothing")


@pytest.mark.parametrize(
    "spelling, others",
    [
        ("antithetic:orthogonal", ["antithetic: orthogonal", "antithetic():orthogonal()"]),
        ("antithetic:antithetic:simplex", ["antithetic:antithetic : simplex"]),
    ],
)
def test_all_spellings_of_a_sampler_are_one_study(spelling, others, tmp_path):
    """As flags and as TOML."""
    path = Path("study.toml")
    path.write_text(f'samplers = ["{others[0]}"]\nmaps = "centre:positive"\nR = 8\nL = 20\nd = 4\ntrials = 1\n')
    written = fb.load_scenario(path, {})
    asked = {"maps": "centre:positive", "trials": 1, "num_projections": "4,8"}
    flags = [small_scenario(samplers=one, **asked) for one in (spelling, *others)]
    assert {one.samplers for one in (written, *flags)} == {(spelling,)} and written.maps == ("centre:positive",)
    assert len({Study.of(one).digest for one in flags}) == 1
    tables = [fb.sweep(one).trials for one in flags]
    assert spelling in set(tables[0]["sampler"]) and all(table.equals(tables[0]) for table in tables[1:])
    assert spelling in set(fb.sweep(written).trials["sampler"])


USER = """
import dataclasses
from favorbench.maps.random_features import Positive

@dataclasses.dataclass(frozen=True)
class Wide(Positive):
    width: int = 1
    depth: float = 1.0
    name = "wide"

there = Wide(width=3)

@dataclasses.dataclass(frozen=True)
class Deep(Positive):
    width: float
    depth: "int | None"
    name = "deep"

@dataclasses.dataclass(frozen=True, init=False)
class Own(Positive):
    width: int
    name = "own"

    def __init__(self, width=3):
        object.__setattr__(self, "width", width)

from favorbench.samplers.orthogonal import Orthogonal

@dataclasses.dataclass(frozen=True)
class Rows(Orthogonal):
    name = "rows"
"""


@dataclass(frozen=True)
class Learned(Positive):
    """With arrays in fields, which have no single truth value."""

    weight: np.ndarray | None = None
    powers: list[int] = dataclasses.field(default_factory=lambda: [1, 2])
    bias: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros(2))
    name = "learned"


def test_parameters_may_be_arrays_or_be_made_anew():
    """Their names were ValueErrors of NumPy and RuntimeErrors of torch, and a default that is made was never one."""
    assert label(Learned()) == label(Learned(powers=[1, 2], bias=np.zeros(2))) == "learned"
    assert label(Learned(np.ones(2), [3])) == "learned(weight=array([1., 1.]), powers=[3])"
    assert label(Learned(bias=np.ones(2))) == "learned(bias=array([1., 1.]))"


def test_a_users_sampler_composes(tmp_path):
    Path("users_rows.py").write_text(USER)
    spec = "antithetic: users_rows : Rows()"
    member = get_sampler(spec)
    assert label(member) == "antithetic:rows" and canonical(spec, member) == "antithetic:users_rows:Rows"
    ours, theirs = (
        member.sample(np.random.default_rng(3), 8, 4) for member in (get_sampler("antithetic:orthogonal"), member)
    )
    assert_array_equal(ours, theirs)
    scenario = small_scenario(samplers=spec, trials=1, num_projections="8")
    assert scenario.samplers == ("antithetic:users_rows:Rows",)
    assert "antithetic:rows" in set(fb.sweep(scenario).trials["sampler"])


def test_a_users_map_composes(tmp_path):
    """With its own path kept, so that the spelling can be built again; and noticed when its source changes."""
    Path("users_maps.py").write_text(USER)
    for spec, spelling, named in (
        ("users_maps:Wide", "users_maps:Wide", "wide"),
        ("centre:users_maps:Wide(depth=2, width=1)", "centre:users_maps:Wide(depth=2.0)", "centre:wide(depth=2.0)"),
        ("users_maps:Deep(2, depth=None)", "users_maps:Deep(2.0, None)", "deep(2.0, None)"),
        ("users_maps:Own()", "users_maps:Own(3)", "own(3)"),
        ("centre: users_maps : there", "centre:users_maps:there", "centre:wide(width=3)"),
    ):
        member = get_map(spec)
        assert label(member) == named and canonical(spec, member) == spelling and get_map(spelling) == member
        scenario = small_scenario(maps=spec, trials=1)
        assert scenario.maps == (spelling,) and set(fb.sweep(scenario).trials["estimator"]) > {named}
        Path("users_maps.py").write_text(USER + "# changed\n")
        with pytest.raises(ScenarioError, match=r"users_maps\.py has changed since Python imported it"):
            Study.of(scenario)
        Path("users_maps.py").write_text(USER)
    assert isinstance(get_map("centre:users_maps:Wide"), Centre)
    assert get_map("users_maps:Own") == get_map("users_maps:Own(3)")
    said = "map 'users_maps:Deep(1)': Deep needs depth, e.g. Deep(0.5, depth)"
    with pytest.raises(ScenarioError, match=re.escape(said)):
        get_map("users_maps:Deep(1)")


@pytest.mark.parametrize(
    "spec, said",
    [
        *read_table("""
        center:positive => map 'center:positive': unknown transform 'center' (did you mean 'centre'?); allowed: cent
        centre:center:positive => unknown transform 'center' (did you mean 'centre'?)
        centr:my_module:MyMap => unknown transform 'centr' (did you mean 'centre'?)
        center(x=1):my_module => unknown transform 'center'
        mine:positive => allowed: centre, calibrated; if it is a module: nothing of it may be called 'positive', which \
            is a map
        centre => unknown map 'centre'; allowed: trig,
        centre: => 'centre:' is not a valid map: write name, name(parameter=value), centre:map, calibrated:map or \
            module:object
        centre(x=1):positive => map 'centre(x=1):positive': no parameter 'x'; it has none
        centre:nowhere:Map => map 'nowhere:Map' cannot be imported: ModuleNotFoundError
        centre:oprf(rho=0) => rho must be a positive number, or left out to be fitted, got 0
        centre:oprf(rho=1 => is not a valid map
    """),
        ("centre:positve", "unknown map 'positve' (did you mean 'positive'?); allowed: "),
    ],
)
def test_parts_outside_the_grammar_are_named(spec, said):
    with pytest.raises(ScenarioError, match=re.escape(said)) as caught:
        get_map(spec)
    assert "\n" not in str(caught.value)


@given(st.text(alphabet="centrposiv:()=, '\"[]1.", max_size=24))
@settings(suppress_health_check=[HealthCheck.too_slow])
def test_any_text_is_a_map_or_one_clear_line(text):
    try:
        member = get_map(text)
    except ScenarioError as error:
        assert "\n" not in str(error)
    else:
        assert get_map(label(member)) == member


def test_commas_and_colons_inside_parameters_do_not_split():
    assert split_list("a,b(x=1,y=(2,3)),c") == ["a", "b(x=1,y=(2,3))", "c"]
    assert split_list("a(x='b:)'):c", ":") == ["a(x='b:)')", "c"]
    assert split_list("") == [""] and split_list("a,") == ["a", ""]


def test_fitted_values_are_not_part_of_the_name(rng):
    x, y = rng.normal(size=(2, 9, 3))
    for name in ("oprf", "centre:aderf"):
        assert label(get_map(name).fit(x, y, rng.normal(size=(5, 3)))) == name
    assert label(Centre(Positive())) == "centre:positive"


@pytest.mark.parametrize(
    "spec, said",
    [
        ("oprf(rho=" + "-" * 4000 + "1)", "has 4011 characters; allowed: at most 1000"),
        ("oprf(rho=" + "-" * 900 + "1)", "map 'oprf(rho=---"),
        ("oprf(rho=" + "(" * 400 + "1" + ")" * 400 + ")", "write parameters as name(parameter=value, ...)"),
        ("oprf(rho=" + "[" * 190 + "]" * 190 + ")", "rho must be a positive number"),
        ("centre:" * 1000 + "positive", "has 7008 characters; allowed: at most 1000"),
        ("centre:" * 100 + "positive", "has 100 transforms; allowed: at most 16"),
        ("x" * 900, "unknown map 'xxx"),
        ("oprf(rho='" + "x" * 900 + "')", "got 'xxx"),
        ("oprf(rho=1)(rho=2)", "write parameters as name(parameter=value, ...)"),
        ("oprf(**{'rho': 1})", "write parameters as name(parameter=value, ...)"),
        ("oprf(rho={[]: 1})", "values are numbers, or texts in quotes"),
    ],
    ids=lambda value: value[:24],
)
def test_nothing_is_too_deep_or_too_long_for_one_short_line(spec, said):
    with pytest.raises(ScenarioError, match=re.escape(said)) as caught:
        get_map(spec)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 600


def test_specs_that_are_not_text_are_refused():
    for spec in (3, None, Positive, np.zeros((2, 2))):
        with pytest.raises(ScenarioError, match=r"given; allowed: a name, or an object of favorbench\.Sampler"):
            build("sampler", spec, SAMPLERS, Sampler)  # pyright: ignore[reportArgumentType]
        with pytest.raises(ScenarioError, match=r"given; allowed: a name, or an object of favorbench\.Method"):
            get_baseline(spec)


def test_a_list_of_ten_million_characters_is_split_at_once():
    start = time.process_time()
    assert split_list("x" * 10_000_000) == ["x" * 10_000_000]
    assert time.process_time() - start < 5.0  # 60 s when every character was appended to the part so far


def test_refusals_do_not_depend_on_assertions():
    code = "import favorbench as fb; fb.get_map('positive-eps(1e-2)')"
    done = python("-O", "-c", code)
    assert "ScenarioError: map 'positive-eps(1e-2)': write parameters as name(parameter=value, ...)" in done.stderr


USERS = """
import dataclasses
import favorbench as fb

@dataclasses.dataclass(frozen=True)
class Natural(fb.Sampler):
    name = "natural"
    reference = "-"
    gaussian_rows = True
    coupling = "independent"

    def sample(self, num_projections, head_dim, rng):
        return rng.standard_normal((num_projections, head_dim))

@dataclasses.dataclass(frozen=True)
class Short(fb.Sampler):
    name = "short"
    reference = "-"
    gaussian_rows = True
    coupling = "independent"

    def sample(self, rng, size):
        return rng.standard_normal((size, size))

@dataclasses.dataclass(frozen=True)
class Renamed(fb.Sampler):
    name = "renamed"
    reference = "-"
    gaussian_rows = True
    coupling = "independent"

    def sample(self, generator, rows, columns, scale=1.0):
        return scale * generator.standard_normal((rows, columns))

@dataclasses.dataclass(frozen=True)
class Mean(fb.Baseline):
    name = "mean"
    reference = "-"
    description = "-"

    def estimates(self, inputs, sizes, streams):
        yield from ()

class Bare:
    pass

def load_later():
    import users_helper
    return users_helper.there
"""


def test_a_users_method_is_held_to_the_interface():
    Path("users_all.py").write_text(USERS)
    wanted = "write `def sample(self, rng, num_projections, head_dim)`, not "
    with pytest.raises(ScenarioError, match=re.escape(wanted + "`def sample(self, num_projections, head_dim, rng)`")):
        get_sampler("users_all:Natural")
    with pytest.raises(ScenarioError, match=re.escape(wanted + "`def sample(self, rng, size)`")):
        get_sampler("antithetic:users_all:Short")
    assert get_sampler("users_all:Renamed").sample(np.random.default_rng(0), 3, 2).shape == (3, 2)
    assert get_baseline("users_all:Mean").name == "mean"


@pytest.mark.parametrize("get", [get_map, get_sampler, get_baseline], ids=lambda get: get.__name__)
def test_the_base_that_a_message_names_can_be_imported(get):
    Path("users_all.py").write_text(USERS)
    with pytest.raises(ScenarioError, match=r"must be a frozen dataclass derived from favorbench\.(\w+)") as caught:
        get("users_all:Bare")
    (name,) = re.findall(r"favorbench\.(\w+)", str(caught.value))
    assert inspect.isclass(getattr(fb, name))


def test_importing_a_users_module_leaves_the_path_as_it_was(monkeypatch):
    ours = [finder for finder in sys.meta_path if not type(finder).__module__.startswith("favorbench")]
    monkeypatch.setattr(sys, "meta_path", ours)  # a command in this process may have added one
    before = list(sys.path)
    Path("users_all.py").write_text(USERS)
    Path("users_helper.py").write_text("there = 1")
    get_sampler("users_all:Renamed")
    assert sys.path == before
    load_later = import_object("function", "users_all:load_later")
    with pytest.raises(ModuleNotFoundError):
        load_later()
    code = "from favorbench.users import *; keep_importable_here(); print(import_object('', 'users_all:load_later')())"
    done = python("-P", "-c", code, check=True)
    assert done.stdout == "1\n"


@pytest.mark.parametrize(
    ("old", "new"), [("Answer", "Estimate"), ("Question", "AttentionProblem"), ("swapped", "replace_attention")]
)
def test_names_of_version_0_2_warn(old, new):
    with pytest.warns(FutureWarning, match=new):
        renamed = getattr(fb, old)
    assert renamed is getattr(fb, new)


def test_a_method_written_for_version_0_2_warns_and_works():
    with pytest.warns(FutureWarning, match=r"Old\.answers is now called estimates"):

        class Old(fb.Method):
            name = reference = description = "old"

            def answers(self, problem, sizes, streams):
                yield fb.Estimate(1, 0, problem.value, None)

    value = np.ones((3, 2))
    np.testing.assert_array_equal(fb.method_attention(value, value, value, Old(), 1), value)


@pytest.mark.parametrize("given, near", [("foo", ""), ("sobl", "sobol"), ("xobol", "sobol"), ("h9", "h0"), ("x9", "")])
def test_a_name_is_suggested_only_if_it_is_alike(given, near):
    assert nearest(given, ["sobol", "h0"]) == (f" (did you mean {near!r}?)" if near else "")


#: Parameters that are whole numbers, with the least and the most that each may be.
WHOLE = """
    hybrid n 1 1024
    maclaurin exact 0 6
    tensorsketch exact 1 6
    taylor order 0 30
    clusters lloyd 0 100
    clusters order 1 2
    multipole lloyd 0 100
    multipole block 1 1048576
    multipole segment 1 1048576
    nystromformer steps 0 100
    monarch steps 1 100
    hyperattention projections 1 30
    kdeformer projections 1 30
    block-sparse group 1 64
    block-sparse block 1 65536
    vertical-slash group 1 64
    vertical-slash rows 1 64
    xattention group 1 64
    xattention block 1 65536
    xattention stride 1 64
    spargeattn group 1 64
    spargeattn block 1 65536
    pbs-attn group 1 64
    pbs-attn block 1 65536
    pbs-attn segment 1 1048576
    pbs-attn rows 1 64
    pisa group 1 64
    pisa block 1 65536
    pisa order 0 1
    sinks n 1 1048576
    window w 1 1048576
    top k 1 1048576
"""
#: Parameters that are shares, from the first number up to, but not, the second.
SHARES = """
    geometric p 0.00390625 1
    multipole exact 0 1
    eva window 0 1
    hyperattention block 0 1
    kdeformer block 0 1
    vertical-slash columns 0 1
    spargeattn similarity -1 1
"""


#: Degrees, whose least value depends on another parameter: the least and the most.
DEPENDENT = {
    "maclaurin(degree={})": (1, 60), "maclaurin(exact=3, degree={})": (3, 60),
    "tensorsketch(degree={})": (1, 12), "tensorsketch(exact=3, degree={})": (3, 12),
}  # fmt: skip


MEMBERS = {
    getattr(cls, "prefix", "") or cls.name: cls
    for cls in (*MAPS, *SAMPLERS, *METHODS, *maps.TRANSFORMS, *samplers.TRANSFORMS, *PREFIXES)
}  # fmt: skip


def checks(name):
    return {part.name: part.metadata["check"] for part in dataclasses.fields(MEMBERS[name]) if "check" in part.metadata}


def check_limits(line, above):
    """Hold a parameter to a line of the tables. above: what a step beyond the limits is, 0 for the next number."""
    name, parameter, low, high = line.split()
    check, most = checks(name)[parameter], float(high)
    check(parameter, float(low) if not above else int(low))
    check(parameter, int(high) if above else math.nextafter(most, 0))
    for wrong in (int(low) - 1, int(high) + 1) if above else (math.nextafter(float(low), -2), most):
        with pytest.raises(ScenarioError, match=f"{parameter} must be"):
            check(parameter, wrong)


LIMITS = [(line, above) for table, above in ((WHOLE, 1), (SHARES, 0)) for line in table.strip().splitlines()]


def test_limits_of_parameters_by_hand():
    rest = {(member, name) for member in MEMBERS for name in checks(member)}
    for line, above in LIMITS:
        check_limits(line, above)
        rest.remove(tuple(line.split()[:2]))
    for spec, limits in DEPENDENT.items():
        for degree in limits:
            assert fb.get_map(spec.format(degree)).degree == degree
        for degree in (limits[0] - 1, limits[1] + 1):
            with pytest.raises(ScenarioError, match="degree must be"):
                fb.get_map(spec.format(degree))
    assert fb.get_method("multipole").segment == 512  # as docs/multipole.md says
    assert {parameter for _, parameter in rest} == {"rho", "rate", "mean", "eps", "delta"}  # positive numbers
