"""`python -m hvdtrain.doctor`."""

from __future__ import annotations

import sys

from hvdtrain.doctor.cli import main

sys.exit(main())
