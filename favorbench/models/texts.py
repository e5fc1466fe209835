"""Texts as a model reads them: each given once, under a name of its own, in tokens."""

import hashlib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from favorbench.errors import InputError, ModelError
from favorbench.files import read_regular
from favorbench.models.load import Loaded


class Text(NamedTuple):
    """A text that a model reads: its name, the sha256 of its file, and tokens (1, L)."""

    name: str
    sha256: str
    tokens: Any


def read_texts(loaded: Loaded, paths: Sequence[str | Path], length: int) -> list[Text]:
    """The first ``length`` tokens of each text, or all if there are fewer; names are the stems of the files.

    Raises InputError for a text that is given twice: it would count as two.
    """
    check_reads_text(loaded)
    found: list[Text] = []
    for path in paths:
        digest = hashlib.sha256(read_regular(path, "text")).hexdigest()
        if twin := next((text.name for text in found if text.sha256 == digest), None):
            raise InputError(f"`text` {path}: the same text as {twin}; give each once")
        stem = re.sub(r"\.[A-Za-z]+$", "", Path(path).name)  # of CC0-1.0 all
        names = {text.name for text in found}
        name = next(n for n in (stem, *(f"{stem}-{i}" for i in range(2, len(paths) + 2))) if n not in names)
        found.append(Text(name, digest, read_tokens(loaded, path, length)))
    return found


def check_reads_text(loaded: Loaded) -> None:
    """Raise ModelError for a model that reads pictures or sounds, or has no tokenizer."""
    reads = getattr(loaded.model, "main_input_name", "input_ids")
    if reads == "input_ids" and loaded.tokenizer is not None:
        return
    lacks = "has no tokenizer" if reads == "input_ids" else f"reads {reads}, not text"
    raise ModelError(
        f"{loaded.name} {lacks}: `favorbench capture module:function` takes heads of any torch module, the function "
        "returns (model, inputs); fb.swapped(model, ...) replaces its attention"
    )


def read_tokens(loaded: Loaded, path: str | Path, length: int) -> Any:
    """The first ``length`` tokens of a text file, or all if there are fewer: LongTensor (1, L).

    Raises InputError for a text of fewer than two tokens, ModelError for more than the model's limit.
    """
    if loaded.limit is not None and length > loaded.limit:
        raise ModelError(f"`length` {length}: {loaded.name} reads at most {loaded.limit} tokens")
    if length < 2:
        raise InputError(f"`length` {length}: attention needs two tokens or more")
    try:
        text = read_regular(path, "text").decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not a text in UTF-8 (byte {error.start}): {error.reason}") from None
    if not text.strip():  # encoders would still read where a text begins and ends
        raise InputError(f"{path}: there is no text in it")
    tokens = loaded.tokenizer(text, truncation=True, max_length=length, return_tensors="pt")["input_ids"]
    if tokens.shape[-1] < 2:
        raise InputError(f"{path}: {tokens.shape[-1]} token(s); attention needs two or more")
    return tokens
