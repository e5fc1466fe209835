"""The columns of a row, each declared once: its type, role, source and wording."""

from collections.abc import Callable, Collection, Iterable
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

from favorbench.metrics import EFFECT, METRICS

if TYPE_CHECKING:
    from favorbench.engine.plan import Draw
    from favorbench.engine.scenario import Scenario

Row = dict[str, Any]


class Labels(Protocol):
    """A row, as a dict or of pandas."""

    def __getitem__(self, key: str, /) -> Any: ...


class Column(NamedTuple):
    """One column of the trials.

    role: "draw" columns identify the realisation, "cell" columns the inputs, "estimator" columns the estimator, and
    "metric" columns hold the results. optional: may be missing. of: the value that all rows of a draw share. words: its
    part in the description of a cell; may be empty.
    """

    name: str
    kind: type
    role: Literal["draw", "cell", "estimator", "metric"]
    optional: bool = False
    of: "Callable[[Scenario, Draw], Any] | None" = None
    words: Callable[[Labels], str] | None = None


def _length(row: Labels) -> str:
    same = row["query_len"] == row["seq_len"]
    length = f"L = {row['seq_len']}" if same else f"L = {row['query_len']} x {row['seq_len']}"
    sampled = row["query_rows"] != row["query_len"]
    return length + (f" ({row['query_rows']} query rows measured)" if sampled else "")


#: An axis of the sweep is a key of ``Scenario`` and a line here. The sampler is missing for baselines, methods and maps
#: that leave none to choose; R where it is ignored. budget: the requested R, number of features, or cost. Runs whose
#: inputs have gradients have the column ``effect`` in addition (``engine.store.schema``).
COLUMNS: tuple[Column, ...] = (
    Column("draw", int, "draw", of=lambda scenario, draw: draw.index),
    Column("trial", int, "draw", of=lambda scenario, draw: draw.trial),
    Column("input", str, "cell", of=lambda scenario, draw: draw.input,
           words=lambda row: row["input"] if row["head"] == "-" else f"{row['input']} {row['head']}"),
    Column("head", str, "cell", of=lambda scenario, draw: draw.head.label),
    Column("scale", float, "cell", of=lambda scenario, draw: draw.scale, words=lambda row: f"scale {row['scale']:g}"),
    Column("value_scale", float, "cell", of=lambda scenario, draw: scenario.value_scale,
           words=lambda row: "" if row["value_scale"] == 1 else f"value scale {row['value_scale']:g}"),
    Column("query_len", int, "cell", of=lambda scenario, draw: draw.head.query_len),
    Column("query_rows", int, "cell", of=lambda scenario, draw: scenario.rows(draw.head.query_len)),
    Column("seq_len", int, "cell", of=lambda scenario, draw: draw.head.seq_len, words=_length),
    Column("head_dim", int, "cell", of=lambda scenario, draw: draw.head.head_dim,
           words=lambda row: f"d = {row['head_dim']}"),
    Column("causal", str, "cell", of=lambda scenario, draw: "yes" if scenario.causal else "no",
           words=lambda row: "causal" if row["causal"] == "yes" else ""),
    Column("dtype", str, "cell", of=lambda scenario, draw: draw.dtype,
           words=lambda row: "" if row["dtype"] == "float64" else row["dtype"]),
    Column("kind", str, "estimator"),
    Column("estimator", str, "estimator"),
    Column("sampler", str, "estimator", optional=True),
    Column("num_projections", int, "estimator", optional=True),
    Column("num_features", int, "estimator"),
    Column("budget", int, "estimator", optional=True),
    Column("multiplications", float, "estimator", optional=True),
    *(Column(name, float, "metric") for name in METRICS if name != EFFECT),
)  # fmt: skip


#: The old names of columns, in runs of format 5.
RENAMED = {"map": "estimator"}

#: The key of an error message that stands in place of metrics if an estimator failed. It is stored with the rows.
FAILURE = "failure"


#: Failures: by estimator and message, the draws.
Failed = dict[str, dict[str, list[int]]]


def failed_of(rows: Iterable[Row]) -> Failed:
    """The failures among rows."""
    return by_message(
        (
            row["estimator"] if row["sampler"] is None else f"{row['estimator']} under {row['sampler']}",
            row[FAILURE],
            row["draw"],
        )
        for row in rows
        if FAILURE in row
    )


def by_message(failures: Iterable[tuple[str, str, int]]) -> Failed:
    """Failures (estimator, message, draw) by estimator and message."""
    failed: Failed = {}
    for name, message, draw in failures:
        failed.setdefault(name, {}).setdefault(message, []).append(draw)
    return failed


def _names(*roles: str) -> tuple[str, ...]:
    return tuple(column.name for column in COLUMNS if column.role in roles)


#: The labels of a row, in the order of the table; the metrics follow.
LABELS = _names("draw", "cell", "estimator")
#: A cell is one value of each of these: an input and how it is measured.
CELL = _names("cell")
ESTIMATOR = _names("estimator")


def of_draw(scenario: "Scenario", draw: "Draw") -> Row:
    """The columns that all rows of a draw share."""
    return {column.name: column.of(scenario, draw) for column in COLUMNS if column.of}


def describe_cell(row: Labels, but: Collection[str] = ()) -> str:
    """ "gaussian, scale 1, L = 1024, d = 16" or "minilm L0H1, scale 1, L = 512, d = 32". but: columns left out."""
    return ", ".join(filter(None, (column.words(row) for column in COLUMNS if column.words and column.name not in but)))
