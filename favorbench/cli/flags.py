"""What the command line calls the keys of the library: its errors name keys, a user typed flags."""

import re

#: The flag that sets each key.
FLAGS = {
    "maps": "--maps", "samplers": "--samplers", "baselines": "--baselines", "inputs": "--inputs", "heads": "--heads",
    "num_projections": "-R", "seq_len": "-L", "head_dim": "-d", "scale": "--scale", "value_scale": "--value-scale",
    "dtype": "--dtype", "query_rows": "--query-rows", "causal": "--causal", "backend": "--backend",
    "device": "--device", "budget": "--budget", "redraw": "--redraw", "trials": "--trials", "seed": "--seed",
}  # fmt: skip


def with_flags(text: str) -> str:
    """A message of the library, where keys stand in backquotes, with the flags in their place."""
    return re.sub(r"`(\w+)`", lambda match: FLAGS.get(match[1], match[1]), text)
