"""The engine of a sweep: a scenario becomes draws, draws become rows, rows are stored."""
