"""Format names, numbers and results for tables, figures, messages and JSON."""

import json
import math
import re
import shlex
from collections.abc import Mapping
from typing import Any

#: Short names that are accepted in place of the full ones, in TOML and in ``--by``.
ALIASES = {"R": "num_projections", "L": "seq_len", "d": "head_dim"}

#: Short headings, as in the flags.
HEADINGS = {full: short for short, full in ALIASES.items()}


def in_shell(word: Any) -> str:
    """A path or a name as a word of a command that is shown, to be copied: quoted where a shell would split it."""
    return shlex.quote(str(word))


def heading(axis: str) -> str:
    """The heading of an axis: short, if it has a short name."""
    return HEADINGS.get(axis, axis)


#: Metrics that are near 1 and read best as plain decimals.
_PLAIN = ("relative_error", "relative_l1", "cosine", "rounding", "skill", "bad_normalisers", "unnormalised_rows")

# Characters that a terminal obeys instead of showing (C0, DEL, C1: escape sequences, bells, line breaks), what reorders
# the text around it (marks, embeddings and overrides of direction), halves of characters, which no file can hold, and
# what XML excludes.
_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]")


def format_value(value: float, metric: str, floor: float = 0.0) -> str:
    """Two or three significant digits, more next to 1; counts as they are.

    floor: the rounding error of this value. A value below it is not a measurement, and its digits differ between
    machines: it is printed as less than the power of ten above the floor, "<1e-15".
    """
    if metric == "n":
        return f"{value:.0f}"
    if not math.isfinite(value):
        return "-" if math.isnan(value) else f"{value:g}"
    if 0 < abs(value) < floor < math.inf:
        return f"<1e{math.ceil(math.log10(floor) - 1e-9)}"
    if (metric in _PLAIN and 1e-2 <= abs(value) < 1e3) or value == 0:
        return f"{value:.{decimals(value)}f}" if abs(value) < 10 else f"{value:.0f}"
    mantissa, exponent = f"{value:.1e}".split("e")
    return f"{mantissa}e{int(exponent)}"


def decimals(value: float) -> int:
    """Three, or as many as keep a value next to 1 apart from 1."""
    return next((digits for digits in range(3, 7) if round(value, digits) != 1), 3)


def format_bytes(count: float) -> str:
    """ "12 MiB": a number of bytes in the unit that leaves at most four digits before the point."""
    units = ("bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
    power = next((i for i in range(len(units)) if count < 1024 ** (i + 1)), len(units) - 1)
    value = count / 1024**power
    return f"{value:.1f} {units[power]}" if power and value < 10 else f"{value:.0f} {units[power]}"


def format_seconds(seconds: float) -> str:
    """ "0.3 s", "12 min" or "3.5 h"."""
    for unit, size in (("d", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * size:
            count = seconds / size
            return f"{count:.1f} {unit}" if count < 10 else f"{count:.0f} {unit}"
    return f"{seconds:.1f} s"


def shortened(text: str, most: int = 80) -> str:
    """Shorten a text of unknown length for a message."""
    return text if len(text) <= most else f"{text[: most - 3]}..."


def reason_of(error: BaseException) -> str:
    """The type and the text of an exception of somebody else's code, in one line of bounded length."""
    try:
        text = " ".join(str(error).encode(errors="backslashreplace").decode().split())  # names of files may be no text
    except Exception:  # it is their code that makes the text
        text = "(without a text)"
    return shortened(f"{type(error).__name__}: {text}", 300)


def printable(text: str, but: str = "") -> str:
    r"""Escape control characters: ESC becomes ``\x1b``. but: characters that may stay.

    Names of heads, maps and files come from whoever made the file; printed raw, they could control the terminal.
    """
    return _UNPRINTABLE.sub(lambda match: match[0] if match[0] in but else ascii(match[0])[1:-1], text)


def percent(share: float) -> str:
    """ "31 %", and digits where it is small or near 1."""
    if not math.isfinite(share):
        return "-"
    digits = (d for d in range(6) if share in (0, 1) or round(100 * share, d) not in (0.0, 100.0))
    return f"{100 * share:{next((f'.{d}f' for d in digits), '.10g')}} %"


def in_full(share: float) -> str:
    """A share that somebody asked for, with all its digits: "97.5 %"."""
    return f"{100 * share:.12g} %"


def counted(count: int | str, noun: str) -> str:
    """ "1 draw" or "3 draws"."""
    return f"{count} {noun}{'' if str(count) == '1' else 's'}"


def shown(value: object) -> str:
    """Show a value in a message that refuses it, in one line: arrays have several."""
    return shortened(" ".join(repr(value).splitlines()))


def plain(value: Any) -> Any:
    """Make plain data for JSON: dicts, lists, texts and numbers. Missing, infinite and NaN values are null.

    Named tuples and objects with ``as_dict`` become dicts, data frames lists of their rows, NumPy's numbers and arrays
    Python's, and paths texts.
    """
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    for convert in ("as_dict", "_asdict", "tolist"):
        if hasattr(value, convert):
            return plain(getattr(value, convert)())
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in value]
    if hasattr(value, "to_dict"):
        return plain(value.to_dict(orient="records"))
    missing = type(value).__name__ in ("NAType", "NaTType")  # pandas itself is not loaded for this
    return None if missing else str(value).encode(errors="backslashreplace").decode()  # names of files may be no text


def json_text(value: Any) -> str:
    """Write ``plain`` data as JSON, with control characters escaped."""
    text = json.dumps(plain(value), indent=2, ensure_ascii=False, allow_nan=False)
    return _UNPRINTABLE.sub(lambda match: match[0] if match[0] == "\n" else f"\\u{ord(match[0]):04x}", text)
