"""The examples of docs/data.md run as they stand."""

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image

import datamodules
from codid_lightning.cli.main import main
from codid_lightning.training.registry import argument_names, dataset_names

PAGE = (Path(__file__).parents[2] / "docs" / "data.md").read_text()
CONFIGS = {
    re.search(r"dataset: (\w+)", block)[1]: block for block in re.findall(r"```yaml[^\n]*\n(.*?)```", PAGE, re.DOTALL)
}
QUICK = ["--trainer.max_epochs=3", "--trainer.enable_progress_bar=false", "--trainer.logger=false"]


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def labels(n: int = 120) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {"species": rng.choice(["cat", "dog"], n), "season": rng.choice(["winter", "summer"], n)}


def fitted(name: str, *arguments: str) -> Path:
    Path("own.yaml").write_text(CONFIGS[name])
    assert main(["data", "summary", "-c", "own.yaml"]) == 0
    assert Path(f"{name}-samples.png").is_file()
    assert main(["fit", "-c", "own.yaml", *QUICK, *arguments]) == 0
    return next(Path("runs").rglob("last.ckpt"))


@pytest.mark.parametrize("protocol", ["random", "leave_one_group_out"])
def test_table(here, protocol):
    rng, table = np.random.default_rng(0), pd.DataFrame(labels())
    table["weight"], table["height"] = rng.normal(size=(2, 120))
    table["breed"], table["farm"] = rng.choice(["a", "b"], 120), rng.choice(["north", "south", "west"], 120)
    table["part"] = rng.choice(["train", "test"], 120)
    header = re.search(r"```text[^\n]*\n(weight.*)\n", PAGE)[1].split(",")
    table[header].to_csv("animals.csv", index=False)
    group = ["--data.test_group=1"] if protocol == "leave_one_group_out" else []
    checkpoint = fitted(
        "animals", f"--data.protocol={protocol}", *group, "--model.discovery.start=1", "--model.discovery.every=1"
    )
    table[["weight", "height"]].head(7).to_csv("new.csv", index=False)
    arguments = ["--data.file", "new.csv", "--data.protocol", "predict", "--trainer.enable_progress_bar=false"]
    assert main(["predict", "--ckpt_path", str(checkpoint), *arguments]) == 0
    found = pd.read_csv(checkpoint.parents[1] / "predictions" / "test.csv")
    assert found["row"].tolist() == list(range(7))
    assert set(found["species"]) <= {"cat", "dog"}


def test_arrays(here):
    exec(re.search(r"```python\n(.*?)```", PAGE, re.DOTALL)[1], {})
    fitted("machines")


def test_pictures(here):
    folder = here / "my_pictures"
    (folder / "pictures").mkdir(parents=True)
    names = [f"pictures/{i:04d}.jpg" for i in range(40)]
    for i, name in enumerate(names):
        Image.new("RGB", (32, 32), (i, 2 * i, 3 * i)).save(folder / name)
    pd.DataFrame({"path": names, **labels(40)}).to_csv(folder / "metadata.csv", index=False)
    fitted("pictures", "--data.image_size=32", "--data.batch_size=16", "--trainer.max_epochs=1")


def test_every_data_set_has_its_row():
    configs = Path(__file__).parents[2] / "configs"
    listed = set(re.findall(r"`(\w+)`", "".join(re.findall(r"^\| (`.*?) \|", PAGE, re.MULTILINE))))
    assert {file.parent.name for file in configs.glob("*/data.yaml")} <= listed


def test_keys_named_in_the_text_exist():
    known = {name for dataset in dataset_names() for name in argument_names(getattr(datamodules, dataset))}
    assert set(re.findall(r"--data\.(\w+)", PAGE)) <= known
