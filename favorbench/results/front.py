"""What is worth its cost: the estimators that nothing cheaper beats."""

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd


def front(
    costs: Sequence[float] | pd.Series, ratios: Sequence[float] | pd.Series, exact: float = math.inf
) -> list[int]:
    """The places of the points that no other is cheaper and better than, from the cheapest to the dearest.

    ratios: of errors to that of uniform attention, which costs nothing. exact: the cost of exact attention, which errs
    nowhere; inf where it is not known. What is not a number is on no front.
    """
    cost, ratio = np.asarray(costs, dtype=float), np.asarray(ratios, dtype=float)
    found, least = [], 1.0
    for i in np.lexsort((ratio, cost)):
        if ratio[i] < least and cost[i] < exact:
            found.append(int(i))
            least = ratio[i]
    return found
