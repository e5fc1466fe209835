"""How --help is laid out: the options of a long command under headings, the same option under the same everywhere.

Plain text with headings and no frames: at 80 columns a frame and a column of types leave 35 to the words.
"""

from typing import Any

from typer.core import TyperCommand, TyperGroup

MANY = 10  # options from which on they stand under headings

OTHERS = "Options"
OUTPUT = "Output"

PANELS = {
    "What is asked": ("target", "metric", "probability", "confidence", "max_cost", "max_size", "over"),
    "Estimators": ("maps", "methods", "samplers", "num_projections", "budget", "baselines", "recommended", "calibrate"),
    "Model and texts": ("text", "length", "layers", "trust_remote_code"),
    "Inputs": (
        "inputs", "layout", "heads", "last", "causal", "points", "num_points", "seq_len", "head_dim", "scale",
        "value_scale", "norm", "cosine",
    ),
    "Figures": ("estimators", "size", "figure_title", "dark", "only"),
    "Kernel": ("sigma", "degree", "constant"),
    "Draws": ("trials", "draws", "redraw", "query_rows", "repeats", "seed", "retry_failed"),
    "Computing": ("workers", "cluster", "batch", "backend", "device", "dtype", "seconds"),
    OUTPUT: ("out", "format", "dry_run", "as_json", "quiet", "help"),
}  # fmt: skip

COMMANDS = {
    "Measure": ("recommend", "sweep", "capture", "model", "audit", "kernel", "speed", "time"),
    "Look at what was measured": ("status", "table", "rank", "compare", "plot", "report", "export"),
    "Reference": ("list", "theory", "verify", "reproduce"),
}


class Command(TyperCommand):
    """A command whose options stand under headings where they are many."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Called by Click for the part of --help that lists options."""
        shown = [(param, record) for param in self.get_params(ctx) if (record := param.get_help_record(ctx))]
        sections = {"Arguments": [record for param, record in shown if param.param_type_name == "argument"]}
        options = [(param.name, record) for param, record in shown if param.param_type_name == "option"]
        if len(options) < MANY:
            sections[OTHERS] = [record for _, record in options]
        else:
            sections |= _under_headings(options, PANELS, OTHERS)
        _write(formatter, sections)


class Group(TyperGroup):
    """The commands under headings."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Called by Click for the part of --help that lists commands."""
        commands = [(name, found) for name in self.list_commands(ctx) if (found := self.get_command(ctx, name))]
        width = formatter.width - 6 - max(len(name) for name, _ in commands)
        listed = [(name, (name, found.get_short_help_str(width))) for name, found in commands if not found.hidden]
        _write(formatter, _under_headings(listed, COMMANDS, "Other commands"))


def _under_headings(
    named: list[tuple[Any, Any]], headings: dict[str, tuple[str, ...]], others: str
) -> dict[str, list[Any]]:
    known = {name for names in headings.values() for name in names}
    records = dict(named)
    sections = {heading: [records[name] for name in names if name in records] for heading, names in headings.items()}
    last = sections.pop(OUTPUT, [])
    return sections | {others: [record for name, record in named if name not in known], OUTPUT: last}


def _write(formatter: Any, sections: dict[str, list[Any]]) -> None:
    for heading, records in sections.items():
        if records:
            with formatter.section(heading):
                formatter.write_dl(records)
