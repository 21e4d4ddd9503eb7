"""The gate before training on decoded samples: does the autoencoder change the other attributes and nothing else?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from torch import Tensor

from codid_lightning.methods.hardware import to_module
from codid_lightning.nn import distributed

if TYPE_CHECKING:
    from codid_lightning.methods.codid.module import CoDID
    from codid_lightning.methods.codid.parts.decoding import Counterfactuals

MIN_OBEDIENCE = 0.8  # share of the other attributes' visibility in real samples that swapped samples must have
MIN_SURVIVAL = 0.6  # agreement of the predictions of a_1 before and after a round trip, beyond chance


@dataclass(frozen=True)
class SwapScores:
    """How classifiers trained on real data predict swapped validation data, as shares of samples.

    With several other attributes `real`, `swapped` and `chance` are means over them.
    """

    real: float  # real samples whose other attributes are recognised
    swapped: float  # swapped samples whose *new* other attributes are recognised
    chance: float  # what guessing new values uniformly would reach
    kept: float  # swapped samples with the prediction of a_1 they had
    returned: float  # samples swapped and swapped back with the prediction of a_1 they had
    coincidence: float  # what `returned` would be if the two predictions were independent

    @property
    def obedience(self) -> float:
        """How often the new values of swapped samples are recognised: 0 is chance, 1 as often as for real samples."""
        return _beyond(self.swapped, self.chance, self.real)

    @property
    def survival(self) -> float:
        """How often the prediction of a_1 is the same after the round trip: 0 is chance, 1 always (Cohen's kappa)."""
        return _beyond(self.returned, self.coincidence, 1.0)

    @property
    def accepted(self) -> bool:
        """Whether both scores are high enough."""
        return self.obedience >= MIN_OBEDIENCE and self.survival >= MIN_SURVIVAL

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
    """Position of a share between chance (0) and the best possible share (1); 0 if the two are equal."""
    return (share - chance) / (best - chance) if best > chance else 0.0


class SwapGate(Callback):
    """Decides once, on validation data and without mode labels, whether to train on decoded samples.

    It uses classifiers that were trained on real samples only: the method's own after `model.decoding.epochs`.
    *Obedience*: do swapped samples show the new values of the other attributes? A decoder that ignores its condition
    fails. *Survival*: is a_1 predicted as before after a sample was swapped and swapped back? A decoder that draws all
    samples alike fails. The way back matters: a classifier that relies on the other attributes, which is what decoded
    samples should cure, changes its prediction on swapped samples however good the swap is (`gate/a1_kept` shows it and
    decides nothing). The result is logged as `gate/...`, printed, and kept in the checkpoint.
    """

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Decide before the first batch that would use decoded samples."""
        module: CoDID = pl_module  # type: ignore[assignment]
        swaps: Counterfactuals = module.counterfactuals  # type: ignore[assignment]
        if swaps.judged or trainer.current_epoch < swaps.settings.epochs:
            return
        if swaps.combinations() < 2:
            swaps.gate_metrics = {"gate/accepted": 0.0}
            module.print("Swap gate: rejected, the other attributes have a single value in training.")
            return
        swaps.gate_metrics = self.measure(trainer, module, swaps).metrics()
        module.print(verdict(swaps.gate_metrics))

    @torch.no_grad()
    def measure(self, trainer: Trainer, module: CoDID, swaps: Counterfactuals) -> SwapScores:
        """Scores of the validation set, each rank counting its share."""
        training = module.training
        module.eval()
        loader = trainer.datamodule.val_dataloader()  # type: ignore[attr-defined]
        # Drawn by position in the set: the verdict does not depend on the number of ranks.
        generator = torch.Generator().manual_seed(module.step_seed(-2))
        offsets = torch.randint(1, swaps.combinations(), (len(loader.dataset),), generator=generator).to(module.device)
        first = module.attribute_sizes[0]
        counts = torch.zeros(4, dtype=torch.float64, device=module.device)  # samples, recognised real and new, kept
        pairs = torch.zeros(first, first, dtype=torch.float64, device=module.device)  # predictions before, after
        for batch in loader:
            batch = to_module(trainer, module, batch)
            old, new = batch["a"][:, 1:], swaps.others_than(batch["a"], offsets[batch["index"]])
            there = swaps.swap(batch["x"], new)
            before, swapped, back = (predictions(module, x) for x in (batch["x"], there, swaps.swap(there, old)))
            right, obeyed = (p[:, 1:] == a for p, a in ((before, old), (swapped, new)))
            kept = before[:, :1] == swapped[:, :1]
            counts[0] += len(new)
            counts[1:] += torch.stack([r.double().mean(1).sum() for r in (right, obeyed, kept)])
            pairs += (before[:, 0] * first + back[:, 0]).bincount(minlength=first**2).view(first, first)
        module.train(training)
        counts, pairs = distributed.average([counts, pairs])
        pairs = pairs / pairs.sum()
        chances = [1 / len(values) for values in swaps.occurring_values()]
        return SwapScores(
            real=float(counts[1] / counts[0]),
            swapped=float(counts[2] / counts[0]),
            chance=sum(chances) / len(chances),
            kept=float(counts[3] / counts[0]),
            returned=float(pairs.trace()),
            coincidence=float(pairs.sum(0) @ pairs.sum(1)),
        )


def predictions(module: CoDID, x: Tensor) -> Tensor:
    """Values of all attributes (B, Q) that the networks predict for x itself."""
    z = module.encoder(x)
    return torch.stack([predictor(z[:, q]).argmax(1) for q, predictor in enumerate(module.predictors)], dim=1)


def verdict(metrics: Mapping[str, float]) -> str:
    """The decision in one line."""
    decided = "accepted" if metrics["gate/accepted"] else "rejected, training continues on real samples"
    return (
        f"Swap gate: {decided}. Classifiers recognise the other attributes of {metrics['gate/a2_real']:.1%} of real "
        f"samples and the new ones of {metrics['gate/a2_swapped']:.1%} of swapped samples (obedience "
        f"{metrics['gate/obedience']:.2f}, at least {MIN_OBEDIENCE}). They predict a_1 as before for "
        f"{metrics['gate/a1_returned']:.1%} of samples that were swapped and swapped back (survival "
        f"{metrics['gate/survival']:.2f}, at least {MIN_SURVIVAL})."
    )
