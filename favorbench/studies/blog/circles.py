"""Two circles in the plane, and the same points after the degree-2 map."""

import numpy as np
import pandas as pd

from favorbench.kernels import polynomial_features
from favorbench.numerics.streams import stream

CLASSES = ("outer circle, radius 1", "inner circle, radius 0.3")

RADII = (1.0, 0.3)

NOISE = 0.05


def circles(seed: int = 0, points: int = 256) -> pd.DataFrame:
    """Points on two circles with Gaussian noise, and their features x1^2, sqrt2 x1 x2, x2^2."""
    rng = stream(seed, "circles")
    inner = np.arange(points) >= points // 2
    angle = rng.uniform(0.0, 2.0 * np.pi, size=points)
    radius = np.where(inner, RADII[1], RADII[0])
    x = radius[:, None] * np.stack([np.cos(angle), np.sin(angle)], axis=-1) + NOISE * rng.standard_normal((points, 2))
    phi = polynomial_features(x, degree=2)
    columns = {"x1": x[:, 0], "x2": x[:, 1], "x1^2": phi[:, 0], "sqrt2 x1 x2": phi[:, 1], "x2^2": phi[:, 2]}
    return pd.DataFrame({"class": np.where(inner, CLASSES[1], CLASSES[0])} | columns)
