"""Run by every interpreter that starts with this folder in PYTHONPATH: a rank lets a warm process be the rank, if one fits.

What started this process (a launcher, mpirun) sees it live, take signals and end exactly as the rank does; see `server`.
"""

import os
import sys

if sys.orig_argv[1:3] == ["-m", "hvdtrain.run"] and "HVDTRAIN_TESTS_WARM" in os.environ:
    from warm_client import become_the_rank

    become_the_rank(os.environ.pop("HVDTRAIN_TESTS_WARM"))
