"""The report: one HTML page of everything that the chosen runs can carry, and of what they cannot.

    python -m analysis report --out report.html

`populations` groups the runs by environment and protocol, `outline` names the analyses for each
group with their options, `sections` calls them, `comparisons` sets populations against each other,
`findings` picks the headline, `page` writes the HTML. No analysis happens here: a section holds a
result, and names the command that gives the same.
"""

from analysis.report.build import make_report

__all__ = ["make_report"]
