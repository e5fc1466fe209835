"""Shell completion: names of members from the registries, runs, scenarios and files.

A registry is imported on first use, because its members need NumPy. A shell that is offered nothing offers
files.
"""

import contextlib
import glob
import io
import os
import re
import sys
from collections.abc import Callable, Iterable
from typing import NoReturn

from favorbench.files import RUN_MANIFESTS, data_directory

VARIABLE = "_FAVORBENCH_COMPLETE"


def answer(run: Callable[[], object]) -> NoReturn:
    """Answer a shell that asks through VARIABLE. Errors print nothing: the user is typing a line."""
    output, kept, code = io.StringIO(), "", 0
    try:
        with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(output):
            if os.environ[VARIABLE] == "complete_bash":
                kept = _join_words()
            run()
    except SystemExit as end:
        code = end.code
    except Exception:
        sys.exit(1)
    sys.stdout.writelines(f"{line.removeprefix(kept)}\n" for line in output.getvalue().splitlines())
    sys.exit(code)  # fish asks by it whether to offer files


def _join_words() -> str:
    """Join the words that bash has split at : and =, and return the part of the last one that it will not replace."""
    count = int(os.environ["COMP_CWORD"]) + 1
    words = os.environ["COMP_WORDS"].split("\n")[:count]
    text = "\n".join([*words, *[""] * (count - len(words))])
    text = re.sub(r"\n?:\n?", ":", re.sub(r"(\n--[\w-]+)\n=\n?", r"\1\n", text))
    os.environ |= {"COMP_WORDS": text, "COMP_CWORD": str(text.count("\n"))}
    last = text.rpartition("\n")[2]
    return "" if last.startswith(("'", '"')) else last[: last.rfind(":") + 1]


def maps(incomplete: str) -> list[str]:
    """Complete a list of feature maps, with prefixes such as ``centre:``."""
    from favorbench.maps import MAPS, TRANSFORMS

    return _list(incomplete, _names(MAPS), [transform.prefix for transform in TRANSFORMS])


def samplers(incomplete: str) -> list[str]:
    """Complete a list of samplers, with prefixes."""
    from favorbench.samplers import SAMPLERS, TRANSFORMS

    return _list(incomplete, _names(SAMPLERS), [transform.prefix for transform in TRANSFORMS])


def methods(incomplete: str) -> list[str]:
    """Complete a list of methods; a prefix such as ``sinks(4):`` also stands before a map."""
    from favorbench.methods import INSIDE, METHODS

    behind_prefix = ":" in _without_calls(incomplete).rpartition(",")[2]
    return _list(incomplete, _names((*METHODS, *INSIDE) if behind_prefix else METHODS))


def baselines(incomplete: str) -> list[str]:
    """Complete a list of baselines."""
    from favorbench.baselines import BASELINES

    return _list(incomplete, _names(BASELINES))


def metrics(_: str) -> list[str]:
    """List the metrics."""
    from favorbench.metrics import METRICS

    return list(METRICS)


def subjects(incomplete: str) -> list[str]:
    """Complete what verify takes: maps, samplers, methods, or MAP/SAMPLER."""
    from favorbench.samplers import SAMPLERS

    feature_map, slash, _ = incomplete.partition("/")
    if slash:
        return [f"{feature_map}/{name}" for name in _names(SAMPLERS)]
    return [*maps(incomplete), *samplers(incomplete), *methods(incomplete)]


def inputs(incomplete: str) -> list[str]:
    """Complete a list of inputs: distributions, included heads, and files of heads."""
    from favorbench.inputs import INPUTS, SHIPPED

    names = [name for name in _names(INPUTS) if name not in ("file", "arrays")]
    files = _files(incomplete.rpartition(",")[2], ".npz", ".safetensors")
    return _list(incomplete, [*names, *SHIPPED, *files])


def scenarios(incomplete: str) -> list[str]:
    """List included scenarios and TOML files."""
    return [*sorted(path.stem for path in data_directory().glob("*.toml")), *_files(incomplete, ".toml")]


def runs(incomplete: str) -> list[str]:
    """List directories of runs, also those in ``results`` if nothing is typed yet, and directories that hold runs."""
    typed = glob.escape(incomplete)
    places = [f"{typed}*"] if incomplete else ["*", "results/*"]
    directories = {os.path.dirname(path) for place in places for path in _manifests(place)}
    below = _manifests(f"{typed}*/*") if incomplete else []
    return _plain(sorted(directories | {f"{os.path.dirname(os.path.dirname(path))}/" for path in below}))


def _manifests(place: str) -> list[str]:
    return [path for name in RUN_MANIFESTS for path in glob.glob(f"{place}/{name}")]


def _plain(paths: Iterable[str]) -> list[str]:
    r"""Paths without characters that a shell obeys: zsh would run ``\\$(command)`` of a name that it is offered."""
    return [path for path in paths if re.fullmatch(r"[\w./,+@%=:~][\w./,+@%=:~-]*", path)]


def words(*allowed: str) -> Callable[[str], list[str]]:
    """Complete a list of some of these words."""
    return lambda incomplete: _list(incomplete, allowed)


def _list(incomplete: str, names: Iterable[str], prefixes: Iterable[str] = ()) -> list[str]:
    """Complete the last part of a list with commas, behind its prefixes."""
    hidden = _without_calls(incomplete)
    start = max(hidden.rfind(","), hidden.rfind(":")) + 1
    kept, rest = incomplete[:start], incomplete[start:]
    # A shell takes a prefix alone for the end of a word, so one that is begun comes with all names.
    behind = list(names) if rest else [""]
    return [kept + name for name in (*names, *(f"{prefix}:{name}" for prefix in prefixes for name in behind))]


def _without_calls(text: str) -> str:
    """Replace what stands in parentheses by as many underscores."""
    return re.sub(r"\([^()]*\)?", lambda match: "_" * len(match[0]), text)


def _names(members: Iterable[type]) -> list[str]:
    return [member.name for member in members]  # pyright: ignore[reportAttributeAccessIssue]


def _files(typed: str, *suffixes: str) -> list[str]:
    return _plain(path for path in sorted(glob.glob(f"{glob.escape(typed)}*")) if path.endswith(suffixes))
