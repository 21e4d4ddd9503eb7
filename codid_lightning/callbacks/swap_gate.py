"""The gate before counterfactual training: can the autoencoder change the other attributes and nothing else?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from torch import Tensor

from codid_lightning import distributed

if TYPE_CHECKING:
    from codid_lightning.methods.swapping import SwappingModule

SMALLEST_OBEDIENCE = 0.8  # of how well real samples show their other attributes, swapped ones must show the new ones
SMALLEST_SURVIVAL = 0.6  # of how far predictions of a_1 can agree beyond chance, those after a round trip must


@dataclass(frozen=True)
class SwapScores:
    """What classifiers trained on real data make of swapped validation data, as shares of samples.

    With several other attributes `real`, `swapped` and `chance` are means over them.
    """

    real: float  # real samples whose other attributes are recognised
    swapped: float  # swapped samples whose *new* other attributes are recognised
    chance: float  # what guessing new values uniformly would reach
    kept: float  # swapped samples with the prediction of a_1 they had
    returned: float  # samples swapped and swapped back with the prediction of a_1 they had
    coincidence: float  # what `returned` would be if the predictions had nothing to do with each other

    @property
    def obedience(self) -> float:
        """How far swapped samples show their new values: 0 is chance, 1 as well as real samples show theirs."""
        return _beyond(self.swapped, self.chance, self.real)

    @property
    def survival(self) -> float:
        """How far predictions of a_1 survive the round trip: 0 is coincidence, 1 all of them (Cohen's kappa)."""
        return _beyond(self.returned, self.coincidence, 1.0)

    @property
    def accepted(self) -> bool:
        """The verdict."""
        return self.obedience >= SMALLEST_OBEDIENCE and self.survival >= SMALLEST_SURVIVAL

    def metrics(self) -> dict[str, float]:
        """The scores and the verdict as they are logged."""
        return {
            "gate/a2_real": self.real,
            "gate/a2_swapped": self.swapped,
            "gate/obedience": self.obedience,
            "gate/a1_kept": self.kept,
            "gate/a1_returned": self.returned,
            "gate/survival": self.survival,
            "gate/accepted": float(self.accepted),
        }


def _beyond(share: float, chance: float, best: float) -> float:
    """Where a share lies between chance and the best one can hope for; 0 where there is nothing to hope for."""
    return (share - chance) / (best - chance) if best > chance else 0.0


class SwapGate(Callback):
    """Decides once, on validation data and without mode labels, whether counterfactuals are worth training on.

    Two questions to classifiers that have seen real training data only, the method's own after `autoencoder_epochs`.
    *Obedience*: do swapped samples show the new values of the other attributes? A decoder that ignores what it is told
    fails. *Survival*: is a_1 predicted as before once a sample was swapped and swapped back? A decoder that draws all
    samples alike fails. The way back matters: on swapped samples themselves a classifier that leans on the other
    attributes, which is what counterfactuals are there to cure, changes its mind however good the swap (`gate/a1_kept`
    tells, and decides nothing). The verdict is logged as `gate/...`, printed, and kept in the checkpoint.
    """

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Judge before the first batch that would use counterfactuals."""
        module: SwappingModule = pl_module  # type: ignore[assignment]
        if module.gate_metrics or trainer.current_epoch < module.autoencoder_epochs:
            return
        if module.combinations() < 2:
            module.gate_metrics = {"gate/accepted": 0.0}
            module.print("Swap gate: refused, the other attributes have a single value in training.")
            return
        scores = self.measure(trainer, module)
        module.gate_metrics = scores.metrics()
        module.print(verdict(module.gate_metrics))

    @torch.no_grad()
    def measure(self, trainer: Trainer, module: SwappingModule) -> SwapScores:
        """Scores of the validation set, each rank counting its share."""
        training = module.training
        module.eval()
        loader = trainer.datamodule.val_dataloader()  # type: ignore[attr-defined]
        # Drawn by position in the set: the verdict does not depend on the number of ranks.
        generator = torch.Generator().manual_seed(module.step_seed(-2))
        offsets = torch.randint(1, module.combinations(), (len(loader.dataset),), generator=generator).to(module.device)
        first = module.attribute_sizes[0]
        counts = torch.zeros(4, dtype=torch.float64, device=module.device)  # samples, recognised real and new, kept
        pairs = torch.zeros(
            first, first, dtype=torch.float64, device=module.device
        )  # predictions before and after the round trip
        for batch in loader:
            batch = trainer.strategy.batch_to_device(batch, module.device)
            old, new = batch["a"][:, 1:], module.others_than(batch["a"], offsets[batch["index"]])
            there = module.swap(batch["x"], new)
            before, swapped, back = (predictions(module, x) for x in (batch["x"], there, module.swap(there, old)))
            right, obeyed = (p[:, 1:] == a for p, a in ((before, old), (swapped, new)))
            kept = before[:, :1] == swapped[:, :1]
            counts[0] += len(new)
            counts[1:] += torch.stack([r.double().mean(1).sum() for r in (right, obeyed, kept)])
            pairs += (before[:, 0] * first + back[:, 0]).bincount(minlength=first**2).view(first, first)
        module.train(training)
        counts, pairs = distributed.average([counts, pairs])
        pairs = pairs / pairs.sum()
        chances = [1 / len(values) for values in module.occurring_values()]
        return SwapScores(
            real=float(counts[1] / counts[0]),
            swapped=float(counts[2] / counts[0]),
            chance=sum(chances) / len(chances),
            kept=float(counts[3] / counts[0]),
            returned=float(pairs.trace()),
            coincidence=float(pairs.sum(0) @ pairs.sum(1)),
        )


def predictions(module: SwappingModule, x: Tensor) -> Tensor:
    """Values of all attributes (B, Q) that the networks predict for x itself."""
    z = module.encoder(x)
    return torch.stack([predictor(z[:, q]).argmax(1) for q, predictor in enumerate(module.predictors)], dim=1)


def verdict(metrics: Mapping[str, float]) -> str:
    """The gate's line."""
    decided = "accepted" if metrics["gate/accepted"] else "refused, training goes on without counterfactuals"
    return (
        f"Swap gate: {decided}. Real samples show their other attributes in {metrics['gate/a2_real']:.1%}, swapped "
        f"ones the new ones in {metrics['gate/a2_swapped']:.1%} (obedience {metrics['gate/obedience']:.2f}, at least "
        f"{SMALLEST_OBEDIENCE}); a_1 is predicted as before in {metrics['gate/a1_returned']:.1%} after the way back "
        f"(survival {metrics['gate/survival']:.2f}, at least {SMALLEST_SURVIVAL})."
    )
