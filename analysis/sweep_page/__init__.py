"""The page of a sweep, an artifact of its run in MLflow: interactive figures and a table of points.

`figures` makes Plotly figures of the points. `page` writes them with Plotly's script into one file
that needs no network. A driver calls `python -m analysis sweep-page` when its sweep ends, and
stores the files with the sweep.
"""
