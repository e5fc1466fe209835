"""Seconds against the length of the sequence, and seconds of the estimators of a run."""
