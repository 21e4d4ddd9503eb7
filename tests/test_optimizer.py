"""`FusedAdam` gives the same numbers as torch's Adam, directly or through torch's own step."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import Adam
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.profiler import profile

from codid_lightning.methods import stepping
from codid_lightning.nn import adam
from codid_lightning.nn.adam import DirectFusedAdam, FusedAdam

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


@pytest.fixture
def fresh_trial() -> Iterator[None]:
    """The trial runs again in the test and after it."""
    adam.direct_step_works.cache_clear()
    yield
    adam.direct_step_works.cache_clear()


def test_this_torch_allows_direct_steps(fresh_trial):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert type(FusedAdam(twins()[0].parameters(), 1e-2)) is DirectFusedAdam


class Changed:
    """A module in which one name, perhaps of a submodule, is gone or stands for something else."""

    def __init__(self, module: Any, path: str, replacement: Any = None) -> None:
        self.module, self.path, self.replacement = module, path, replacement

    def __getattr__(self, name: str) -> Any:
        if name == self.path and self.replacement is None:
            raise AttributeError(f"{name} is gone")
        if name == self.path:
            return self.replacement
        head, _, rest = self.path.partition(".")
        found = getattr(self.module, name)
        return Changed(found, rest, self.replacement) if name == head else found


def swapped_moments(parameters, gradients, first, second, *rest, **options):
    torch._fused_adam_(parameters, gradients, second, first, *rest, **options)


def unmarked_step(self, closure=None):
    return self._observed_update(closure) if self._is_observed() else self._update(closure)


def gone(*_):
    raise AttributeError("gone")


CHANGES = {
    "no kernel": (adam, "torch", Changed(torch, "_fused_adam_")),
    "other arguments of the kernel": (adam, "torch", Changed(torch, "_fused_adam_", lambda parameters: None)),
    "other order of the kernel's arguments": (adam, "torch", Changed(torch, "_fused_adam_", swapped_moments)),
    "other arguments of _init_group": (DirectFusedAdam, "_init_group", lambda self, group: None),
    "no global pre hooks": (adam, "optimizer", Changed(adam.optimizer, "_global_optimizer_pre_hooks")),
    "no global post hooks": (adam, "optimizer", Changed(adam.optimizer, "_global_optimizer_post_hooks")),
    "no flag of the profiler": (adam, "torch", Changed(torch, "autograd.profiler._is_profiler_enabled")),
    "no base of a view": (torch.Tensor, "_base", property(gone)),
    "steps are always wrapped": (DirectFusedAdam, "step", unmarked_step),
}


@pytest.mark.parametrize("change", CHANGES)
def test_torchs_own_step_is_used_if_its_internals_have_changed(fresh_trial, monkeypatch, change):
    monkeypatch.setattr(*CHANGES[change])
    mine, theirs = twins()
    with pytest.warns(UserWarning, match="slower"):
        own = FusedAdam(mine.parameters(), 1e-2, BETAS)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # there is one warning for all optimizers
        FusedAdam(mine.parameters(), 1e-2)
    assert type(own) is FusedAdam
    reference = Adam(theirs.parameters(), 1e-2, BETAS, fused=True)
    advance(mine, own, range(10))
    advance(theirs, reference, range(10))
    assert all(torch.equal(p, q) for p, q in zip(mine.parameters(), theirs.parameters(), strict=True))


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


def test_saved_state_serves_torch(tmp_path):
    mine, theirs = twins()
    own, reference = FusedAdam(mine.parameters(), 1e-2), Adam(theirs.parameters(), 1e-2, fused=True)
    advance(mine, own, range(6))
    advance(theirs, reference, range(3))
    torch.save(own.state_dict(), tmp_path / "own.pt")
    reference.load_state_dict(torch.load(tmp_path / "own.pt", weights_only=True))
    theirs.load_state_dict(mine.state_dict())
    own.load_state_dict(torch.load(tmp_path / "own.pt", weights_only=True))
    advance(mine, own, range(6, 12))
    advance(theirs, reference, range(6, 12))
    assert all(torch.equal(p, q) for p, q in zip(mine.parameters(), theirs.parameters(), strict=True))
    assert [float(state["step"]) for state in own.state.values()] == [8, 8, 12, 12]


def test_hooks_are_called_as_long_as_they_are_there():
    network, _ = twins()
    optimizer = FusedAdam(network.parameters(), 1e-2)
    calls: list[str] = []
    register = {
        "pre": optimizer.register_step_pre_hook,
        "post": optimizer.register_step_post_hook,
        "global pre": register_optimizer_step_pre_hook,
        "global post": register_optimizer_step_post_hook,
    }
    for name, add in register.items():
        handle = add(lambda *_, name=name: calls.append(name))
        advance(network, optimizer, range(1))
        handle.remove()
        advance(network, optimizer, range(1))
    assert calls == list(register)
    assert all(state["step"] == 8 for state in optimizer.state.values()), "one update a step, with hooks or without"


def test_a_profiler_sees_the_steps():
    network, _ = twins()
    optimizer = FusedAdam(network.parameters(), 1e-2)
    with profile() as seen:
        advance(network, optimizer, range(2))
    assert [e.count for e in seen.key_averages() if e.key == "Optimizer.step#DirectFusedAdam.step"] == [2]


def test_a_scheduler_finds_the_steps_taken():
    network, _ = twins()
    optimizer = FusedAdam(network.parameters(), 1e-2)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # torch warns of a scheduler that steps before its optimizer
        for update in range(3):
            advance(network, optimizer, range(update, update + 1))
            scheduler.step()
    assert optimizer.param_groups[0]["lr"] == 1e-2 / 8


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


def test_parameters_that_were_transposed_take_the_steps_of_plain_adam():
    """Their gradients have other strides, which a fused kernel does not look at."""
    start = torch.randn(3, 2, 5, generator=torch.Generator().manual_seed(0))
    x = torch.randn(7, 5, generator=torch.Generator().manual_seed(1))
    ours, plain = nn.Parameter(start.clone()), nn.Parameter(start.clone())
    optimizers = FusedAdam([ours], lr=0.1), Adam([plain], lr=0.1, foreach=False, fused=False)
    for _ in range(3):
        for parameter, optimizer in zip((ours, plain), optimizers, strict=True):
            outputs = x @ parameter.transpose(0, 1).flatten(0, 1).T
            loss = (outputs - torch.arange(6.0)).square().mean()
            (gradient,) = torch.autograd.grad(loss, [parameter])
            assert gradient.stride() != parameter.stride()
            stepping.step(optimizer, [parameter], [gradient], reduce=False)
    assert torch.allclose(ours, plain, atol=1e-6)
