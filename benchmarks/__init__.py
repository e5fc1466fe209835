"""Benchmarks: ratios of interleaved measurements, on one thread."""
