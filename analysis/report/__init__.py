"""The report: one HTML page with the results of all analyses that the chosen runs have data for.

    python -m analysis report --out report.html

The page also lists the analyses without enough data, with the reason. `populations` groups
the runs by environment and protocol. `outline` names the analyses of each group and their options.
`sections` calls the analyses. `comparisons` compares populations pairwise. `findings` selects the
headlines, and `page` writes the HTML. The package itself analyzes nothing: a section holds a
result and names the command that produces the same result.
"""

from analysis.report.build import make_report

__all__ = ["make_report"]
