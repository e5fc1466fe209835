"""The error of any attention function on real or random inputs, draw by draw; stored next to a test, and compared."""

import hashlib
import inspect
import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast

import numpy as np
from typing_extensions import TypedDict

from favorbench.attention.exact import exact_attention
from favorbench.attention.problem import check_shapes
from favorbench.engine.provenance import VERSION
from favorbench.errors import InputError, ScenarioError, StoreError
from favorbench.files import read_json, write_text
from favorbench.formats import plain, reason_of, shown
from favorbench.inputs import Head, Inputs, get_input
from favorbench.methods.function import ArrayFunction, output_on_host, signature_of
from favorbench.metrics import EFFECT, METRICS, error_sums
from favorbench.numerics.arrays import of_python, on_host
from favorbench.numerics.machine import one_core
from favorbench.numerics.streams import stream
from favorbench.parameters import check_between, check_factor, check_whole
from favorbench.registry import nearest
from favorbench.results.changes import WORSE, Change, Errors, judged
from favorbench.results.compare import COMPARABLE, close_errors
from favorbench.results.tables import rounding_of
from favorbench.statistics import fewest_draws, median_interval

#: A function of q, k, v, each (L, d), and of ``size`` and ``rng`` if it has parameters of these names.
AttentionFunction = Callable[..., Any]

#: The same with its size, of inputs and a generator; its output is checked.
CheckedFunction = Callable[[Inputs, np.random.Generator], np.ndarray]

#: The name of an input (minilm, gaussian, a path to a file), or arrays q, k, v: (L, d) or (heads, L, d).
InputArgument = str | Path | Sequence[np.ndarray]

PERTURBATIONS = 3  # of the inputs, by one unit in the last place, to see how rounding changes an error
MARGIN = 10.0  # times the largest of these changes: another machine rounds at every step, not only at the first

FORMAT = 1

UPDATE = "--favorbench-update"
HOW_TO_UPDATE = f"run pytest {UPDATE} and commit what it writes"


class HeadErrors(NamedTuple):
    """Errors of one head, one for each draw; two equal errors of a deterministic function.

    rounding: the largest change by rounding. dtype: of the function's output, or float32 where it returns float64 but
    does not see last places of float64. level: errors below it are rounding in float64; not stored.
    """

    errors: tuple[float, ...]
    rounding: float
    dtype: str
    level: float = 0.0

    @property
    def random(self) -> bool:
        """Whether the errors of draws differ; NaN is an infinite error."""
        return len({math.inf if math.isnan(error) else error for error in self.errors}) > 1


@dataclass(frozen=True)
class FunctionError:
    """The median over draws of the mean error over heads, with its interval; ``heads``: the errors behind it."""

    value: float
    low: float
    high: float
    coverage: float
    draws: int
    heads: Mapping[str, HeadErrors]

    def __float__(self) -> float:
        return self.value


class MeasurementSettings(NamedTuple):
    """How errors were measured: only errors with equal settings are comparable. inputs: their digest or name."""

    inputs: str
    metric: str
    draws: int
    size: int
    seed: int

    def checked(self) -> "MeasurementSettings":
        """The same in numbers of Python. Raises ScenarioError for others than whole numbers in range."""
        settings = self._replace(**{name: of_python(getattr(self, name)) for name in ("draws", "size", "seed")})
        check_whole("draws", settings.draws, 2, 10_000)
        check_whole("size", settings.size, 1, 1 << 24)
        check_whole("seed", settings.seed, 0, 2**63 - 1)
        return settings

    def differences(self, stored: "MeasurementSettings") -> str:
        """ "draws 15 stored, 20 requested"; nothing if they are equal."""
        pairs = zip(self._fields, stored, self, strict=True)
        return ", ".join(f"{name} {str(a)[:12]} stored, {str(b)[:12]} requested" for name, a, b in pairs if a != b)


class HeadSource(NamedTuple):
    """Inputs by head: the function that draws them, and the key that names them in streams and in files."""

    key: str
    heads: tuple[Head, ...]
    draw: Callable[[np.random.Generator, Head], Inputs]
    fixed: bool


def function_error(
    function: AttentionFunction,
    inputs: InputArgument = "minilm",
    metric: str = "relative_error",
    draws: int = 15,
    size: int = 64,
    seed: int = 0,
) -> FunctionError:
    """Measure the error of a function relative to exact attention.

    Parameters
    ----------
    function
        f(q, k, v) -> output, from float64 arrays (L, d), not scaled, to (L, d_v). If it has parameters ``size`` and
        ``rng``, they are passed, unless a functools.partial binds them. The generator is the same whenever a draw is
        repeated.
    inputs
        The name of an input, a path, or arrays (q, k, v) of shape (L, d) or (heads, L, d).
    metric
        An error among those of ``favorbench list metrics``.
    draws
        Number of draws; if the errors of all are equal, nothing is random, and two of them are kept.
    size
        Value of the parameter ``size``.
    seed
        Seed of the draws.

    Returns
    -------
    FunctionError
        The median over draws of the mean over heads, with its interval and the errors of each head.

    Raises
    ------
    ScenarioError
        The metric is not an error, a number is out of range, or the function has other parameters.
    InputError
        The arrays do not fit together.
    EstimatorError
        The function fails or returns another shape.
    """
    source = source_of(inputs)
    return _measure(function, source, MeasurementSettings(source.key, metric, draws, size, seed).checked())


def source_of(inputs: InputArgument) -> HeadSource:
    """Inputs by name, path or arrays. Raises ScenarioError and InputError."""
    if isinstance(inputs, str | Path):
        law = get_input(str(inputs))
        return HeadSource(law.digest() or str(inputs), law.heads(None, None), law.draw, law.fixed)
    return _array_source(inputs)


def _array_source(inputs: Sequence[np.ndarray]) -> HeadSource:
    if not isinstance(inputs, Sequence) or len(inputs) != 3:
        raise InputError(f"inputs: {type(inputs).__name__} given; allowed: a name, a path, or arrays (q, k, v)")
    try:
        hosts = [np.asarray(on_host(a)) for a in inputs]
    except Exception as error:  # a library may raise anything
        raise InputError(f"inputs: not arrays: {reason_of(error)}") from None
    for name, given, host in zip("qkv", inputs, hosts, strict=True):
        if np.ma.is_masked(given) or host.dtype.kind not in "fiub":
            what = "masked entries" if np.ma.is_masked(given) else f"dtype {host.dtype}"
            raise InputError(f"inputs: {name} has {what}; allowed: arrays of real numbers")
    arrays = [host.astype(np.float64) for host in hosts]
    for name, array in zip("qkv", arrays, strict=True):
        if array.ndim not in (2, 3) or array.size == 0 or not np.isfinite(array).all():
            raise InputError(f"inputs: {name} has shape {array.shape}; allowed: (L, d) or (heads, L, d), all finite")
    query, key, value = arrays = [array.reshape(-1, *array.shape[-2:]) for array in arrays]
    check_shapes(query, key, value)
    shape = query.shape[-2], key.shape[-2], query.shape[-1], value.shape[-1]
    heads = {Head(f"h{i}", *shape): Inputs(*qkv) for i, qkv in enumerate(zip(query, key, value, strict=True))}
    digest = hashlib.sha256(b"".join(array.tobytes() for array in arrays)).hexdigest()
    return HeadSource(digest, tuple(heads), lambda rng, head: heads[head], fixed=True)


def _measure(function: AttentionFunction, source: HeadSource, settings: MeasurementSettings) -> FunctionError:
    metric, allowed = settings.metric, [name for name in COMPARABLE if name != EFFECT]
    if metric not in allowed:
        raise ScenarioError(
            f"metric: {shown(metric)} given{nearest(str(metric), allowed)}, allowed: {', '.join(allowed)}"
        )
    checked = _checked(function, settings.size)
    with one_core(), np.errstate(all="ignore"):
        heads = {head.label: _head_errors(checked, source, head, settings) for head in source.heads}
    longest = max(len(errors.errors) for errors in heads.values())
    means = np.mean([np.resize(errors.errors, longest) for errors in heads.values()], axis=0)
    low, high, coverage = median_interval(means)
    return FunctionError(float(np.median(means)), low, high, coverage if high > low else 1.0, longest, heads)


def _checked(function: AttentionFunction, size: int) -> CheckedFunction:
    """A function of inputs whose output is checked, in its own dtype. Raises ScenarioError for other parameters."""
    if not callable(function):
        raise ScenarioError(f"a {type(function).__name__} given; allowed: a function f(q, k, v) -> output")
    name, call = getattr(function, "__name__", type(function).__name__), ArrayFunction(function)
    try:
        signature = signature_of(function)
    except (TypeError, ValueError):  # C functions may have no signature
        signature = inspect.signature(lambda *arrays: None)
    bound = function.keywords if isinstance(function, partial) else {}
    takes = [name for name in ("size", "rng") if name in signature.parameters and name not in bound]
    try:
        signature.bind(None, None, None, **dict.fromkeys(takes))
    except TypeError:
        raise ScenarioError(
            f"{name}{signature} cannot be called with q, k, v; allowed: f(q, k, v) or f(q, k, v, size, rng)"
        ) from None

    def checked(inputs: Inputs, rng: np.random.Generator) -> np.ndarray:
        given = {"size": size, "rng": rng}
        output = partial(call, inputs, **{parameter: given[parameter] for parameter in takes})
        return output_on_host(name, output, inputs.query, inputs.value)

    return checked


def _head_errors(
    function: CheckedFunction, source: HeadSource, head: Head, settings: MeasurementSettings
) -> HeadErrors:
    """The errors on one head, and the change of the first one that rounding alone may cause.

    The change is measured with inputs perturbed in the last place. It is 0 for a function whose draws cannot be
    repeated.
    """
    names, metric = (source.key, *head[:4]), METRICS[settings.metric]

    def inputs_of(draw: int) -> Inputs:
        return source.draw(stream(settings.seed, "function error inputs", *names, draw), head)

    def output_of(inputs: Inputs, draw: int) -> np.ndarray:
        return function(inputs, stream(settings.seed, "function error", *names, draw))

    def error(output: np.ndarray, exact: np.ndarray) -> float:
        sums = error_sums(output, exact)
        return float(cast(float, metric.compute(sums, sums)))

    def moved(dtype: str, rng: np.random.Generator) -> Inputs:
        eps = float(np.finfo(dtype).eps)
        return Inputs(*(a * (1.0 + eps * rng.choice([-1.0, 1.0], a.shape)) for a in first))

    first = inputs_of(0)
    first_exact = exact = exact_attention(*first)
    errors, dtype = [], "float64"
    for draw in range(settings.draws):
        inputs = inputs_of(draw)
        exact = exact if source.fixed else exact_attention(*inputs)
        output = output_of(inputs, draw)
        errors.append(error(output, exact))
        dtype = output.dtype.name if output.dtype.kind == "f" else "float64"
    if source.fixed and len(set(errors)) == 1:  # nothing is random
        errors = errors[:2]
    changes, rng = [0.0], stream(0, "last places")
    output = output_of(first, 0).copy()  # the next call may write into the same array
    if np.isfinite(errors[0]) and error(output, first_exact) == errors[0]:
        if dtype == "float64" and np.array_equal(output_of(moved(dtype, stream(0, "precision")), 0), output):
            dtype = "float32"  # it rounds its inputs to that, or coarser, whatever it returns
        for _ in range(PERTURBATIONS):
            inputs = moved(dtype, rng)
            changes.append(abs(error(output_of(inputs, 0), exact_attention(*inputs)) - errors[0]))
    rounding = MARGIN * max(changes)
    level = rounding_of(settings.metric, float(np.sqrt(np.mean(first_exact**2))))
    return HeadErrors(tuple(errors), rounding if np.isfinite(rounding) else 0.0, dtype, level)


# Stored errors


class StoredRow(TypedDict):
    """The errors of one estimator, as they are stored; None for NaN."""

    errors: list[float | None]
    rounding: float
    dtype: str


class StoredErrors(TypedDict):
    """The file: the fields of MeasurementSettings, and the errors by function and head."""

    format: Literal[1]
    inputs: str
    metric: str
    draws: int
    size: int
    seed: int
    rows: dict[str, StoredRow]


class CheckedRow(NamedTuple):
    """The change of one function on one head."""

    name: str
    change: Change


def check_stored(
    path: Path, functions: AttentionFunction | Mapping[str, AttentionFunction], inputs: InputArgument,
    settings: MeasurementSettings, factor: float, alpha: float, update: bool,
) -> tuple[list[CheckedRow], str]:  # fmt: skip
    """Compare errors with those in a file, or store them there; returns the rows, and an explanation of a failure.

    settings: its ``inputs`` are set here. Raises ScenarioError, also if no change could be detected.
    """
    check_between("alpha", alpha, 1e-12, 1.0)
    check_factor("factor", factor)
    source = source_of(inputs)
    settings = settings._replace(inputs=source.key).checked()
    try:
        stored, before = (settings, {}) if update else _read(path)
        if problem := settings.differences(stored):
            return [], f"{path} was measured with other settings: {problem}; {HOW_TO_UPDATE}"
        now = _measured(functions, source, settings)
        random = {name for rows in (before, now) for name, row in rows.items() if name in now and row.random}
        if random and settings.draws < (needed := fewest_draws(len(random), 1.0 - alpha)):
            raise ScenarioError(
                f"draws: {settings.draws} can tell no change of {len(random)} random rows at {alpha:g}; "
                f"use {needed} or more"
            )
        if update:
            _write(path, settings, now)
            return [], ""
    except StoreError as error:
        return [], str(error)
    names, metric = [name for name in now if name in before], settings.metric
    changes = judged([_pair(before[name], now[name], metric) for name in names], factor, alpha)
    rows = [CheckedRow(name, change) for name, change in zip(names, changes, strict=True)]
    worse = [(name, change) for name, change in rows if change.verdict == WORSE]
    lines = [f"{change.mark} {name}: {change.in_words(metric)}" for name, change in worse]
    lines += [f"x {row}: nothing is stored for it" for row in now if row not in before]
    lines += [f"x {row}: stored, and not measured any more" for row in before if row not in now]
    if not lines:
        return rows, ""
    head = f"{path.name}, new against stored errors"
    rules = {
        True: f"{settings.draws} draws, sign test, Holm over {len(rows)} rows: false alarms at most {alpha / 2:g}. ",
        False: "All draws had one error, so only rounding may change it; seed what may be drawn before the call. ",
    }
    applied = "".join(rules[drawn] for drawn in sorted({name in random for name, _ in worse}))
    return rows, "\n".join([head, *lines, f"{applied}If it is meant, {HOW_TO_UPDATE}"])


def _measured(
    functions: AttentionFunction | Mapping[str, AttentionFunction], source: HeadSource, settings: MeasurementSettings
) -> dict[str, HeadErrors]:
    """The errors of one function, or of several by name, on each head."""
    several = functions if isinstance(functions, Mapping) else {"": functions}
    return {
        ", ".join(filter(None, (str(name), head))): errors
        for name, function in several.items()
        for head, errors in _measure(function, source, settings).heads.items()
    }


def _write(path: Path, settings: MeasurementSettings, rows: Mapping[str, HeadErrors]) -> None:
    """Store errors. Raises ScenarioError if they cannot get worse, StoreError if writing fails.

    On a CI server, whose environment has ``CI`` set, nothing is written: a person must look at stored errors.
    """
    if os.environ.get("CI", "").lower() not in ("", "0", "false"):
        raise StoreError(f"{UPDATE} does not write {path} on CI: run it where you work, and commit the file")
    if endless := [name for name, row in rows.items() if not np.isfinite(row.errors).any()]:
        some = f"{len(endless)} of {len(rows)} rows, such as {endless[0]!r},"
        raise ScenarioError(f"{some} have only infinite errors, which cannot get worse: mend the function first")
    stored = {
        name: plain({"errors": row.errors, "rounding": row.rounding, "dtype": row.dtype}) for name, row in rows.items()
    }
    head = {"format": FORMAT, "favorbench": VERSION, **settings._asdict()}
    lines = [f"  {json.dumps(name)}: {json.dumps(row)}" for name, row in stored.items()]
    write_text(path, json.dumps(head, indent=1)[:-2] + ',\n "rows": {\n' + ",\n".join(lines) + "\n }\n}\n")


def _read(path: Path) -> tuple[MeasurementSettings, dict[str, HeadErrors]]:
    """Stored errors. Raises StoreError, with how to write them if they are missing."""
    if not path.exists():
        raise StoreError(f"no stored errors: run pytest {UPDATE} once, look at {path}, and commit it")
    hint = f"take it from your version control, or run pytest {UPDATE}"
    content = read_json(path, StoredErrors, "stored errors", hint=hint)
    rows = {
        name: HeadErrors(tuple(math.inf if x is None else x for x in row["errors"]), row["rounding"], row["dtype"])
        for name, row in content["rows"].items()
    }
    return MeasurementSettings(*(content[name] for name in MeasurementSettings._fields)), rows


def _pair(old: HeadErrors, new: HeadErrors, metric: str) -> Errors:
    # If only one of both is random, each of its draws is compared with the other error.
    count = max(len(old.errors), len(new.errors))
    rounding = max(old.rounding, new.rounding)
    level = new.level if old.dtype == new.dtype else 0.0  # float32 in place of float64 is a change

    def close(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return close_errors(a, b, metric, level, new.dtype) | (np.abs(a - b) <= rounding)

    return Errors(np.resize(old.errors, count), np.resize(new.errors, count), close)
