"""Adam for methods that step many times per batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Adam, Optimizer
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks


class FusedAdam(Adam):
    """`torch.optim.Adam` in its fused form, with the same numbers and state, and little around the kernel.

    Twenty small steps a batch spend more time in torch's preparations than in the kernel: it tells complex from real
    parameters, groups them by device and kind, and looks for a GPU that might be capturing a graph, which in a process
    that has imported Lightning means to search for the driver library. All parameters here are real, of one kind and on
    one device. What torch wraps around every step, for profilers and hooks, is there when one of them is.

    Args:
        params: What to optimise.
        lr: Learning rate.
        betas: Decay of the two running means.
    """

    def __init__(self, params: Any, lr: float, betas: tuple[float, float] = (0.9, 0.999)) -> None:
        super().__init__(params, lr=lr, betas=betas, fused=True)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One update of all parameters that have a gradient."""
        return self._watched_update(closure) if self._is_watched() else self._update(closure)

    step.hooked = True  # type: ignore[attr-defined]  # keeps torch from wrapping it

    @torch.no_grad()
    def _update(self, closure: Callable[[], Any] | None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            parameters = [p for p in group["params"] if p.grad is not None]
            if not parameters:
                continue
            if any(p not in self.state for p in parameters):
                self._init_group(group, [], [], [], [], [], [])  # type: ignore[no-untyped-call]
            states = [self.state[p] for p in parameters]
            steps = _counted(states)
            torch._fused_adam_(
                parameters,
                [p.grad for p in parameters],
                [state["exp_avg"] for state in states],
                [state["exp_avg_sq"] for state in states],
                [],
                steps,
                lr=group["lr"],
                beta1=group["betas"][0],
                beta2=group["betas"][1],
                weight_decay=group["weight_decay"],
                eps=group["eps"],
                amsgrad=False,
                maximize=False,
            )
        return loss

    _watched_update = Optimizer.profile_hook_step(_update)

    def _is_watched(self) -> bool:
        return bool(
            torch.autograd.profiler._is_profiler_enabled
            or self._optimizer_step_pre_hooks
            or self._optimizer_step_post_hooks
            or _global_optimizer_pre_hooks
            or _global_optimizer_post_hooks
        )


def _counted(states: list[dict[str, Tensor]]) -> list[Tensor]:
    """The number of updates of each parameter, this one included.

    They are kept as views of one tensor, which is counted up at once; one by one takes as long as the kernel of a small
    network. After a checkpoint, or where other parameters take part than the last time, they are put together anew.
    """
    steps = [state["step"] for state in states]
    together = steps[0]._base
    if together is None or together.shape != (len(steps),) or any(step._base is not together for step in steps):
        together = torch.stack(steps)
        steps = list(together.unbind())
        for state, step in zip(states, steps, strict=True):
            state["step"] = step
    together.add_(1)
    return steps
