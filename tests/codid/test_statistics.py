"""Statistics are those of the weights they are evaluated with."""

from __future__ import annotations

import torch

from codid_lightning.methods.batchnorm import RecomputeBatchNorm
from tests.codid.tiny import tiny_codid, tiny_data, tiny_trainer


def layers_of(module):
    return [m for m in module.encoder.modules() if isinstance(m, torch.nn.BatchNorm1d)]


def test_statistics_are_the_means_over_batches_of_the_final_encoder():
    data = tiny_data()
    module = tiny_codid(data)
    tiny_trainer().fit(module, data)
    module.train()
    seen: dict[int, list[tuple[torch.Tensor, torch.Tensor]]] = {}
    for i, layer in enumerate(layers_of(module)):
        layer.register_forward_hook(
            lambda _, inputs, __, i=i: seen.setdefault(i, []).append((inputs[0].mean(0), inputs[0].var(0)))
        )
    kept = [(m.running_mean.clone(), m.running_var.clone()) for m in layers_of(module)]
    with torch.no_grad():
        batches = list(data.some_batches(20))
        for batch in batches:
            module(batch["x"])
    assert len(batches) > 1
    for i, (mean, variance) in enumerate(kept):
        torch.testing.assert_close(mean, torch.stack([m for m, _ in seen[i]]).mean(0), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(variance, torch.stack([v for _, v in seen[i]]).mean(0), rtol=1e-4, atol=1e-5)


def test_a_callback_of_ones_own_takes_the_place():
    data = tiny_data()
    module = tiny_codid(data)
    trainer = tiny_trainer(1, callbacks=[RecomputeBatchNorm(batches=0)])
    trainer.fit(module, data)
    assert [c.batches for c in trainer.callbacks if isinstance(c, RecomputeBatchNorm)] == [0]
    layer = layers_of(module)[0]
    with torch.no_grad():
        batches = [module.encoder.subnetworks[0][:2](b["x"]) for b in data.some_batches(20)]
    settled = torch.stack([b.mean(0) for b in batches]).mean(0)
    assert not torch.allclose(layer.running_mean, settled, rtol=1e-2)


def test_some_batches_are_random_and_always_the_same():
    data = tiny_data()
    data.setup()
    first, again = ([b["index"] for b in data.some_batches(2)] for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not torch.equal(first[0], first[0].sort().values)
    assert len(torch.cat(first).unique()) == len(torch.cat(first))
