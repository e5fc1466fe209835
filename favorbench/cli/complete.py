"""What a shell offers after a tab: names of members, runs, inputs.

Names are read in the text of the modules that declare them: to import those takes NumPy, and a tab should not wait.
Where there is nothing to offer the shell offers files.
"""

import contextlib
import io
import itertools
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NoReturn

import favorbench
from favorbench.files import data_directory

VARIABLE = "_FAVORBENCH_COMPLETE"
RUN_PLACE = "results"  # where runs are written unless --out says otherwise
BASELINE = "sampled-keys"  # declared beside the methods, and a method behind a prefix only
MAX_ENTRIES = 2000  # of a directory that are looked at

_HOME = Path(favorbench.__file__).parent
_NAME = re.compile(r'^    name: ClassVar\[str\] = "([^"]+)"$', re.MULTILINE)
_PREFIX = re.compile(r'^    prefix: ClassVar\[str\] = "([^"]+)"$', re.MULTILINE)
_METRIC = re.compile(r'^    "(\w+)": Metric\($', re.MULTILINE)
_SHIPPED = re.compile(r'^    "(\w+)": Shipped\($', re.MULTILINE)

_head = ""  # what stands before the part of a word that bash replaces


def answer(run: Callable[[], object]) -> NoReturn:
    """Answer a shell that asks through VARIABLE. Whatever goes wrong, nothing is said: there is a line being typed."""
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            if os.environ[VARIABLE] == "complete_bash":
                _join_words()
            run()
    except Exception:
        sys.exit(1)
    sys.exit(0)


def _join_words() -> None:
    """Put words together that bash has taken apart at : and =, but for the part of the last that it will replace."""
    global _head
    count = int(os.environ["COMP_CWORD"]) + 1
    words: list[str] = []
    joined = False
    given = os.environ["COMP_WORDS"].split("\n")[:count]
    for word in [*given, *[""] * (count - len(given))]:
        if word == "=" and words and words[-1].startswith("--"):
            words.append("")  # the value of an option
            joined = True
        elif words and (word == ":" or joined):
            words[-1] += word
            joined = word == ":"
        else:
            words.append(word)
            joined = False
    if words and not words[-1].startswith(("'", '"')):
        _head, colon, tail = words[-1].rpartition(":")
        _head += colon
        words[-1] = tail
    os.environ["COMP_WORDS"] = "\n".join(words)
    os.environ["COMP_CWORD"] = str(len(words) - 1)


def maps(incomplete: str) -> list[str]:
    """Feature maps, with prefixes such as ``centre:``, the last of a list with commas."""
    return _in_list(incomplete, _names("maps"), _found(_PREFIX, "maps"))


def samplers(incomplete: str) -> list[str]:
    """Samplers, the last of a list with commas."""
    return _in_list(incomplete, _names("samplers"), _found(_PREFIX, "samplers"))


def methods(incomplete: str) -> list[str]:
    """Methods, also behind prefixes (which hold around maps too), the last of a list with commas."""
    inside = ":" in _without_calls(_head + incomplete).rpartition(",")[2]
    names = _names("methods")
    return _in_list(incomplete, [*names, *_names("maps")] if inside else [n for n in names if n != BASELINE], [])


def baselines(incomplete: str) -> list[str]:
    """Baselines, the last of a list with commas."""
    return _in_list(incomplete, [*_names("baselines"), BASELINE], [])


def metrics(incomplete: str) -> list[str]:
    """The metrics."""
    return _one(incomplete, _METRIC.findall((_HOME / "metrics.py").read_text("utf-8")))


def subjects(incomplete: str) -> list[str]:
    """What verify takes: maps, samplers, methods, or MAP/SAMPLER."""
    if "/" in incomplete:
        first = incomplete.rpartition("/")[0]
        return _one(incomplete, [f"{first}/{name}" for name in _names("samplers")])
    return _in_list(incomplete, [*_names("maps"), *_names("samplers"), *_names("methods")], _found(_PREFIX, "maps"))


def inputs(incomplete: str) -> list[str]:
    """Laws, shipped heads, and files of heads in this directory, the last of a list with commas."""
    laws = [*_names("inputs"), *_SHIPPED.findall((_HOME / "inputs" / "shipped.py").read_text("utf-8"))]
    files = [path for path in _entries(incomplete.rpartition(",")[2]) if path.endswith((".npz", ".safetensors"))]
    return _in_list(incomplete, [*(law for law in laws if law not in ("file", "arrays")), *files], [])


def scenarios(incomplete: str) -> list[str]:
    """Shipped scenarios, and files of one's own."""
    shipped = sorted(path.stem for path in data_directory().glob("*.toml"))
    return _one(incomplete, [*shipped, *(path for path in _entries(incomplete) if path.endswith(".toml"))])


def runs(incomplete: str) -> list[str]:
    """Directories of runs: those that are typed so far, and in ``results`` where nothing is typed yet."""
    places = [incomplete] if incomplete else ["", f"{RUN_PLACE}/"]
    found = [entry for place in places for entry in _entries(place) if _is_run(Path(entry))]
    below = [
        f"{entry.rstrip('/')}/" for entry in (_entries(incomplete) if incomplete else [])
        if not _is_run(Path(entry)) and any(_is_run(Path(one)) for one in _entries(f"{entry.rstrip('/')}/"))
    ]  # fmt: skip
    return _one(incomplete, [*found, *below])


def words(*allowed: str) -> Callable[[str], list[str]]:
    """One of the words, or several with commas."""
    return lambda incomplete: _in_list(incomplete, allowed, [])


def _one(incomplete: str, allowed: Iterable[str]) -> list[str]:
    """Those allowed that begin as what is typed does, without what the shell does not replace."""
    typed = _head + incomplete
    return sorted({name[len(_head) :] for name in allowed if name.startswith(typed)})


def _in_list(incomplete: str, names: Iterable[str], prefixes: Iterable[str]) -> list[str]:
    """As ``_one`` for the last part of a list with commas, behind its prefixes."""
    typed = _head + incomplete
    before = re.match(r".*(?:,|:)|", _without_calls(typed))
    kept = typed[: before.end()] if before else ""
    rest = typed[len(kept) :]
    shown = list(names)
    # Prefixes alone would be taken for the end of a word: with what they can stand before, they are not.
    shown += [f"{prefix}:{name}" for prefix in prefixes for name in names if rest and prefix.startswith(rest)]
    shown += [f"{prefix}:" for prefix in prefixes if not rest]
    return _one(incomplete, [kept + name for name in shown])


def _without_calls(text: str) -> str:
    """A text of the same length without the commas and colons between parentheses."""
    return re.sub(r"\([^()]*\)?", lambda match: "_" * len(match[0]), text)


def _names(room: str) -> list[str]:
    return _found(_NAME, room)


def _found(pattern: "re.Pattern[str]", room: str) -> list[str]:
    return [name for path in sorted((_HOME / room).glob("*.py")) for name in pattern.findall(path.read_text("utf-8"))]


def _entries(typed: str) -> Iterator[str]:
    """Entries of a directory, written as they were begun."""
    place, slash, begun = typed.rpartition("/")
    try:
        with os.scandir(place + slash or ".") as entries:
            found = sorted(entry.name for entry in itertools.islice(entries, MAX_ENTRIES))
    except OSError:
        return
    for name in found:
        if name.startswith(begun) and (begun or not name.startswith(".")):
            yield f"{place}{slash}{name}"


def _is_run(path: Path) -> bool:
    return (path / "manifest.json").is_file()
