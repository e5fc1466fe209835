"""What the command line calls the keys of the library, and the numbers that flags hold.

Errors and sentences of the library name keys, in backquotes; a user of the command line typed flags.
"""

import functools
import math
import re
from collections.abc import Iterable
from typing import Any

import typer.main

from favorbench.cli.app import app
from favorbench.errors import ScenarioError


@functools.cache
def flags() -> dict[str, str]:
    """The flag of each key, from the declarations of the commands: the first of its spellings, -R for num_projections.

    To be called when all commands are there, so from inside one of them.
    """
    commands: Any = typer.main.get_command(app)
    options = (option for command in commands.commands.values() for option in command.params)
    return {option.name: option.opts[0] for option in options if option.opts[0].startswith("-")}


def with_flags(text: str) -> str:
    """A message of the library, where keys stand in backquotes, with the flags in their place."""
    return re.sub(r"`(\w+)`", lambda match: flags().get(match[1], match[1]), text)


def numbers(flag: str, text: str, kind: type[int] | type[float], low: float, high: float = 1e9) -> list[Any]:
    """The increasing numbers of a list with commas, all from ``low`` to ``high``. Raises ScenarioError."""
    from favorbench.registry import split_list

    return sorted({_number(flag, part, kind, low, high, "{}s from {} to {}, with commas") for part in split_list(text)})


def number(flag: str, text: str, kind: type[int] | type[float], low: float, high: float = 1e9) -> Any:
    """One number from ``low`` to ``high``. Raises ScenarioError."""
    return _number(flag, text, kind, low, high, "one {} from {} to {}")


def _number(flag: str, text: str, kind: type[int] | type[float], low: float, high: float, allowed: str) -> Any:
    try:
        value = kind(text)
    except ValueError:
        value = math.nan
    if not low <= value <= high:
        words = allowed.format("whole number" if kind is int else "number", f"{low:g}", f"{high:.10g}")
        raise ScenarioError(f"{flag}: {text!r} given, allowed: {words}")
    return value


def check_device(device: str) -> None:
    """Raise ScenarioError for what is no device of any backend."""
    if not re.fullmatch(r"cpu|cuda(:\d{1,3})?", device):
        raise ScenarioError(f"--device: {device!r} given, allowed: cpu, cuda or cuda:N")


def check_maps(command: str, specs: Iterable[str]) -> None:
    """Raise ScenarioError for a method or a baseline in a command that is about kernels."""
    from favorbench.baselines import no_map

    for spec in specs:
        if found := no_map(spec):
            name, kind = found
            flag = "--baselines" if kind == "baseline" else "--methods"
            raise ScenarioError(
                f"{command} is about the kernels of maps, and {name!r} is a {kind}: "
                f"favorbench sweep {flag} {spec} measures its attention"
            )
