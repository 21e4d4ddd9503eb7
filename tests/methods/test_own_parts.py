"""Parts a user writes: they train inside CoDID, and a checkpoint brings them back or names what is missing."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from lightning import seed_everything
from torch import Tensor, nn

from codid_lightning import DPGMM, CoDID, KMeans, ModeDiscovery
from codid_lightning.clustering import Clusterer
from codid_lightning.errors import CheckpointError
from codid_lightning.methods.checkpoints import describe, restore
from codid_lightning.methods.codid.parts.alignments import Alignment, DiscriminatorAlignment
from codid_lightning.methods.codid.parts.mode_losses import ModeLoss, PredictModes
from codid_lightning.methods.codid.parts.sources import ModeSource
from tests.codid.tiny import tiny_codid, tiny_data, tiny_trainer

# ------------------------------------------------------------------------------------------------- written by a user


@dataclass(frozen=True)
class KernelAlignment(Alignment):
    """Squared MMD of z_1 between the two values of a_2 within each cluster, with a Gaussian kernel of unit width."""

    strength: float = 10.0

    def step(self, codid, batch, encoding, views):
        (view,) = views
        z = view.own.detach().requires_grad_()
        kernel = (-(torch.cdist(z, z) ** 2) / 2).exp()
        losses = []
        for slot in view.slot.unique():
            one, other = (((view.slot == slot) & (view.others[:, v] > 0)).to(z) for v in (0, 1))
            if one.any() and other.any():
                difference = one / one.sum() - other / other.sum()
                losses.append(difference @ kernel @ difference)
        if losses:
            loss = torch.stack(losses).mean()
            codid.losses.add("mmd", loss)
            slope = torch.zeros_like(encoding.z)
            slope[:, 0] = torch.autograd.grad(self.strength * loss, z)[0]
            codid.step(codid.optimizer("inform"), encoding.parameters, encoding.gradients(slope))


@dataclass(frozen=True)
class NearCentres(ModeLoss):
    """Squared distance of z_1 to a learnt centre of its cluster."""

    weight: float = 0.1

    def heads(self, target):
        return {"centres": nn.Embedding(target.total_slots, target.latent_dim)}

    def networks(self, target):
        return [target.centres]

    def slot_tables(self, target):
        return [target.centres.weight]

    def additional_loss(self, codid, z, batch):
        (target,) = codid.target_list
        if not target.ready:
            return None
        distance = z[:, 0] - target.centres(target.slot_of(batch["a"], batch["index"]))
        codid.losses.add("distance", distance.square().mean())
        return self.weight * distance.square().mean()


@dataclass(frozen=True)
class Inputs(ModeSource):
    """The samples themselves, of which the first `columns` columns."""

    columns: int = 2

    def representations(self, codid, x):
        return codid.encoder(x)

    def content(self, codid, x):
        return x.flatten(1)

    def features(self, content, a, attribute):
        return content[:, : self.columns]


class Halves(KMeans):
    """Two clusters under every value, whatever number is asked for."""

    def __init__(self, n_clusters: int = 2, n_init: int = 1, random_state: int = 0, columns: int = 1) -> None:
        super().__init__(n_clusters=n_clusters, n_init=n_init, random_state=random_state)
        self.columns = columns

    def fit(self, X, y=None):
        self.n_clusters = 2
        return super().fit(X, y)


# ------------------------------------------------------------------------------------------------ they train in CoDID


def fit(module, data, epochs=4, **changes):
    trainer = tiny_trainer(epochs, **changes)
    trainer.fit(module, data)
    assert all(torch.isfinite(p).all() for p in module.parameters())
    return trainer


def test_an_alignment_of_ones_own_aligns():
    spread = {}
    for strength in (1e-9, 10.0):
        data = tiny_data(samples_per_mode=60)
        module = tiny_codid(data, alignment=KernelAlignment(strength), splits=None)
        logged = fit(module, data, epochs=12).callback_metrics
        spread[strength] = float(logged["train/mmd"])
        assert not any("discriminator" in name for name, _ in module.named_parameters())
        assert module.optimizer_names == ["inform"]
    assert spread[10.0] < 0.5 * spread[1e-9]


def test_a_mode_loss_of_ones_own_has_heads_that_follow_the_clusters():
    data = tiny_data()
    module = tiny_codid(data, mode_loss=NearCentres(), splits=None)
    start = module.target_list[0].centres.weight.detach().clone()
    logged = fit(module, data).callback_metrics
    assert float(logged["train/distance"]) > 0
    assert not torch.equal(start, module.target_list[0].centres.weight)
    assert not module.target_list[0].predicts_modes


def test_a_source_of_ones_own_is_what_is_clustered():
    data = tiny_data()
    module = tiny_codid(data, discovery={"source": Inputs(columns=2), "clusterer": KMeans(), "every": None})
    fit(module, data, epochs=2)
    x, a = (getattr(data.datasets["train"], name) for name in ("x", "a"))
    (target,) = module.target_list
    (entry,) = module.discovery.history
    assert entry["kind"] == "fit"
    for value, slot in target.active.nonzero().tolist():
        own = target.labels == value * target.slots + slot
        rest = (a[:, 0] == value) & ~own
        centre, others = x[own, :2].mean(0), x[rest, :2]
        assert (x[own, :2] - centre).norm(dim=1).mean() < (others - centre).norm(dim=1).mean()
    assert target.sub_means.shape[-1] == module.hparams["latent_dim"], "means are measured in z"


def test_all_three_resume_bit_for_bit(tmp_path):
    def make():
        parts = {"mode_loss": NearCentres(), "alignment": KernelAlignment(), "discovery": {"source": Inputs()}}
        return tiny_codid(tiny_data(), splits=None, **parts)

    whole, resumed = make(), make()
    fit(whole, tiny_data())
    fit(make(), tiny_data(), epochs=2).save_checkpoint(tmp_path / "half.ckpt")
    tiny_trainer(4).fit(resumed, tiny_data(), ckpt_path=tmp_path / "half.ckpt", weights_only=True)
    for name, value in whole.state_dict().items():
        if isinstance(value, Tensor):
            assert torch.equal(value, resumed.state_dict()[name]), name
    loaded = CoDID.load_from_checkpoint(tmp_path / "half.ckpt")
    assert (loaded.mode_loss, loaded.alignment, loaded.splits) == (NearCentres(), KernelAlignment(), None)
    assert loaded.discovery.source == Inputs()


# -------------------------------------------------------------------------------------------- whose discovery it is


def test_a_discovery_given_to_the_trainer_has_priority():
    data = tiny_data()
    module = tiny_codid(data)
    own, given = module.discovery, ModeDiscovery(start=2, every=2, n_clusters=3)
    trainer = fit(module, data, epochs=5, callbacks=[given])
    assert [c for c in trainer.callbacks if isinstance(c, ModeDiscovery)] == [given]
    assert [(entry["epoch"], entry["kind"]) for entry in given.history] == [(2, "fit"), (4, "split")]
    assert own.history == []
    assert module.discovery is given


def test_models_do_not_share_the_state_of_their_discovery():
    data = tiny_data()
    facts = (data.input_shape, data.attribute_sizes, data.test_names, data.test_attributes)
    seed_everything(0, verbose=False)
    one, other = CoDID(*facts, latent_dim=4), CoDID(*facts, latent_dim=4)
    assert one.discovery is not other.discovery
    one.discovery.start = 0
    tiny_trainer(1, limit_val_batches=0).fit(one, data)
    assert len(one.discovery.history) == 1
    assert (other.discovery.start, other.discovery.history, other.discovery.modes) == (20, [], {})
    third = CoDID(*facts, latent_dim=4)
    assert (third.discovery.start, third.discovery.history, third.discovery.modes) == (20, [], {})

    mine = ModeDiscovery(start=0)
    modules = [CoDID(*facts, latent_dim=4, discovery=mine) for _ in range(2)]
    tiny_trainer(1, limit_val_batches=0).fit(modules[0], data)
    assert [len(m.discovery.history) for m in modules] == [1, 0]
    assert mine.history == []


# -------------------------------------------------------------------------------------------------------- checkpoints


def checkpoint(folder, clusterer):
    data = tiny_data()
    trainer = fit(tiny_codid(data, discovery={"clusterer": clusterer, "every": None}), data, epochs=2)
    trainer.save_checkpoint(folder / "last.ckpt")
    return folder / "last.ckpt"


def test_a_checkpoint_brings_kmeans_back(tmp_path):
    loaded = CoDID.load_from_checkpoint(checkpoint(tmp_path, KMeans(n_init=2)))
    assert type(loaded.discovery.clusterer) is KMeans
    assert loaded.discovery.clusterer.n_init == 2
    assert (loaded.discovery.start, loaded.discovery.every) == (1, None)
    given = CoDID.load_from_checkpoint(tmp_path / "last.ckpt", discovery=ModeDiscovery(clusterer=DPGMM(random_state=3)))
    assert type(given.discovery.clusterer) is DPGMM


def test_a_checkpoint_brings_a_clusterer_of_ones_own_back_while_it_is_imported(tmp_path):
    loaded = CoDID.load_from_checkpoint(checkpoint(tmp_path, Halves(columns=3)))
    assert type(loaded.discovery.clusterer) is Halves
    assert loaded.discovery.clusterer.columns == 3


def test_a_clusterer_that_is_not_imported_is_named(tmp_path):
    path = checkpoint(tmp_path, Halves())
    saved = torch.load(path, weights_only=True)
    saved["codid"]["parts"]["discovery"]["settings"]["clusterer"]["class"] = "Gone"
    torch.save(saved, path)
    with pytest.raises(CheckpointError, match=r"discovery\.clusterer = Gone\(\.\.\.\).*import that class"):
        CoDID.load_from_checkpoint(path)
    discovery = ModeDiscovery(start=1, every=None, clusterer=Halves())
    assert type(CoDID.load_from_checkpoint(path, discovery=discovery).discovery.clusterer) is Halves


@pytest.mark.parametrize("part", ["alignment", "mode_loss"])
def test_any_part_that_is_not_imported_is_named(part, tmp_path):
    path = checkpoint(tmp_path, KMeans())
    saved = torch.load(path, weights_only=True)
    saved["codid"]["parts"][part]["class"] = "Gone"
    torch.save(saved, path)
    with pytest.raises(CheckpointError, match=rf"{part} = Gone\(\.\.\.\)"):
        CoDID.load_from_checkpoint(path)


def test_settings_that_are_no_plain_values_are_named():
    saved = describe(Halves(columns=nn.Linear(2, 2)))
    with pytest.raises(CheckpointError, match=r"clusterer = .*Halves\(\.\.\.\)"):
        restore("clusterer", saved, (Clusterer,))


def test_a_checkpoint_cannot_name_any_class_but_parts():
    for name in ("Linear", "object", "type", "os.system", "CoDID"):
        with pytest.raises(CheckpointError, match=name):
            restore("alignment", {"class": name, "settings": {}}, (Alignment, ModeLoss, Clusterer))


@pytest.mark.parametrize("part", [DiscriminatorAlignment(weights=None), PredictModes(0.7), DPGMM(random_state=4), None])
def test_parts_are_restored_as_they_were_described(part):
    restored = restore("part", describe(part), (Alignment, ModeLoss, Clusterer))
    assert describe(restored) == describe(part)
    assert type(restored) is type(part)
