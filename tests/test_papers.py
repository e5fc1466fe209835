"""Every member says where it comes from, and the papers come out as BibTeX."""

import re

import pytest

from favorbench.catalogue import bibtex, papers, records
from favorbench.papers import PAPERS, Paper, latex
from tests.command_line import printed

FAMILIES = ("maps", "samplers", "methods", "baselines")
#: Where a reference is no paper: code, a tutorial, an identity, a way to use another map.
NO_PAPER = re.compile(r"-|first order|performer|tutorial|an identity|parameters of another text")


@pytest.mark.parametrize("family", FAMILIES)
def test_every_reference_names_a_known_paper_or_explains_itself(family):
    known = {paper.cited for paper in PAPERS}
    for record in papers(family):
        assert record["paper"] in known or NO_PAPER.search(record["paper"]), record


def test_an_identifier_stands_for_the_same_paper_everywhere():
    """Where a reference gives an arXiv number, it is that of the paper it names."""
    for family in FAMILIES:
        for record in records(family):
            for number in re.findall(r"arXiv (\d{4}\.\d{5})", record["reference"]):
                (paper,) = [p for p in PAPERS if p.arxiv == number]
                assert paper.cited in record["reference"], record
    assert len({paper.key for paper in PAPERS}) == len({paper.title for paper in PAPERS}) == len(PAPERS)


@pytest.mark.parametrize("family", FAMILIES)
def test_bibtex_is_balanced_and_has_each_paper_once(family):
    entries = bibtex(family).split("\n\n")
    cited = {record["paper"] for record in papers(family)} & {paper.cited for paper in PAPERS}
    assert len(entries) == len(cited)
    for entry in entries:
        assert re.match(r"@misc\{\w+,\n", entry) and entry.count("{") == entry.count("}")
        assert {"author", "title", "year"} <= set(re.findall(r"^  (\w+) = ", entry, re.MULTILINE))


def test_a_paper_behind_two_families_is_one_entry():
    """BibTeX ends with an error at a repeated key."""
    keys = re.findall(r"^@misc\{(\w+),", printed("list --papers --format bibtex"), re.MULTILINE)
    assert "choromanski2021" in keys and len(set(keys)) == len(keys)


def test_text_is_plain_and_bibtex_is_latex():
    """No markup in what is read by people; nothing but ASCII in what is read by BibTeX."""
    for paper in PAPERS:
        assert not set("{}\\") & set("".join(paper)), paper
        assert paper.bibtex().isascii(), paper
    assert latex("Schröder, Matoušek, Ré, François") == r"Schr{\"o}der, Matou{\v{s}}ek, R{\'e}, Fran{\c{c}}ois"
    (entry,) = (paper.bibtex() for paper in PAPERS if paper.key == "likhosherstov2023")
    assert r"{{FAVOR\#: Sharp" in entry  # a bare # ends what LaTeX can set


def test_letters_unknown_to_latex_are_not_entries():
    with pytest.raises(KeyError):
        Paper("a1900", "A 1900", "Bråten", "", "arXiv").bibtex()
