"""z_1 of harmonised rows: what it sees, the gate, checkpoints, and that it helps where sites have effects."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

from codid_lightning import CoDID, ModeDiscovery
from codid_lightning.cli import main
from codid_lightning.clustering import Harmonizer
from codid_lightning.errors import RunError
from codid_lightning.methods.codid.parts.harmonised import HarmonisedSamples, Rows, judge, site_losses, verdict
from codid_lightning.methods.codid.parts.prior import PriorInLogits
from datamodules.base import AttributeDataModule, AttributeDataset, Batch
from tests.codid.ranks import RANKS, on_two_ranks
from tests.codid.test_ranks import Hashes
from tests.codid.test_resume import differences
from tests.methods.planted import make, trainer
from tests.tables import SHARE, Sites, modes_at_sites


class SitesTable(AttributeDataModule):
    """Rows of `modes_at_sites`; test sets correlate like training, not at all, and in reverse."""

    attribute_names = ("value", "site")
    mode_sizes = (None, None)
    test_names = ("test1", "test2", "test3")
    test_attributes = (0,)

    def __init__(self, rows: int = 600, columns: int = 8, sites: int = 2, effects: bool = True, **kwargs: Any) -> None:
        super().__init__(**{"batch_size": 64, **kwargs})
        self.rows, self.sites, self.effects = rows, sites, effects
        self.input_shape = (columns,)
        self.value_names = (("0", "1"), tuple(map(str, range(sites))))

    def build(self) -> dict[str, AttributeDataset]:
        shares = {"train": SHARE, "val": SHARE, "test1": SHARE, "test2": 0 * SHARE + 0.5, "test3": 1 - SHARE}
        return {name: self.draw(seed, share) for seed, (name, share) in enumerate(shares.items())}

    def draw(self, seed: int, share: Any) -> AttributeDataset:
        table = modes_at_sites(
            self.rows, seed, columns=self.input_shape[0], sites=self.sites, offsets=self.effects, scales=self.effects,
            share=share, noise=1.0,
        )  # fmt: skip
        a = torch.from_numpy(table.value), torch.from_numpy(table.site)
        return AttributeDataset(torch.from_numpy(table.x).float(), torch.stack(a, 1))


def recipe(components: int = 5, **changes: Any) -> dict[str, Any]:
    """The content network and its dial on harmonised rows."""
    none = {"reconstruction": 0.0, "moded": [], "alignment": None, "splits": None}
    parts = {"mode_loss": PriorInLogits(), "decoding": HarmonisedSamples(components)}
    return {**none, **parts, "discovery": ModeDiscovery(n_clusters=1), "latent_dim": 32, **changes}


def fitted(data: SitesTable, epochs: int = 1, **changes: Any) -> Any:
    model = make(CoDID, data, **recipe(**changes))
    trainer(epochs).fit(model, data)
    return model


def rows_of(table: Sites) -> Rows:
    return Rows(table.x, table.site, table.value)


# ----------------------------------------------------------------------------------------------------------------- maps


def test_z1_sees_rows_at_the_mean_site_and_the_others_see_rows_as_measured():
    data = SitesTable()
    model = fitted(data).eval()
    assert model.counterfactuals.accepted
    batch = data.datasets["test2"][torch.arange(50)]
    train = data.datasets["train"]
    found = Harmonizer(components=5).fit(train.x.numpy(), train.a[:, 1].numpy(), train.a[:, 0].numpy())
    content = torch.from_numpy(found.transform(batch["x"].numpy(), batch["a"][:, 1].numpy()))
    first, second = model.encoder.subnetworks
    expected = torch.stack([first(content), second(batch["x"])], dim=1)
    torch.testing.assert_close(model.represent(batch), expected, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(model(batch["x"], batch["a"][:, 1:]), expected, atol=1e-4, rtol=1e-4)


def test_a_site_that_is_not_known_is_predicted():
    data = SitesTable(rows=300)
    model = fitted(data, epochs=2).eval()
    x, others = data.datasets["test2"].x[:60], data.datasets["test2"].a[:60, 1:]
    predicted = model.predictors[1](model.encoder(x)[:, 1]).argmax(1, keepdim=True)
    torch.testing.assert_close(model(x), model(x, predicted))
    torch.testing.assert_close(model(x, torch.full_like(others, -1)), model(x, predicted))
    some = torch.where(torch.arange(60)[:, None] < 30, others, -1)
    torch.testing.assert_close(model(x, some), torch.cat([model(x, others)[:30], model(x, predicted)[30:]]))


def test_a_prediction_does_not_read_its_own_label():
    data = SitesTable(rows=300)
    model = fitted(data).eval()
    batch = data.datasets["test2"][torch.arange(40)]
    other = Batch(**{**batch, "a": torch.cat([1 - batch["a"][:, :1], batch["a"][:, 1:]], dim=1)})
    first, second = (model.predict_step(b, 0)["probabilities"][0] for b in (batch, other))
    assert torch.equal(first, second)


def test_combinations_of_several_attributes_are_sites():
    model = CoDID(input_shape=(4,), attribute_sizes=(2, 3, 2), **recipe())
    maps = model.counterfactuals
    values = torch.cartesian_prod(torch.arange(3), torch.arange(2))
    assert maps.site(values).tolist() == list(range(6))
    maps.shift.copy_(torch.arange(6.0)[:, None].expand(6, 4))
    maps.scale[4] = 2
    x = torch.ones(6, 4)
    assert maps.features(x, values)[:, 0].tolist() == [1, 2, 3, 4, 6, 6]


@pytest.mark.parametrize(
    ("shape", "sizes", "message"),
    [((3, 8, 8), (2, 2), "rows of a table"), ((4,), (2,), "combinations"), ((4,), (2, 40, 40), "combinations")],
)
def test_what_it_is_not_for_is_an_error(shape, sizes, message):
    with pytest.raises(ValueError, match=message):
        CoDID(input_shape=shape, attribute_sizes=sizes, **recipe())


def test_components_must_be_positive():
    with pytest.raises(ValueError, match=r"model\.decoding\.components is 0"):
        HarmonisedSamples(0)


# ----------------------------------------------------------------------------------------------------------------- gate


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("effects", [True, False])
def test_the_gate_knows_whether_sites_have_effects(seed, effects):
    train, val = (
        rows_of(modes_at_sites(n, seed + s, columns=8, offsets=effects, scales=effects, noise=0.8))
        for n, s in ((2000, 20), (400, 40))
    )
    found = judge(Harmonizer(components=10).fit(*train), train, val)
    assert bool(found["gate/accepted"]) == effects
    assert ("not used" in verdict(found)) != effects
    if effects:
        assert found["gate/a2_loss_content"] > found["gate/a2_loss_measured"] + 0.05


def test_the_gate_rejects_content_that_shows_the_site_better():
    train, val = (rows_of(modes_at_sites(2000, s, columns=6)) for s in (0, 1))
    maps = Harmonizer(components=5).fit(*train)
    accepted = judge(maps, train, val)["gate/accepted"]
    maps.shift_[1] += 5
    assert (accepted, judge(maps, train, val)["gate/accepted"]) == (1, 0)


def test_the_gate_rejects_maps_that_take_the_modes_of_sites_for_their_effects():
    train, val = (rows_of(modes_at_sites(2000, s, columns=6, offsets=False, scales=False)) for s in (0, 1))
    assert not judge(Harmonizer(components=1).fit(*train), train, val)["gate/accepted"]


def test_a_single_site_has_no_effect():
    data = SitesTable(rows=200)
    data.setup()
    for split in data.datasets.values():
        split.a[:, 1] = 0
    model = fitted(data)
    assert model.counterfactuals.judged
    assert not model.counterfactuals.accepted
    assert "single value" in verdict(model.counterfactuals.gate_metrics)


def test_sites_are_recognised_by_their_spread_alone():
    generator = torch.Generator().manual_seed(0)
    site = torch.randint(2, (2000,), generator=generator)
    x = torch.randn(2000, 3, generator=generator) * (1 + 3 * site[:, None])
    rows = Rows(x.numpy(), site.numpy(), 0 * site.numpy())
    assert site_losses(rows, rows).mean() < 0.4  # ln 2 is chance


# ------------------------------------------------------------------------------------------------------------- training


def test_content_is_flat_where_base_falls_and_the_dial_adds():
    """The planted table at the size at which its correlation matters: shares of right predictions on the tests."""
    data = SitesTable(rows=3000, columns=4)
    content, base = fitted(data, epochs=6, components=10), fitted(data, epochs=6, decoding=None, mode_loss=None)
    scores = {name: [share_right(model, data, test) for test in data.test_names]
              for name, model in (("content", content), ("base", base))}  # fmt: skip
    assert max(scores["content"]) - min(scores["content"]) < 0.04
    assert scores["content"][1] > scores["base"][1] + 0.05
    assert scores["content"][2] > scores["base"][2] + 0.14
    for test, gain in (("test1", -0.005), ("test3", 0.17)):
        place = data.datasets[test]
        adapted = content.adapt(place.x[:200], place.a[:200, 1:])
        assert share_right(content, data, test) > scores["base"][int(test[-1]) - 1] + gain
    assert max(adapted.dial) < -0.2
    assert share_right(content, data, "test3") > scores["content"][2] + 0.03


def share_right(model: Any, data: SitesTable, test: str) -> float:
    batch = data.datasets[test][torch.arange(data.rows)]
    with torch.no_grad():
        predicted = model.eval().predict_step(batch, 0)["probabilities"][0].argmax(1)
    return float((predicted == batch["a"][:, 0]).double().mean())


def run_to_the_end(folder: Any, resume: Any = None) -> dict[str, Any]:
    data = SitesTable(rows=200)
    saver = ModelCheckpoint(folder, "{epoch}-{step}", every_n_train_steps=1, save_top_k=-1)
    run = trainer(3, enable_checkpointing=resume is None, callbacks=[saver] if resume is None else [])
    model = make(CoDID, data, **recipe())
    run.fit(model, data, ckpt_path=resume)
    run.save_checkpoint(folder / "final.ckpt")
    return torch.load(folder / "final.ckpt", weights_only=True)["state_dict"]


def test_a_resumed_run_ends_bit_for_bit_alike_and_fits_nothing_again(tmp_path, monkeypatch):
    whole = run_to_the_end(tmp_path)
    monkeypatch.setattr(Harmonizer, "fit", None)
    resumed = run_to_the_end(tmp_path, tmp_path / "epoch=1-step=5.ckpt")
    assert not differences(whole, resumed)
    model = CoDID.load_from_checkpoint(tmp_path / "final.ckpt")
    assert model.decoding == HarmonisedSamples(5)
    assert model.counterfactuals.accepted
    assert torch.equal(model.counterfactuals.shift, whole["counterfactuals.shift"])


def train_on_this_rank() -> dict[str, Any]:
    data, hashes = SitesTable(rows=601), Hashes()  # odd: the last batches differ in size
    model = make(CoDID, data, **recipe())
    run = trainer(2, devices=RANKS, strategy="ddp", callbacks=[hashes])
    run.fit(model, data)
    maps = model.counterfactuals
    return {"hashes": hashes.found, "maps": [maps.shift.tolist(), maps.scale.tolist(), maps.gate_metrics]}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_ranks_have_equal_maps_and_never_drift_apart(tmp_path):
    first, second = on_two_ranks(train_on_this_rank, tmp_path)
    assert first == second
    assert first["maps"][2]["gate/accepted"] == 1


def test_adaptation_needs_known_sites_in_range():
    data = SitesTable(rows=200)
    model = fitted(data)
    x = data.datasets["test1"].x[:50]
    with pytest.raises(RunError, match="Row 0 has value 2 of attribute 2"):
        model.adapt(x, torch.full((50, 1), 2))
    assert not model.adapt(x).others_given


def test_a_config_names_it(capsys):
    part = "{class_path: HarmonisedSamples, init_args: {components: 7}}"
    toy = ["-c", "configs/toy/base.yaml", "-c", "configs/methods/counterfactual.yaml"]
    with pytest.raises(SystemExit, match="0"):
        main(["fit", *toy, f"--model.decoding={part}", "--print_config"])
    assert "components: 7" in capsys.readouterr().out
