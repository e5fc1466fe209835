"""What a run says: read back, summarised, as tables, rankings, sentences and figures."""
