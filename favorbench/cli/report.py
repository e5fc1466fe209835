"""favorbench report."""

from pathlib import Path
from typing import Annotated

import typer

from favorbench.cli.app import Quiet, RunPath, app, echo, say, warn_partial


@app.command()
def report(
    run: RunPath,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="The file.  [default: RUN/report.html]", show_default=False),
    ] = None,
    heads: Annotated[
        str | None, typer.Option(help="Of a file of inputs only these heads, e.g. L0H1,L3H2.", show_default=False)
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Write a run as one page to send: HTML that needs no network.

    Sentences, tables with rankings, curves, the data as CSV and the manifest, below 1 MB; what there is no room for is
    named, and the CSV is then beside the page. A page that is there already is replaced; another file never is.
    """
    from favorbench.results.page import only_heads, write_page
    from favorbench.results.results import load

    results = load(run)
    warn_partial(results)
    written = write_page(results if heads is None else only_heads(results, heads), out or run / "report.html")
    for file in written:
        echo(str(file))
    if len(written) > 1 and not quiet:
        say(f"{written[1]} has the data, which are too large to be in the page: send both")
