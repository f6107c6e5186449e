"""``python -m hvdtrain.horovod_build``: the same as ``hvdtrain build-horovod``."""

from __future__ import annotations

import sys

from hvdtrain.horovod_build.cli import main

if __name__ == "__main__":
    sys.exit(main(None))
