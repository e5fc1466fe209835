"""favorbench time."""

from typing import Annotated

from favorbench.cli import options
from favorbench.cli.app import Json, Quiet, RunPath, app, echo, interrupted_timing, print_json, say


@app.command()
def time(
    run: RunPath,
    repeats: Annotated[int, options.REPEATS] = 7,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Time the estimators of a run, here and now.

    Exact attention and each estimator at each of its sizes, in turns, on one head of the run's inputs and on one core
    or one GPU; bounds among baselines are left out. Kept in RUN/seconds.json, with the machine, apart from the run's
    rows; `favorbench plot RUN` draws errors against them.
    """
    from favorbench import console
    from favorbench.results.seconds import write_seconds
    from favorbench.studies.speed.of_run import time_run

    try:
        with console.progress("time", quiet) as report:
            found = time_run(run, repeats, report)
    except KeyboardInterrupt as error:
        interrupted_timing(run, error)
    file = write_seconds(run, found)
    if as_json:
        print_json(found._replace(rows=found.rows.to_dict(orient="records"))._asdict() | {"file": file})
        return
    console.show_seconds(console.stdout(), found)
    echo(str(file))
    if not quiet:
        say(f"favorbench plot {run} draws errors against them")
