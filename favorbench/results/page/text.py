"""Text for a page: names come from whoever made the run, and stay names."""

import html
import json
from typing import Any

from favorbench.formats import plain, printable


def escaped(value: object) -> str:
    """Text as HTML shows it, in an element or in an attribute; control characters are shown, not obeyed."""
    return html.escape(printable(str(value)))


def embedded(value: Any) -> str:
    """Data as JSON inside a script element, which only ``</script`` or ``<!--`` could end: there is no < in it."""
    text = json.dumps(plain(value), ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c")
