"""Adam for methods that step many times per batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.optim import Adam


class FusedAdam(Adam):
    """`torch.optim.Adam` in its fused form, with the same numbers and state, and little around the kernel.

    Twenty small steps a batch spend more time in torch's preparations than in the kernel: it tells complex from real
    parameters, groups them by device and kind, and looks for a GPU that might be capturing a graph, which in a process
    that has imported Lightning means to search for the driver library. All parameters here are real, of one kind and on
    one device.

    Args:
        params: What to optimise.
        lr: Learning rate.
        betas: Decay of the two running means.
    """

    def __init__(self, params: Any, lr: float, betas: tuple[float, float] = (0.9, 0.999)) -> None:
        super().__init__(params, lr=lr, betas=betas, fused=True)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One update of all parameters that have a gradient."""
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
            steps = [state["step"] for state in states]
            torch._foreach_add_(steps, 1)
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
