"""favorbench list. (A module called ``list`` would hide Python's own in the package.)"""

from typing import Annotated, Literal

import typer

from favorbench.cli.app import REFERENCE, Json, app, echo, print_json, show


@app.command("list", panel=REFERENCE)
def list_(
    what: Annotated[
        Literal["maps", "samplers", "methods", "inputs", "scenarios", "metrics", "baselines"] | None,
        typer.Argument(help="What to list; without it, the names of everything."),
    ] = None,
    with_papers: Annotated[bool, typer.Option("--papers", help="The papers behind each.")] = False,
    form: Annotated[
        Literal["table", "bibtex"], typer.Option("--format", help="bibtex: an entry for every paper.")
    ] = "table",
    as_json: Json = False,
) -> None:
    """List the names that options take, with their properties and references."""
    from favorbench.catalogue import FAMILIES, bibtex, papers, records
    from favorbench.sections import Section

    if form == "bibtex":
        echo("\n\n".join(bibtex(family) for family in ([what] if what else WITH_PAPERS)))
        return
    families = [what] if what else WITH_PAPERS if with_papers else list(FAMILIES)
    found = {family: papers(family) if with_papers else records(family) for family in families}
    if as_json:
        print_json(found)
    elif what or with_papers:
        show([Section("" if what else family, found[family]) for family in families])
    else:
        names = [f"{family}: {', '.join(member['name'] for member in members)}" for family, members in found.items()]
        show([Section(sentences=[*names, "", f"favorbench list {families[0]} shows the properties of each."])])


WITH_PAPERS = ["maps", "samplers", "methods", "baselines"]
