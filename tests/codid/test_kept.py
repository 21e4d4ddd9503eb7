"""What a target keeps by sample: little, and the cluster probabilities as they were found."""

from __future__ import annotations

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from codid_lightning import CoDID
from codid_lightning.clustering import DPGMM, ModesPerValue, TrueModes
from tests.codid.tiny import arguments, bench, random_batch, random_clusters

TAKING_ROWS = {"aten::index", "aten::as_strided"}  # an index gives its table another stride, which touches nothing


def test_mode_losses_are_divergences_over_all_slots():
    torch.manual_seed(0)
    module = CoDID((2,), (3, 2), **arguments(max_clusters=6)).double()
    batch = random_batch(module, 30, shape=(2,))
    bench(module, batch["a"])
    target = module.target_list[0]
    found = random_clusters(target, batch["a"], seed=3)
    found.active[0, 2:] = False  # fewer clusters under one value than under the others
    found.probs[batch["a"][:, 0] == 0, 2:] = 0
    found.probs[:] /= found.probs.sum(1, keepdim=True)
    found.labels[:] = batch["a"][:, 0] * 6 + found.probs.argmax(1)
    z = torch.randn(30, 4, dtype=torch.float64)
    target.adopt(found, z, [], reset=False)
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


@pytest.mark.parametrize("counts", [(1, 1), (2, 2), (1, 12), (4, 5)])
@pytest.mark.parametrize("clusterer", [DPGMM(max_rounds=0), TrueModes()], ids=["found", "true"])
def test_sixteen_bytes_per_sample_and_cluster_of_its_value_are_enough(counts, clusterer):
    """After a fit and after a refinement: what the target, the mixtures and a checkpoint hold of every sample."""
    torch.manual_seed(0)
    samples = 3000
    module = CoDID((2,), (2, 2), **arguments(max_clusters=16))
    batch = random_batch(module, samples, shape=(2,))
    batch["a"][: samples // 2, 0] = 0  # three quarters have the value with fewer clusters
    bench(module, batch["a"])
    target, value = module.target_list[0], batch["a"][:, 0]
    mode = torch.arange(samples) % torch.tensor(counts)[value]
    centres = 20 * torch.randn(2, max(counts), 4)
    z = centres[value, mode] + torch.randn(samples, 4)
    modes = ModesPerValue(clusterer, counts, 16)
    for found in (modes.fit(z, value, mode), modes.refine(z + 0.1, value, "merge")):
        target.adopt(found, z, [], reset=False)
    clusters = target.active.sum(1)
    assert clusters.tolist() == list(counts)
    kept = {name: t for name, t in target.get_extra_state().items() if t.numel() >= samples}
    assert kept.keys() == {"labels", "probs", "starts"}
    held = sum(t.nbytes for t in kept.values()) - 4 * max(counts)  # the padding is not by sample
    for v, learned in enumerate(modes.state_dict()["clusterers"]):
        own = int((value == v).sum())
        held += sum(t.nbytes for t in learned.values() if isinstance(t, torch.Tensor) and t.shape[:1] == (own,))
    assert held <= int((16 * clusters[value]).sum())


def test_the_time_of_a_step_does_not_depend_on_the_number_of_samples():
    """Whatever the number, the same operations on the same shapes; only rows are taken from what is known by sample."""
    batch, work = None, []
    for samples in (200, 20000):
        torch.manual_seed(0)
        module = CoDID((2,), (2, 2), **arguments(discovery={"n_clusters": 2}))
        everything = random_batch(module, samples, shape=(2,))
        batch = batch or {name: tensor[:100] for name, tensor in everything.items()}
        bench(module, torch.cat([batch["a"], everything["a"][100:]]))
        module.training_step(batch, 0)  # the optimizers' first step is another one
        with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
            module.training_step(batch, 0)
        operations = [(event.name, event.input_shapes) for event in profiler.events()]
        work.append([(name, shapes) for name, shapes in operations if name not in TAKING_ROWS])
    assert work[0]
    assert work[0] == work[1]
