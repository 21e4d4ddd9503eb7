"""An encoder's forward pass, and the representations after one virtual update of its weights.

The meta step differentiates through one virtual update of the encoder. `EncoderPass` works for any network.
`KernelPass` gives the same numbers for encoders whose first layer is linear, and evaluates that layer only once.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from codid_lightning.nn import distributed
from codid_lightning.nn.backbones import Encoder

MAX_KERNEL = 512  # largest batch for which the kernel between its samples is made


class EncoderPass:
    """Representations of the global batch, before and after a gradient step of the encoder.

    Attention is computed by the only one of torch's kernels that can be differentiated twice.

    Args:
        encoder: The network.
        x: Inputs of this rank, (B, *input_shape).
    """

    def __init__(self, encoder: Encoder, x: Tensor) -> None:
        self.encoder, self.x = encoder, x
        self.parameters = list(encoder.parameters())
        with sdpa_kernel(SDPBackend.MATH):
            self.z = distributed.gather(encoder(x))

    def gradients(self, slope: Tensor) -> Sequence[Tensor]:
        """Gradients of the parameters, given the loss's gradient (B, Q, d) with respect to z."""
        return torch.autograd.grad(self.z, self.parameters, slope)

    def moved(self, slope: Tensor, step: float) -> Tensor:
        """This rank's z after the parameters moved by -step times their gradient; differentiable in `slope`."""
        local = torch.autograd.grad(self.z, self.parameters, slope, create_graph=True)
        gradients = distributed.average_differentiably(local)
        names = [name for name, _ in self.encoder.named_parameters()]
        there = {n: p - step * g for n, p, g in zip(names, self.parameters, gradients, strict=True)}
        with sdpa_kernel(SDPBackend.MATH):
            z: Tensor = torch.func.functional_call(self.encoder, there, (self.x,))
        return z


class KernelPass:
    """The same as `EncoderPass`, for a single process and subnetworks that flatten their input into a linear layer.

    With h = X W' + b and the gradient g of h, the gradient of W is g' X and that of b is the sum of g. A step changes h
    by -step (X X' + 1) g: one product with a (B, B) kernel instead of two with the wide layer. In large batches it is
    less work to take X (X' g). The gradients of W and b are computed by `gradients` only.
    """

    def __init__(self, encoder: Encoder, x: Tensor) -> None:
        self.x = x.flatten(1)
        self.layers, self.tails = zip(*(_split(subnetwork) for subnetwork in encoder.subnetworks), strict=True)
        self.tail_parameters = [p for tail in self.tails for p in tail.parameters()]
        self.parameters = [*(p for layer in self.layers for p in layer.parameters()), *self.tail_parameters]
        with torch.no_grad():
            self.hidden = [layer(self.x).requires_grad_() for layer in self.layers]
        self.z = torch.stack([tail(h) for tail, h in zip(self.tails, self.hidden, strict=True)], dim=1)

    @staticmethod
    def serves(encoder: Encoder) -> bool:
        """Whether the first layer of an encoder is linear, and there is a single process."""
        subnetworks = getattr(encoder, "subnetworks", ())
        layers = [type(layer) for subnetwork in subnetworks for layer in list(subnetwork.children())[:2]]
        return layers[:2] == [nn.Flatten, nn.Linear] and distributed.world_size() == 1

    def gradients(self, slope: Tensor) -> Sequence[Tensor]:
        """Gradients of the parameters, given the loss's gradient (B, Q, d) with respect to z."""
        found = torch.autograd.grad(self.z, [*self.hidden, *self.tail_parameters], slope)
        of_hidden, of_tail = found[: len(self.hidden)], found[len(self.hidden) :]
        return [*(g for h in of_hidden for g in (h.T @ self.x, h.sum(0))), *of_tail]

    def moved(self, slope: Tensor, step: float) -> Tensor:
        """All z after the parameters moved by -step times their gradient; differentiable in `slope`."""
        found = torch.autograd.grad(self.z, [*self.hidden, *self.tail_parameters], slope, create_graph=True)
        of_hidden, of_tail = found[: len(self.hidden)], iter(found[len(self.hidden) :])
        kernel = torch.addmm(self.x.new_ones(()), self.x, self.x.T) if len(self.x) <= MAX_KERNEL else None
        z = []
        for tail, h, g in zip(self.tails, self.hidden, of_hidden, strict=True):
            there = {name: p - step * next(of_tail) for name, p in tail.named_parameters()}
            z.append(torch.func.functional_call(tail, there, (h - step * self._through_inputs(g, kernel),)))
        return torch.stack(z, dim=1)

    def _through_inputs(self, g: Tensor, kernel: Tensor | None) -> Tensor:
        """(X X' + 1) g."""
        return kernel @ g if kernel is not None else self.x @ (self.x.T @ g) + g.sum(0)


def _split(subnetwork: nn.Module) -> tuple[nn.Module, nn.Module]:
    """The first linear layer, and the layers after it."""
    _, layer, *tail = subnetwork.children()
    return layer, nn.Sequential(*tail)
