"""Trainings short enough to be looked at in tests."""

import contextlib
import io

from codid_lightning.cli.main import main

TINY = (
    *("--data.samples_per_mode", "60", "--data.batch_size", "64", "--trainer.accelerator", "cpu"),
    *("--trainer.enable_progress_bar", "false", "--model.latent_dim", "8"),
)
CODID = (
    *("--trainer.max_epochs", "5", "--model.discovery.start", "2", "--model.discovery.every", "1"),
    *("--model.alignment.steps", "2"),
)


def fit(directory, *arguments):
    with contextlib.redirect_stdout(io.StringIO()):
        code = main(["fit", *arguments, *TINY, "--run_dir", str(directory)])
    assert code == 0
    return directory
