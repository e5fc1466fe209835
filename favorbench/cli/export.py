"""favorbench export."""

from pathlib import Path
from typing import Annotated

import typer

from favorbench.cli.app import LOOK, RunPath, app, echo, echo_data, warn_partial
from favorbench.errors import ScenarioError


@app.command(panel=LOOK)
def export(
    run: RunPath,
    csv: Annotated[bool, typer.Option("--csv", help="All rows as CSV.")] = False,
    parquet: Annotated[bool, typer.Option("--parquet", help="All rows as one Parquet file.")] = False,
    out: Annotated[
        str | None,
        typer.Option(
            "--out", "-o", help="File; - is stdout (CSV only).  [default: NAME.csv, NAME.parquet]", show_default=False
        ),
    ] = None,
) -> None:
    """Write all rows of a run to a single file."""
    from favorbench.files import write_whole
    from favorbench.results.results import load

    if csv == parquet:
        raise ScenarioError("export: give one of --csv and --parquet")
    results = load(run)
    warn_partial(results)
    if out == "-":
        if parquet:
            raise ScenarioError("export: --parquet cannot go to stdout; give --out FILE")
        echo_data(results.trials.to_csv(index=False))
        return
    file = Path(out or f"{run.resolve().name}.{'csv' if csv else 'parquet'}")
    data = results.trials.to_csv(index=False).encode() if csv else results.trials.to_parquet(index=False)
    write_whole(file, data)
    echo(f"{file}: {len(results.trials)} rows")
