"""The decision for a head or a model, the candidates that were measured, and the effects that decide."""

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

from favorbench.metrics import METRICS
from favorbench.studies.recommend.candidates import EstimatorSetting

#: nothing: all candidates were dropped, or left undecided. not finished: the search was interrupted.
Outcome = Literal["certified", "nothing", "not finished"]

#: The costs that can order the candidates for a model.
CostUnit = Literal["multiplications", "seconds"]


class MeasuredCandidate(NamedTuple):
    """A candidate that was measured: its cost, also relative to exact attention, and its errors."""

    setting: EstimatorSetting
    multiplications: float
    share: float
    draws: int
    median: float
    quantile: float
    worst: float
    verdict: str


class Decision(NamedTuple):
    """The decision for one head. setting: the recommended one, or the best if nothing is certified.

    hits: draws that meet the target. quantile: of the error, at the requested probability. bound: the certified bound
    of the error at that probability; inf if there is none. share: cost relative to exact attention. cheaper_from: the
    length from which it takes fewer multiplications than exact attention, None if it never does. uniform: the quantile
    of uniform attention. undecided: settings that were tested without a verdict. dearer, rank: the numbers of settings
    excluded for their cost, and for the rank of their output. spent: the number of measurements. full: the number that
    a sweep would take to certify every setting. per_head: the setting of each head, by label, where settings differ
    between heads; heads without one stay exact.
    """

    head: str
    outcome: Outcome = "not finished"
    setting: EstimatorSetting | None = None
    draws: int = 0
    hits: int = 0
    median: float = math.nan
    quantile: float = math.nan
    bound: float = math.inf
    multiplications: float = math.nan
    share: float = math.nan
    cheaper_from: int | None = None
    uniform: float = math.nan
    undecided: tuple[str, ...] = ()
    candidates: int = 0
    dearer: int = 0
    rank: int = 0
    spent: int = 0
    full: int = 0
    python: str = ""
    points: tuple[MeasuredCandidate, ...] = ()
    per_head: dict[str, EstimatorSetting] | None = None


class ModelEffect(NamedTuple):
    """The name of an effect of replaced attention on a model, for sentences and axes."""

    name: str
    unit: str
    axis: str
    better: Literal["lower", "higher"] = "lower"


#: The effects that a setting for a whole model can be certified for; the first two are the defaults.
EFFECTS = {
    "embedding_loss": ModelEffect("1 - cosine", "", "1 - cosine of the embedding"),
    "delta_nll": ModelEffect("the increase in loss", " nats per token", "increase in loss, nats per token"),
    "kl": ModelEffect("the mean KL(exact || replaced)", " nats", "mean KL(exact || replaced), nats"),
    "top1": ModelEffect("top-1 agreement", "", "top-1 agreement", "higher"),
}


def better_of(metric: str) -> str:
    """Whether "lower" or "higher" values of a metric, or of an effect on a model, are better."""
    return (EFFECTS.get(metric) or METRICS[metric]).better


def signed(value: float, metric: str) -> float:
    """The value of a metric, signed so that smaller is better."""
    return value if better_of(metric) == "lower" else -value


class WholeModel(NamedTuple):
    """The facts about a recommendation for a whole model. Each text has a separate draw.

    by: the cost that orders the candidates. bfloat16: median, quantile and worst effect of the model in bfloat16, on
    the first ``bfloat16_texts`` texts. left: attention that cannot be replaced, with the reason. seconds: CPU seconds
    of the recommended setting relative to those of exact attention. timed: their range, and the machine. chosen_on: the
    number of texts that settings per head were chosen on; candidates are tested on the others. 0 without such settings.
    exact_heads: "L7H6" and others that stay exact in every candidate. of_one_file: the most texts of one file that a
    candidate was tested on, where known. of_each: the fewest and the most texts of a file that the answer was tested
    on, where known.
    """

    name: str
    files: int
    texts: int
    length: int
    by: CostUnit
    left: dict[str, str]
    bfloat16: Sequence[float] = (math.nan, math.nan, math.nan)
    bfloat16_texts: int = 0
    seconds: float = math.nan
    timed: str = ""
    chosen_on: int = 0
    exact_heads: Sequence[str] = ()
    of_one_file: int = 0
    of_each: Sequence[int] = ()

    @property
    def draws(self) -> str:
        """The plural noun for draws. Texts have a length, inputs of ``module:function`` do not."""
        return "texts" if self.length else "inputs"
