"""The meta-gradient against finite differences, against a second derivation, and on the figure of the paper."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from codid_lightning import CoDID
from codid_lightning.methods.codid.discovery import ModeDiscovery
from codid_lightning.methods.codid.parts.alignments import DiscriminatorAlignment, Encoding, ShuffledPairs
from codid_lightning.methods.codid.parts.weights import LearnedWeights
from codid_lightning.methods.codid.target import View
from codid_lightning.nn.statistics import frozen_running_stats
from codid_lightning.nn.virtual import EncoderPass
from datamodules.base import Batch
from datamodules.toy import ToyFourAttributes
from tests.codid.oracle import logits, total_discrimination_loss
from tests.codid.tiny import bench, gradients_of, random_batch, tiny_codid, tiny_data


def prepared(**changes) -> tuple[CoDID, Batch, Encoding, list[View], list[ShuffledPairs]]:
    data = ToyFourAttributes() if "targets" in changes else tiny_data()
    alignment = {"weights": {"step": 0.3, **changes.pop("weights", {})}, **changes.pop("alignment", {})}
    module = tiny_codid(data, discovery={"n_clusters": 2}, alignment=alignment, **changes).double()
    batch = random_batch(module, 24, shape=data.input_shape)
    bench(module, batch["a"])
    with frozen_running_stats(module.encoder):
        encoding = module.encode(batch["x"])
        views = module.views(encoding.z, batch)
        for _ in range(5):
            module.alignment.discriminate(module, views)  # away from D = 1/2, where weights make no difference
        return module, batch, encoding, views, module.alignment.shuffled_pairs(module, views)


def weight_parameters(module: CoDID) -> dict[str, nn.Parameter]:
    return {name: p for name, p in module.named_parameters() if ".weight_net." in name}


def meta_loss_after_update(module: CoDID, batch: Batch, pairs: list[ShuffledPairs]) -> float:
    """L_meta once the encoder really took the virtual step."""
    with frozen_running_stats(module.encoder):
        views = module.views(module(batch["x"]), batch)
        loss = total_discrimination_loss(module, views, pairs, module.alignment.pair_weights(module, views, pairs))
        parameters = list(module.encoder.parameters())
        for parameter, gradient in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
            parameter.data -= module.alignment.weights.virtual_step(module) * gradient
        return module.alignment.weights.meta_loss(module, module(batch["x"]), batch).item()


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"weights": {"direction": "ascend", "scale": "none"}},
        {"alignment": {"sharing": "mode"}, "weights": {"reconstruction": 0.0}},
        {"targets": [0, 1, 2], "moded": [0, 1]},
    ],
    ids=["as written", "ascending", "discriminator per mode", "three targets"],
)
def test_meta_gradient_equals_finite_differences_through_the_virtual_update(changes):
    module, batch, encoding, views, pairs = prepared(**changes)
    with frozen_running_stats(module.encoder):
        received = gradients_of(module, lambda: module.alignment.weigh(module, batch, encoding, views, pairs))
    assert set(received) == set(weight_parameters(module))
    generator = torch.Generator().manual_seed(1)
    for _ in range(4):
        direction = {n: torch.randn(g.shape, generator=generator, dtype=g.dtype) for n, g in received.items()}
        ends = []
        for step in (1e-6, -1e-6):  # small enough to meet no kink of the networks, large enough for eight digits
            nudged = copy.deepcopy(module)
            for name, parameter in weight_parameters(nudged).items():
                parameter.data += step * direction[name]
            ends.append(meta_loss_after_update(nudged, batch, pairs))
        slope = sum(float((received[name] * direction[name]).sum()) for name in received)
        assert slope == pytest.approx((ends[0] - ends[1]) / 2e-6, rel=1e-6)


def test_meta_gradient_is_an_inner_product_of_per_sample_gradients():
    """dL_meta / dw_i = -(beta / n) <grad of pair i's loss, grad of L_meta at the moved encoder>."""
    module, batch, encoding, views, pairs = prepared(weights={"scale": "none"})
    target, (view,), (marginals,) = module.target_list[0], views, pairs
    beta = module.alignment.weights.virtual_step(module)
    with frozen_running_stats(module.encoder):
        received = gradients_of(module, lambda: module.alignment.weigh(module, batch, encoding, views, pairs))
        (weights,) = module.alignment.pair_weights(module, views, pairs)
        parameters = list(module.encoder.parameters())
        (fresh,) = module.views(module(batch["x"]), batch)  # a pass of its own, differentiated sample by sample
        pair_losses = F.softplus(logits(module, target, fresh.own, fresh.rest[marginals.permutation], fresh))
        per_sample = [torch.autograd.grad(loss, parameters, retain_graph=True) for loss in pair_losses]
        whole = torch.autograd.grad(total_discrimination_loss(module, [fresh], pairs, [weights.detach()]), parameters)
        moved = copy.deepcopy(module)
        for parameter, gradient in zip(moved.encoder.parameters(), whole, strict=True):
            parameter.data -= beta * gradient
        loss = moved.alignment.weights.meta_loss(moved, moved(batch["x"]), batch)
        pull = torch.autograd.grad(loss, list(moved.encoder.parameters()))
    inner = torch.stack([sum((g * p).sum() for g, p in zip(gs, pull, strict=True)) for gs in per_sample])
    by_weight = -beta * inner * view.partnered / view.count
    names, own = zip(*weight_parameters(module).items(), strict=True)
    for name, gradient in zip(names, torch.autograd.grad(weights @ by_weight, own), strict=True):
        torch.testing.assert_close(received[name], gradient, rtol=1e-10, atol=1e-14)


class Part(nn.Linear):
    """The indicators in some columns of x, as they are."""

    def __init__(self, low: int, high: int) -> None:
        super().__init__(high - low, 4, bias=False)
        self.low, self.high = low, high
        with torch.no_grad():
            self.weight.copy_(torch.eye(4, high - low))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x[:, self.low : self.high])


class Ideal(nn.Module):
    """z_1 is the mode, z_2 the other attribute: x holds both as indicators, each representation sees its own."""

    def __init__(self) -> None:
        super().__init__()
        self.subnetworks = nn.ModuleList([Part(0, 4), Part(4, 6)])

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([subnetwork(x) for subnetwork in self.subnetworks], dim=1)


def figure_batch(seed: int, size: int = 512) -> tuple[Batch, Tensor, Tensor]:
    """Under each value two modes in one cluster; modes are even, a_2 follows them with 75 %."""
    generator = torch.Generator().manual_seed(seed)
    mode = torch.randint(4, (size,), generator=generator)
    a2 = torch.where(torch.rand(size, generator=generator) < 0.75, mode % 2, 1 - mode % 2)
    x = torch.cat([F.one_hot(mode, 4), F.one_hot(a2, 2)], dim=1).float()
    a = torch.stack([mode // 2, a2], dim=1)
    return Batch(x=x, a=a, mode=torch.stack([mode, mode], 1), index=torch.arange(size)), mode, a2


@pytest.mark.parametrize(
    ("discriminator_steps", "weigh_steps", "expected"),
    [(5, 400, (0.5, 1.5)), (20, 150, None), (100, 150, (1.0, 1.0))],
    ids=["discriminator at 1/2", "on its way", "trained"],
)
def test_weights_of_the_figure(discriminator_steps, weigh_steps, expected):
    """p(m_1, a_2) = 12.5, 37.5, 37.5, 12.5 % in a cluster: pairs weigh 1.5 or 0.5 while D is at 1/2.

    In ideal, frozen representations L_meta is least where the virtual update leaves every mode in its place. Per sample
    of a mode, pairs with the likely a_2 pull by -3/4 (1 - s) of joint and +1/2 w s of marginal pairs, where s is D's
    output there, those with the unlikely one by -1/4 (1 - s) and +1/2 w s the other way; w averages to one. So w is
    p(joint) / p(marginal) for s = 1/2. D is trained with w = 1; the better it knows the densities itself, the less is
    left for the weights, and nothing at its optimum.
    """
    torch.manual_seed(0)
    alignment = DiscriminatorAlignment(lr=1e-3, steps=1, weights=LearnedWeights(lr=3e-2, step=10.0))
    discovery = ModeDiscovery(n_clusters=1)
    module = CoDID((6,), (2, 2), latent_dim=4, max_clusters=1, discovery=discovery, alignment=alignment)
    module.encoder, module.decoder.network = Ideal(), nn.Linear(8, 6)
    heads = torch.optim.Adam([*module.predictors.parameters(), *module.decoder.parameters()], lr=3e-2)
    for step in range(300):
        batch, _, _ = figure_batch(step)
        heads.zero_grad()
        module.informative_loss(module(batch["x"]), batch).backward()
        heads.step()
    target = bench(module, batch["a"]).target_list[0]
    learned = []
    for step in range(discriminator_steps + weigh_steps):
        batch, mode, a2 = figure_batch(1000 + step)
        target.labels, target.probs, target.starts = (
            batch["a"][:, 0].int(),
            torch.ones(len(mode)),
            2 * torch.arange(len(mode)),  # twice where they begin
        )
        encoding = EncoderPass(module.encoder, batch["x"])
        views = module.views(encoding.z, batch)
        if step < discriminator_steps:
            alignment.discriminate(module, views)
            continue
        pairs = alignment.shuffled_pairs(module, views)
        alignment.weigh(module, batch, encoding, views, pairs)
        weights = alignment.pair_weights(module, views, pairs)[0].detach()
        matching = a2[pairs[0].permutation] == mode % 2
        learned.append(torch.stack([weights[~matching].mean(), weights[matching].mean()]))
    rest = views[0].rest[pairs[0].permutation]
    marginal = logits(module, target, views[0].own, rest, views[0]).detach().sigmoid()
    unlikely, likely = marginal[~matching].mean(), marginal[matching].mean()
    lead = (0.75 * (1 - likely) - 0.25 * (1 - unlikely) - 0.5 * likely + 0.5 * unlikely) / (0.5 * (likely + unlikely))
    found = torch.stack(learned[-50:]).mean(0)
    torch.testing.assert_close(found, torch.stack([1 - lead, 1 + lead]), atol=0.05, rtol=0)
    if expected is not None:
        torch.testing.assert_close(found, torch.tensor(expected), atol=0.07, rtol=0)
