"""Closed forms of the error of a kernel estimate, next to what sampling can measure."""
