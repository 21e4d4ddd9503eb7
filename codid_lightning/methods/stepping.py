"""Optimizer steps and running losses, shared by all methods."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from codid_lightning.nn import distributed


def minimise(optimizer: Optimizer, loss: Tensor, parameters: nn.Module | None = None, reduce: bool = True) -> None:
    """One step of `optimizer` down `loss`; nothing but its parameters moves or receives a gradient.

    Args:
        optimizer: The optimizer to step.
        loss: What to minimise.
        parameters: Network to restrict the step to; by default all that the optimizer holds.
        reduce: Average gradients over ranks; off for losses that every rank computes alike.
    """
    moving = (
        [p for group in optimizer.param_groups for p in group["params"]]
        if parameters is None
        else list(parameters.parameters())
    )
    step(optimizer, moving, torch.autograd.grad(loss, moving, allow_unused=True), reduce)


def step(
    optimizer: Optimizer, parameters: Sequence[Tensor], gradients: Sequence[Tensor | None], reduce: bool = True
) -> None:
    """Apply gradients, averaged over ranks unless they are already the same on all of them.

    Gradients come from `autograd.grad` rather than `manual_backward`: a step sees its own parameters only, and DDP's
    reducer, which expects every parameter in every backward pass, is not involved.
    """
    filled = [torch.zeros_like(p) if g is None else g for p, g in zip(parameters, gradients, strict=True)]
    if reduce:
        filled = distributed.average(filled)
    for parameter, gradient in zip(parameters, filled, strict=True):
        parameter.grad = _in_layout_of(parameter, gradient)
    optimizer.step()
    for parameter in parameters:
        parameter.grad = None


def _in_layout_of(parameter: Tensor, gradient: Tensor) -> Tensor:
    """The gradient with the strides of its parameter: fused optimizers go through the memory of both side by side.

    `backward` takes care of this, `autograd.grad` does not: the gradient of a parameter that was transposed has other
    strides.
    """
    same = gradient.stride() == parameter.stride()
    return gradient if same else torch.empty_like(parameter).copy_(gradient)


def decay_learning_rates(optimizers: Sequence[Optimizer], epoch: int, epochs: int, decay_from: float) -> None:
    """Let learning rates fall linearly to zero after a share `decay_from` of all epochs."""
    start = decay_from * epochs
    if start < epoch < epochs:
        left = (epochs - epoch) / (epochs - start)
        for group in (group for optimizer in optimizers for group in optimizer.param_groups):
            group["lr"] = group.setdefault("initial_lr", group["lr"]) * left  # both are in the checkpoint


def reinitialise(modules: Iterable[nn.Module], optimizers: Iterable[Optimizer]) -> None:
    """Let modules start again with new parameters, and optimizers without moments."""
    for module in modules:
        if callable(reset := getattr(module, "reset_parameters", None)):
            reset()
    for optimizer in optimizers:
        optimizer.state.clear()


def seed_generators(seed: int, device: torch.device) -> None:
    """Seed the global generators of the CPU and, where it is used, of the GPU."""
    torch.default_generator.manual_seed(seed)  # torch.manual_seed formats stack traces for devices not in use
    if device.type == "cuda":
        torch.cuda.manual_seed(seed)


class LossMeter:
    """Running means of named losses. Values stay on their device until they are read.

    They are added up one by one in the order they came, so the result does not depend on how often they are read.
    """

    def __init__(self) -> None:
        self.batch = 0  # the one whose losses are being added
        self.sums: dict[str, float] = {}
        self.counts: dict[str, int] = {}
        self._unread: list[tuple[str, int, Tensor]] = []

    def add(self, name: str, *values: Tensor) -> None:
        """Count one or more values of the loss `name`."""
        self._unread.extend((name, self.batch, value.detach()) for value in values)

    def read(self) -> tuple[str, int] | None:
        """Add up the values since the last call; name and batch of the first value that is not finite, if any."""
        if not self._unread:
            return None
        bad = None
        values = torch.stack([value.float() for _, _, value in self._unread]).tolist()
        for (name, batch, _), value in zip(self._unread, values, strict=True):
            self.sums[name] = self.sums.get(name, 0.0) + value
            self.counts[name] = self.counts.get(name, 0) + 1
            if bad is None and not math.isfinite(value):
                bad = name, batch
        self._unread = []
        return bad

    def mean(self, name: str) -> float | None:
        """Mean of one loss so far, if there is any."""
        self.read()
        return self.sums[name] / self.counts[name] if name in self.sums else None

    def means(self) -> dict[str, float]:
        """Mean of each loss since the last call."""
        self.read()
        means = {name: total / self.counts[name] for name, total in self.sums.items()}
        self.sums, self.counts = {}, {}
        return means

    def state(self) -> dict[str, tuple[float, int]]:
        """Sums and counts so far."""
        self.read()
        return {name: (total, self.counts[name]) for name, total in self.sums.items()}

    def load(self, state: dict[str, tuple[float, int]]) -> None:
        """Continue from `state`."""
        self.sums = {name: float(total) for name, (total, _) in state.items()}
        self.counts = {name: count for name, (_, count) in state.items()}
