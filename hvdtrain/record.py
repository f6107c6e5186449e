"""The run folder: what a cell writes while it runs, and how it is read back.

    runs/<study>/study.json            the grid, versions, git commit
    runs/<study>/<cell>/cell.json      one configuration, complete
                        running.json   facts of the attempt now under way; gone when it ends
                        epochs.jsonl   one line per finished epoch
                        result.json    how it ended; written last, so its presence means "ended"
                        slurm.json     the SLURM job of the attempt now under way
                        checkpoints/   where the next attempt goes on from
                        checkpoints.json   other folders in which it finds checkpoints, where there are some
                        attempts/<n>/  what earlier, failed attempts left

Only the standard library: ranks, the submitter and a laptop with nothing else installed all read this.
"""

from __future__ import annotations

import dataclasses
import json
import os
import time
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from hvdtrain.attempts import count as count_attempts
from hvdtrain.attempts import set_aside
from hvdtrain.json_file import finite
from hvdtrain.json_file import read_json as read_json
from hvdtrain.json_file import write_json as write_json

RUN_DIR_VARIABLE = "HVDTRAIN_RUN_DIR"
#: Names one attempt on SLURM; the same is in its slurm.json, until another attempt writes its own there.
ATTEMPT_VARIABLE = "HVDTRAIN_ATTEMPT"
STATUSES = ("completed", "failed", "timeout", "preempted", "cancelled", "diverged")


@dataclass(frozen=True)
class Epoch:
    """One finished epoch over the whole world. Losses and accuracies are means over samples, not over ranks.

    `seconds` is the wall clock of the epoch with its validation, on rank 0 between two collectives;
    `samples_per_second` is `samples / (seconds - seconds_val)`. A phase that was not measured is None.
    """

    epoch: int
    train_loss: float | None = None
    train_acc: float | None = None
    val_loss: float | None = None
    val_acc: float | None = None
    lr: float | None = None
    samples: int | None = None
    seconds: float | None = None
    seconds_data: float | None = None
    seconds_forward: float | None = None
    seconds_backward: float | None = None
    seconds_allreduce: float | None = None
    seconds_optimizer: float | None = None
    seconds_val: float | None = None
    samples_per_second: float | None = None
    grad_norm: float | None = None
    noise_scale: float | None = None
    restart: int = 0


_EPOCH_FIELDS = {field.name for field in dataclasses.fields(Epoch)}


def read_epochs(path: Path) -> list[Epoch]:
    """Finished epochs in `epochs.jsonl`, in order; a line that a dying process left half-written is passed over.

    Raises:
        ValueError: it is no text, or a complete line is not an epoch (names the line).
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return []
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: no text ({error})") from error
    epochs: dict[int, Epoch] = {}
    # What follows the last line break is a line that was never finished.
    for number, line in enumerate(text[: text.rfind("\n") + 1].splitlines(), start=1):
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
            epoch = Epoch(**{key: entry[key] for key in entry.keys() & _EPOCH_FIELDS})
        except (json.JSONDecodeError, TypeError, AttributeError) as error:
            raise ValueError(f"{path}, line {number}: not an epoch record ({error})") from error
        if not isinstance(epoch.epoch, int):
            raise ValueError(f"{path}, line {number}: not an epoch record (epoch is {epoch.epoch!r})")
        epochs[epoch.epoch] = epoch
    return [epochs[number] for number in sorted(epochs)]


def put_unreadable_aside(folder: Path) -> str:
    """Keep an `epochs.jsonl` that somebody else wrote into for a human, out of every reader's way. What is wrong with it, or ""."""
    path = folder / "epochs.jsonl"
    try:
        read_epochs(path)
    except ValueError as error:
        os.replace(path, path.with_name(f"{path.name}.unreadable"))
        return f"{error}; the file is now {path.name}.unreadable"
    return ""


class EpochLog:
    """Appends epochs to `epochs.jsonl`, each once whatever happened before.

    A restart that goes back to epoch k drops the lines of epochs >= k first, with any half-written tail:
    those epochs are about to be trained again.
    """

    #: Files that this process has opened.
    opened: ClassVar[set[Path]] = set()

    def __init__(self, path: Path, next_epoch: int = 1) -> None:
        self.path = path
        EpochLog.opened.add(path)
        kept = [epoch for epoch in read_epochs(path) if epoch.epoch < next_epoch]
        path.parent.mkdir(parents=True, exist_ok=True)
        aside = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            aside.write_text("".join(_line(epoch) for epoch in kept), encoding="utf-8")
            os.replace(aside, path)
        finally:
            aside.unlink(missing_ok=True)
        self._last = kept[-1].epoch if kept else 0

    def append(self, epoch: Epoch) -> None:
        """Write one line and wait until it is on disk.

        Raises:
            ValueError: this epoch, or a later one, is already there.
            SupersededError: a later attempt has begun.
        """
        if epoch.epoch <= self._last:
            raise ValueError(f"epoch {epoch.epoch} is already recorded in {self.path} (last: {self._last})")
        check_current(self.path.parent)
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(_line(epoch))
            file.flush()
            os.fsync(file.fileno())
        self._last = epoch.epoch


def _line(epoch: Epoch) -> str:
    return json.dumps(finite(dataclasses.asdict(epoch)), allow_nan=False) + "\n"


def run_dir() -> Path | None:
    """The cell folder that the launcher named, or None for a run that nobody records."""
    value = os.environ.get(RUN_DIR_VARIABLE)
    return Path(value) if value else None


class SupersededError(RuntimeError):
    """SLURM took this attempt for dead, because its node did not answer, and has started the job again elsewhere."""


def superseded(folder: Path) -> bool:
    """Whether a later attempt at this run has begun: then nothing may be written any more.

    A file that cannot be read (a file server that is away) says nothing of that.
    """
    mine = os.environ.get(ATTEMPT_VARIABLE)
    if mine is None:
        return False
    try:
        present = read_json(folder / "slurm.json")
    except (OSError, ValueError):
        return False
    return present is not None and present.get("attempt") != mine


#: What may keep `note` and `finish` from writing: to a rank that ends, ending matters more; its launcher records that, too.
UNWRITTEN = (OSError, ValueError, SupersededError)


def check_current(folder: Path) -> None:
    """Raise SupersededError when `superseded`."""
    if superseded(folder):
        raise SupersededError(f"another start of this job works in {folder}: this one writes nothing more, and ends")


def restart_count() -> int:
    """How many attempts at this run went before: each left a folder under `attempts/`, or SLURM requeued the job after it."""
    folder = run_dir()
    return max(int(os.environ.get("SLURM_RESTART_COUNT") or 0), 0 if folder is None else count_attempts(folder))


def begin(folder: Path, facts: dict[str, Any]) -> None:
    """Note the attempt that starts now: hosts, devices, versions, launcher. `finish` takes them into the result.

    What an earlier attempt left (a job that SLURM requeued starts in the same folder) is set aside.
    """
    set_aside(folder)
    write_json(folder / "running.json", {"started": time.time(), "restart": restart_count(), **facts})


def note(**facts: Any) -> None:
    """Add facts to what the attempt under way has noted; without a run folder there is nothing to add to."""
    folder = run_dir()
    if folder is not None and not superseded(folder) and (attempt := read_json(folder / "running.json")) is not None:
        write_json(folder / "running.json", {**attempt, **facts})


def finish(
    folder: Path, status: str, exit_code: int, reason: str = "", overrule: Collection[str] = ()
) -> dict[str, Any]:
    """Write `result.json` from what the attempt noted and recorded.

    An attempt that has ended already keeps its result, unless its status is one of `overrule`. That is for a launcher, which may
    have seen another rank fail after rank 0 had completed, or knows that ranks were asked to stop because the run is cancelled.
    A reason that a rank noted (`note(reason=...)`) is nearer to the cause than `reason`, and stays.

    Raises:
        ValueError: `status` is not one of `STATUSES`.
        SupersededError: a later attempt has begun.
    """
    if status not in STATUSES:
        raise ValueError(f"status {status!r} is not one of {', '.join(STATUSES)}")
    check_current(folder)
    present = read_json(folder / "result.json")
    sampled = [facts for path in sorted(folder.glob("gpus/rank-*.json")) if (facts := read_json(path)) is not None]
    if present is not None:
        before = dict(present)
        if present["status"] in overrule:
            present |= {"status": status, "exit_code": exit_code, "reason": reason}
        if sampled:  # the other ranks may have written since
            present["gpus"] = sampled
        if present != before:
            write_json(folder / "result.json", present)
        return present
    attempt = read_json(folder / "running.json") or {}
    epochs = read_epochs(folder / "epochs.jsonl")
    ended = time.time()
    started = attempt.get("started")
    result = {
        "status": status,
        "exit_code": exit_code,
        "reason": reason,
        "ended": ended,
        "seconds": None if started is None else ended - started,
        "totals": {
            "epochs": len(epochs),
            "samples": sum(epoch.samples or 0 for epoch in epochs),
            "seconds": sum(epoch.seconds or 0.0 for epoch in epochs),
            "val_acc": epochs[-1].val_acc if epochs else None,
            "train_acc": epochs[-1].train_acc if epochs else None,
        },
        **({"gpus": sampled} if sampled else {}),
        **attempt,
    }
    write_json(folder / "result.json", result)
    (folder / "running.json").unlink(missing_ok=True)
    return result


@dataclass(frozen=True)
class CellRecord:
    """Everything that one cell folder holds; `damage` is what is wrong with its epochs, of which there are none then."""

    folder: Path
    cell: dict[str, Any]
    epochs: list[Epoch]
    running: dict[str, Any] | None
    result: dict[str, Any] | None
    damage: str = ""


def read_cell(folder: Path) -> CellRecord:
    """Read one cell folder, finished or not.

    Raises:
        FileNotFoundError: there is no `cell.json`.
        ValueError: a file is damaged, but for the epochs: others may be asked about a job that writes there.
    """
    cell = read_json(folder / "cell.json")
    if cell is None:
        raise FileNotFoundError(f"{folder} has no cell.json")
    epochs, damage = [], ""
    try:
        epochs = read_epochs(folder / "epochs.jsonl")
    except ValueError as error:
        damage = str(error)
    running, result = (read_json(folder / name) for name in ("running.json", "result.json"))
    return CellRecord(folder, cell, epochs, running, result, damage)


def is_study(folder: Path) -> bool:
    """Whether `folder` holds the cells of a study: one of `hvdtrain.submit`, or runs of the ready scripts beside each other."""
    if (folder / "study.json").is_file():
        return True
    return next(folder.glob("*/cell.json"), None) is not None and next(folder.glob("*/study.json"), None) is None


def read_study(folder: Path) -> list[CellRecord]:
    """All cells of a study, by name.

    Raises:
        FileNotFoundError: `folder` is not a study.
    """
    if not is_study(folder):
        raise FileNotFoundError(f"{folder} is not a study: it has no study.json")
    return [read_cell(path.parent) for path in sorted(folder.glob("*/cell.json"))]
