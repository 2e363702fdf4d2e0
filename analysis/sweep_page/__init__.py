"""The page of a sweep, an artifact of its run in MLflow: interactive figures and a table of points.

A point is one configuration that the sweep measures. `figures` makes Plotly figures of the points.
`page` writes them with Plotly's script into one file that needs no network. When a sweep ends, its
driver (the process that ran it) calls `python -m analysis sweep-page`, and stores the files with
the sweep.
"""
