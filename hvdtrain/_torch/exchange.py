"""Gradients on their way between ranks: dense ones averaged in place, sparse ones gathered, and a few numbers along with them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from hvdtrain._torch.collectives import Flight
from hvdtrain._torch.start import collectives, session, world
from hvdtrain.errors import UserError

COMPRESSIONS = ("none", "fp16")

# What Horovod cannot put on the wire goes as single precision, and comes back as what it was.
_WIRE_TYPES = (torch.float32, torch.float64, torch.float16)


@dataclass(slots=True, eq=False)
class Message:
    """The gradient of one parameter, and while it is on its way, what of it is.

    Horovod writes the average into memory behind torch's back, so a version that has changed means that somebody else wrote
    there too.

    Attributes:
        name: of the parameter.
        key: what the message is called on all ranks.
        sparse: gradients of this parameter stay sparse.
        flights: one, or two for a sparse gradient: its indices and its values; empty while nothing is on its way.
        wire: the gradient itself, or a copy in a form that can travel.
        version: of the gradient when it started.
    """

    parameter: nn.Parameter
    name: str
    key: str
    sparse: bool
    flights: Sequence[Flight] = ()
    gradient: torch.Tensor | None = None
    wire: torch.Tensor | None = None
    version: int = 0


@dataclass
class Exchange:
    """Averages gradients over the ranks.

    What is done for each gradient stands between the kernels of the backward pass, with cold caches: there it takes several times
    as long as in a loop of its own, so it is little.

    Attributes:
        names: of the parameters, the same on every rank.
        sparse: parameters whose gradients stay sparse.
        label: tells its messages from those of other optimizers, which may be under way at the same time.
        compression: "fp16" sends single and double precision as half.
        measure: add up `local_square` while sending.
        local_square: square norm of this rank's own gradients of this step.
        under_way: gradients that are.
    """

    names: dict[nn.Parameter, str]
    sparse: set[nn.Parameter]
    label: str
    compression: str = "none"
    measure: bool = False
    local_square: torch.Tensor | float = 0.0
    under_way: list[Message] = field(default_factory=list)
    _messages: dict[nn.Parameter, Message] = field(default_factory=dict)
    _told: Flight | None = None

    def message(self, parameter: nn.Parameter) -> Message:
        """That brings the gradient of `parameter`, always the same one; a parameter without a name gets one."""
        if parameter not in self._messages:
            name = self.names.setdefault(parameter, f"unnamed.{len(self.names)}")
            key = f"{self.label}.gradient.{name}"
            self._messages[parameter] = Message(parameter, name, key, parameter in self.sparse)
        return self._messages[parameter]

    def start(self, message: Message, numbers: Sequence[float] | None = None) -> None:
        """Begin to average a gradient; where it was not computed it must be zeros by now, or stays sparse.

        Args:
            numbers: as for `finish`, where this is the last gradient of the step and there is one of every parameter. They travel
                together with it; told after the backward pass, they often are a message of their own, for which all wait.
        """
        gradient = message.parameter.grad
        if gradient is None or message.sparse or gradient.is_sparse:
            gradient = _sparse(message)
        if gradient.is_neg() or gradient.is_conj():
            # In memory the numbers still have the other sign, and Horovod sends what is in memory.
            gradient = message.parameter.grad = gradient.resolve_conj().resolve_neg()
        if self.measure:
            values = gradient.values() if gradient.is_sparse else gradient
            self.local_square = self.local_square + torch.linalg.vector_norm(values.detach()).double() ** 2
        if numbers is not None:
            self._tell([1.0] * (len(self.under_way) + 1), numbers)
        if gradient.is_sparse:
            wire = self._wire(gradient.values())
            indices = gradient.indices().t().contiguous()
            message.flights = [
                collectives().start_allgather(indices, f"{message.key}.indices"),
                collectives().start_allgather(wire, f"{message.key}.values"),
            ]
        else:
            as_it_is = gradient.dtype is torch.float32 and self.compression == "none" and gradient.is_contiguous()
            wire = gradient if as_it_is else self._wire(gradient)
            if wire.is_cuda:
                # Without NCCL Horovod copies the average back by torch, which would count as a change of the gradient by the user.
                wire = wire.data
            message.flights = (collectives().start_allreduce(wire, message.key, True),)
        message.gradient, message.wire, message.version = gradient, wire, gradient._version
        self.under_way.append(message)

    def finish(self, parameters: Sequence[nn.Parameter], numbers: Sequence[float]) -> list[float]:
        """Wait until every gradient is the average over all ranks, whichever ranks computed it.

        Args:
            parameters: those of the optimizer; none of them when something else averages gradients.
            numbers: of this rank, shape (n,), to be summed over the ranks in the same message as what else they tell each other.

        Returns:
            The sums, shape (n,).
        """
        missing = [] if self._told is not None else self._start_rest(parameters, numbers)
        told = self._told
        assert told is not None
        with session().waiting():
            for message in self.under_way:
                _land(message)
            sums = [mean * world().size for mean in collectives().wait(told).tolist()]
        self._told = None
        self.under_way.clear()
        for index in missing:
            if sums[index] == 0.0:
                parameters[index].grad = None
        self.local_square = sums[-1]
        return sums[-1 - len(numbers) : -1]

    def discard(self, parameters: Sequence[nn.Parameter], numbers: Sequence[float]) -> None:
        """Wait as `finish` does, for what nobody needs any more: gradients may have been changed or dropped since they started."""
        if self._told is None:
            self._start_rest(parameters, numbers)
        told, self._told = self._told, None
        assert told is not None
        with session().waiting():
            for flight in [flight for message in self.under_way for flight in message.flights] + [told]:
                collectives().wait(flight)
        for message in self.under_way:
            message.flights, message.gradient, message.wire = (), None, None
        self.under_way.clear()

    def _start_rest(self, parameters: Sequence[nn.Parameter], numbers: Sequence[float]) -> list[int]:
        """Start what is not under way yet; which of `parameters` this rank had no gradient of.

        A rank whose loss did not use a parameter sends zeros, or the others would wait for it for ever. Ranks also say who had a
        gradient: where nobody had, it stays None as in one process (weight decay must not act on it).
        """
        missing = [index for index, parameter in enumerate(parameters) if parameter.grad is None]
        for parameter in parameters:
            message = self.message(parameter)
            if not message.flights:
                if parameter.grad is None and not message.sparse:
                    parameter.grad = torch.zeros_like(parameter)
                self.start(message)
        present = [1.0] * len(parameters)
        for index in missing:
            present[index] = 0.0
        self._tell(present, numbers)
        return missing

    def _tell(self, present: Sequence[float], numbers: Sequence[float]) -> None:
        """In the form of a gradient, so that Horovod fuses it with the last of them."""
        local = float(self.local_square) if self.measure else 0.0
        message = torch.tensor([*present, *numbers, local], dtype=torch.float32)
        self._told = collectives().start_allreduce(message, f"{self.label}.step", average=True)

    def _wire(self, tensor: torch.Tensor) -> torch.Tensor:
        """In a form that can travel, the tensor itself where it can. The parts of complex numbers add up by themselves."""
        tensor = _parts(tensor)
        if self.compression == "fp16" and tensor.dtype in (torch.float32, torch.float64):
            return tensor.half().contiguous()
        # bfloat16 reaches further than half precision, so it goes as single even when half is asked for.
        return (tensor if tensor.dtype in _WIRE_TYPES else tensor.float()).contiguous()


def _land(message: Message) -> None:
    """Wait for the average of a gradient, and make it the gradient."""
    landed = [collectives().wait(each) for each in message.flights]
    parameter, gradient, wire = message.parameter, message.gradient, message.wire
    message.flights, message.gradient, message.wire = (), None, None
    assert gradient is not None and wire is not None
    if parameter.grad is not gradient or gradient._version != message.version:
        raise UserError(
            f"the gradient of {message.name} was changed between backward() and step(), while its average over the ranks was "
            "under way (clipping, unscaling, zero_grad?). Call hvdtrain.torch.synchronize(optimizer) after backward() and before "
            "you change gradients"
        )
    if gradient.is_sparse:
        indices, values = landed
        values = values.to(_parts(gradient.values()).dtype) / world().size
        mean = torch.view_as_complex(values) if parameter.is_complex() else values
        shape = tuple(parameter.shape)
        parameter.grad = torch.sparse_coo_tensor(indices.t(), mean, shape, check_invariants=False).coalesce()
    elif wire.data_ptr() != gradient.data_ptr():
        _parts(gradient).copy_(wire)


def _sparse(message: Message) -> torch.Tensor:
    """The gradient of a parameter, made sparse where it has to be and dense where not."""
    parameter, gradient = message.parameter, message.parameter.grad
    if message.sparse:
        if gradient is None:
            gradient = _empty_sparse(parameter)
        elif not gradient.is_sparse:
            gradient = gradient.to_sparse(1)
        gradient = parameter.grad = gradient.coalesce()
    elif gradient is not None and gradient.is_sparse:
        # One that no module announced: a rank without it could not know that it must gather instead of add.
        gradient = parameter.grad = gradient.to_dense()
    assert gradient is not None
    return gradient


def _parts(tensor: torch.Tensor) -> torch.Tensor:
    """Real and imaginary parts along a last dimension, in the same memory; a tensor that is not complex as it is."""
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def _empty_sparse(parameter: nn.Parameter) -> torch.Tensor:
    indices = torch.empty((1, 0), dtype=torch.int64, device=parameter.device)
    values = parameter.new_empty((0, *parameter.shape[1:]))
    return torch.sparse_coo_tensor(indices, values, tuple(parameter.shape), check_invariants=False)


def sparse_parameters(model: nn.Module, optimizer: torch.optim.Optimizer) -> set[nn.Parameter]:
    """Parameters whose gradients are sparse, as the model and the optimizer tell before there is a gradient."""
    found: set[Any] = {
        module.weight
        for module in model.modules()
        if isinstance(module, (nn.Embedding, nn.EmbeddingBag)) and module.sparse
    }
    if isinstance(optimizer, torch.optim.SparseAdam):
        found |= {parameter for group in optimizer.param_groups for parameter in group["params"]}
    return found
