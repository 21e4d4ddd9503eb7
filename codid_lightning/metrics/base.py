"""Random subsets of samples, and torchmetrics classes made from functions."""

import inspect
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.utilities import dim_zero_cat


def subsample(max_samples: int, seed: int, *tensors: Tensor) -> tuple[Tensor, ...]:
    """At most `max_samples` rows, the same random ones of every tensor, in their order."""
    n = len(tensors[0])
    if n <= max_samples:
        return tensors
    chosen = torch.randperm(n, generator=torch.Generator().manual_seed(seed))[:max_samples].sort().values
    return tuple(tensor[chosen.to(tensor.device)] for tensor in tensors)


def is_measurable(z: Tensor, minimum: int = 1) -> bool:
    """Whether representations are finite and at least `minimum` samples; the metrics of others are NaN."""
    return len(z) >= minimum and bool(z.isfinite().all())


class SampleMetric(Metric):
    """Concatenates the samples of all batches and ranks, then calls `function` once.

    The positional parameters of `function` are tensors with one row per sample and become the arguments of
    `update`; its keyword-only parameters become the arguments of the constructor.
    """

    full_state_update = False
    function: ClassVar[Callable[..., Any]]

    def __init__(self, **options: Any) -> None:
        super().__init__()
        parameters = inspect.signature(self.function).parameters.values()
        self.input_names = [p.name for p in parameters if p.kind is not p.KEYWORD_ONLY]
        unknown = set(options) - {p.name for p in parameters if p.kind is p.KEYWORD_ONLY}
        if unknown:
            raise TypeError(f"{type(self).__name__} has no option {', '.join(sorted(unknown))}; remove it.")
        self.options = options
        for name in self.input_names:
            self.add_state(name, default=[], dist_reduce_fx="cat")

    def update(self, *samples: Tensor) -> None:
        """Add one batch; all tensors have the same length."""
        if len(samples) != len(self.input_names):
            names = ", ".join(self.input_names)
            raise TypeError(f"{type(self).__name__}.update needs {names}; got {len(samples)} tensors.")
        for name, tensor in zip(self.input_names, samples, strict=True):
            getattr(self, name).append(tensor.detach())

    def compute(self) -> Tensor | dict[str, Tensor]:
        """The value of `function` on all samples since the last reset."""
        value = self.function(*(dim_zero_cat(getattr(self, name)) for name in self.input_names), **self.options)
        if isinstance(value, dict):
            return {name: torch.tensor(score) for name, score in value.items()}
        return torch.tensor(value)
