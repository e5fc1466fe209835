"""favorbench report."""

from pathlib import Path
from typing import Annotated

import typer

from favorbench.cli import complete
from favorbench.cli.app import LOOK, Quiet, RunPath, app, echo, say, warn_partial
from favorbench.errors import ScenarioError


@app.command(panel=LOOK)
def report(
    run: RunPath,
    new: Annotated[
        Path | None,
        typer.Argument(
            help="Another run, to compare with the first.", show_default=False, autocompletion=complete.runs
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", help="The file.  [default: RUN/report.html; NEW/against-RUN.html]", show_default=False
        ),
    ] = None,
    heads: Annotated[
        str | None, typer.Option(help="Of a file of inputs only these heads, e.g. L0H1,L3H2.", show_default=False)
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Write a run, or two compared, as one page to send.

    HTML that needs no network: sentences, tables with rankings, curves, the data as CSV and the manifest, below 1 MB;
    what there is no room for is named, and the CSV is then beside the page. A page that is there already is
    replaced; another file never is.
    """
    from favorbench.results.heads import select_heads
    from favorbench.results.page import write_comparison, write_page
    from favorbench.results.results import load

    results = load(run)
    if new is None:
        warn_partial(results)
        written = write_page(results if heads is None else select_heads(results, heads), out or run / "report.html")
    else:
        if heads is not None:
            raise ScenarioError("--heads: a page of two runs has all heads that both have; leave it out")
        found = results.compare(new)
        for one in (found.old, found.new):
            warn_partial(one)
        written = write_comparison(found, out or new / f"against-{run.resolve().name}.html")
    for file in written:
        echo(str(file))
    if len(written) > 1 and not quiet:
        say(f"{written[1]} has the data, which are too large to be in the page: send both")
