"""Which of Lightning's precisions and strategies methods work with, and batches as the trainer gives them to a step.

Methods take gradients with `torch.autograd.grad`, several times per batch, and step their optimizers themselves.
"""

from __future__ import annotations

from typing import Any

from lightning import LightningModule, Trainer
from lightning.pytorch.strategies import DDPStrategy, SingleDeviceStrategy, Strategy
from torch import Tensor, nn

from datamodules.base import Batch

TRAINING = ("32-true", "64-true", "bf16-mixed")  # precisions
EVALUATION = (*TRAINING, "16-mixed", "16-true", "bf16-true")
_ALIASES = {"64": "64-true", "32": "32-true", "16": "16-mixed", "bf16": "bf16-mixed"}
_REASONS = {
    "16-mixed": "Its loss scaling does not apply to methods with several steps per batch",
    "16-true": "Adam's small numbers are zero in 16 bits",
    "bf16-true": "Adam's averages change by less than the last of its 8 bits in a step, so they stop moving",
}
_OTHERS = ("fsdp", "deepspeed", "modelparallel", "model_parallel", "xla", "singledevicexla", "single_xla")


def precision_problem(precision: str | int | None, training: bool) -> str | None:
    """Why methods do not train, or are not evaluated, with a precision of Lightning; None if they are."""
    name = _ALIASES.get(str(precision), str(precision))
    supported = TRAINING if training else EVALUATION
    if precision is None or name in supported:
        return None
    reason = f" {_REASONS[name]}." if training and name in _REASONS else ""
    return f"trainer.precision is {name}, which is not supported.{reason} Use one of {', '.join(supported)}."


def strategy_problem(strategy: Strategy | str) -> str | None:
    """Why methods do not work with a strategy of Lightning, given as an object or by its name; None if they do."""
    name = strategy if isinstance(strategy, str) else type(strategy).__name__
    known = isinstance(strategy, (str, SingleDeviceStrategy, DDPStrategy))
    if known and not name.lower().startswith(_OTHERS):
        return None
    return (
        f"trainer.strategy is {name}, which does not work with methods that step their optimizers themselves: use auto "
        "or ddp, which keep a whole model on every device."
    )


def to_module(trainer: Trainer, module: LightningModule, batch: Batch) -> Batch:
    """A batch of a loader as the trainer gives it to a step: on the module's device and in its precision."""
    moved = trainer.strategy.batch_to_device(batch, module.device)
    converted: Batch = trainer.precision_plugin.convert_input(moved)
    return converted


def like_parameters(x: Tensor, module: nn.Module) -> Tensor:
    """Inputs on the device and in the precision of a network's parameters."""
    parameter: Any = next(module.parameters())
    return x.to(parameter)
