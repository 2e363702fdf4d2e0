"""The analyses: pure functions from frames to tables and statements, each with its formula and source.

Nothing here reads a store, draws or prints; `analysis.figures` draws what these find, `analysis.cli` wires both up.
"""
