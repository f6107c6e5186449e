"""`python -m hvdtrain.testcluster`."""

from __future__ import annotations

import sys

from hvdtrain.testcluster.cli import main

sys.exit(main())
