"""How a long computation tells how far it is."""

from collections.abc import Callable

#: Called with (what is done, what there is in all): draws, matrices, timings.
Progress = Callable[[int, int], None]
