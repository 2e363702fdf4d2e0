"""`audit`: the conclusions that result files of other benchmark harnesses support.

`series` is the data model. `microbenchmarks`, `language_benchmarks`, `load_tests`, `llama_bench`
and `training_logs` read the formats. `files` detects the format of a file, `conclusions` draws the
conclusions, and `command` is the sub-command.
"""

from analysis.audit.command import AuditOptions, audit
from analysis.audit.conclusions import AuditFinding, draw_conclusions
from analysis.audit.files import READERS, read_results

__all__ = [
    "READERS",
    "AuditFinding",
    "AuditOptions",
    "audit",
    "draw_conclusions",
    "read_results",
]
