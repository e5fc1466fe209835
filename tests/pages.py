"""The content of README.md and docs/, parsed for the tests: blocks, prose, tables, commands and names."""

import re
import shlex
from pathlib import Path
from typing import NamedTuple

from tests.conftest import REPOSITORY

PAGES = (REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").glob("*.md")))

#: A number as it is written in prose: digits, or a word up to twelve where a sentence counts with it.
NUMBER = r"\d+(?:[.,]\d+)*(?:e-?\d+)?"
WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")

_BLOCK = re.compile(r"^```(\S*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


class Block(NamedTuple):
    """A fenced block: its language and its text."""

    language: str
    text: str


def blocks(text, language):
    return [Block(*match.groups()) for match in _BLOCK.finditer(text) if match[1] == language]


def prose(text):
    """The text outside of blocks, with lines joined, so that line breaks do not hide a sentence."""
    return " ".join(_BLOCK.sub(" ", text).split())


def code_spans(text):
    return [" ".join(span.split()) for span in re.findall(r"`([^`]+)`", _BLOCK.sub(" ", text))]


def links(text):
    """The targets of links and images."""
    return re.findall(r"\]\(([^)\s]+)\)", _BLOCK.sub(" ", text))


def anchors(text):
    """The anchors of the headings, as GitHub and MyST make them."""
    headings = re.findall(r"^#+ (.*)$", _BLOCK.sub(" ", text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def commands(path):
    """The words of every favorbench command in the ```sh blocks and the code spans of a page."""
    text = path.read_text(encoding="utf-8")
    lines = [line for block in blocks(text, "sh") for line in block.text.replace("\\\n", " ").splitlines()]
    lines += [span for span in code_spans(text) if span.startswith("favorbench ")]
    for line in lines:
        for part in re.split(r"&&|\|", line):
            words = shlex.split(part, comments=True)
            name = next((i for i, word in enumerate(words) if Path(word).name == "favorbench"), None)
            if name is not None:
                yield [word for word in words[name + 1 :] if word not in {">", ">>"}]
