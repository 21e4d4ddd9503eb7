"""Networks that start from weights: state dicts that these tests write, read by the code that reads real ones."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.error import URLError

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from torch import nn
from torchvision import models
from torchvision.transforms.functional import normalize

from codid_lightning import Base, CoDID, ModeDiscovery
from codid_lightning.errors import RunError
from codid_lightning.nn.backbones import Encoder
from codid_lightning.nn.pretrained import ImageNetwork
from codid_lightning.nn.virtual import EncoderPass
from codid_lightning.training.identity import config_hash
from datamodules import ArrayDataModule, OwnArrays, OwnImages
from tests.commands import codid
from tests.methods.planted import make, trainer

IMAGENET = ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])
SMALL = "mobilenet_v3_small"
pytestmark = pytest.mark.filterwarnings("ignore:The weights of")  # pictures are small here


def write_weights(name: str, path: Path, **more: Any) -> nn.Module:
    """A network of torchvision with random weights and statistics, whose state dict is written to a file."""
    torch.manual_seed(3)
    network = models.get_model(name, weights=None)
    for layer in network.modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.running_mean.normal_(std=0.1)
            layer.running_var.uniform_(0.5, 2)
    torch.save({"state_dict": network.state_dict(), **more} if more else network.state_dict(), path)
    return network.eval()


@pytest.fixture
def small(tmp_path):
    write_weights(SMALL, tmp_path / "small.pth")
    return str(tmp_path / "small.pth")


class TestLoading:
    @pytest.mark.parametrize("freeze", [False, True])
    @pytest.mark.parametrize("more", [{}, {"epoch": 3}], ids=["state dict", "checkpoint"])
    def test_features_are_those_of_the_written_network_on_normalised_inputs(self, tmp_path, freeze, more):
        network = write_weights("resnet18", tmp_path / "weights.pth", **more)
        network.fc = nn.Identity()
        encoder = Encoder("resnet18", (3, 64, 64), 2, 512, weights=str(tmp_path / "weights.pth"), freeze=freeze)
        x = torch.rand(4, 3, 64, 64)
        expected = network(normalize(x, *IMAGENET))
        encoder.eval()
        assert not torch.allclose(encoder.subnetworks[0].trunk(normalize(x, *IMAGENET)), expected, atol=1e-3)
        encoder.load_weights()
        for subnetwork in encoder.subnetworks:
            assert torch.allclose(subnetwork.trunk((x - subnetwork.mean) / subnetwork.std), expected, atol=1e-4)
        if not freeze:  # as wide as the features: nothing after them
            assert torch.allclose(encoder(x)[:, 1], expected, atol=1e-4)

    @pytest.mark.parametrize("name", [SMALL, "densenet121", "efficientnet_b0", "convnext_tiny", "swin_t"])
    def test_every_family_loses_its_last_layer_only(self, name):
        torch.manual_seed(0)
        network = models.get_model(name, weights=None).eval()
        mine = ImageNetwork(name, (3, 64, 64), 7, weights="somewhere").eval()
        mine.load(network.state_dict())
        last = [module for module in network.modules() if isinstance(module, nn.Linear)][-1]
        seen = []
        last.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
        x = torch.rand(2, 3, 64, 64)
        network(normalize(x, *IMAGENET))
        assert torch.allclose(mine(x), mine.head(seen[0]), atol=1e-5)

    @pytest.mark.slow
    def test_vision_transformers(self):
        network = models.get_model("vit_b_32", weights=None).eval()
        mine = ImageNetwork("vit_b_32", (3, 224, 224), 7, weights="somewhere", freeze=True)
        mine.load(network.state_dict())
        network.heads = nn.Identity()
        x = torch.rand(2, 3, 224, 224)
        assert torch.allclose(mine(x), mine.head(network(normalize(x, *IMAGENET))), atol=1e-5)
        assert sum(p.numel() for p in mine.parameters()) == 7 * 769

    @pytest.mark.slow
    def test_attention_can_be_differentiated_twice(self):
        """As CoDID's meta step does, through one virtual step."""
        torch.manual_seed(0)
        encoder = Encoder("vit_b_32", (3, 32, 32), 1, 8).eval().double()
        x = torch.rand(2, 3, 32, 32, dtype=torch.float64)
        virtual = EncoderPass(encoder, x)
        slope, step, nudge = torch.randn_like(virtual.z), 1e-3, 1e-5
        moved = [virtual.moved(slope * factor, step).detach().sum() for factor in (1 - nudge, 1 + nudge)]
        scale = torch.ones((), dtype=torch.float64, requires_grad=True)
        (found,) = torch.autograd.grad(virtual.moved(slope * scale, step).sum(), scale)
        assert float(found) == pytest.approx(float((moved[1] - moved[0]) / (2 * nudge)), rel=1e-4)

    def test_default_weights_come_from_torchs_cache(self, tmp_path, monkeypatch):
        monkeypatch.setenv("TORCH_HOME", str(tmp_path))
        (tmp_path / "hub" / "checkpoints").mkdir(parents=True)
        url = models.ResNet18_Weights.DEFAULT.url
        network = write_weights("resnet18", tmp_path / "hub" / "checkpoints" / url.rpartition("/")[2])
        encoder = Encoder("resnet18", (3, 64, 64), 1, 16, weights="default")
        encoder.load_weights()
        assert torch.equal(encoder.subnetworks[0].trunk.conv1.weight, network.conv1.weight)

    def test_without_network_the_message_says_what_to_do(self, tmp_path, monkeypatch):
        monkeypatch.setenv("TORCH_HOME", str(tmp_path))

        def unreachable(*_: Any, **__: Any) -> None:
            raise URLError("Name or service not known")

        monkeypatch.setattr("torch.hub.urlopen", unreachable)
        with pytest.raises(
            RunError, match=r"resnet18-\w+.pth could not be loaded \(.*not known.*\): set model.weights"
        ):
            Encoder("resnet18", (3, 64, 64), 1, 16, weights="default").load_weights()

    def test_weights_of_another_network_or_no_weights(self, small, tmp_path):
        (tmp_path / "text.pth").write_text("nothing")
        torch.save([1, 2], tmp_path / "list.pth")
        for path, says in (
            (small, r"are not of model.backbone `resnet18`: \d+ of \d+ tensors are missing"),
            (tmp_path / "none.pth", "is no file; it may also be `default` or null"),
            (tmp_path / "text.pth", "holds no state dict"),
            (tmp_path / "list.pth", "holds no state dict"),
        ):
            with pytest.raises(RunError, match=says):
                Encoder("resnet18", (3, 64, 64), 1, 16, weights=str(path)).load_weights()

    def test_small_pictures_are_named(self, small):
        with pytest.warns(UserWarning, match=r"trained on pictures of 224 x 224; the data has 64 x 64"):
            Encoder(SMALL, (3, 64, 64), 2, 16, weights=small).load_weights()

    @pytest.mark.parametrize(
        ("name", "shape", "options", "says"),
        [
            ("vit_b_16", (3, 64, 64), {"weights": "default"}, "need pictures of 224 x 224"),
            ("vit_b_16", (3, 60, 60), {}, "square pictures with a side that 16 divides"),
            ("resnet50", (4, 64, 64), {}, "1 or 3 channels"),
            ("resnet50", (3, 64, 64), {"freeze": True}, "set model.weights"),
            ("mlp", (3, 64, 64), {"weights": "default"}, "`mlp` has no trained weights"),
            ("resnet50", (9, 128), {}, r"\(channels, height, width\)"),
        ],
    )
    def test_what_does_not_fit_is_an_error(self, name, shape, options, says):
        with pytest.raises((RunError, ValueError), match=says):
            Encoder(name, shape, 2, 16, **options)

    def test_one_channel_is_repeated(self, small):
        encoder = Encoder(SMALL, (1, 64, 64), 1, 16, weights=small).eval()
        encoder.load_weights()
        x = torch.rand(2, 1, 64, 64)
        assert torch.equal(encoder(x), encoder(x.repeat(1, 3, 1, 1)))

    def test_timm_is_asked_for(self):
        if find_spec("timm"):
            pytest.skip("timm is installed")
        with pytest.raises(RunError, match=r"pip install 'codid-lightning\[timm\]'"):
            Encoder("timm/resnet18", (3, 64, 64), 1, 16)

    def test_timm(self, tmp_path):
        timm = pytest.importorskip("timm")
        network = timm.create_model("mobilenetv3_small_050", pretrained=False).eval()
        torch.save(network.state_dict(), tmp_path / "weights.pth")
        options = {"weights": str(tmp_path / "weights.pth"), "freeze": True}
        encoder = Encoder("timm/mobilenetv3_small_050", (3, 64, 64), 1, 16, **options)
        encoder.load_weights()
        network.reset_classifier(0)
        x = torch.rand(2, 3, 64, 64)
        own = encoder.subnetworks[0]
        assert torch.allclose(own(x), own.head(network(normalize(x, *IMAGENET))), atol=1e-5)


def pictures(size=32, samples=48):
    """Pictures that are brighter where a_1 is 1."""
    generator = torch.Generator().manual_seed(0)
    a = torch.randint(2, (samples, 2), generator=generator)
    x = torch.rand(samples, 3, size, size, generator=generator) * 0.5 + 0.5 * a[:, :1, None, None]
    return ArrayDataModule.from_arrays(x.numpy(), target=a[:, 0].numpy(), other=a[:, 1].numpy(), batch_size=16)


class TestTraining:
    @pytest.mark.parametrize("method", [Base, CoDID])
    def test_a_frozen_network_stays_as_it_is(self, small, method):
        data = pictures()
        modes = {} if method is Base else {"discovery": ModeDiscovery(start=0, every=1, n_clusters=2)}
        model = make(method, data, backbone=SMALL, weights=small, freeze=True, reconstruction=0.0, **modes)
        trainer(2).fit(model, datamodule=data)
        written = torch.load(small, weights_only=True)
        for subnetwork in model.encoder.subnetworks:
            kept = subnetwork.trunk.state_dict()
            assert all(torch.equal(value, written[key]) for key, value in kept.items() if key in written)
            assert not subnetwork.trunk.training
            assert {name for name, _ in subnetwork.named_parameters()} == {"head.weight", "head.bias"}
        assert model(torch.rand(2, 3, 32, 32)).isfinite().all()

    def test_all_weights_are_trained_otherwise(self, small):
        data = pictures()
        model = make(Base, data, backbone=SMALL, weights=small, reconstruction=0.0)
        trainer(1).fit(model, datamodule=data)
        written, own = torch.load(small, weights_only=True), model.encoder.subnetworks[0].trunk
        moved = [name for name, p in own.named_parameters() if not torch.equal(p, written[name])]
        assert len(moved) > 0.9 * len(list(own.parameters()))
        assert (own.features[0][0].weight - written["features.0.0.weight"]).abs().max() < 0.1  # it began there

    def test_a_trained_model_does_not_need_the_file(self, small, tmp_path):
        data = pictures()
        model = make(Base, data, backbone=SMALL, weights=small, reconstruction=0.0)
        run = trainer(1)
        run.fit(model, datamodule=data)
        run.save_checkpoint(tmp_path / "last.ckpt")
        Path(small).unlink()
        again = Base.load_from_checkpoint(tmp_path / "last.ckpt")
        x = torch.rand(2, 3, 32, 32)
        assert torch.equal(again.eval()(x), model.eval()(x))
        trainer(2).fit(again, datamodule=data)  # trained on, not begun again
        trainer(2).fit(make(Base, data, backbone=SMALL, weights=small), data, ckpt_path=tmp_path / "last.ckpt")
        with pytest.raises(RunError, match="is no file"):
            trainer(1).fit(make(Base, data, backbone=SMALL, weights=small), datamodule=data)

    def test_experiments_without_weights_are_what_they_were(self):
        before = {"model": {"class_path": "Base", "init_args": {"lr": 0.1}}}
        now = {"model": {"class_path": "Base", "init_args": {"lr": 0.1, "weights": None, "freeze": None}}}
        other = {"model": {"class_path": "Base", "init_args": {"lr": 0.1, "weights": "default", "freeze": None}}}
        assert config_hash(before) == config_hash(now) != config_hash(other)


class TestFeatures:
    def test_a_linear_layer_on_embeddings_in_files(self, tmp_path):
        generator = np.random.default_rng(0)
        rows = []
        for number in range(120):
            label, site = generator.integers(2, size=2)
            np.save(tmp_path / f"{number}.npy", generator.normal(size=12) + 3 * label)
            rows.append({"embedding": f"{number}.npy", "label": label, "site": site})
        pd.DataFrame(rows).to_csv(tmp_path / "table.csv", index=False)
        where = {"root": str(tmp_path), "file": "table.csv", "attributes": ["label", "site"]}
        data = OwnArrays(inputs="embedding", scaling="none", batch_size=20, **where)
        data.setup()
        assert data.input_shape == (12,)
        assert torch.allclose(data.x[7], torch.from_numpy(np.load(tmp_path / "7.npy")).float())
        for method in (Base, CoDID):
            model = make(method, data, backbone="features", latent_dim=4, reconstruction=0.0, lr=0.05)
            run = trainer(5)
            run.fit(model, datamodule=data)
            assert run.test(model, datamodule=data, verbose=False)[0]["test/acc"] > 0.9
        layers = [module for module in model.encoder.modules() if isinstance(module, nn.Linear)]
        assert [(layer.in_features, layer.out_features) for layer in layers] == [(12, 4)] * 2
        (tmp_path / "3.npy").write_bytes(b"damaged")
        with pytest.raises(ValueError, match=r"Cannot read the array .*3.npy"):
            OwnArrays(inputs="embedding", **where)


class TestImageFolder:
    @pytest.fixture
    def folder(self, tmp_path):
        generator = np.random.default_rng(0)
        rows = []
        for number in range(60):
            label, place = generator.integers(2, size=2)
            picture = generator.integers(0, 128, (40, 48, 3)) + 127 * label
            Image.fromarray(picture.astype("uint8")).save(tmp_path / f"{number}.png")
            rows.append({"path": f"{number}.png", "label": label, "place": place})
        pd.DataFrame(rows).to_csv(tmp_path / "metadata.csv", index=False)
        return tmp_path

    def test_command(self, folder, small, tmp_path):
        config = tmp_path / "mine.yaml"
        config.write_text(f"""
data:
  class_path: OwnImages
  init_args: {{root: {folder}, attributes: [label, place], image_size: 32, augment: crop_flip, batch_size: 16}}
model: {{class_path: Base, init_args: {{backbone: {SMALL}, weights: {small}, freeze: true, latent_dim: 8}}}}
""")
        quiet = ["--trainer.enable_progress_bar=false", f"--trainer.default_root_dir={tmp_path / 'runs'}"]
        assert codid("fit", "-c", config, "--trainer.max_epochs=1", *quiet) == 0
        (checkpoint,) = (tmp_path / "runs").rglob("last.ckpt")
        assert codid("test", "--ckpt_path", checkpoint, "--trainer.enable_progress_bar=false") == 0

    def test_training_images_are_changed_in_a_way_that_can_be_repeated(self, folder):
        seen: list[list[torch.Tensor]] = []

        class Watched(Base):
            def training_step(self, batch: Any, batch_idx: int) -> None:
                seen[-1].append(batch["x"].clone())
                super().training_step(batch, batch_idx)

            def validation_step(self, batch: Any, batch_idx: int) -> None:
                whole = self.trainer.datamodule.datasets["val"][batch["index"]]["x"]
                assert torch.equal(batch["x"], whole)

        def passed(augment):
            data = OwnImages(["label", "place"], root=str(folder), image_size=16, augment=augment, batch_size=16)
            data.setup()
            seen.append([])
            run = trainer(2)
            run.fit(make(Watched, data, reconstruction=0.0), datamodule=data)
            return torch.cat(seen[-1])

        first, again, whole = passed("crop_flip"), passed("crop_flip"), passed(None)
        assert torch.equal(first, again)
        assert first.shape == whole.shape
        assert not torch.equal(first, whole)
