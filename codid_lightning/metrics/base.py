"""What the metrics share: random subsets, and the bridge from a pure function to a torchmetrics class."""

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


class SampleMetric(Metric):
    """One function of all samples: batches and ranks are concatenated, then `function` is called once.

    The positional parameters of `function` are tensors with one row per sample and become the arguments of
    `update`; its keyword-only parameters become the arguments of the constructor.
    """

    full_state_update = False
    function: ClassVar[Callable[..., Any]]

    def __init__(self, **options: Any) -> None:
        super().__init__()
        parameters = inspect.signature(self.function).parameters.values()
        self._samples = [p.name for p in parameters if p.kind is not p.KEYWORD_ONLY]
        unknown = set(options) - {p.name for p in parameters if p.kind is p.KEYWORD_ONLY}
        if unknown:
            raise TypeError(f"{type(self).__name__} has no option {', '.join(sorted(unknown))}")
        self.options = options
        for name in self._samples:
            self.add_state(name, default=[], dist_reduce_fx="cat")

    def update(self, *samples: Tensor) -> None:
        """Remember one batch; every tensor has the same length."""
        if len(samples) != len(self._samples):
            raise TypeError(f"{type(self).__name__}.update takes {', '.join(self._samples)}")
        for name, tensor in zip(self._samples, samples, strict=True):
            getattr(self, name).append(tensor.detach())

    def compute(self) -> Tensor | dict[str, Tensor]:
        """The value of `function` on everything seen so far."""
        value = self.function(*(dim_zero_cat(getattr(self, name)) for name in self._samples), **self.options)
        if isinstance(value, dict):
            return {name: torch.tensor(score) for name, score in value.items()}
        return torch.tensor(value)
