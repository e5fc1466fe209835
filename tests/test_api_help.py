"""help() of every public function: an example that runs, and what it raises."""

import doctest
import importlib.metadata
import inspect
import types

import pytest

import favorbench as fb

FUNCTIONS = [name for name in fb.__all__ if inspect.isfunction(getattr(fb, name))]

FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def examples_of(name):
    function = getattr(fb, name)
    return doctest.DocTestParser().get_doctest(inspect.getdoc(function) or "", {}, name, None, None)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_example_in_its_help_runs(name):
    test, said = examples_of(name), []
    assert test.examples, f"help(fb.{name}) has no example"
    if any("torch" in example.source for example in test.examples):
        pytest.importorskip("torch")
    doctest.DocTestRunner(optionflags=FLAGS).run(test, out=said.append)
    assert not said, "".join(said)


def test_an_example_that_is_wrong_is_found():
    said = []
    test = doctest.DocTestParser().get_doctest(">>> 1 + 1\n3\n", {}, "wrong", None, None)
    doctest.DocTestRunner(optionflags=FLAGS).run(test, out=said.append)
    assert "Got:" in "".join(said)


@pytest.mark.parametrize("name", fb.__all__)
def test_it_is_documented(name):
    found = getattr(fb, name)
    if not isinstance(found, str | tuple):
        assert inspect.getdoc(found)


@pytest.mark.parametrize("name", sorted(set(FUNCTIONS) - {"half_squared_norm", "exponential_target"}))
def test_docstrings_list_raised_errors(name):
    assert "Raises" in (inspect.getdoc(getattr(fb, name)) or "")


def test_dir_has_public_names_only():
    assert dir(fb) == sorted(fb.__all__)
    assert not [name for name in dir(fb) if name.startswith("_") and name != "__version__"]
    assert not [name for name in dir(fb) if isinstance(getattr(fb, name), types.ModuleType)]


def test_the_version():
    assert fb.__version__ == importlib.metadata.version("favorbench")


def test_an_unknown_name_is_one_attribute_error_with_the_nearest():
    with pytest.raises(AttributeError, match=r"module 'favorbench' has no attribute 'swep' \(did you mean 'sweep'\?\)"):
        _ = fb.swep  # pyright: ignore[reportAttributeAccessIssue]
    assert not hasattr(fb, "_ipython_display_")


def test_errors_are_of_one_family():
    names = [name for name in fb.__all__ if name.endswith("Error")]
    assert len(names) == 7
    for name in names:
        assert issubclass(getattr(fb, name), fb.FavorbenchError)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: fb.sweep("quik"),
        lambda: fb.sweep("quick", mapz="positive"),
        lambda: fb.sweep("quick", maps="positve"),
        lambda: fb.sweep("quick", num_projections=[0]),
        lambda: fb.sweep("quick", workers=0),
        lambda: fb.sweep("quick", inputs={"mine": 3}),
        lambda: fb.sweep("quick", inputs=3),
        lambda: fb.load("nothing"),
        lambda: fb.compare("nothing", "nothing"),
        lambda: fb.recommend("nothing"),
        lambda: fb.recommend(None),  # pyright: ignore[reportArgumentType]
        lambda: fb.recommend("minilm", target=-1),
        lambda: fb.recommend("minilm", metrik="mse"),
        lambda: fb.get_map("positve"),
        lambda: fb.get_method(3),  # pyright: ignore[reportArgumentType]
        lambda: fb.get_baseline("unifrom"),
        lambda: fb.load_scenario("quick", {"trials": "many"}),
    ],
)
def test_wrong_values_are_a_favorbench_error_of_one_line(wrong):
    with pytest.raises(fb.FavorbenchError) as caught:
        wrong()
    assert str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["capture", "recommend", "replace_attention"])
def test_functions_of_models_name_the_errors_to_catch(name):
    """An error of the model itself is no ValueError, unlike the others."""
    raised = (inspect.getdoc(getattr(fb, name)) or "").partition("Raises\n")[2].partition("Examples\n")[0]
    assert all(error in raised for error in ("ModelError", "ScenarioError", "InputError"))
