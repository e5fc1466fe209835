"""favorbench capture."""

import shlex
from pathlib import Path
from typing import Annotated

from favorbench.cli import options
from favorbench.cli.app import Json, Quiet, app, numbers, print_json, say, show
from favorbench.cli.options import OUTPUT, TEXTS, and_also, option


@app.command()
def capture(
    model: Annotated[
        str,
        and_also(options.MODEL, "Or module:function that returns (model, inputs)."),
    ],
    more: Annotated[list[Path] | None, options.MORE_TEXT] = None,
    text: Annotated[list[Path] | None, options.TEXT] = None,
    length: Annotated[int | None, options.TOKENS] = None,
    layers: Annotated[str | None, option(TEXTS, help="Only these layers, e.g. 0,5.")] = None,
    heads: Annotated[str | None, option(TEXTS, "--heads", help="Only these heads of each layer, e.g. 0,3.")] = None,
    last: Annotated[
        int | None,
        option(TEXTS, min=1, help="Causal layers: only this many queries, the last, on all the keys before them."),
    ] = None,
    dtype: Annotated[str, option(OUTPUT, help="Stored as float32, float16 or bfloat16.")] = "float32",
    out: Annotated[Path, option(OUTPUT, "--out", "-o", help="The .npz or .safetensors file to write.")] = Path(
        "heads.npz"
    ),
    trust_remote_code: Annotated[bool, options.REMOTE_CODE] = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Write a model's queries, keys and values to a file.

    The file is for recommend and for --inputs. Each layer is checked: exact attention of what is written gives what the
    model's own attention gave.
    """
    from favorbench import console
    from favorbench.console.studies import capture_section
    from favorbench.models.capture import LENGTH, capture_file
    from favorbench.models.recorder import Choice

    choice = Choice(_numbers("--layers", layers), _numbers("--heads", heads), last, dtype)
    texts = [*(text or []), *(more or [])]
    with console.progress("capture", quiet, "texts") as report:
        captured = capture_file(
            model, texts, out, choice, length,
            trust_remote_code=trust_remote_code, progress=report,
        )  # fmt: skip
    next_command = f"favorbench sweep --inputs {shlex.quote(str(out))}{' --causal' if captured.causal else ''}"
    if as_json:
        layers_found = [layer._asdict() for layer in captured.layers]
        print_json({"file": out, "next": next_command, **captured.meta, "layers": layers_found})
        return
    show([capture_section(captured, out, next_command)])
    shortest = captured.meta["texts"][0]["tokens"]
    if texts and not quiet and shortest < (length or LENGTH) and (len(texts) > 1 or length):
        say(f"the shortest text has {shortest} tokens: all are cut to as many")


def _numbers(flag: str, given: str | None) -> "tuple[int, ...] | None":
    return None if given is None else tuple(numbers(flag, given, int, 0, 100_000))
