"""`python -m paradnn.compare`."""

from __future__ import annotations

import sys

from paradnn.compare.command import main

if __name__ == "__main__":
    sys.exit(main())
