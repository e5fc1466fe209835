"""Other people's implementations, on the claims of ours and beside them in a run."""

from favorbench.studies.audit.findings import METHOD_SIZE, NUM_PROJECTIONS, Finding, audit
from favorbench.studies.audit.saved import study_of

__all__ = ["METHOD_SIZE", "NUM_PROJECTIONS", "Finding", "audit", "study_of"]
