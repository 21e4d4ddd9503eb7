"""What leaves this machine or may be handed on holds nothing of the environment and of the user's folders."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
import wandb

from codid_lightning.training import runs
from codid_lightning.training.identity import shareable
from tests.commands import SMALL_TOY, codid
from tests.dashboard.wandb_file import records

SECRET = "s3cret-planted-in-a-path"
OTHER = "t0ken-planted-in-the-environment"
QUICK = ("--trainer.max_epochs=3", "--trainer.enable_progress_bar=false", "--model.discovery.start=1",
         "--model.discovery.every=1", "--model.alignment.steps=1", *SMALL_TOY)  # fmt: skip


def has_secret(content: bytes) -> list[str]:
    """The secrets in it, also in capitals and in UTF-16."""
    forms = [SECRET, OTHER, SECRET.upper()]
    return [form for form in forms if form.encode() in content or form.encode("utf-16-le") in content]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with a W&B dashboard, in a folder and an environment that hold a secret; started in that folder."""
    folder = tmp_path_factory.mktemp("private") / SECRET
    folder.mkdir()
    here = Path.cwd()
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("WANDB_")]:
            patch.delenv(name)
        values = {"CODID_PLANTED": OTHER, "USER": SECRET, "USERNAME": SECRET, "EMAIL": f"{OTHER}@example.org",
                  "HOME": str(folder), "NETRC": str(folder / "netrc"), "WANDB_SILENT": "true"}  # fmt: skip
        for name, value in values.items():
            patch.setenv(name, value)
        (folder / SECRET / ".git").mkdir(parents=True)
        patch.chdir(folder)
        places = (
            f"--data.root={folder / 'data'}",
            f"--run_dir={folder / SECRET}",
            f"--trainer.default_root_dir={folder}",
        )
        configs = ("-c", str(here / "configs/toy/codid.yaml"), "-c", str(here / "configs/loggers/wandb.yaml"))
        assert codid("fit", *configs, *places, *QUICK) == 0
        wandb.finish()
        wandb.teardown()
    return folder / SECRET


def test_the_secret_is_planted(trained: Path) -> None:
    """The run's own files, which stay where they are, may hold it."""
    assert SECRET in (trained / "config.yaml").read_text()


def test_wandb_gets_no_secret(trained: Path) -> None:
    """Neither the records of an offline run nor the files that `wandb sync` uploads."""
    (run,) = trained.glob("wandb/offline-run-*")
    (file,) = run.glob("run-*.wandb")
    kinds = set()
    for record in records(file):
        kinds.add(record.WhichOneof("record_type"))
        for entry in record.artifact.manifest.contents:
            entry.local_path = ""  # where `wandb sync` finds the file; it does not go further
        assert not has_secret(record.SerializeToString()), record
        assert record.run.host in ("", "-")
    assert {"run", "history", "summary"} <= kinds
    uploaded = [path for path in (run / "files").rglob("*") if path.is_file()]
    assert {"output.log", "requirements.txt", "wandb-metadata.json"}.isdisjoint(path.name for path in uploaded)
    assert [
        path for path in uploaded if has_secret(path.read_bytes()) or has_secret(str(path.relative_to(run)).encode())
    ] == []
    assert any(path.suffix == ".png" for path in uploaded)  # the dashboard was there


def test_result_has_no_secret(trained: Path) -> None:
    assert not has_secret((trained / runs.RESULT).read_bytes())


@pytest.mark.parametrize("ending", ["html", "md", "tex", "csv", "json"])
def test_reports_have_no_secret(trained: Path, ending: str, tmp_path: Path) -> None:
    """Also with messages about runs that are left out, and with the pictures of a run."""
    folder = trained.parent / "several"
    for name in ("one", "two", "broken"):
        shutil.copytree(trained, folder / name, ignore=shutil.ignore_patterns("wandb"), dirs_exist_ok=True)
    (folder / "two" / "figures").mkdir(exist_ok=True)
    shutil.copy(Path("docs/img/demo.png"), folder / "two" / "figures" / "demo.png")
    (folder / "broken" / "result.json").write_text("{}")
    assert codid("report", folder, trained, "--output", tmp_path / f"report.{ending}") == 0
    text = (tmp_path / f"report.{ending}").read_bytes()
    assert not has_secret(text)
    if ending == "html":
        assert b"broken" in text
        assert b"demo (codid on" in text


def test_audit_has_no_secret(trained: Path, tmp_path: Path) -> None:
    assert codid("audit", trained, "--output", tmp_path / "audit.html") == 0
    assert not has_secret((tmp_path / "audit.html").read_bytes())


def test_what_is_shared_of_a_config() -> None:
    data = {"root": "x", "file": "y", "attributes": ["a", "b/c"]}
    logger = {"class_path": "W", "init_args": {"save_dir": "x", "project": "p"}}
    config = {
        "run_dir": "/x",
        "seed_everything": 3,
        "ckpt_path": None,
        "data": {"class_path": "datamodules.OwnArrays", "init_args": data},
        "trainer": {"default_root_dir": "x", "logger": [logger]},
    }
    assert shareable(config) == {
        "seed_everything": 3,
        "data": {"class_path": "datamodules.OwnArrays", "init_args": {"attributes": ["a", "(path)"]}},
        "trainer": {"logger": [{"class_path": "W", "init_args": {"project": "p"}}]},
    }
