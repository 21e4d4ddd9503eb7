"""What a run held is freed when the run is dropped, without the garbage collector."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

from codid_lightning.experiments.matrix import method_configs
from codid_lightning.training import build, fit
from tests.codid.tiny import tiny_codid, tiny_data

SHORT = {
    "data.init_args.samples_per_mode": 20,
    "trainer.max_epochs": 2,
    "trainer.accelerator": "cpu",
    "trainer.enable_progress_bar": False,
}
CLUSTERS = {"model.init_args.discovery.init_args.start": 0, "model.init_args.discovery.init_args.every": 1}


@pytest.fixture(autouse=True)
def no_collector() -> Iterator[None]:
    """Garbage that refers to itself stays."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def watched(**objects: Any) -> dict[str, weakref.ref[Any]]:
    return {name: weakref.ref(o) for name, o in objects.items()}


def alive(watched: dict[str, weakref.ref[Any]]) -> list[str]:
    return [name for name, reference in watched.items() if reference() is not None]


def test_a_module_that_was_never_trained_is_freed():
    module = tiny_codid(tiny_data())
    objects = watched(module=module, encoder=module.encoder)
    del module
    assert alive(objects) == []


@pytest.mark.parametrize("method", ["base", "codid", "dann"])
def test_a_run_is_freed_when_it_is_dropped(method, tmp_path):
    clusters = CLUSTERS if method == "codid" else {}
    run = build(*method_configs("toy", method), SHORT, clusters, {"run_dir": str(tmp_path / "run")})
    fit(run)
    objects = watched(run=run, module=run.module, data=run.data, train=run.data.datasets["train"])
    objects |= watched(encoder=run.module.encoder, optimizer=run.trainer.optimizers[0])
    if method == "codid":
        objects |= watched(discovery=run.module.discovery, mixtures=run.module.discovery.modes[0])
    del run
    assert alive(objects) == []


def test_what_a_run_was_taken_apart_into_is_complete():
    """The run itself is gone before the trainer trains."""
    silent = {"trainer.enable_checkpointing": False}
    trainer, module, data = build(*method_configs("toy", "codid"), SHORT, CLUSTERS, silent, record=False)
    kinds = [type(callback) for callback in trainer.callbacks]
    trainer.fit(module, data)
    assert set(kinds) <= {type(callback) for callback in trainer.callbacks}
    assert trainer.lightning_module is module
    assert trainer.test(module, data, verbose=False)
