"""Claims about platforms, and the answer of measured runs: supported, refuted, undecided, or no
data.

    python -m analysis claims
    python -m analysis claims --file my.yaml

`observations.yaml` holds the fourteen observations of the paper's Table 1. A claim is one or more
checks, each of a kind in `analysis.claims.kinds`; `analysis.claims.load` reads them,
`analysis.claims.evaluate` answers them.
"""
