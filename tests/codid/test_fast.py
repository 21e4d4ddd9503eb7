"""The closed forms give what automatic differentiation gives."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.profiler import ProfilerActivity, profile

from codid_lightning import CoDID
from codid_lightning.nn import virtual
from codid_lightning.nn.statistics import frozen_running_stats
from codid_lightning.nn.virtual import EncoderPass, KernelPass
from tests.codid.oracle import ExactAlignment, ExactCoDID, logits
from tests.codid.tiny import arguments, bench, gradients_of, random_batch

STEPS = ("subcluster", "discriminate", "weigh", "disentangle")


def make(
    sizes: tuple[int, ...], shape: tuple[int, ...], batch: int, dtype: torch.dtype, exact: bool = False, **changes: Any
) -> CoDID:
    torch.manual_seed(0)
    given = arguments(**{"discovery": {"n_clusters": 2}, **changes})
    if exact:
        given["alignment"] = ExactAlignment(**vars(given["alignment"]))
    module = (ExactCoDID if exact else CoDID)(shape, sizes, **given).to(dtype)
    return bench(module, random_batch(module, batch, shape=shape)["a"])


def gradients(module: CoDID, batch: int, shape: tuple[int, ...]) -> dict[str, dict[str, torch.Tensor]]:
    """What the optimizers receive in each step, each from the same parameters."""
    samples = random_batch(module, batch, shape=shape)
    found = {}
    for step in STEPS:
        module.generator = torch.Generator().manual_seed(1)
        with frozen_running_stats(module.encoder):
            encoding = module.encode(samples["x"])
            views = module.views(encoding.z, samples)
            pairs = module.alignment.shuffled_pairs(module, views)
            work, inputs = {
                "subcluster": (module.splits.step, (views,)),
                "discriminate": (module.alignment.discriminate, (views,)),
                "weigh": (module.alignment.weigh, (samples, encoding, views, pairs)),
                "disentangle": (module.alignment.disentangle, (encoding, views, pairs)),
            }[step]
            found[step] = gradients_of(module, lambda work=work, inputs=inputs: work(module, *inputs))
    return found


def assert_alike(settings_: dict[str, Any], sizes: tuple[int, ...], batch: int, dtype: torch.dtype) -> None:
    shape = settings_.pop("shape", (2,))
    fast = gradients(make(sizes, shape, batch, dtype, **settings_), batch, shape)
    plain = gradients(make(sizes, shape, batch, dtype, exact=True, **settings_), batch, shape)
    tolerance = 1e-10 if dtype == torch.float64 else 1e-5
    for step in STEPS:
        assert fast[step].keys() == plain[step].keys()
        assert fast[step], step
        for name, theirs in plain[step].items():
            mine = fast[step][name]
            scale = max(float(theirs.abs().max()), 1e-3)
            assert float((mine - theirs).abs().max()) <= tolerance * max(scale, 1), (step, name)


@settings(max_examples=25, deadline=None)
@given(
    sizes=st.lists(st.integers(2, 4), min_size=2, max_size=3),
    clusters=st.integers(1, 4),
    latent=st.integers(1, 6),
    batch=st.integers(2, 40),
    sharing=st.sampled_from(["value", "mode", "all"]),
    scale=st.sampled_from(["cluster", "none"]),
    single=st.booleans(),
)
def test_equal_on_random_networks(sizes, clusters, latent, batch, sharing, scale, single):
    dtype = torch.float32 if single else torch.float64
    alignment = {"sharing": sharing, "weights": {"scale": scale}}
    changes = {"latent_dim": latent, "max_clusters": clusters + 1, "alignment": alignment}
    assert_alike(changes, tuple(sizes), batch, dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_equal_with_several_targets(dtype):
    assert_alike({"targets": [0, 1, 2], "moded": [0, 2]}, (2, 3, 2), 30, dtype)


def test_equal_with_a_convolutional_encoder():
    assert_alike({"backbone": "har", "shape": (3, 64), "latent_dim": 8}, (2, 3), 12, torch.float64)


@pytest.mark.parametrize(("cls", "largest"), [(EncoderPass, 0), (KernelPass, 12), (KernelPass, 11)])
def test_a_pass_moves_as_its_parameters_do(cls, largest, monkeypatch):
    """Against the real thing: change the parameters by the gradients and encode again."""
    module = make((2, 2), (5,), 12, torch.float64)
    samples = random_batch(module, 12, shape=(5,))
    monkeypatch.setattr(virtual, "MAX_KERNEL", largest)
    with frozen_running_stats(module.encoder):
        passed = cls(module.encoder, samples["x"])
        slope = torch.randn(passed.z.shape, dtype=torch.float64)
        moved = passed.moved(slope, 0.1)
        with torch.no_grad():
            for parameter, gradient in zip(passed.parameters, passed.gradients(slope), strict=True):
                parameter -= 0.1 * gradient
        torch.testing.assert_close(moved, module.encoder(samples["x"]), rtol=1e-10, atol=1e-12)


def test_a_step_waits_for_the_device_once_per_target():
    """Reading a number or a data-dependent shape stops a GPU's queue; the layout of the batch needs it once."""
    module = make((2, 3), (2,), 30, torch.float32)
    samples = random_batch(module, 30, shape=(2,))
    module.training_step(samples, 0)
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        module.training_step(samples, 0)
    waits = {"aten::_local_scalar_dense", "aten::nonzero", "aten::_unique2", "aten::masked_select", "aten::bincount"}
    # Fused Adam reads its step counts on the CPU; on a GPU its kernel does.
    found = [event.name for event in profiler.events() if event.name in waits and not within(event, "Optimizer.step")]
    assert len(found) <= 2, found


def within(event: Any, name: str) -> bool:
    return event is not None and (name in event.name or within(event.cpu_parent, name))


@pytest.mark.parametrize("sharing", ["value", "mode", "all"])
def test_losses_of_all_pairs_are_those_of_every_pair_by_itself(sharing):
    module = make((2, 2), (2,), 30, torch.float64, alignment={"sharing": sharing})
    batch = random_batch(module, 30, shape=(2,))
    (target,), (view,) = module.target_list, module.views(torch.randn(30, 2, 4, dtype=torch.float64), batch)
    losses = module.alignment._all_pair_losses(target, view)
    row = view.table.position % view.table.shape[1]
    for k in range(30):
        alone = logits(module, target, view.own, view.rest[k].expand_as(view.rest), view)
        same = view.value == view.value[k]
        expected = torch.nn.functional.softplus(alone[same])
        torch.testing.assert_close(losses[view.value[k], row[same], row[k]], expected)
