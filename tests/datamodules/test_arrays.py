"""Arrays in memory: what a program of one's own needs to train a method."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from datamodules import ArrayDataModule, DataError


def two_attributes(size: int = 400, seed: int = 0):
    rng = np.random.default_rng(seed)
    target, other = rng.integers(0, 2, size), rng.integers(0, 3, size)
    x = np.stack([target + 0.1 * rng.normal(size=size), other + 0.1 * rng.normal(size=size)], 1)
    return x.astype(np.float32), target, other


def test_codid_on_arrays_in_fifteen_lines(tmp_path):
    import lightning
    import numpy as np

    from codid_lightning import CoDID, ModeDiscovery
    from datamodules import ArrayDataModule

    rng = np.random.default_rng(0)
    target = rng.choice(["cat", "dog"], 400)
    other = rng.integers(0, 2, 400)
    x = np.stack([(target == "dog") + 0.1 * rng.normal(size=400), other + 0.1 * rng.normal(size=400)], axis=1)
    data = ArrayDataModule.from_arrays(
        x[:300], target=target[:300], other=other[:300], test={"later": (x[300:], target[300:], other[300:])}
    )
    model = CoDID(**data.facts, latent_dim=8, discovery=ModeDiscovery(start=1))
    trainer = lightning.Trainer(max_epochs=2, default_root_dir=tmp_path, logger=False, accelerator="cpu")
    trainer.fit(model, data)
    (metrics,) = trainer.test(model, data)
    assert 0 <= metrics["later/acc"] <= 1


def test_base_learns_the_target(tmp_path):
    import lightning

    from codid_lightning import Base

    lightning.seed_everything(0)
    x, target, other = two_attributes()
    data = ArrayDataModule.from_arrays(x, target=target, other=other, test={"same": (x, target, other)}, batch_size=32)
    model = Base(**data.facts, backbone="mlp", latent_dim=8, lr=1e-2)
    trainer = lightning.Trainer(max_epochs=5, default_root_dir=tmp_path, logger=False, accelerator="cpu")
    trainer.fit(model, data)
    assert trainer.test(model, data)[0]["same/acc"] > 0.95


def test_labels_modes_and_splits():
    x, target, other = two_attributes()
    modes = np.where(target == 0, "only", np.where(other > 1, "b", "a"))
    names = np.array(["no", "yes"])[target]
    test = {"shifted": (x[:50], names[:50], other[:50])}
    data = ArrayDataModule.from_arrays(x, target=names, other=other, modes=modes, test=test, val_fraction=0.25, seed=3)
    data.setup()
    assert data.value_names == (("no", "yes"), ("0", "1", "2"))
    assert data.attribute_names == ("target", "other")
    assert data.facts == {"input_shape": (2,), "attribute_sizes": (2, 3), "test_names": ("shifted",),
                          "test_attributes": (0, 1)}  # fmt: skip
    assert data.mode_sizes == ((1, 2), None)
    assert data.mode_names == ("only", "a", "b")
    assert {name: len(split) for name, split in data.datasets.items()} == {"train": 300, "val": 100, "shifted": 50}
    train = data.datasets["train"]
    inputs = train[torch.arange(300)]["x"]
    assert torch.allclose(inputs.mean(0), torch.zeros(2), atol=1e-5)
    assert torch.allclose(inputs.std(0), torch.ones(2), atol=1e-5)
    assert (train.mode[:, 0] == torch.where(train.a[:, 0] == 0, 0, torch.where(train.a[:, 1] > 1, 2, 1))).all()
    assert (data.datasets["shifted"].mode == -1).all()
    seen = torch.cat([batch["index"] for batch in data.encode_dataloader()])
    assert (seen == torch.arange(300)).all()


def test_several_others_and_tensors():
    x, target, other = map(torch.from_numpy, two_attributes())
    data = ArrayDataModule.from_arrays(x, target=target, other=[other, other % 2], attribute_names=["a", "b", "c"])
    data.setup()
    assert data.attribute_sizes == (2, 3, 2)
    assert data.test_names == ()
    images = ArrayDataModule.from_arrays(torch.zeros(400, 3, 4, 4, dtype=torch.uint8), target=target, other=other)
    images.setup()
    assert images.datasets["train"][[0]]["x"].dtype == torch.float32


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"target": np.arange(399) % 2}, "399 labels `train target`, but 400 inputs"),
        ({"target": np.zeros(400, int)}, r"All labels `target` are the same \(0\)"),
        ({"target": np.array([np.nan, 1.0, np.nan, 2.0] * 100)}, "200 labels `target` of the arrays are empty"),
        ({"modes": np.zeros(3)}, "3 labels `modes`, but 400 inputs"),
        ({"val_fraction": 1.0}, "val_fraction is 1.0"),
        (
            {"test": {"t": (np.zeros((2, 2)), [0, 1], [[0, 1], [0, 1]])}},
            "labels of 3 attributes, expected target, other",
        ),
        ({"test": {"t": (np.zeros(2), [0, 1], [0, 1])}}, "inputs of `t` have shape"),
    ],
)
def test_mistakes_are_named(changes, message):
    x, target, other = two_attributes()
    with pytest.raises(DataError, match=message):
        ArrayDataModule.from_arrays(x, **{"target": target, "other": other, **changes})


def test_nan_is_named_dropped_or_imputed():
    x, target, other = two_attributes()
    x[7] = np.nan
    with pytest.raises(DataError, match=r"1 of .* samples of `.*` hold NaN.*clean the arrays"):
        ArrayDataModule.from_arrays(x, target=target, other=other).setup()
    data = ArrayDataModule.from_arrays(x, target=target, other=other, on_bad_values="drop")
    data.setup()
    assert sum(map(len, data.datasets.values())) == 399


def test_a_checkpoint_keeps_the_scaling():
    x, target, other = two_attributes()
    first = ArrayDataModule.from_arrays(x, target=target, other=other)
    second = ArrayDataModule.from_arrays(5 * x, target=target, other=other)
    for data in (first, second):
        data.setup()
    state = {**first.state_dict(), "trained_on": None}
    second.load_state_dict(state)
    assert torch.equal(second.scaling.spread, first.scaling.spread)
