"""What a baseline is."""

from favorbench.methods import Method


class Baseline(Method):
    """An answer to compare with: trivial, or a bound. A method in all but its purpose."""
