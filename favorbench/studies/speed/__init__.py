"""Exact against linear attention: time, memory, and the length from which the latter is faster."""
