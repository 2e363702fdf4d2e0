"""The report: one HTML page with the results of all analyses for which the chosen runs have data.

    python -m analysis report --out report.html

The page also lists the analyses without enough data, with the reason. `populations` groups the runs
by device, environment and protocol. `sections` calls the analyses of each group. `comparisons`
compares populations pairwise. `findings` selects the findings at the top, and `page` renders the
HTML. The package itself analyzes nothing: a section holds the result of an analysis and states the
command that produces the same result.
"""

from analysis.report.build import make_report

__all__ = ["make_report"]
