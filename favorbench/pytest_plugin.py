"""For other people's test-suites: the fixture ``attention_error``. Nothing heavy is imported before it is used."""

import re
from collections import Counter
from pathlib import Path

import pytest

TYPE_CHECKING = False

if TYPE_CHECKING:
    from collections.abc import Mapping

    from favorbench.studies.function_errors import AttentionFunction, CheckedRow, FunctionError, InputArgument


def pytest_addoption(parser: pytest.Parser) -> None:
    """--favorbench-update."""
    parser.getgroup("favorbench").addoption(
        "--favorbench-update", action="store_true", help="store the errors of attention functions anew; never on CI"
    )


_SHARED = pytest.StashKey[set[Path]]()
_WRITERS = pytest.StashKey[dict[Path, str]]()  # of the files that are written anew, the test of each


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Find tests whose errors would be stored in one file: methods of two classes, parameters that differ in / only."""
    files = Counter(_file(item) for item in items if "attention_error" in getattr(item, "fixturenames", ()))
    config.stash[_SHARED] = {file for file, count in files.items() if count > 1}


def _file(item: pytest.Item) -> Path:
    """The file of a test's errors."""
    name = re.sub(r"[^\w.-]+", "-", item.name).strip("-")[:80]
    return item.path.with_suffix("") / f"{name}.json"


@pytest.fixture
def attention_error(request: pytest.FixtureRequest) -> "AttentionErrors":
    """The error of an attention function: ``attention_error(fn)`` measures, ``attention_error.check(fn)`` compares."""
    file, config = _file(request.node), request.config
    shared = file in config.stash.get(_SHARED, set[Path]())
    writers = config.stash.setdefault(_WRITERS, dict[Path, str]())
    return AttentionErrors(file, shared, bool(config.getoption("--favorbench-update")), request.node.nodeid, writers)


class AttentionErrors:
    """The fixture ``attention_error``. file: of stored errors. shared: whether it is that of another test, too."""

    def __init__(self, file: Path, shared: bool, update: bool, test: str, writers: dict[Path, str]) -> None:
        self.file, self.update, self._used = file, update, {file} if shared else set[Path]()
        self._test, self._writers = test, writers

    def __call__(
        self,
        function: "AttentionFunction",
        inputs: "InputArgument" = "minilm",
        metric: str = "relative_error",
        draws: int = 15,
        size: int = 64,
        seed: int = 0,
    ) -> "FunctionError":
        """The error of a function f(q, k, v) or f(q, k, v, size, rng): ``value``, and its interval ``low``, ``high``.

        inputs: "minilm", "gaussian", a path to .npz or .safetensors, or arrays (q, k, v), (L, d) or (heads, L, d). The
        value is the median over draws of the mean error over heads. See ``studies.function_errors.function_error``.
        """
        from favorbench.studies.function_errors import function_error

        return function_error(function, inputs, metric, draws, size, seed)

    def check(
        self,
        function: "AttentionFunction | Mapping[str, AttentionFunction]",
        name: str | None = None,
        inputs: "InputArgument" = "minilm",
        metric: str = "relative_error",
        draws: int = 15,
        size: int = 64,
        seed: int = 0,
        factor: float = 1.0,
        alpha: float = 1e-3,
    ) -> "list[CheckedRow]":
        """Fail if a function, or one of several by name, has become worse than the errors stored for it.

        They are in NAME.json (by default the test's name) in a folder next to the test file and named like it;
        ``pytest --favorbench-update`` writes them, and never where ``CI`` is set. Where nothing is random, errors may
        change by rounding, or by ``factor``; else a sign test over the draws decides, Holm over all heads and
        functions. The probability that a function which has not changed fails is at most ``alpha`` / 2, over the draws
        of both; with an ``rng`` parameter the draws are the same, and it is 0 on one machine. Infinite and NaN errors
        count as infinite.
        """
        from favorbench.errors import ScenarioError
        from favorbench.studies.function_errors import MeasurementSettings, check_stored

        __tracebackhide__ = True
        if name is not None and not re.fullmatch(r"[\w.-]{1,80}", name):
            raise ScenarioError(f"name: {name!r} given, allowed: letters, digits, '_', '.' and '-', at most 80")
        path = self.file if name is None else self.file.with_name(f"{name}.json")
        if path in self._used or (self.update and self._writers.setdefault(path, self._test) != self._test):
            raise ScenarioError(f"name: {path.name} is of another test or check, too: give each its own `name`")
        self._used.add(path)
        settings = MeasurementSettings("", metric, draws, size, seed)
        rows, failure = check_stored(path, function, inputs, settings, factor, alpha, self.update)
        if failure:
            pytest.fail(f"attention_error: {failure}", pytrace=False)
        return rows
