"""What hvdtrain does on a GPU, in one command of less than ten minutes. Needs torch with CUDA; the network is not used.

    python bench/gpu.py --source horovod-0.28.1.tar.gz --json bench/results/gpu_MODEL.json
    python bench/gpu.py --tiny                 # on any machine, with the CPU where there is no GPU: to see that it runs

Every part runs in a process of its own; one that fails is reported and costs the others nothing.

    build      Horovod with CUDA but without NCCL, for which two ranks may share a GPU, and, last, with NCCL
    jobs       each PyTorch job with one rank: samples/s, share of time waiting for data, use of the GPU
    shared     two ranks on the one GPU end where one rank ends
    speed      `fit` beside a hand-tuned loop: ResNet-50, fp32 and half precision (bf16; fp16 before Ampere), with channels-last,
               with torch.compile, in turns
    cache      waiting for data from the packed image cache
    kernels    the perceptron's engines: forward and backward seconds for the sizes that the study published
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from turns import finish, machine, parser, table

ROOT = Path(__file__).resolve().parents[1]
HERE = Path(__file__).with_name("gpu_parts.py")
#: Of the whole run, in seconds; what is not done by then is left out, and said so.
BUDGET = 570.0
BEGAN = time.monotonic()
#: Seconds that a job trains while its GPU is sampled.
TRAINED = 15.0


class Failed(Exception):
    """A part did not work; the message has its output."""


def left() -> float:
    """Seconds of the budget."""
    return max(1.0, BUDGET - (time.monotonic() - BEGAN))


def run(command: list[object], seconds: float = 300, **environ: str) -> str:
    """Standard output and error of a command that must succeed."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **environ}
    words = [str(word) for word in command]
    seconds = min(seconds, left())
    try:
        done = subprocess.run(
            words, capture_output=True, text=True, timeout=seconds, env=environment, check=False, cwd=ROOT
        )
    except subprocess.TimeoutExpired:
        raise Failed(f"{' '.join(words)}: not done after {seconds:.0f} s") from None
    if done.returncode != 0:
        raise Failed(f"{' '.join(words)} ended with status {done.returncode}:\n{(done.stdout + done.stderr)[-3000:]}")
    return done.stdout + done.stderr


def part(name: str, *arguments: object, seconds: float = 300, **environ: str) -> Any:
    """What a part of `gpu_parts.py` found."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out.json"
        try:
            run([sys.executable, HERE, name, "--out", out, *arguments], seconds, **environ)
        except Failed as error:
            if not out.exists():
                raise
            return {**json.loads(out.read_text()), "failed": str(error)}  # what it found before
        return json.loads(out.read_text())


def build(options: argparse.Namespace, nccl: str) -> Any:
    """Seconds of a build, and what Horovod then says about itself."""
    source = ["--source", options.source] if options.source else []
    switches = ["--cuda", "on", "--nccl", nccl]
    began = time.perf_counter()
    log = run([sys.executable, "-m", "hvdtrain.horovod_build", "--frameworks", "torch", *switches, *source], 400)
    took = time.perf_counter() - began
    found = {"seconds": took, "said": log.strip().splitlines()[-1]}
    return {**found, "one rank": part("nccl")}


def jobs(options: argparse.Namespace) -> Any:
    """Samples/s of each job that needs no data from elsewhere."""
    found: dict[str, Any] = {}
    half = "bf16" if options.tiny else part("device")["half"]
    for job, words in {
        "digits": [],
        "cifar10_cnn": ["--data", "synthetic"],
        f"cifar10_cnn {half}": ["--data", "synthetic", "--precision", half],
    }.items():
        if options.tiny and job != "digits":
            continue
        try:
            kept, facts = _trained(job, words, 3)
            if not options.tiny:
                # Epochs of milliseconds say little, and the sampler looks at the GPU once a second.
                each = min(epoch.seconds or 0.0 for epoch in kept)
                kept, facts = _trained(job, words, max(5, min(1000, round(TRAINED / max(each, 1e-3)))))
        except Failed as error:
            found[job] = {"failed": str(error)}
            continue
        seconds = sum((epoch.seconds or 0.0) - (epoch.seconds_val or 0.0) for epoch in kept)
        found[job] = {
            "samples_per_s": statistics.median(epoch.samples_per_second or 0.0 for epoch in kept),
            "data_share": sum(epoch.seconds_data or 0.0 for epoch in kept) / seconds,
            "gpus": facts.get("gpus"),
            "device": facts.get("device"),
        }
    return found


def _trained(job: str, words: list[str], epochs: int) -> tuple[list[Any], dict[str, Any]]:
    """The epochs of a run of one rank, without the first, and its result."""
    from hvdtrain import record

    with tempfile.TemporaryDirectory() as folder:
        world = ["-m", "hvdtrain.launch", "-n", "1", "--launcher", "none", "--run-dir", folder]
        run([sys.executable, *world, job.split()[0], "--epochs", epochs, *words])
        kept = record.read_epochs(Path(folder) / "epochs.jsonl")[1:]
        return kept, json.loads((Path(folder) / "result.json").read_text())


def shared(options: argparse.Namespace) -> Any:
    """Two ranks that see the same GPU, started by hand since our starter refuses more ranks than GPUs; one rank on the union."""
    from hvdtrain.launch.local import rank_environment
    from hvdtrain.machine import visible_gpus

    one = {"CUDA_VISIBLE_DEVICES": ",".join(visible_gpus(os.environ)[:1])}
    with tempfile.TemporaryDirectory() as folder:
        outs = [Path(folder) / f"{name}.json" for name in ("two", "one")]
        meeting = Path(folder) / "meeting"
        meeting.mkdir()
        ranks = []
        for rank in range(2):
            environ = {**os.environ, "PYTHONPATH": str(ROOT), **one}
            environ |= rank_environment(rank, 2, 1, str(meeting), "bench-gpu")
            command = [sys.executable, str(HERE), "union", "--out", str(outs[0])]
            ranks.append(subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT))
        try:
            said = [process.communicate(timeout=min(200.0, left()))[0].decode() for process in ranks]
        finally:
            for process in ranks:
                process.kill()  # one that still holds the GPU would disturb what comes
        if any(process.returncode for process in ranks):
            raise Failed("two ranks on one GPU:\n" + "\n".join(said)[-3000:])
        run([sys.executable, HERE, "union", "--out", outs[1]], **one)
        two, alone = (json.loads(path.read_text()) for path in outs)
    differences = [abs(a - b) for a, b in zip(two["weights"], alone["weights"], strict=True)]
    return {
        "device": two["device"],
        "largest difference of a weight": max(differences),
        "samples_per_s": two["samples_per_s"],
    }


def main() -> None:
    from hvdtrain.errors import UserError

    made = parser(__doc__)
    made.add_argument("--source", type=Path, help="horovod-0.28.1.tar.gz, where there is no network")
    options = made.parse_args()
    if options.tiny:
        options.rounds = 1
    if options.source:
        options.source = options.source.resolve()
    tiny = ["--tiny"] if options.tiny else []
    facts = machine()
    parts: dict[str, Callable[[], Any]] = {
        "device": lambda: part("device"),
        "build, without NCCL": lambda: build(options, "off"),
        "jobs": lambda: jobs(options),
        "shared": lambda: shared(options),
        "speed": lambda: part("speed", "--rounds", options.rounds, *tiny),
        "cache": lambda: part("cache", *tiny),
        "kernels": lambda: part("kernels", *tiny, **({"NUMBA_ENABLE_CUDASIM": "1"} if options.tiny else {})),
        "build, with NCCL": lambda: build(options, "auto"),
    }
    if options.tiny:
        # The machine's own Horovod stays as it is.
        parts = {name: each for name, each in parts.items() if not name.startswith("build")}
    found: dict[str, Any] = {}
    rows = []
    for name, each in parts.items():
        started = time.monotonic()
        if started - BEGAN > BUDGET:
            found[name] = {"left out": f"{BUDGET:.0f} s are over"}
        else:
            try:
                found[name] = each()
            except (Failed, UserError, OSError, ValueError, KeyError, subprocess.TimeoutExpired) as error:
                found[name] = {"failed": str(error)}
        took = time.monotonic() - started
        print(f"{name}: {took:.0f} s", file=sys.stderr, flush=True)
        if options.json:
            # Whatever ends this run early leaves what was found so far.
            options.json.parent.mkdir(parents=True, exist_ok=True)
            options.json.write_text(json.dumps({"machine": facts, "found": found}, indent=1))
        content = found[name]
        if isinstance(content, dict) and content and all(isinstance(value, dict) for value in content.values()):
            rows += [[name, key, _short(value)] for key, value in content.items()]
        else:
            rows.append([name, "", _short(content)])
    finish(options, facts, table(["part", "", "found"], rows), {"found": found})
    if _failed(found):
        sys.exit(1)


def _failed(content: Any) -> bool:
    """Whether a part, or one of several things in it, did not work."""
    return isinstance(content, dict) and ("failed" in content or any(map(_failed, content.values())))


def _short(value: Any) -> str:
    """One line of a table."""
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, dict):
        return ", ".join(f"{key} {_short(each)}" for key, each in value.items())
    return " ".join(str(value).split())[:200]


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    main()
