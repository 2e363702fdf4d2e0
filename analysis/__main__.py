"""The command line of the analysis: python -m analysis COMMAND --help."""

from __future__ import annotations

from analysis.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
