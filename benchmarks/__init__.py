"""How fast the engine is, beside what one would write in plain NumPy: `python -m benchmarks`."""
