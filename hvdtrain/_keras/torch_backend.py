"""Keras on PyTorch: what is sent. Everything runs at once, so plain Python state is enough."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import keras
import torch

from hvdtrain._keras.backends import NORM_EVERY, Agreed, Messages, Wire
from hvdtrain._keras.start import session, world
from hvdtrain._torch.collectives import Horovod
from hvdtrain.errors import UserError
from hvdtrain.launch.session import Session
from hvdtrain.world import World


class Torch:
    """Implements `backends.Backend`."""

    framework = "torch"
    package = "torch"

    strategies: tuple[str, ...] = ("horovod", "single")

    def __init__(self) -> None:
        self._separated: int | None = None  # the seed that `separate_random` gave

    def start(self, session: Session, strategy: str) -> str:
        """Start Horovod; returns its controller."""
        hvd = _horovod()
        session.start(hvd)
        return "mpi" if hvd.mpi_enabled() else "gloo"

    def ranks(self) -> Messages:
        """How this rank talks to the others."""
        return _HorovodMessages()

    def replicas(self) -> None:
        """One process has one device here."""

    def visible_gpus(self) -> int:
        """GPUs that PyTorch sees."""
        return torch.cuda.device_count()

    def use(self, place: World, strategy: str) -> None:
        """Take this rank's device. Threads follow OMP_NUM_THREADS by themselves."""
        if place.device != "cpu":
            torch.cuda.set_device(torch.device(place.device))

    def feed(self, data: Any) -> Any:
        """What `model.fit` takes: the loaders themselves."""
        return data

    def training(self, model: Any, data: Any, class_weight: Any) -> tuple[Any, Any]:
        """What `model.fit` takes; Keras' own function makes steps of it."""
        return data, None

    def device_name(self, place: World) -> str:
        """Model of the GPU, or "cpu"."""
        return torch.cuda.get_device_name(place.device) if place.device != "cpu" else "cpu"

    def threads(self) -> int:
        """Threads that an operation may use."""
        return torch.get_num_threads()

    def random_state(self) -> Any:
        """Of PyTorch's own generators, from which Keras layers draw here: arrays, so that a checkpoint holds plain values."""
        states = [torch.get_rng_state(), *(torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else [])]
        return [state.numpy() for state in states]

    def set_random_state(self, state: Any) -> None:
        """Restore `random_state`, the seed included."""
        separated = torch.initial_seed() == self._separated
        cpu, *gpus = (torch.from_numpy(each.copy()) for each in state)
        torch.set_rng_state(cpu)
        if gpus:
            torch.cuda.set_rng_state_all(gpus)
        if separated:
            self._separated = torch.initial_seed()

    def separate_random(self, offset: int) -> None:
        """Draw other numbers than before, by seeds that lie `offset` apart; go on where that is done and nobody seeded since."""
        if torch.initial_seed() != self._separated:
            self._separated = torch.initial_seed() + offset
            torch.manual_seed(self._separated)

    def wire(self, compression: str) -> Wire:
        """What an optimizer sends."""
        if compression == "bf16":
            raise UserError('compression="bf16" needs Keras on TensorFlow; on PyTorch "none" and "fp16" are legal')
        return TorchWire(compression)


class _HorovodMessages:
    """Implements `backends.Messages`."""

    def add(self, values: Sequence[float]) -> list[float]:
        hvd = _horovod()
        total = hvd.allreduce(torch.tensor(list(values), dtype=torch.float64), op=hvd.Sum, name="hvdtrain.sum")
        return [float(value) for value in total.tolist()]

    def gather_objects(self, value: Any) -> list[Any]:
        return Horovod().gather_objects(value, "hvdtrain.objects")

    def broadcast_object(self, value: Any, name: str) -> Any:
        return Horovod().broadcast_object(value, f"hvdtrain.{name}")

    def broadcast(self, variables: Sequence[Any]) -> None:
        """As bytes, since Horovod does not know every type."""
        for index, variable in enumerate(variables):
            value = variable.value.detach().contiguous()
            shape, dtype = value.shape, value.dtype
            received = _horovod().broadcast(value.reshape(-1).view(torch.uint8), 0, name=f"hvdtrain.state.{index}")
            variable.assign(received.view(dtype).reshape(shape))


class TorchWire:
    """Implements `backends.Wire`. One group for all gradients: Keras gives them all at once, after the backward pass."""

    def __init__(self, compression: str) -> None:
        self._compression = compression
        self._weight, self._stop, self._end, self._no_number = 1.0, False, False, False
        self.number = 0  # one sends after the other here
        self._reductions = 0
        self._last = 0.0
        session().count(lambda: self._reductions)  # in a loop of one's own nothing else tells that it goes on
        self.reset_times()

    def start_step(self, weight: float, stop: bool, end: bool) -> None:
        self._weight, self._stop, self._end = weight, stop, end
        self._tick()

    def end_step(self) -> None:
        self._tick("optimizer")

    def agreed(self) -> Agreed:
        return self._agreed

    def reset_times(self) -> None:
        self._seconds = dict.fromkeys(("data", "forward", "backward", "allreduce", "optimizer"), 0.0)
        self._norms, self._local, self._averaged, self._last_square = 0, 0.0, 0.0, 0.0
        self._agreed = Agreed(False, False, False)

    def measured(self) -> dict[str, float]:
        found = {"norms": float(self._norms), "local_square": self._local, "averaged_square": self._averaged}
        found["last_square"] = self._last_square
        # Keras fetches the batch before it tells anybody that a step begins, and on a GPU calls return before kernels end.
        return found | {k: v for k, v in self._seconds.items() if k != "data"} if world().device == "cpu" else found

    def data_arrived(self, data: Any) -> None:
        self._tick("data")

    def weighted(self, loss: Any) -> Any:
        self._tick("forward")
        self._no_number = not bool(torch.isfinite(loss))
        return loss * self._weight

    def of_union(self, loss: Any, divisor: Any, name: str) -> Any:
        if world().size == 1:
            return loss
        hvd = _horovod()
        own = float(divisor) if self._weight else 0.0
        with session().waiting():
            mean = float(hvd.allreduce(torch.tensor([own]), op=hvd.Average, name=f"hvdtrain.{name}"))
        return loss * (own / mean / self._weight if own else 0.0)

    def gradients_computed(self, grads: list[Any]) -> None:
        self._tick("backward")

    def missing(self, grads: list[Any], variables: list[Any]) -> list[Any]:
        hvd = _horovod()
        present = torch.tensor([float(grad is not None) for grad in grads])
        with session().waiting():
            counts = hvd.allreduce(present, op=hvd.Sum, name="hvdtrain.present")
        return [
            torch.zeros_like(variable.value) if grad is None and count else grad
            for grad, variable, count in zip(grads, variables, counts.tolist(), strict=True)
        ]

    def average(self, grads: list[Any], names: list[str]) -> list[Any]:
        self._tick()
        flags = [float(self._stop), float(self._no_number), float(self._end)]
        averaged = grads
        if world().size > 1:
            hvd = _horovod()
            sent = [self._compressed(grad) for grad in grads]
            with session().waiting():
                *received, control = hvd.grouped_allreduce(
                    [*sent, torch.tensor(flags, device=grads[0].device)], op=hvd.Average, name="hvdtrain.gradients"
                )
            averaged = [each.to(grad.dtype) for each, grad in zip(received, grads, strict=True)]
            flags = control.tolist()
        self._agreed = Agreed(*(flag > 0 for flag in flags))
        self._tick("allreduce")
        self._reductions += 1
        if self._reductions % NORM_EVERY == 0:
            self._norms += 1
            self._last_square = _square(averaged)
            self._local += _square(grads)
            self._averaged += self._last_square
        return averaged

    def _compressed(self, grad: Any) -> Any:
        if grad.is_sparse:
            grad = grad.to_dense()
        if self._compression == "fp16" and grad.dtype == torch.float32:
            return grad.half()
        return grad.float() if grad.dtype == torch.bfloat16 else grad

    def agreed_finite(self, finite: Any) -> Any:
        hvd = _horovod()
        mine = keras.ops.convert_to_tensor(finite).to(torch.float32).reshape(1)
        with session().waiting():
            everywhere = hvd.allreduce(mine, op=hvd.Sum, name="hvdtrain.finite")
        return everywhere[0] > hvd.size() - 0.5

    def _tick(self, phase: str | None = None) -> None:
        """The time since the last tick was spent in `phase`."""
        now = time.perf_counter()
        if phase is not None:
            self._seconds[phase] += now - self._last
        self._last = now


def _square(tensors: list[Any]) -> float:
    return float(sum(each.double().square().sum() for each in tensors))


def _horovod() -> Any:
    import horovod.torch as hvd

    return hvd
