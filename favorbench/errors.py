"""The exceptions favorbench raises on purpose.

    FavorbenchError          one clear sentence: what was given, what is allowed, what to do
    ├── ScenarioError        a key of a scenario, or another argument, is wrong
    ├── InputError           queries, keys and values cannot be used (a file, or arrays given to the Python API)
    ├── StoreError           a run directory cannot be read or written, or is not the requested one
    ├── ModelError           a model cannot be loaded, or its attention cannot be reached
    ├── EstimatorError       a map, sampler or implementation of the user's failed
    └── WorkerError          a worker process died

A sentence names keys in backquotes, as the Python API has them: `num_projections`. The command line puts the flags in
their place, prints the sentence and exits 2. A failed claim (``reproduce``, ``verify``) is a result, not an
exception: exit 1.
"""


class FavorbenchError(Exception):
    """Base of all errors a user can cause and fix."""


class ScenarioError(FavorbenchError, ValueError):
    """A key of a scenario, or another argument, is wrong."""


class InputError(FavorbenchError, ValueError):
    """Queries, keys and values cannot be used."""


class StoreError(FavorbenchError):
    """A run directory cannot be read or written, or is not the requested one."""


class ModelError(FavorbenchError):
    """A model cannot be loaded, or its attention cannot be reached."""


class EstimatorError(FavorbenchError):
    """A map, sampler or implementation failed while it was measured."""


class WorkerError(FavorbenchError):
    """A worker process died."""
