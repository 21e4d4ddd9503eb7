import numpy as np
import pytest
from PIL import Image

from codid_lightning.cli.commands.prepare import main
from datamodules import CanineBG, DataError
from datamodules.canine_bg import BREEDS, SCENES
from datamodules.canine_prepare import SegmentationError, _square_around, prepare

SIZE = (60, 48)  # width and height of the fake photos


@pytest.fixture
def sources(tmp_path):
    """ImageNet's and Places' own folder layouts: train/<synset>/*.JPEG and data_256/<letter>/<scene>/*.jpg."""
    rng = np.random.default_rng(0)
    for synset, _ in BREEDS:
        for number in range(3):
            pixels = rng.integers(0, 60, (SIZE[1], SIZE[0], 3), dtype=np.uint8)
            pixels[10:30, 20:50] = (250, 200, 150)  # the dog
            path = tmp_path / "imagenet" / "train" / synset / f"{synset}_{number}.JPEG"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels).save(path)
    for folder in ("l/living_room", "f/forest/broadleaf"):
        for number in range(3):
            path = tmp_path / "places" / "data_256" / folder / f"{number:08d}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(rng.integers(0, 256, (40, 60, 3), dtype=np.uint8)).save(path)
    return tmp_path


class Bright:
    """Finds the bright dog; counts its calls and stops when told to."""

    def __init__(self, stop_after=None, fail_on=()):
        self.calls, self.stop_after, self.fail_on = [], stop_after, fail_on

    def __call__(self, photo, breed):
        if self.stop_after is not None and len(self.calls) == self.stop_after:
            raise KeyboardInterrupt
        self.calls.append(breed)
        if breed in self.fail_on:
            raise SegmentationError("no dog in sight")
        return np.asarray(photo)[:, :, 0] > 150


def run(sources, segmenter, **arguments):
    out = sources / "data" / "CanineBG"
    return prepare(sources / "imagenet", sources / "places", out, segmenter, **{"size": 32, **arguments})


def test_prepared_folder_is_what_the_data_module_reads(sources):
    report = run(sources, Bright())
    assert (report.prepared, report.failed) == (60, [])
    module = CanineBG(root=str(sources / "data"), image_size=32, val_fraction=0.5)
    module.setup()
    assert [len(d) for d in module.datasets.values()] == [20, 20, 20, 20, 20]


def test_masks_follow_the_dog_into_the_square(sources):
    run(sources, Bright())
    out = sources / "data" / "CanineBG"
    path = "n02110958-pug/n02110958_0"
    mask = np.asarray(Image.open(out / "Masks" / f"{path}.png"))
    image = np.asarray(Image.open(out / "Images" / f"{path}.jpg"))
    assert mask.shape == (32, 32)
    assert image.shape == (32, 32, 3)
    rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
    assert np.ptp(columns) / np.ptp(rows) == pytest.approx(30 / 20, rel=0.15)  # the shape is kept
    assert np.ptp(columns) == pytest.approx(32 / 1.1, abs=2)  # a margin is left
    inner = mask.copy()
    inner[:-2] &= mask[2:]
    inner[2:] &= mask[:-2]
    assert image[inner, 0].min() > 200
    assert image[:, :, 0][~mask].mean() < 80


def test_interrupted_preparation_goes_on_where_it_stopped(sources):
    first, second = Bright(stop_after=25), Bright()
    with pytest.raises(KeyboardInterrupt):
        run(sources, first)
    with pytest.raises(DataError, match=r"metadata\.csv"):  # half a folder is not taken for a whole one
        CanineBG(root=str(sources / "data")).prepare_data()
    report = run(sources, second)
    assert len(first.calls) + len(second.calls) == report.prepared == 60
    third = Bright()
    run(sources, third)
    assert third.calls == []


def test_photos_without_a_dog_are_reported_and_not_tried_again(sources):
    report = run(sources, Bright(fail_on=("pug",)))
    assert report.prepared == 57
    assert [name for name, _ in report.failed] == [f"n02110958_{n}.JPEG" for n in range(3)]
    assert {reason for _, reason in report.failed} == {"no dog in sight"}
    again = Bright()
    assert run(sources, again).failed == report.failed
    assert again.calls == []


def test_unreadable_photo_is_reported(sources):
    (sources / "imagenet" / "train" / "n02110958" / "n02110958_1.JPEG").write_bytes(b"broken")
    report = run(sources, Bright())
    assert report.prepared == 59
    assert "Cannot read the image" in report.failed[0][1]


def test_limits_are_kept(sources):
    assert run(sources, Bright(), per_breed=2, per_scene=1).prepared == 40
    assert len(list((sources / "data" / "CanineBG" / "Backgrounds").rglob("*.jpg"))) == 2


@pytest.mark.parametrize("layout", ["{synset}", "Images/{synset}-{breed}", "ILSVRC/Data/CLS-LOC/train/{synset}"])
def test_other_layouts_of_imagenet_are_found(sources, layout):
    for synset, breed in BREEDS:
        target = sources / "other" / layout.format(synset=synset, breed=breed)
        target.parent.mkdir(parents=True, exist_ok=True)
        (sources / "imagenet" / "train" / synset).rename(target)
    (sources / "imagenet").rename(sources / "empty")
    (sources / "other").rename(sources / "imagenet")
    assert run(sources, Bright()).prepared == 60


@pytest.mark.parametrize("names", [("living_room", "forest"), ("train/living_room", "train/forest-broadleaf")])
def test_other_layouts_of_places_are_found(sources, names):
    for name, old in zip(names, ("l/living_room", "f/forest/broadleaf"), strict=True):
        (sources / "new" / name).parent.mkdir(parents=True, exist_ok=True)
        (sources / "places" / "data_256" / old).rename(sources / "new" / name)
    (sources / "places").rename(sources / "old")
    (sources / "new").rename(sources / "places")
    assert run(sources, Bright()).prepared == 60
    assert {p.parent.name for p in (sources / "data").rglob("0000*.jpg")} == set(SCENES)


def test_missing_sources_are_named(sources):
    with pytest.raises(DataError, match="has no folder n02096294"):
        prepare(sources / "places", sources / "places", sources / "out", Bright())
    with pytest.raises(DataError, match="no pictures of living_room"):
        prepare(sources / "imagenet", sources / "imagenet", sources / "out", Bright())


def test_square_holds_the_dog_in_its_middle():
    mask = np.zeros((40, 60), dtype=bool)
    mask[5:15, 30:50] = True
    left, top, right, bottom = _square_around(mask)
    assert right - left == bottom - top >= 20
    assert (left + right) / 2 == pytest.approx(40, abs=1)
    assert (top + bottom) / 2 == pytest.approx(10, abs=1)
    with pytest.raises(SegmentationError, match="empty"):
        _square_around(np.zeros((4, 4), dtype=bool))


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """SAM and CLIP of the real classes, tiny and random, as saved folders."""
    transformers = pytest.importorskip("transformers", reason="the extra `canine` is not installed")
    import torch

    folder = tmp_path_factory.mktemp("models")
    torch.manual_seed(0)
    common = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    sam = transformers.SamModel(
        transformers.SamConfig(
            vision_config={**common, "output_channels": 16, "image_size": 64, "mlp_dim": 32, "window_size": 2}
            | {"global_attn_indexes": [0], "num_pos_feats": 8},
            prompt_encoder_config={"hidden_size": 16, "image_size": 64, "mask_input_channels": 4},
            mask_decoder_config={"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "mlp_dim": 32}
            | {"iou_head_hidden_dim": 16},
        )
    )
    sam.save_pretrained(folder / "sam")
    transformers.SamImageProcessor(
        size={"longest_edge": 64}, pad_size={"height": 64, "width": 64}, mask_size={"longest_edge": 16}
    ).save_pretrained(folder / "sam")
    letters = "abcdefghijklmnopqrstuvwxyz"
    tokens = ["<|startoftext|>", "<|endoftext|>", *letters, *(f"{letter}</w>" for letter in letters)]
    clip = transformers.CLIPModel(
        transformers.CLIPConfig(
            text_config={**common, "intermediate_size": 32, "vocab_size": len(tokens), "max_position_embeddings": 77}
            | {"bos_token_id": 0, "eos_token_id": 1},
            vision_config={**common, "intermediate_size": 32, "image_size": 32, "patch_size": 16},
            projection_dim=16,
        )
    )
    clip.save_pretrained(folder / "clip")
    transformers.CLIPProcessor(
        transformers.CLIPImageProcessor(size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32}),
        transformers.CLIPTokenizer(vocab={t: i for i, t in enumerate(tokens)}, merges=[]),
    ).save_pretrained(folder / "clip")
    return folder


OPEN = {"pred_iou_thresh": -1e9, "stability_score_thresh": -1.0, "points_per_crop": 4, "crops_nms_thresh": 1.0}


def arguments(sources, models, thresholds):
    return [
        "canine-bg",
        f"--imagenet={sources / 'imagenet'}",
        f"--places={sources / 'places'}",
        f"--out={sources / 'data' / 'CanineBG'}",
        "--size=32",
        "--per_breed=1",
        f"--segmenter.sam={models / 'sam'}",
        f"--segmenter.clip={models / 'clip'}",
        "--segmenter.min_area=0.001",
        "--segmenter.max_area=1.0",
        f"--segmenter.thresholds={thresholds}",
    ]


def test_whole_path_with_real_model_classes(sources, models, capsys):
    assert main(arguments(sources, models, OPEN)) == 0
    assert "20 dogs are in" in capsys.readouterr().out
    module = CanineBG(root=str(sources / "data"), image_size=32)
    assert module.transform.masks.flatten(1).amax(1).tolist() == [255] * 20


def test_photos_that_the_models_cannot_segment_are_reported(sources, models, capsys):
    refuse_all = {**OPEN, "points_per_crop": 1}
    command = arguments(sources, models, refuse_all)
    command[8] = "--segmenter.min_area=0.99999"
    assert main(command) == 1
    out = capsys.readouterr().out
    assert "could not be segmented" in out
    assert "plausible size" in out


def test_clip_decides_between_the_masks(models):
    from datamodules.canine_prepare import SamClip

    segmenter = SamClip(str(models / "sam"), str(models / "clip"))
    left, right = np.zeros((2, 48, 60), dtype=bool)
    left[10:30, 5:25], right[10:30, 35:55] = True, True
    pixels = np.zeros((48, 60, 3), dtype=np.uint8)
    pixels[:, :30], pixels[:, 30:] = (250, 40, 10), (20, 60, 240)
    photo = Image.fromarray(pixels)
    import torch

    scores = []
    for mask in (left, right):  # an independent reference: embed both cut-outs and the prompt, compare by hand
        alone = np.where(mask[:, :, None], pixels, 128).astype(np.uint8)
        box = _square_around(mask)
        inputs = segmenter.processor(
            text=["a photo of a toy terrier"], images=[Image.fromarray(alone).crop(box)], return_tensors="pt"
        )
        with torch.inference_mode():
            out = segmenter.clip(**inputs)
        scores.append(float(out.text_embeds @ out.image_embeds.T))
    assert abs(scores[0] - scores[1]) > 1e-4
    for order in ((left, right), (right, left)):
        segmenter.proposals = lambda photo, order=order, **_: {"masks": list(order)}
        chosen = segmenter(photo, "toy_terrier")
        assert np.array_equal(chosen, (left, right)[int(np.argmax(scores))])
