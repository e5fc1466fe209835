"""favorbench status."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from favorbench.cli.app import LOOK, Json, app, print_json, say

if TYPE_CHECKING:
    from favorbench.results.status import Status

WIDTH = 28  # of the names of runs in the table


@app.command(panel=LOOK)
def status(
    runs: Annotated[list[Path], typer.Argument(help="Run directories, or directories of several.", show_default=False)],
    as_json: Json = False,
) -> None:
    """Say how far runs are: what is done and failed, how fast, when it ends, and whether a process is at it.

    Of sweeps, recommendations, audits and studies of models. Exit 0 where all are whole, 1 where something is missing
    or failed.

    until favorbench status results/long; do sleep 60; done
    """
    from favorbench import console
    from favorbench.results.status import statuses

    found = list({one.run: one for path in runs for one in statuses(path)}.values())
    if as_json:
        print_json([one._asdict() | {"whole": one.whole} for one in found])
    else:
        console.show_records(console.stdout(), [_record(one) for one in found])
        for one in found:
            _say_what_is_wrong(one)
    if not all(one.whole for one in found):
        raise typer.Exit(1)


def _record(one: "Status") -> dict[str, object]:
    from favorbench.formats import format_seconds

    left = "-" if one.left is None else format_seconds(one.left)
    done = f"{one.done}" if one.kind == "recommend" else f"{one.done} of {one.planned}"
    return {
        "run": _short(one.run), "state": one.state, "done": done, "failed": one.failed,
        "per second": "-" if one.per_second is None else f"{one.per_second:.3g}", "left": left,
        "ends": one.ends or "-",
    }  # fmt: skip


def _short(name: str) -> str:
    """The end of a long path: numbers beside it are to be read at 80 columns."""
    return name if len(name) <= WIDTH else f"…{name[1 - WIDTH :]}"


def _say_what_is_wrong(one: "Status") -> None:
    for name, messages in one.failures.items():
        for how, draws in messages.items():
            say(f"{one.run}: {name} failed on {len(draws)} draws, the first is {min(draws)}: {how}")
    if one.damaged:
        say(f"{one.run}: damaged parts: {one.damaged}; the same command again computes anew what was in them")
    if one.state == "stopped":
        say(f"{one.run}: nobody is at it; the same command again resumes")
