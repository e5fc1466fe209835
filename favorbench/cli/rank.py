"""favorbench rank."""

from typing import Annotated, Literal

import typer

from favorbench.cli.app import (
    LOOK,
    Json,
    Metric,
    RunPath,
    app,
    check,
    echo,
    echo_data,
    print_json,
    say,
    warn_partial,
    with_flags,
)


@app.command(panel=LOOK)
def rank(
    run: RunPath,
    metric: Metric = "mse",
    heads: Annotated[
        str | None, typer.Option(help="These heads, each by itself, e.g. L0H1,L5H0.", show_default=False)
    ] = None,
    format: Annotated[Literal["rich", "md", "csv"], typer.Option(help="How to print it.")] = "rich",
    as_json: Json = False,
) -> None:
    """Rank estimators, in groups that do not differ.

    Of two heads or more a ranking over all of them, and each by itself with --heads; else one for each cell. Each
    estimator at its largest R; most is learnt from a run with --budget features or cost.
    """
    import pandas as pd

    from favorbench.metrics import METRICS
    from favorbench.registry import split_list
    from favorbench.results import head_ranking, ranking, tables
    from favorbench.results.heads import first_head, without_many
    from favorbench.results.results import load

    check("--metric", metric, METRICS)
    results = load(run)
    warn_partial(results)
    if heads is None:
        over, cells = head_ranking.rankings_over_heads(results, metric), without_many(results)
    else:
        over, cells = [], head_ranking.of_heads(results, split_list(heads))
    found = ranking.rankings(cells, metric) if len(cells.summary) else []
    if as_json or format == "csv":
        frames = [head_ranking.combined(over)] if over else []
        frames += [ranking.combined(found)] if found else []
        frame = pd.concat(frames, ignore_index=True)
        if as_json:
            print_json(tables.records(frame))
        else:
            echo_data(frame.to_csv(index=False))
        return
    texts = [(f"over {one.title}", head_ranking.shown(one), head_ranking.legend(one)) for one in over]
    texts += [(one.title, ranking.shown(one, metric), ranking.legend(one)) for one in found]
    for (title, rows, _), note in zip(texts, tables.said_once([note for *_, note in texts]), strict=True):
        _show(title, rows, with_flags(note), format)
    if over and format == "rich":
        say(f"single heads: favorbench rank {run} --heads {first_head(results)}")


def _show(title: str, rows: list[dict[str, str]], note: str, format: str) -> None:
    from favorbench import console
    from favorbench.results import tables

    if format == "md":
        text = f"**{title}**\n\n{tables.rows_as_markdown(rows)}"
        echo("\n".join(filter(None, [text, f"{note}\n" if note else ""])))
    else:
        console.show_records(console.stdout(), rows, title, note)
