"""The command line as tests call it: in this process, on little data."""

from __future__ import annotations

from pathlib import Path

from codid_lightning.cli.main import main

SMALL_TOY = ("--data.samples_per_mode=40", "--data.batch_size=32", "--model.latent_dim=4")


def codid(*args: object) -> int:
    """The exit code of one command."""
    try:
        return main([str(arg) for arg in args])
    except SystemExit as stop:  # how parsers answer to --help and --print_config
        return stop.code or 0


def fit_toy(root: Path, *args: object, config: str = "configs/toy/base.yaml") -> Path:
    """Train two epochs on a small toy set; the run's directory, the only one below `root`."""
    quick = ("--trainer.max_epochs=2", "--trainer.enable_progress_bar=false", *SMALL_TOY)
    assert codid("fit", "-c", config, f"--trainer.default_root_dir={root}", *quick, *args) == 0
    (result,) = root.rglob("result.json")
    return result.parent
