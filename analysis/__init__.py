"""From thousands of tracked runs to statements a person can act on.

`analysis.store.load.load` gives a tidy frame, `analysis.methods` turns frames into frames, `analysis.figures` draws
them, and `python -m analysis` does all of it from the command line. Nothing is imported here: each part costs only
itself.
"""
