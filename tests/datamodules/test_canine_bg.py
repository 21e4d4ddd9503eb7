import pytest
import torch
from scipy.stats import binom

from datamodules import CanineBG, DataError
from datamodules.canine_bg import BREEDS, Layers
from tests import fakes


@pytest.fixture
def root(tmp_path):
    fakes.canine_bg(tmp_path)
    return tmp_path


def built(root, **arguments):
    module = CanineBG(root=str(root), **{"image_size": 32, "val_fraction": 0.2, **arguments})
    module.prepare_data()
    module.setup()
    return module


def test_facts_are_the_papers():
    module = CanineBG(correlation=1.0)
    assert len(BREEDS) == len({synset for synset, _ in BREEDS}) == 20
    assert module.input_shape == (3, 128, 128)
    assert module.p[0].tolist() == pytest.approx(
        [0.1, 0.2, 0.3, 0.4, 0.1, 0.2, 0.2, 0.4, 0.3, 0.1, 0.9, 0.8, 0.7, 0.6, 0.9, 0.8, 0.8, 0.6, 0.7, 0.9]
    )


def test_composition_shows_the_dog_inside_of_its_mask_and_the_scene_outside():
    dogs = torch.tensor([10, 20], dtype=torch.uint8).view(2, 1, 1, 1).expand(2, 3, 4, 4)
    scenes = torch.tensor([100, 200, 250], dtype=torch.uint8).view(3, 1, 1, 1).expand(3, 3, 4, 4)
    masks = torch.zeros(2, 1, 4, 4, dtype=torch.uint8)
    masks[:, :, 1:3] = 255
    x = Layers(dogs, masks, scenes)(torch.tensor([[1, 2], [0, 0]]))
    assert torch.allclose(x[0, :, 1:3], torch.tensor(20 / 255))
    assert torch.allclose(x[0, :, 0], torch.tensor(250 / 255))
    assert torch.allclose(x[1, :, 2], torch.tensor(10 / 255))
    assert torch.allclose(x[1, :, 3], torch.tensor(100 / 255))


def test_samples_show_the_breed_and_scene_of_their_labels(root):
    module = built(root)
    layers = module.transform
    for dataset in module.datasets.values():
        batch = dataset[torch.arange(len(dataset))]
        assert batch["x"].shape[1:] == (3, 32, 32)
        # the fake dog's grey tells its breed, the corner is the background
        assert torch.equal(((batch["x"][:, 0, 16, 16] * 255 - 20) / 10).round().long(), batch["mode"][:, 0])
        corners = batch["x"][:, :, 0, 0]
        known = layers.scenes[:, :, 0, 0].float() / 255
        scene = torch.cdist(corners, known).argmin(1)
        assert torch.equal((scene >= 4).long(), batch["a"][:, 1])


def test_dogs_and_backgrounds_of_the_tests_are_never_trained_on(root):
    module = built(root)
    pairs = {name: dataset.x for name, dataset in module.datasets.items()}
    for column in (0, 1):
        trained = set(pairs["train"][:, column].tolist()) | set(pairs["val"][:, column].tolist())
        tested = {int(i) for name in module.test_names for i in pairs[name][:, column]}
        assert not trained & tested
    assert not set(pairs["train"][:, 0].tolist()) & set(pairs["val"][:, 0].tolist())


def test_tests_differ_in_the_background_only(root):
    module = built(root)
    first, third = module.datasets["test1"], module.datasets["test3"]
    assert torch.equal(first.x[:, 0], third.x[:, 0])
    same = first.a[:, 1] == third.a[:, 1]
    assert torch.equal(first.x[same, 1], third.x[same, 1])


def test_same_seed_same_data(root):
    one, again, other = built(root), built(root), built(root, seed=1)
    for name, dataset in one.datasets.items():
        assert torch.equal(dataset.x, again.datasets[name].x)
    assert not torch.equal(one.datasets["train"].x, other.datasets["train"].x)


def test_modes_are_equally_frequent(root):
    module = built(root)
    for dataset in module.datasets.values():
        assert len(dataset.mode[:, 0].bincount().unique()) == 1


def test_missing_folder_names_the_command(tmp_path):
    with pytest.raises(DataError, match="codid prepare canine-bg --imagenet"):
        CanineBG(root=str(tmp_path)).prepare_data()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: text.replace(",0,0,Australian_terrier", ",1,0,Australian_terrier"), "do not belong together"),
        (lambda text: text.replace("kelpie\n", "dingo\n"), "do not belong together"),
        (lambda text: text.replace("image,mask", "picture,mask"), "needs the columns"),
        (lambda text: "", "needs the columns"),
    ],
)
def test_wrong_metadata_raises(root, change, message):
    file = root / "CanineBG" / "metadata.csv"
    file.write_text(change(file.read_text()))
    with pytest.raises(DataError, match=message):
        built(root)


def test_missing_breed_raises(root):
    file = root / "CanineBG" / "metadata.csv"
    file.write_text("\n".join(line for line in file.read_text().splitlines() if "pug" not in line))
    with pytest.raises(DataError, match="samples of every mode"):
        built(root)


@pytest.mark.parametrize("content", [b"", b"no picture", None])
def test_damaged_or_missing_picture_is_named(root, content):
    path = next((root / "CanineBG" / "Masks").rglob("*_3.png"))
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(DataError, match=path.name):
        built(root)


def test_missing_backgrounds_raise(root):
    for path in (root / "CanineBG" / "Backgrounds" / "forest").iterdir():
        path.unlink()
    with pytest.raises(DataError, match="at least 2 jpg files"):
        built(root)


@pytest.mark.parametrize("arguments", [{"image_size": 8}, {"test_fraction": 0.0}, {"test_fraction": 1.0}])
def test_meaningless_arguments_raise(arguments):
    with pytest.raises(DataError, match="image_size"):
        CanineBG(**arguments)


def test_real_photos(configured):
    module = configured("canine_bg", "CanineBG")
    assert [len(module.datasets[name]) for name in ("train", "val", "test1")] == [640, 80, 180]
    indoors = module.p_a2_given_mode[0]
    for split, sign in (("train", 1), ("test3", -1)):
        dataset = module.datasets[split]
        for value in (0, 1):  # by use: the breeds are too few to be judged alone
            own = dataset.mode[:, 0] // 10 == value
            p = sum(indoors[10 * value : 10 * value + 10]) / 10
            low, high = binom.interval(1 - 1e-3, int(own.sum()), p if sign > 0 else 1 - p)
            assert low <= int((dataset.a[own, 1] == 0).sum()) <= high
    for column in (0, 1):  # no photo and no background is shared by train and test
        trained, tested = (module.datasets[name].x[:, column].unique() for name in ("train", "test1"))
        assert not torch.isin(trained, tested).any()
    batch = next(iter(module.train_dataloader()))
    assert batch["x"].shape == (128, 3, 128, 128)
    assert 0.2 < batch["x"].mean() < 0.7
