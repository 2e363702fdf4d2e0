"""The page of a sweep, which its run in MLflow shows: interactive figures, and a table of points.

`figures` turns the points into figures of Plotly, `page` writes them with Plotly's script into one
file that opens without a network. A driver calls `python -m analysis sweep-page` when its sweep
ends, and stores the files with the sweep.
"""
