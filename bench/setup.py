"""Seconds from a clean clone to the first table of a scaling study: `git clone`, `make demo`.

python bench/setup.py                # with whatever pip and Horovod's cache have already
python bench/setup.py --cold         # Horovod is compiled anew
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from turns import finish, machine, parser, spread, table

ROOT = Path(__file__).resolve().parents[1]


def main() -> None:
    made = parser(__doc__)
    made.set_defaults(rounds=1)
    made.add_argument("--cold", action="store_true", help="with an empty cache of built Horovods")
    options = made.parse_args()
    facts = machine()
    parts: dict[str, list[float]] = {}
    for _ in range(options.rounds):
        with tempfile.TemporaryDirectory() as folder:
            clone = Path(folder) / "hvdtrain"
            began = time.perf_counter()
            subprocess.run(["git", "clone", "--quiet", "--no-hardlinks", str(ROOT), str(clone)], check=True)
            parts.setdefault("git clone", []).append(time.perf_counter() - began)
            # Not into the environment that this runs in.
            environ = {name: value for name, value in os.environ.items() if name not in ("VIRTUAL_ENV", "PYTHONPATH")}
            if options.cold:
                environ["XDG_CACHE_HOME"] = folder
            words = ["make", "demo", *(["-n"] if options.tiny else [])]
            done = subprocess.run(words, cwd=clone, env=environ, capture_output=True, text=True, check=False)
            if done.returncode != 0:
                sys.exit(f"{' '.join(words)} ended with status {done.returncode}:\n{done.stdout}{done.stderr}")
            for what, seconds in re.findall(r"==> (.+)\n(?:(?!==>).*\n)*?    done in (\d+) s", done.stdout):
                parts.setdefault(what, []).append(float(seconds))
            parts.setdefault("all", []).append(time.perf_counter() - began)
    figures = {name: spread(values) for name, values in parts.items()}
    rows = [[name, f"{each['median']:.1f}"] for name, each in figures.items()]
    finish(options, facts, table(["step", "s"], rows), {"cold": options.cold, "seconds": figures})


if __name__ == "__main__":
    main()
