"""How names and numbers are written, in every table and figure."""

import math

#: Short names that are accepted beside the full ones, in TOML and in ``--by``.
ALIASES = {"R": "num_projections", "L": "seq_len", "d": "head_dim"}

#: Short headings, as in the flags.
HEADINGS = {full: short for short, full in ALIASES.items()}

#: Metrics that are near 1 and read best as plain decimals.
_PLAIN = ("relative_error", "rounding", "skill", "bad_normalisers")


def format_value(value: float, metric: str, floor: float = 0.0) -> str:
    """Two or three significant digits; counts as they are; what is positive and below ``floor`` as "<1e-28"."""
    if 0 < value < floor:
        return f"<1e{math.ceil(math.log10(floor))}"
    if metric == "n":
        return f"{value:.0f}"
    if not math.isfinite(value):
        return "-" if math.isnan(value) else "inf"
    if (metric in _PLAIN and 1e-3 <= abs(value) < 1e3) or value == 0:
        return f"{value:.3f}" if abs(value) < 10 else f"{value:.0f}"
    mantissa, exponent = f"{value:.1e}".split("e")
    return f"{mantissa}e{int(exponent)}"
