"""favorbench status."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from favorbench.cli.app import LOOK, Json, app, print_json, say, show

if TYPE_CHECKING:
    from favorbench.results.status import Status

WIDTH = 28  # of the names of runs: the end of a long path, so that the table fits 80 columns


@app.command(panel=LOOK)
def status(
    runs: Annotated[list[Path], typer.Argument(help="Run directories, or directories of several.", show_default=False)],
    as_json: Json = False,
) -> None:
    """Show the progress of runs: draws done and failed, speed, time left, and whether they are running.

    For sweeps, recommendations, audits and studies of models. Exit 0 if all are complete, 1 if something is missing or
    failed.

    until favorbench status results/long; do sleep 60; done
    """
    from favorbench.results.status import statuses
    from favorbench.sections import Section

    found = list({one.run: one for path in runs for one in statuses(path)}.values())
    if as_json:
        print_json([one._asdict() | {"whole": one.whole} for one in found])
    else:
        show([Section(rows=[_row(one) for one in found])])
        for one in found:
            _say_what_is_wrong(one)
    if not all(one.whole for one in found):
        raise typer.Exit(1)


def _row(one: "Status") -> dict[str, str]:
    from favorbench.formats import format_seconds

    short = one.run if len(one.run) <= WIDTH else f"…{one.run[1 - WIDTH :]}"
    return {
        "run": short, "state": one.state,
        "done": str(one.done) if one.kind == "recommend" else f"{one.done} of {one.planned}",
        "failed": str(one.failed), "per second": "-" if one.per_second is None else f"{one.per_second:.3g}",
        "left": "-" if one.left is None else format_seconds(one.left), "ends": one.ends or "-",
    }  # fmt: skip


def _say_what_is_wrong(one: "Status") -> None:
    for name, messages in one.failures.items():
        for how, draws in messages.items():
            say(f"{one.run}: {name} failed on {len(draws)} draws, the first is {min(draws)}: {how}")
    if one.damaged:
        say(f"{one.run}: {one.damaged} damaged parts; rerun the same command to compute them again")
    if one.state == "stopped":
        say(f"{one.run}: not running; rerun the same command to resume")
