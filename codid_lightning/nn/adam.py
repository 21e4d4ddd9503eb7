"""Adam for methods that take many small steps per batch.

This is the only file that uses private names of torch. Before the first use, a trial compares the result with torch's
own Adam; if torch has changed, `FusedAdam` is plain `torch.optim.Adam(fused=True)`, which is slower.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cache
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.optim import Adam, Optimizer, optimizer

BETAS = (0.9, 0.999)


class FusedAdam(Adam):
    """`torch.optim.Adam(fused=True)`, with a faster `step` if this version of torch allows it.

    `FusedAdam(...)` creates a `DirectFusedAdam` where that class gives the same result as torch, else a plain
    `FusedAdam`. Parameters after each step and the saved state are the same in both cases.

    Args:
        params: Parameters to optimise: real, of one dtype and on one device.
        lr: Learning rate.
        betas: Decay rates of the running means of gradients and squared gradients.
    """

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """Choose the class of the new optimizer."""
        direct = cls is FusedAdam and direct_step_works()
        return object.__new__(DirectFusedAdam if direct else cls)  # type: ignore[return-value]

    def __init__(self, params: Any, lr: float, betas: tuple[float, float] = BETAS) -> None:
        super().__init__(params, lr=lr, betas=betas, fused=True)


class DirectFusedAdam(FusedAdam):
    """Calls the fused kernel directly.

    With twenty small steps per batch, torch spends more time before the kernel than in it: it separates complex from
    real parameters, groups them by device and dtype, and checks whether a GPU captures a graph, which searches for the
    driver library once Lightning is imported. None of this is needed for real parameters of one dtype on one device.
    Profilers and hooks see every step, as with torch's Adam.
    """

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update all parameters that have a gradient, and return the value of `closure`."""
        return self._observed_update(closure) if self._is_observed() else self._update(closure)

    step.hooked = True  # type: ignore[attr-defined]  # torch does not wrap a step with this mark

    @torch.no_grad()
    def _update(self, closure: Callable[[], Any] | None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            parameters = [p for p in group["params"] if p.grad is not None]
            if parameters:
                self._update_group(group, parameters)
        return loss

    def _update_group(self, group: dict[str, Any], parameters: list[Any]) -> None:
        if any(p not in self.state for p in parameters):
            self._init_group(group, [], [], [], [], [], [])  # type: ignore[no-untyped-call]
        states = [self.state[p] for p in parameters]
        torch._fused_adam_(
            parameters,
            [p.grad for p in parameters],
            [state["exp_avg"] for state in states],
            [state["exp_avg_sq"] for state in states],
            [],
            _increment_steps(states),
            lr=group["lr"],
            beta1=group["betas"][0],
            beta2=group["betas"][1],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            amsgrad=False,
            maximize=False,
        )

    _observed_update = Optimizer.profile_hook_step(_update)

    def _is_observed(self) -> bool:
        """Whether a profiler runs or a hook is registered."""
        return bool(
            torch.autograd.profiler._is_profiler_enabled
            or self._optimizer_step_pre_hooks
            or self._optimizer_step_post_hooks
            or optimizer._global_optimizer_pre_hooks
            or optimizer._global_optimizer_post_hooks
        )


def _increment_steps(states: list[dict[str, Tensor]]) -> list[Tensor]:
    """Add one to the number of updates of each parameter, and return these numbers.

    They are views of one tensor, so that one addition is enough; an addition for each would take as long as the kernel
    of a small network. The common tensor is rebuilt after a checkpoint is loaded, and if other parameters have a
    gradient than in the last step.
    """
    steps = [state["step"] for state in states]
    common = steps[0]._base
    if common is None or common.shape != (len(steps),) or any(step._base is not common for step in steps):
        common = torch.stack(steps)
        steps = list(common.unbind())
        for state, step in zip(states, steps, strict=True):
            state["step"] = step
    common.add_(1)
    return steps


@cache
def direct_step_works() -> bool:
    """Whether `DirectFusedAdam` gives the same result as torch's Adam; warns once if it does not."""
    try:
        problem = "" if _trial(DirectFusedAdam) == _trial(Adam) else "the results differ"
    except (AttributeError, TypeError, RuntimeError, KeyError) as error:
        problem = f"{type(error).__name__}: {error}"
    if problem:
        warnings.warn(
            f"FusedAdam does not support torch {torch.__version__} ({problem}). torch.optim.Adam(fused=True) is used "
            "instead: results are the same, training steps are slower.",
            stacklevel=3,
        )
    return not problem


def _trial(optimizer_class: type[Adam]) -> tuple[Any, ...]:
    """Parameters, state and number of hook calls after three steps, the last with a hook."""
    parameters = [nn.Parameter(torch.tensor(values, device="cpu")) for values in ([1.0, -2.0], [3.0])]
    adam = optimizer_class(parameters, lr=0.1, betas=BETAS, **({"fused": True} if optimizer_class is Adam else {}))
    calls: list[int] = []
    for step in range(3):
        for p in parameters:
            p.grad = p.detach() + step
        if step == 2:
            adam.register_step_pre_hook(lambda *_: calls.append(1))
            adam.register_step_post_hook(lambda *_: calls.append(2))
        adam.step()
    state = [{name: value.tolist() for name, value in adam.state[p].items()} for p in parameters]
    return [p.tolist() for p in parameters], state, calls
