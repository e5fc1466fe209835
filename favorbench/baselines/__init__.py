"""The answers every estimator must beat. A new one is one file and one line in BASELINES."""

from favorbench.baselines.base import Answer, Baseline, Question
from favorbench.baselines.best_rank import BestRank
from favorbench.baselines.nystrom import Nystrom, WildCat
from favorbench.baselines.trivial import Taylor1, Taylor2, Uniform
from favorbench.registry import build

BASELINES: tuple[type[Baseline], ...] = (Uniform, Taylor1, Taylor2, BestRank, Nystrom, WildCat)


def get_baseline(spec: str | Baseline) -> Baseline:
    """The baseline that ``spec`` names. Raises ScenarioError."""
    return spec if isinstance(spec, Baseline) else build("baseline", spec, BASELINES, Baseline)


__all__ = ["BASELINES", "Answer", "Baseline", "Question", "get_baseline"]
