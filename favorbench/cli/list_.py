"""favorbench list. (A module called ``list`` would hide Python's own in the package.)"""

from typing import Annotated, Literal

import typer

from favorbench.cli.app import Json, app, echo, print_json


@app.command("list")
def list_(
    what: Annotated[
        Literal["maps", "samplers", "methods", "inputs", "scenarios", "metrics", "baselines"],
        typer.Argument(help="What to list.", show_default=False),
    ],
    with_papers: Annotated[bool, typer.Option("--papers", help="The papers behind each.")] = False,
    form: Annotated[
        Literal["table", "bibtex"], typer.Option("--format", help="bibtex: an entry for every paper.")
    ] = "table",
    as_json: Json = False,
) -> None:
    """List what there is, with claims and references."""
    from favorbench import console
    from favorbench.catalogue import bibtex, papers, records

    if form == "bibtex":
        echo(bibtex(what))
        return
    found = papers(what) if with_papers else records(what)
    if as_json:
        print_json({what: found})
    else:
        console.show_records(console.stdout(), found)
