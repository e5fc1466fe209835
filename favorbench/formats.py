"""How names, numbers and values are written: in tables, figures, messages and JSON."""

import math
from typing import Any

#: Short names that are accepted beside the full ones, in TOML and in ``--by``.
ALIASES = {"R": "num_projections", "L": "seq_len", "d": "head_dim"}

#: Short headings, as in the flags.
HEADINGS = {full: short for short, full in ALIASES.items()}

#: Metrics that are near 1 and read best as plain decimals.
_PLAIN = ("relative_error", "rounding", "skill", "bad_normalisers")


def format_value(value: float, metric: str) -> str:
    """Two or three significant digits; counts as they are."""
    if metric == "n":
        return f"{value:.0f}"
    if not math.isfinite(value):
        return "-" if math.isnan(value) else "inf"
    if (metric in _PLAIN and 1e-3 <= abs(value) < 1e3) or value == 0:
        return f"{value:.3f}" if abs(value) < 10 else f"{value:.0f}"
    mantissa, exponent = f"{value:.1e}".split("e")
    return f"{mantissa}e{int(exponent)}"


def format_bytes(count: float) -> str:
    """ "12 MiB": a number of bytes in the unit that leaves at most four digits before the point."""
    units = ("bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
    power = next((i for i in range(len(units)) if count < 1024 ** (i + 1)), len(units) - 1)
    value = count / 1024**power
    return f"{value:.1f} {units[power]}" if power and value < 10 else f"{value:.0f} {units[power]}"


def shortened(text: str, most: int = 80) -> str:
    """Text for a message, which may have come from anywhere: its beginning, if it has more than so many characters."""
    return text if len(text) <= most else f"{text[: most - 3]}..."


def shown(value: object) -> str:
    """What was given, for a message that refuses it."""
    return shortened(repr(value))


def plain(value: Any) -> Any:
    """A value as JSON can hold it: a named tuple is a dict, any other sequence a list, what is no number null."""
    if isinstance(value, dict):
        return {key: plain(one) for key, one in value.items()}
    if hasattr(value, "_asdict"):
        return plain(value._asdict())
    if isinstance(value, tuple | list):
        return [plain(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
