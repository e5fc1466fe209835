"""Recommendations and studies of models, read back: their tables, sentences, figures and pages."""

import functools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from favorbench.engine.rows import part_paths
from favorbench.engine.store import MANIFEST, read_manifest
from favorbench.errors import ScenarioError, StoreError
from favorbench.files import read_json
from favorbench.formats import in_shell
from favorbench.models import store, summary
from favorbench.models.recommended import FILE, OLDER, RecommendationFile
from favorbench.sections import Sections
from favorbench.studies.recommend.answer import Recommendation, sections
from favorbench.studies.recommend.candidates import EstimatorSetting
from favorbench.studies.recommend.decision import Decision, MeasuredCandidate, WholeModel, signed

if TYPE_CHECKING:
    from favorbench.style import Chart


class SavedStudy(NamedTuple):
    """A directory of ``recommend`` or ``model``. command: the one that wrote it. data: its numbers as CSV."""

    path: Path
    command: str
    title: str
    sections: Sections
    charts: "Sequence[Chart]"
    manifest: Mapping[str, Any]
    data: str
    record: Mapping[str, Any]

    def refuse(self, what: str) -> ScenarioError:
        """The error for something that only sweeps have."""
        return ScenarioError(
            f"{self.path} was written by favorbench {self.command} and has no {what}: look at it with favorbench table "
            f"{in_shell(self.path)} or favorbench report {in_shell(self.path)}"
        )

    def write_page(self, path: Path) -> list[Path]:
        """Write the page, as ``favorbench report`` does for a sweep."""
        from favorbench.results.page import study_page, write_study

        scenario = dict(self.manifest.get("asked", self.manifest.get("scenario", {})))
        scenario |= {"texts": len(scenario["texts"]), "read": None, "notes": None} if "texts" in scenario else {}
        day = str(self.manifest.get("end", ""))[:10]
        version = f"version {self.manifest['favorbench']}"
        lead = [", ".join(filter(None, [f"favorbench {self.command}", version, day]))]
        page = functools.partial(
            study_page, self.title, lead, self.sections, self.charts, self.manifest, scenario, self.data
        )
        return write_study(page, path, ",".join(self.data.split(",", 3)[:3]))  # further columns may be added


def saved_study(path: Path) -> SavedStudy | None:
    """The recommendation or study of a model in a directory; None where there is neither.

    Raises StoreError for a damaged one, and for a recommendation without its answer.
    """
    if (path / store.MANIFEST).exists():
        manifest = store.read_manifest(path)
        searched = store.SEARCH in manifest["asked"]
    elif (path / MANIFEST).exists():
        manifest = read_manifest(path)
        searched = manifest["scenario"].get("title") == "candidates of recommend"
        if not searched:
            return None
    else:
        return None
    if searched and not (path / FILE).exists():
        raise StoreError(f"{path} has no recommendation yet; rerun the same favorbench recommend command to resume it")
    if not searched and not part_paths(path / "trials") and (path / "summary.md").exists():
        raise StoreError(f"{path} holds no measurements; favorbench model wrote it; look at {path / 'summary.md'}")
    from favorbench.models import figures  # here, as they import matplotlib, which the table of a sweep does without
    from favorbench.studies.recommend.figure import charts

    try:
        if searched:
            result = read_recommendation(path)
            title, shown, drawn = f"The cheapest estimator: {result.title}", sections(result), charts(result)
            rows = drawn[0].data if drawn else None
        else:
            result = summary.read(path)
            title = f"Effects of replaced attention on {Path(manifest['asked']['model']).name}"
            shown, drawn, rows = summary.sections(result), figures.charts(result), result.lines
        data = "" if rows is None else rows.to_csv(index=False, float_format="%.6g")
        command = "recommend" if searched else "model"
        return SavedStudy(path, command, title, shown, drawn, manifest, data, result.as_dict())
    except (AttributeError, LookupError, StopIteration, TypeError, ValueError) as error:
        raise StoreError(
            f"{path} is damaged, or was changed by hand: its parts do not fit together ({error}); run the same command "
            "with another --out"
        ) from None


def read_recommendation(path: Path) -> Recommendation:
    """The recommendation in a directory of ``recommend``. Raises StoreError for one that cannot be read."""
    record: Any = read_json(path / FILE, RecommendationFile, "recommendation", hint=OLDER)
    try:
        model = record["model"] and _of(WholeModel, record["model"])
        if model is not None:
            model = model._replace(bfloat16=[math.nan if value is None else value for value in model.bfloat16])
        worst = signed(math.inf, record["metric"])
        decisions = tuple(_read_decision(entry, worst) for entry in record["heads"])
        return _of(Recommendation, {**record, "path": path, "decisions": decisions, "model": model})
    except (KeyError, TypeError, ValueError) as error:
        raise StoreError(
            f"{path / FILE} was written by another version of favorbench, or changed by hand ({error}); run the same "
            "`favorbench recommend` command with another --out"
        ) from None


def _read_decision(record: Mapping[str, Any], worst: float) -> Decision:
    setting, per_head = record["estimator"], record.get("per_head")
    points = [
        _of(MeasuredCandidate, point | {"setting": _of(EstimatorSetting, point["estimator"])}, worst)
        for point in record["points"]
    ]
    return _of(Decision, {
        **record, "setting": setting and _of(EstimatorSetting, setting), "points": tuple(points),
        "undecided": tuple(record["undecided"]),
        "per_head": per_head and {head: _of(EstimatorSetting, entry) for head, entry in per_head.items()},
    }, worst)  # fmt: skip


#: Numbers that are infinite where they are null in JSON; others are NaN.
_INFINITE = ("median", "quantile", "worst", "bound")


def _of(kind: Any, record: Mapping[str, Any], worst: float = math.inf) -> Any:
    """A named tuple of the keys of a JSON object, which may have others. Raises KeyError for one that is missing.

    worst: an infinite error, or minus infinity where larger is better.
    """
    values = {name: record[name] for name in kind._fields if name in record or name not in kind._field_defaults}
    for name, value in values.items():
        if kind.__annotations__[name] is float:
            missing = worst if name in _INFINITE else math.nan
            values[name] = missing if value is None else float(value)
    return kind(**values)
