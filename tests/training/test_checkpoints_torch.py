"""Checkpoints of a loop of one's own: another number of ranks, kills while saving, damage, a full disk."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import hvdtrain.torch as ht
from hvdtrain import own_folder
from hvdtrain.checkpoint import CheckpointError, Store
from hvdtrain.errors import UserError
from tests.training.scenarios import samples
from tests.worlds import Ended, run_world

LOOP = Path(__file__).with_name("own_loop_job.py")
SAVE = Path(__file__).with_name("save_job.py")
BASE = 0.013


def loop(ranks: int, steps: int, folder: Path, rule: str = "linear") -> dict[str, Any]:
    ended = start_loop(ranks, steps, folder, rule)
    assert ended.status == 0, ended.err
    result: dict[str, Any] = json.loads((folder / "out.json").read_text())
    return result | {"err": ended.err}


def start_loop(ranks: int, steps: int, folder: Path, rule: str = "linear", *options: str) -> Ended:
    launcher = "none" if ranks == 1 else "local"
    arguments = ("--steps", steps, "--folder", folder / "kept", "--out", folder / "out.json", "--rule", rule)
    return run_world(ranks, LOOP, *arguments, options=["--launcher", launcher, *options])


@pytest.mark.ranks
def test_another_number_of_ranks_keeps_momentum_steps_and_order_and_takes_its_own_rate(tmp_path: Path) -> None:
    two = loop(2, 10, tmp_path)
    four = loop(4, 13, tmp_path)
    one = loop(1, 40, tmp_path)
    for rate, result in ((BASE * 2, two), (BASE * 4, four), (BASE, one)):
        # Exactly, not about.
        assert result["ended"]["lr"] == rate
        assert result["ended"]["base_lrs"] == [rate]
    for before, after in ((two, four), (four, one)):
        for kept in ("steps", "momentum", "weights"):
            assert after["began"][kept] == before["ended"][kept]
    assert "of 2 ranks" in four["err"] and "of 4 ranks" in one["err"]
    # 10 steps of 4 samples and 3 of 8, and what one rank was left of the epoch: every sample once.
    first_epoch = [*two["seen"], *four["seen"], *one["seen"][: 96 - 40 - 24]]
    assert sorted(first_epoch) == sorted(samples(96, 7).tensors[0][:, 0].tolist())


@pytest.mark.ranks
def test_damaged_and_foreign_checkpoints(tmp_path: Path) -> None:
    loop(1, 3, tmp_path)
    loop(1, 5, tmp_path)
    newest = sorted((tmp_path / "kept").glob("*.ckpt"))[-1]
    newest.write_bytes(newest.read_bytes()[:-100])
    fallen_back = loop(2, 6, tmp_path)
    assert fallen_back["began"]["steps"] == 3
    assert fallen_back["err"].count(f"{newest.name} is damaged") == 1
    assert "taking the one before" in fallen_back["err"]


@pytest.mark.ranks
def test_a_full_disk_keeps_the_previous_checkpoint_and_ends_all_ranks_with_a_message(tmp_path: Path) -> None:
    """Stood in for by a limit on the size of files, which the kernel refuses in the same place."""
    loop(2, 3, tmp_path)
    kept = sorted(path.name for path in (tmp_path / "kept").iterdir())
    script = tmp_path / "limited.py"
    script.write_text(
        "import resource, runpy, signal, sys\nsignal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))\n"
        f"runpy.run_path({str(LOOP)!r}, run_name='__main__')\n"
    )
    arguments = ("--steps", 5, "--folder", tmp_path / "kept", "--out", tmp_path / "out.json")
    ended = run_world(2, script, *arguments, options=["--launcher", "local"])
    assert ended.status == 2, ended.err
    assert ended.err.count("cannot be written: File too large") == 1
    assert "is intact" in ended.err
    assert "Traceback" not in ended.err
    assert sorted(path.name for path in (tmp_path / "kept").iterdir()) == kept


def test_twenty_kills_in_the_middle_of_saving_lose_nothing(tmp_path: Path) -> None:
    """After each kill the run goes on from the last checkpoint that was called safe, or from the one that was under way."""
    run = subprocess.run([sys.executable, str(SAVE), str(tmp_path)], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    told, safe, interrupted = json.loads(run.stdout), 0, 0
    assert len(told) == 20
    for attempt in told:
        (word, resumed, bias), *rest = attempt["said"]
        assert word == "resumed"
        assert int(resumed) in (safe, safe + 1)
        # And it is that checkpoint's content.
        assert int(resumed) == 0 or float(bias) == int(resumed)
        # One that was killed between the checkpoint's last rename and its word is safe, too.
        safe = max([int(resumed), *(int(number) for word, number in rest if word == "saved")])
        interrupted += rest[-1][0] == "saving"
    assert interrupted >= 10, "most kills must meet a save under way"


def test_checkpoints_without_a_folder_do_nothing() -> None:
    import torch

    ht.init()
    model = torch.nn.Linear(2, 2)
    model, optimizer = ht.distribute(model, torch.optim.SGD(model.parameters(), lr=0.1))
    checkpoints = ht.Checkpoints(model, optimizer)
    assert checkpoints.resume() == 0
    assert checkpoints.save(1) is None


def test_one_folder_is_one_trainings_and_false_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import torch

    ht.init()
    monkeypatch.chdir(tmp_path)
    made = torch.nn.Linear(2, 2)
    model, optimizer = ht.distribute(made, torch.optim.SGD(made.parameters(), lr=0.1))
    _, other = ht.distribute(made, torch.optim.SGD(made.parameters(), lr=0.1))
    train = ht.loader(samples(16, 1), 4)
    ht.Checkpoints(model, other, train, folder="kept").save(3)
    # Made again it is the same training's, by whatever name the folder goes.
    again = ht.Checkpoints(model, other, train, folder=tmp_path / "kept")
    assert again.resume() == 3
    assert "has" not in capsys.readouterr().err
    for number, parts in ((2, (optimizer, train)), (3, (optimizer, None)), (2, (optimizer, train))):
        checkpoints = ht.Checkpoints(model, *parts, folder="kept/")
        assert checkpoints.store is not None
        assert checkpoints.store.folder == Path(f"kept-{number}")
        assert "for another training of this process has kept" in capsys.readouterr().err
        with pytest.warns(
            UserWarning, match=f"nothing is saved in kept-{number}, so this training begins with the model as it is"
        ):
            assert checkpoints.resume() == 0
    assert ht.Checkpoints(model, optimizer, folder=False).store is None


def _saved_then_resumed(folder: Path, first: dict[str, Any], second: dict[str, Any]) -> int:
    """By two scripts that make optimizer and states in different ways: `{"optimizer": ..., "name of a state": ...}`."""
    import torch

    ht.init()
    for script in (first, second):
        model = torch.nn.Linear(2, 2)
        model, optimizer = ht.distribute(model, script.get("optimizer", torch.optim.SGD)(model.parameters(), lr=0.01))
        states = {name: make(optimizer) for name, make in script.items() if name != "optimizer"}
        # Another training of this process would have another folder.
        checkpoints = ht.Checkpoints(model, optimizer, folder=False, states=states)
        checkpoints.store = Store(folder)
        epoch = checkpoints.resume()
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        checkpoints.save(1)
    return epoch


def _distributed(kind: str) -> Any:
    import torch

    def make(_: Any) -> Any:
        model = torch.nn.Linear(2, 2)
        return ht.distribute(model, getattr(torch.optim, kind)(model.parameters(), lr=0.01))[1]

    return make


def _changes() -> dict[str, tuple[dict[str, Any], dict[str, Any], str]]:
    import torch
    from torch.optim import lr_scheduler as schedulers

    def several(optimizer: Any) -> Any:
        parts: list[Any] = [schedulers.ConstantLR(optimizer), schedulers.ExponentialLR(optimizer, 0.9)]
        return schedulers.SequentialLR(optimizer, parts, [2])

    def three(optimizer: Any) -> Any:
        parts: list[Any] = [schedulers.ConstantLR(optimizer), *(schedulers.ExponentialLR(optimizer, 0.9) for _ in "ab")]
        return schedulers.SequentialLR(optimizer, parts, [2, 4])

    sgd, adam = torch.optim.SGD, torch.optim.AdamW
    return {
        "optimizer": ({"optimizer": sgd}, {"optimizer": adam}, "another model or optimizer (it has no betas"),
        "back": ({"optimizer": adam}, {"optimizer": sgd}, "another model or optimizer (it has no"),
        "of_judge": ({"of_judge": _distributed("SGD")}, {"of_judge": _distributed("Adam")}, 'another "of_judge" (it has no betas'),
        "judge": ({"judge": lambda _: torch.nn.Linear(2, 2)}, {"judge": lambda _: torch.nn.Linear(2, 3)}, 'another "judge" (Error'),
        "scheduler": ({"scheduler": lambda o: schedulers.StepLR(o, 1)}, {"scheduler": several}, 'another "scheduler" (KeyError'),
        "parts": ({"scheduler": three}, {"scheduler": several}, 'another "scheduler" (IndexError'),
        "kin": ({"optimizer": torch.optim.Adam}, {"optimizer": adam}, "another model or optimizer (it was Adam, not AdamW)"),
        "of_kin": ({"of_judge": _distributed("Adam")}, {"of_judge": _distributed("RAdam")},
                   'another "of_judge" (it was Adam, not RAdam)'),
        "shape": ({"scheduler": lambda o: schedulers.StepLR(o, 1)}, {"scheduler": lambda o: schedulers.CosineAnnealingLR(o, 9)},
                  'another "scheduler" (it was StepLR, not CosineAnnealingLR)'),
    }  # fmt: skip


LATER = ("parts", "kin", "of_kin", "shape")


@pytest.mark.parametrize("change", ["optimizer", "back", "of_judge", "judge", "scheduler", *LATER])
def test_a_checkpoint_of_a_script_that_was_changed_says_of_what_it_is(change: str, tmp_path: Path) -> None:
    first, second, told = _changes()[change]
    with pytest.raises(CheckpointError, match=re.escape(f"is of {told}") + ".* To train from the start, move"):
        _saved_then_resumed(tmp_path / "kept", first, second)


def _optimizer(kind: str) -> Any:
    import torch

    class Own(torch.optim.Optimizer):
        """As a user writes one: with a rate and nothing else."""

        def __init__(self, parameters: Any, lr: float) -> None:
            super().__init__(parameters, {"lr": lr})

        def step(self, closure: Any = None) -> None:
            for group in self.param_groups:
                for parameter in group["params"]:
                    parameter.data.add_(parameter.grad, alpha=-group["lr"])

    return Own if kind == "Own" else getattr(torch.optim, kind)


@pytest.mark.parametrize("kind", ["Own", "SparseAdam", "Adafactor", "Muon"])
def test_an_optimizer_goes_on_though_torch_adds_defaults_that_it_has_not(kind: str, tmp_path: Path) -> None:
    import torch

    ht.init()
    for finished in (0, 1):
        model = torch.nn.Embedding(4, 2, sparse=kind == "SparseAdam")
        _, optimizer = ht.distribute(model, _optimizer(kind)(model.parameters(), lr=0.01))
        optimizer.load_state_dict(optimizer.state_dict())  # as `distribute` does on all ranks but 0
        checkpoints = ht.Checkpoints(model, optimizer, folder=False)
        checkpoints.store = Store(tmp_path / "kept")
        assert checkpoints.resume() == finished
        model(torch.tensor([1, 2])).sum().backward()
        optimizer.step()
        checkpoints.save(1)


def test_guard_a_scheduler_made_after_the_checkpoint_was_read_is_no_other_optimizer(tmp_path: Path) -> None:
    import torch

    one_cycle = {"scheduler": lambda o: torch.optim.lr_scheduler.OneCycleLR(o, 0.1, 10)}
    assert _saved_then_resumed(tmp_path / "kept", one_cycle, {}) == 1
    assert _saved_then_resumed(tmp_path / "kept2", {}, one_cycle) == 1


def test_guard_a_checkpoint_that_does_not_say_of_what_kind_its_optimizer_is_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of earlier versions do not."""
    from hvdtrain._torch import payload

    write = payload.write
    without = lambda content, file: write({name: value for name, value in content.items() if name != "kinds"}, file)  # noqa: E731
    monkeypatch.setattr(payload, "write", without)
    assert _saved_then_resumed(tmp_path / "kept", {}, {}) == 1


def test_a_loader_that_cannot_go_on_is_refused() -> None:
    import torch

    ht.init()
    model = torch.nn.Linear(2, 2)
    model, optimizer = ht.distribute(model, torch.optim.SGD(model.parameters(), lr=0.1))
    batches: Any = torch.utils.data.DataLoader(samples(16, 1), 4)
    with pytest.raises(UserError, match=r"loader is a DataLoader, .* ht.loader"):
        ht.Checkpoints(model, optimizer, batches, folder=False, watch=False)


def test_more_patience_goes_on_where_less_has_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    ht.init()
    lengths = []
    for patience in (1, 3, 2):
        model = torch.nn.Linear(8, 5)
        torch.nn.init.zeros_(model.weight), torch.nn.init.zeros_(model.bias)
        model, optimizer = ht.distribute(model, torch.optim.SGD(model.parameters(), lr=0.0))
        train, validation = ht.loader(samples(8, 1), 4), ht.validation_loader(samples(8, 1), 4)
        folder = tmp_path / "kept"
        monkeypatch.setattr(own_folder, "_given", {})  # as in a process of its own
        history = ht.fit(
            model, optimizer, torch.nn.CrossEntropyLoss(), train, validation,
            epochs=9, early_stopping=patience, checkpoints=folder,
        )  # fmt: skip
        lengths.append(len(history))
    assert lengths == [3, 5, 5]
