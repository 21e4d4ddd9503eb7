import gzip

import numpy as np
import pytest
import torch
from scipy.stats import binom

from datamodules import CMNIST, CFashionMNIST, ColoredDigits, ColoredGlyphs, DataError
from datamodules.colored import square_occlusion
from tests import fakes


@pytest.fixture
def root(tmp_path):
    fakes.cmnist(tmp_path)
    fakes.cfashion_mnist(tmp_path)
    return str(tmp_path)


def built(cls, **arguments):
    module = cls(**arguments)
    module.prepare_data()
    module.setup()
    return module


@pytest.mark.parametrize("cls", [CMNIST, CFashionMNIST, ColoredDigits, ColoredGlyphs])
def test_batches_keep_the_contract(cls, root):
    module = built(cls, root=root, batch_size=16)
    batch = next(iter(module.train_dataloader()))
    samples = len(module.datasets["train"])
    size = samples // -(-samples // 16)  # equal batches, as few as hold at most 16
    assert batch["x"].shape == (size, *module.input_shape)
    assert batch["x"].dtype == torch.float32
    assert 0 <= batch["x"].min() < batch["x"].max() <= 1
    assert batch["a"].shape == batch["mode"].shape == (size, 2)
    assert module.attribute_sizes == (2, 2)
    assert sum(module.mode_sizes[0]) == len(module.mode_names) == len(module.classes)


@pytest.mark.parametrize("cls", [CMNIST, CFashionMNIST, ColoredDigits, ColoredGlyphs])
def test_color_is_red_or_blue_as_the_label_says(cls, root):
    dataset = built(cls, root=root, noise=0.0).datasets["test2"]
    batch = dataset[torch.arange(len(dataset))]
    mass = batch["x"].sum((2, 3))  # (N, 3)
    assert (mass[:, 1] == 0).all()
    assert torch.equal((mass[:, 2] > 0).long(), batch["a"][:, 1])
    assert torch.equal((mass[:, 0] > 0).long(), 1 - batch["a"][:, 1])


def test_modes_and_styles_are_those_of_the_source_labels(root):
    # A fake image of class k has its bar at rows 2k to 2k + 6, so the picture itself tells the source label.
    for cls in (CMNIST, CFashionMNIST):
        module = built(cls, root=root, noise=0.0)
        dataset = module.datasets["train"]
        rows = dataset.x.amax((1, 3)) > 0  # (N, 28)
        source = rows.float().argmax(1) // 2
        assert torch.equal(torch.tensor(module.classes)[dataset.mode[:, 0]], source)
        assert torch.equal(dataset.a[:, 0], (dataset.mode[:, 0] >= module.modes_per_value[0]).long())


def test_brightness_scales_the_foreground(root):
    dim = built(CMNIST, root=root, noise=0.0, min_brightness=0.0).datasets["train"].x.amax((1, 2, 3)).float() / 255
    full = built(CMNIST, root=root, noise=0.0, min_brightness=1.0).datasets["train"].x.amax((1, 2, 3)).float() / 255
    factor = dim / full  # same seed, same images in the same order
    assert (factor <= 1.0).all()
    assert factor.min() < 0.2
    assert factor.max() > 0.8


@pytest.mark.parametrize("ratio", [0.0, 0.05, 0.2, 0.5, 1.0])
@pytest.mark.parametrize("size", [8, 28])
def test_occlusion_is_one_square_of_exactly_the_ratio(ratio, size):
    cover = square_occlusion(200, size, ratio, torch.Generator().manual_seed(0))
    assert torch.allclose(cover.sum((1, 2)), torch.full((200,), ratio * size**2), atol=1e-3)
    rows, columns = cover.amax(2), cover.amax(1)
    side = ratio**0.5 * size
    for line in (rows, columns):
        touched = line > 0
        # contiguous: at most one change from free to covered, and as long as the side asks
        assert (touched[:, 1:] > touched[:, :-1]).sum(1).max() <= 1
        assert ((touched.sum(1) - side).abs() < 2).all()
    if ratio == 0.2:  # it wanders over the whole image
        assert (cover.mean(0)[1:-1, 1:-1] > 0).all()


def test_noise_darkens_and_zero_noise_does_not(root):
    clean, noisy = (built(CMNIST, root=root, noise=n).datasets["train"].x.float() for n in (0.0, 0.4))
    assert noisy.mean() < clean.mean()
    assert (noisy <= clean).all()


@pytest.mark.parametrize("argument", ["noise", "min_brightness"])
def test_ratios_outside_the_unit_interval_raise(argument):
    with pytest.raises(DataError, match=argument):
        ColoredDigits(**{argument: 1.5})


def test_missing_files_without_download_say_what_to_place_where(tmp_path):
    with pytest.raises(DataError, match=r"MNIST/raw has no train-images-idx3-ubyte.*Place"):
        CMNIST(root=str(tmp_path), download=False).prepare_data()
    assert not list(tmp_path.iterdir())


def test_download_places_files_where_torchvision_reads_them(tmp_path, root, monkeypatch):
    source, target = tmp_path / "MNIST" / "raw", tmp_path / "new"

    def deliver(remote, folder):
        assert remote.urls[0] == f"{CMNIST.source.mirrors[0]}{remote.name}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / remote.name).write_bytes(gzip.compress((source / remote.name[:-3]).read_bytes()))
        return folder / remote.name

    monkeypatch.setattr("datamodules.colored.fetch", deliver)
    module = built(CMNIST, root=str(target))
    assert torch.equal(module.datasets["train"].x, built(CMNIST, root=root).datasets["train"].x)


def test_truncated_file_is_a_clear_error(tmp_path, root):
    path = tmp_path / "MNIST" / "raw" / "train-images-idx3-ubyte"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(DataError, match="Cannot read the training files"):
        built(CMNIST, root=root)


def test_images_without_labels_are_a_clear_error(tmp_path, root):
    fakes.write_idx(tmp_path / "MNIST" / "raw" / "train-labels-idx1-ubyte", np.arange(10))
    with pytest.raises(DataError, match="120 images but 10 labels"):
        built(CMNIST, root=root)


def test_a_missing_digit_is_a_clear_error(tmp_path, root):
    fakes.write_idx(tmp_path / "MNIST" / "raw" / "train-labels-idx1-ubyte", np.zeros(120))
    with pytest.raises(DataError, match="no image has the label 8"):
        built(CMNIST, root=root)


def test_colored_digits_hold_out_images_never_trained_on():
    module = ColoredDigits()
    train, test = (module.load(train=flag)[0].flatten(1) for flag in (True, False))
    assert not set(map(tuple, train.tolist())) & set(map(tuple, test.tolist()))


@pytest.mark.parametrize(("name", "folder"), [("cmnist", "MNIST"), ("cfashion_mnist", "FashionMNIST")])
def test_real_images_have_the_papers_statistics(name, folder, configured):
    module = configured(name, folder)
    p = torch.tensor(module.p_a2_given_mode)
    for split, expected in (("train", p), ("test1", p), ("test2", torch.full_like(p, 0.5)), ("test3", 1 - p)):
        dataset = module.datasets[split]
        sizes = dataset.mode[:, 0].bincount()
        assert len(sizes.unique()) == 1
        for mode, size in enumerate(sizes.tolist()):
            red = int((dataset.a[dataset.mode[:, 0] == mode, 1] == 0).sum())
            low, high = binom.interval(1 - 1e-4, size, float(expected[0, mode]))
            assert low <= red <= high
    assert module.hidden_correlation == pytest.approx({"MNIST": 0.34647, "FashionMNIST": 0.35264}[folder], abs=1e-5)
    trained, tested = (set(map(bytes, module.load(train)[0].numpy())) for train in (True, False))
    assert not trained & tested
