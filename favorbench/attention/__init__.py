"""Attention: exact, linear from features, and both under a causal mask."""
