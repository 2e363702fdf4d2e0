"""Claims about platforms, and their answers from measured runs.

A claim is a statement such as "throughput rises with the batch size". An answer is supported,
refuted, undecided, or no data.

    python -m analysis claims
    python -m analysis claims --file my.yaml

`observations.yaml` contains the fourteen observations of Table 1 of the ParaDnn paper. A claim is
one or more checks, each of a kind in `analysis.claims.kinds`. `analysis.claims.load` reads claims,
and `analysis.claims.evaluate` answers them.
"""
