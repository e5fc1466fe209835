"""The plan: a pure function from a scenario to its draws."""

import itertools
from dataclasses import dataclass

from favorbench.baselines import get_baseline
from favorbench.engine.scenario import Scenario
from favorbench.errors import ScenarioError
from favorbench.inputs import Head, get_input
from favorbench.maps import get_map
from favorbench.numerics.backend import Backend
from favorbench.registry import label, nearest
from favorbench.samplers import get_sampler

MAX_DRAWS = 1_000_000


@dataclass(frozen=True)
class Draw:
    """The unit of work, of resuming and of pairing: one realisation of the inputs, and all that is measured on it."""

    index: int
    input: str
    head: Head
    scale: float
    dtype: str
    trial: int
    sizes: tuple[int, ...]
    #: The draw's part in the names of its random streams. Scale and dtype are not in it: draws that differ in these
    #: alone share their random numbers, so that they are paired.
    stream_names: tuple[str | int, ...]


def plan(scenario: Scenario) -> tuple[Draw, ...]:
    """All draws of a scenario, trial by trial, so that a run cut short has covered every cell evenly.

    Raises ScenarioError where the backend is not to be had, an input does not have the length, the head_dim or the
    heads asked for, a sampler cannot draw so many projections, or something cannot be causal.
    """
    Backend(scenario.backend, scenario.device).check(scenario.dtype)
    if scenario.causal:
        _check_causal(scenario)
    cells = []
    for spec in scenario.inputs:
        heads = _chosen(scenario, spec, get_input(spec).heads(scenario.seq_len, scenario.head_dim))
        if scenario.causal and (head := next((h for h in heads if h.query_len != h.seq_len), None)):
            raise ScenarioError(
                f"--causal: {spec} has {head.query_len} queries and {head.seq_len} keys; causal attention needs as many"
            )
        for head, scale, dtype in itertools.product(heads, scenario.scale, scenario.dtype):
            sizes = _sizes(scenario, head.head_dim)
            _check_samplers(scenario, head.head_dim, sizes)
            for group in [(size,) for size in sizes] if scenario.redraw == "R" else [sizes]:
                cells.append((spec, head, scale, dtype, group))
    if len(cells) * scenario.trials > MAX_DRAWS:
        raise ScenarioError(
            f"{len(cells)} cells x {scenario.trials} trials are {len(cells) * scenario.trials} draws; "
            f"at most {MAX_DRAWS} fit in one run: use fewer --trials, or several runs with different --seed"
        )
    draws = []
    for trial in range(scenario.trials):
        for spec, head, scale, dtype, group in cells:
            names = (spec, head.label, head.query_len, head.seq_len, head.head_dim, trial)
            names += group if scenario.redraw == "R" else ()
            draws.append(Draw(len(draws), spec, head, scale, dtype, trial, group, names))
    return tuple(draws)


def _sizes(scenario: Scenario, head_dim: int) -> tuple[int, ...]:
    """R, in projections or, with budget "features", in features: then each map must divide it."""
    sizes = scenario.sizes(head_dim)
    if scenario.budget == "features":
        for spec in scenario.maps:
            per = get_map(spec).features_per_projection or 1
            for size in sizes:
                if size % per:
                    raise ScenarioError(
                        f"-R {size} with --budget features: map {spec!r} has {per} features for each projection; "
                        f"use a multiple of {per}, e.g. {size + per - size % per}"
                    )
    return sizes


def _check_causal(scenario: Scenario) -> None:
    """What takes its parameters from the whole sequence would see the future."""
    members = [("--maps", get_map(spec)) for spec in scenario.maps]
    members += [("--baselines", get_baseline(spec)) for spec in scenario.baselines]
    for flag, member in members:
        if not member.causal_safe:
            raise ScenarioError(
                f"{flag} {label(member)}: it uses the whole sequence and cannot be causal; leave out one or the other"
            )


def _check_samplers(scenario: Scenario, head_dim: int, sizes: tuple[int, ...]) -> None:
    """Raise ScenarioError if a sampler cannot draw what a map will ask of it."""
    maps = [m for m in (get_map(spec) for spec in scenario.maps) if m.features_per_projection and not m.own_sample]
    for spec, feature_map, size in itertools.product(scenario.samplers, maps, sizes):
        per = feature_map.features_per_projection if scenario.budget == "features" else 1
        get_sampler(spec).check(size // per, head_dim)


def _chosen(scenario: Scenario, spec: str, heads: tuple[Head, ...]) -> tuple[Head, ...]:
    if scenario.heads is None:
        return heads
    labels = [head.label for head in heads]
    for wanted in scenario.heads:
        if wanted not in labels:
            shown = ", ".join(dict.fromkeys(labels))
            raise ScenarioError(f"--heads: {spec} has no head {wanted!r}{nearest(wanted, labels)}; it has {shown}")
    return tuple(head for head in heads if head.label in scenario.heads)
