"""Every number of README.md and docs/findings.md is that of the committed data (tests/claims.py).

A number that no claim accounts for fails, and so does a claim whose sentence is gone.
"""

import importlib
import re

import pandas as pd
import pytest

from favorbench.formats import format_value
from tests import claims, pages
from tests.command_line import run
from tests.conftest import REPOSITORY
from tests.test_pages import parsed

README, FINDINGS = ((REPOSITORY / name).read_text(encoding="utf-8") for name in ("README.md", "docs/findings.md"))

READ = {
    "README.md": (README, claims.README, list),
    "docs/findings.md": (FINDINGS, claims.FINDINGS, lambda: claims.length_rows() + claims.table_rows()),
}


def pattern(claim):
    number = f"({pages.NUMBER}|{'|'.join(pages.WORDS)})"
    return re.escape(claim.words).replace(r"\{\}", number).replace(r"\ ", r"\s+")


def faults(text, made, rows):
    """Numbers of a page that contradict the data, or that no claim here accounts for."""
    words, found = pages.prose(text), []
    accounted = []
    for claim in made:
        matches = list(re.finditer(pattern(claim), words))
        expected = claim.numbers()
        if len(matches) != 1:
            found.append(f"{len(matches)} times on the page: {claim.words}")
        for match in matches:
            accounted += [match.span(group + 1) for group in range(len(match.groups()))]
            if list(match.groups()) != expected:
                found.append(f"{claim.words!r}: {match.groups()} on the page, {expected} by {claim.command}")
    for row in rows:
        if row not in text.splitlines():
            found.append(f"not a line of the page: {row}")
            continue
        start = words.index(" ".join(row.split()))
        accounted.append((start, start + len(row)))
    for spared in (r"`[^`]*`", r"\]\([^)]*\)", *claims.SETTINGS):
        accounted += [match.span() for match in re.finditer(spared, words)]
    for match in re.finditer(rf"(?<![\w.]){pages.NUMBER}", words):
        if not any(start <= match.start() and match.end() <= end for start, end in accounted):
            around = words[max(match.start() - 40, 0) : match.end() + 20]
            found.append(f"no row of this file accounts for {match[0]!r} in {around!r}")
    return found


@pytest.mark.parametrize("name", READ)
def test_every_number_is_that_of_the_data(name):
    text, made, rows = READ[name]
    assert faults(text, made, rows()) == []


@pytest.mark.parametrize("name, claim", [(name, claim) for name in READ for claim in READ[name][1]])
def test_a_changed_number_is_noticed(name, claim):
    """The control: each number of each sentence, made another."""
    text = READ[name][0]
    match = re.search(pattern(claim), text)
    assert match is not None
    for group in range(1, len(match.groups()) + 1):
        start, end = match.span(group)
        old = match[group]
        word = "four" if old == "three" else "three"
        new = word if old in pages.WORDS else re.sub(r"\d(?=\D*$)", lambda m: str((int(m[0]) + 1) % 10), old)
        assert any(claim.words in fault for fault in faults(text[:start] + new + text[end:], [claim], []))


def test_changed_tables_and_new_numbers_are_noticed():
    text, made, rows = READ["docs/findings.md"]
    row = rows()[0]
    assert any(row in fault for fault in faults(text.replace(row, row.replace("1", "2", 1)), made, rows()))
    assert any("'7'" in fault for fault in faults(text + "\nIt is 7 times as good.\n", made, rows()))


@pytest.mark.parametrize("claim", [*claims.README, *claims.FINDINGS], ids=lambda claim: claim.words)
def test_the_commands_that_print_them_parse(claim):
    program, *words = claim.command.split()
    if program == "python":
        importlib.import_module(words[1]).parser().parse_args(words[2:])
    else:
        parsed(words)


def test_the_winner_is_the_winner():
    """Among estimators that need not look at all pairs, those built on multipole have the least median."""
    chosen = "num_projections == 240 and estimator not in ('best-rank', 'top-keys')"
    frame = claims.over_heads("minilm-72").query(chosen)
    best = frame.sort_values("ratio_median")["estimator"].tolist()
    built = [name for name in best if "multipole" in name]
    assert len(built) == 3 and best[:3] == built


def test_errors_at_a_fixed_size_are_larger_at_the_largest_length():
    """Those of all methods except random features; several do not grow at each step."""
    short, long = (
        claims.over_heads(f"smollm2-{length}")
        .query("kind != 'map' and num_projections == 256 and estimator != 'sinks(4):positive'")
        .set_index("estimator")["ratio_median"]
        for length in (1024, 8192)
    )
    assert len(long) > 9 and (long > short).all()


def test_no_map_is_better_than_random_keys_on_the_four_heads():
    frame = pd.read_csv(REPOSITORY / "results" / "catalogue" / "summary.csv").query("input == 'minilm'")
    keys = frame.query("estimator == 'sampled-keys'").set_index("head")["mse_median"]
    maps = frame.query("kind == 'map'")
    assert (maps["mse_median"] > maps["head"].map(keys)).all() and len(keys) == 4


def test_samplers_matter_on_inputs_of_small_norm_and_rows_of_one_norm_on_others():
    frame = pd.read_csv(REPOSITORY / "results" / "samplers" / "summary.csv").query("estimator in ('positive', 'oprf')")
    frame = frame.pivot(index=["input", "head", "estimator"], columns="sampler", values="mse_median")
    ratios = frame.div(frame["iid"], axis=0)
    fixed = ratios[["sorf", "orthogonal-sqrt-d"]].xs("positive", level="estimator")
    gaussian = ratios.drop(columns=["sorf", "orthogonal-sqrt-d", "moment-matched"])
    small = gaussian.loc["gaussian(std=0.25)"]
    assert small.min().min() < 0.1 and small.drop(columns="iid").max().max() < 0.8
    others = gaussian.loc[["gaussian", "minilm"]]
    assert others.min().min() > 0.6 and others.max().max() < 1.4
    assert (fixed < 0.85).all(axis=1).sum() > len(fixed) / 2 and (fixed.loc["gaussian"] < 0.5).all(axis=None)


def test_two_digits():
    values = {0.0029977: "0.0030", 1.03: "1.0", 36.4: "36", 21393.5: "2.1e4", 7.54e-6: "7.5e-6", 0: "0", 0.97: "0.97"}
    assert {value: claims.two(value) for value in values} == values
    assert format_value(7.54e-6, "mse") == claims.two(7.54e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
    "title, command", [("mse, gaussian", "sweep --maps positive,trig"), ("certified", "recommend minilm -q")]
)
def test_output_of_commands(title, command):
    """README's tables, to the last digit that they show: the draws are the same everywhere."""
    (block,) = (block for block in pages.blocks(README, "text") if title in block.text)
    code, printed, _ = run(*command.split())
    assert code == 0
    assert missing(block.text, printed) == []
    changed = re.sub(r"7\.4e-3|0\.058", "9.9e-3", block.text, count=1)
    assert len(missing(changed, printed)) == 1


def missing(block, printed):
    """The lines of a block that a command does not print."""
    lines = {" ".join(line.split()) for line in printed.splitlines()}
    return [line for line in block.splitlines() if line and " ".join(line.split()) not in lines]
