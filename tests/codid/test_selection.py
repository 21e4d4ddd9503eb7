"""What the last epochs and model selection look at: settled learning rates, cells, epochs with clusters."""

from __future__ import annotations

import pytest
import torch
from lightning.pytorch.callbacks import Callback

from codid_lightning import Base, CoDID
from codid_lightning.methods.baselines import MI
from codid_lightning.methods.codid.parts.alignments import DiscriminatorAlignment
from codid_lightning.methods.codid.parts.decoding import DecodedSamples
from codid_lightning.training.callbacks.checkpoint import BestCheckpoint
from tests.codid.tiny import fitted, tiny_codid, tiny_data, tiny_trainer


class Rates(Callback):
    """Learning rates of all optimizers by epoch."""

    def __init__(self) -> None:
        self.seen: list[list[float]] = []

    def on_train_epoch_end(self, trainer, pl_module) -> None:
        self.seen.append([optimizer.param_groups[0]["lr"] for optimizer in trainer.optimizers])


@pytest.mark.parametrize("cls", [Base, MI, CoDID])
def test_the_encoders_rate_falls_linearly_and_only_the_encoders(cls):
    data, rates = tiny_data(), Rates()
    facts = (data.input_shape, data.attribute_sizes, data.test_names, data.test_attributes)
    names = ("input_shape", "attribute_sizes", "test_names", "test_attributes")
    extra = (
        {"alignment": DiscriminatorAlignment(encoder_lr=0.5), "max_clusters": 4, "moded": []} if cls is CoDID else {}
    )
    module = cls(**dict(zip(names, facts, strict=True)), latent_dim=4, lr=0.1, decay_from=0.5, **extra)
    tiny_trainer(8, callbacks=[rates]).fit(module, data)
    factors = [1, 1, 1, 1, 1, 0.75, 0.5, 0.25]
    moving = {module.optimizer_names.index(name) for name in ("inform", "disentangle")} if cls is CoDID else {0}
    for epoch, factor in zip(rates.seen, factors, strict=True):
        expected = [lr * (factor if i in moving else 1) for i, lr in enumerate(rates.seen[0])]
        assert epoch == pytest.approx(expected)


def test_a_share_of_the_epochs_is_asked_for():
    with pytest.raises(ValueError, match=r"model\.decay_from is 20.*from 0 to 1"):
        tiny_codid(tiny_data(), decay_from=20)


def test_without_momentum_opponents_rest_where_their_gradient_is_zero():
    data = tiny_data()
    module = fitted(2, data, alignment={"encoder_lr": 1e-3, "momentum": 0.0})
    momenta = {name: module.optimizer(name).param_groups[0]["betas"][0] for name in module.optimizer_names}
    assert momenta == {name: 0.0 if name in {"discriminator", "disentangle"} else 0.9 for name in momenta}
    discriminator = module.target_list[0].discriminator.weight
    before = discriminator.detach().clone()
    module.step(module.optimizer("discriminator"), [discriminator], [torch.zeros_like(discriminator)], reduce=False)
    assert torch.equal(discriminator, before)  # momentum would carry it on


def test_momentum_is_asked_for_below_one():
    with pytest.raises(ValueError, match=r"model\.alignment\.momentum is 1\.0.*below 1"):
        tiny_codid(tiny_data(), alignment={"momentum": 1.0})


class CellLog(Callback):
    """By epoch: `val/worst_acc` and `val/balanced_acc` as logged and as counted, and whether clusters existed."""

    def __init__(self) -> None:
        self.seen: list[tuple[bool, tuple[float, float], tuple[float, float]]] = []

    def on_validation_end(self, trainer, pl_module) -> None:
        logged = trainer.callback_metrics
        found = (float(logged["val/worst_acc"]), float(logged["val/balanced_acc"]))
        self.seen.append((pl_module.selectable(), found, counted(pl_module, trainer.datamodule)))


def counted(module: CoDID, data) -> tuple[float, float]:
    """The worst and the mean accuracy of a_1 in the cells (a_1, a_2) of the validation set."""
    batch = data.datasets["val"][torch.arange(len(data.datasets["val"]))]
    right = module.predictors[0](module(batch["x"])[:, 0]).argmax(1) == batch["a"][:, 0]
    cells = batch["a"][:, 0] * 10 + batch["a"][:, 1]
    assert min(int((cells == cell).sum()) for cell in cells.unique()) >= 10  # none is pooled
    accuracies = [float(right[cells == cell].float().mean()) for cell in cells.unique()]
    return min(accuracies), sum(accuracies) / len(accuracies)


def test_validation_cells_are_those_of_attributes_before_and_after_clusters_exist():
    data, log = tiny_data(samples_per_mode=300), CellLog()
    module = tiny_codid(data, discovery={"start": 2})
    tiny_trainer(4, callbacks=[log]).fit(module, data)
    assert [ready for ready, _, _ in log.seen] == [False, False, True, True]
    for _, logged, expected in log.seen:
        assert logged == pytest.approx(expected)


def test_without_modes_every_epoch_can_be_selected():
    data = tiny_data()
    assert tiny_codid(data, moded=[]).selectable()
    assert not tiny_codid(data).selectable()
    assert Base(**data.facts).selectable()


def test_where_samples_are_decoded_the_gate_must_have_decided():
    module = tiny_codid(tiny_data(), moded=[], decoding=DecodedSamples())
    assert not module.selectable()
    module.counterfactuals.gate_metrics = {"gate/accepted": 0.0}
    assert module.selectable()


def test_the_best_epoch_is_one_with_clusters(tmp_path):
    data = tiny_data(samples_per_mode=300)
    module = tiny_codid(data, discovery={"start": 2})
    chosen = BestCheckpoint(tmp_path, "val/acc")
    falling = FallingAccuracy()
    tiny_trainer(4, callbacks=[falling, chosen], enable_checkpointing=True).fit(module, data)
    assert torch.load(chosen.best_model_path, weights_only=True)["epoch"] == 2


class FallingAccuracy(Callback):
    """The first epoch has the best validation accuracy, each later one a lower one."""

    def on_validation_epoch_end(self, trainer, pl_module) -> None:
        pl_module.log("val/acc", 1 - 0.1 * trainer.current_epoch)
