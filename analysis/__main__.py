"""The command line of the analysis: python -m analysis COMMAND --help."""

from analysis.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
