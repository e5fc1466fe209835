"""How a long computation tells how far it is."""

from collections.abc import Callable

#: Called with (what is done, what there is in all), and with the name of the step where steps have names.
Progress = Callable[..., None]
