"""`python -m hvdtrain.testcluster`."""

from __future__ import annotations

import sys

from hvdtrain.testcluster.cli import main

if __name__ == "__main__":
    sys.exit(main())
