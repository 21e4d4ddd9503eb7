"""What the last epochs and model selection look at: settled learning rates, cells of clusters."""

from __future__ import annotations

import pytest
import torch
from lightning.pytorch.callbacks import Callback

from codid_lightning import Base, CoDID
from codid_lightning.methods.baselines import MI
from codid_lightning.methods.codid.parts.alignments import DiscriminatorAlignment
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
    extra = {"alignment": DiscriminatorAlignment(encoder_lr=0.5), "max_clusters": 4} if cls is CoDID else {}
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


def test_validation_cells_are_those_of_clusters_and_other_attributes():
    data = tiny_data(samples_per_mode=300)
    module = fitted(2, data, discovery={"n_clusters": 2})
    module.eval()
    samples = data.datasets["val"]
    batch = samples[torch.arange(len(samples))]
    with torch.no_grad():
        z = module(batch["x"])
        predicted = module.predictors[0](z[:, 0]).argmax(1)
        logits = z[:, 0] @ module.target_list[0].mode_predictor.weight.T + module.target_list[0].mode_predictor.bias
    a, active, slots = batch["a"], module.target_list[0].active, module.max_clusters
    accuracies = []
    clusters = [max((float(logit[v * slots + k]), v * slots + k) for k in range(slots) if active[v, k])[1]
                for logit, v in zip(logits, a[:, 0].tolist(), strict=True)]  # fmt: skip
    for cell in set(zip(clusters, a[:, 1].tolist(), strict=True)):
        here = [i for i in range(len(a)) if (clusters[i], int(a[i, 1])) == cell]
        if len(here) >= 10:
            accuracies.append(float((predicted[here] == a[here, 0]).float().mean()))
    assert len(accuracies) > 4  # more than there are cells of (a_1, a_2)
    metrics = module.trainer.callback_metrics
    assert float(metrics["val/worst_acc"]) == pytest.approx(min(accuracies))
    assert float(metrics["val/balanced_acc"]) == pytest.approx(sum(accuracies) / len(accuracies))


def test_without_a_trained_mode_predictor_cells_are_of_values():
    module = fitted(2, mode_loss=None)
    assert module.groups(torch.zeros(3, 2, 4), torch.tensor([[1, 0], [0, 1], [1, 1]])).tolist() == [1, 0, 1]
    assert len(module.cells.counts) == 4
