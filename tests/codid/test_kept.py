"""What a target keeps by sample: little, and the cluster probabilities as they were found."""

from __future__ import annotations

import torch

from codid_lightning import CoDID
from codid_lightning.clustering import DPGMM, ModesPerValue
from tests.codid.tiny import SETTINGS, bench, random_batch, random_clusters


def test_mode_losses_are_divergences_over_all_slots():
    torch.manual_seed(0)
    module = CoDID((2,), (3, 2), **{**SETTINGS, "max_clusters": 6}).double()
    batch = random_batch(module, 30, shape=(2,))
    bench(module, batch["a"])
    target = module.target_list[0]
    found, radius = random_clusters(target, batch["a"], seed=3)
    found.active[0, 2:] = False  # fewer clusters under one value than under the others
    found.probs[batch["a"][:, 0] == 0, 2:] = 0
    found.probs[:] /= found.probs.sum(1, keepdim=True)
    found.labels[:] = batch["a"][:, 0] * 6 + found.probs.argmax(1)
    target.adopt(found, radius, [], reset=False)
    z = torch.randn(30, 4, dtype=torch.float64)
    divergence, cross_entropy = target.mode_losses(z, batch["index"])
    logits = z @ target.mode_predictor.weight.T + target.mode_predictor.bias
    logits[:, ~found.active.flatten()] = -torch.inf
    predicted = torch.distributions.Categorical(logits=logits)
    for i, value in enumerate(batch["a"][:, 0].tolist()):
        held = {value * 6 + k: p for k, p in enumerate(found.probs[i].tolist()) if p > 0}
        expected = -sum(p * float(predicted.logits[i, slot]) for slot, p in held.items())
        entropy = -sum(p * torch.tensor(p).log().item() for p in held.values())
        torch.testing.assert_close(float(cross_entropy[i]), expected)
        torch.testing.assert_close(float(divergence[i]), expected - entropy, rtol=1e-6, atol=1e-9)


def test_sixteen_bytes_per_sample_and_cluster_are_enough():
    torch.manual_seed(0)
    samples, clusters = 4000, 4
    module = CoDID((2,), (2, 2), **{**SETTINGS, "max_clusters": 16})
    batch = random_batch(module, samples, shape=(2,))
    bench(module, batch["a"])
    target = module.target_list[0]
    centres = 8 * torch.randn(2 * clusters, 4)
    value = batch["a"][:, 0]
    z = centres[value * clusters + torch.arange(samples) % clusters] + torch.randn(samples, 4)
    modes = ModesPerValue(DPGMM(max_rounds=0), [clusters, clusters], 16)
    target.adopt(modes.fit(z, value), torch.ones(2, 16), [], reset=False)
    kept = [t for t in target.get_extra_state().values() if len(t) == samples]
    for value_, clusterer in enumerate(modes.clusterers):
        own = int((value == value_).sum())
        kept += [t for t in clusterer.state_dict().values() if isinstance(t, torch.Tensor) and t.shape[:1] == (own,)]
    assert len(kept) > 2
    assert sum(t.nbytes for t in kept) <= 16 * clusters * samples
