"""The report: one HTML page of everything that the chosen runs can carry, and of what they cannot.

    python -m analysis report --out report.html

`parts` takes the runs apart by environment and protocol, `plan` names the analyses for each part, `carry` runs them
through their own commands, `pairs` compares parts, `findings` picks the headline, `page` writes the HTML. No analysis
happens here: a section holds what its command prints, and says which command that is.
"""

from __future__ import annotations

from analysis.report.build import make_report
from analysis.report.write import check_target, write_page

__all__ = ["check_target", "make_report", "write_page"]
