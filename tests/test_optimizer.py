"""Our Adam is torch's, with less around it."""

from __future__ import annotations

import copy

import torch
from torch import nn
from torch.optim import Adam

from codid_lightning.optimizer import FusedAdam

BETAS = (0.5, 0.99)


def twins() -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(0)
    one = nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 3))
    return one, copy.deepcopy(one)


def advance(network: nn.Module, optimizer: torch.optim.Optimizer, updates: range) -> None:
    """Steps down random losses; every third one leaves the first layer without a gradient."""
    for update in updates:
        x = torch.randn(11, 5, generator=torch.Generator().manual_seed(update))
        hidden = network[0](x).detach() if update % 3 == 1 else network[0](x)
        optimizer.zero_grad()
        network[2](hidden.relu()).square().sum().backward()
        optimizer.step()


def test_numbers_and_state_are_those_of_torch():
    mine, theirs = twins()
    own, reference = FusedAdam(mine.parameters(), 1e-2, BETAS), Adam(theirs.parameters(), 1e-2, BETAS, fused=True)
    advance(mine, own, range(20))
    advance(theirs, reference, range(20))
    for p, q in zip(mine.parameters(), theirs.parameters(), strict=True):
        assert torch.equal(p, q)
        assert own.state[p].keys() == reference.state[q].keys()
        assert all(torch.equal(value, reference.state[q][name]) for name, value in own.state[p].items())


def test_goes_on_from_a_state_and_after_losing_it():
    mine, theirs = twins()
    first = FusedAdam(theirs.parameters(), 1e-2)
    advance(theirs, first, range(10))
    mine.load_state_dict(theirs.state_dict())
    own, reference = FusedAdam(mine.parameters(), 1e-2), Adam(theirs.parameters(), 1e-2, fused=True)
    own.load_state_dict(copy.deepcopy(first.state_dict()))
    reference.load_state_dict(copy.deepcopy(first.state_dict()))
    own.param_groups[0]["lr"] = reference.param_groups[0]["lr"] = 1e-3
    for optimizer, network in ((own, mine), (reference, theirs)):
        advance(network, optimizer, range(10, 15))
        optimizer.state.pop(network[0].weight)  # as heads do that start again
        advance(network, optimizer, range(15, 20))
    assert all(torch.equal(p, q) for p, q in zip(mine.parameters(), theirs.parameters(), strict=True))


def test_returns_what_a_closure_does():
    network, _ = twins()
    optimizer = FusedAdam(network.parameters(), 1e-2)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = network(torch.ones(2, 5)).square().sum()
        loss.backward()
        return loss

    losses = [float(optimizer.step(closure)) for _ in range(20)]
    assert losses[-1] < losses[0]
