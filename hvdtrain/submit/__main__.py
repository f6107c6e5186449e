"""`python -m hvdtrain.submit`: the same as `hvdtrain submit`."""

from __future__ import annotations

import sys

from hvdtrain.submit.cli import main

if __name__ == "__main__":
    sys.exit(main())
