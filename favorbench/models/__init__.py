"""Models as they are: their weights, their attention calls, and what those were given. The only room for transformers.

torch and transformers are imported inside functions: all else works without them.
"""
