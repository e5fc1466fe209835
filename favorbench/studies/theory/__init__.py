"""Closed forms of the error of a kernel estimate, beside what sampling can measure."""
