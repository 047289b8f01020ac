"""Show runs: quantities in words, figures, tables and frames. `Run.plot` and the report use the same functions."""
