"""What CoDID adds to predictions."""

from __future__ import annotations

from tests.codid.tiny import fitted, tiny_codid, tiny_data


def test_predictions_name_a_cluster_once_there_are_some():
    data = tiny_data()
    data.setup("fit")
    batch = next(iter(data.val_dataloader()))
    assert "cluster" not in tiny_codid(data).eval().predict_step(batch, 0)
    module = fitted(3, data).eval()
    found = module.predict_step(batch, 0)["cluster"]
    assert found.shape == (len(batch["a"]),)
    assert module.target_list[0].active.flatten()[found].all()
