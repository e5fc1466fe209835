"""Results of a run: read back, summarised, as tables, rankings, sentences and figures."""
