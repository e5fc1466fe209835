"""What recommend found, for a terminal."""

from typing import TYPE_CHECKING

from rich.console import Console

from favorbench.console.tables import show_records
from favorbench.console.terminal import print_line

if TYPE_CHECKING:
    from favorbench.studies.recommend.answer import Recommendation


def show_recommendation(console: Console, found: "Recommendation") -> None:
    """A line for each head, what the columns are, one sentence over all heads, and what is certified."""
    from favorbench.studies.recommend.answer import certified_in_words, notes, records, sentence

    show_records(
        console, records(found), f"{found.title}: {found.metric} target {found.target:g}", " ".join(notes(found))
    )
    print_line(console, sentence(found), "bold")
    print_line(console, certified_in_words(found))


def show_python(console: Console, found: "Recommendation") -> None:
    """The lines that build what is recommended for a single head, or for the first one that has something."""
    certified = [decision for decision in found.decisions if decision.outcome == "certified"]
    if not certified:
        return
    others = len({d.python for d in certified}) > 1
    more = " (of the others: --json, or recommendation.json)" if others else ""
    several = len(found.decisions) > 1
    print_line(console, f"\nIn Python, for {certified[0].head}{more}:" if several else "\nIn Python:", "bold")
    for line in certified[0].python.splitlines():
        console.print(line, soft_wrap=True)
