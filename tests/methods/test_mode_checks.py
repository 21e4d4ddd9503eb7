"""Warnings about clusters that are no modes."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from codid_lightning import ModeDiscovery
from codid_lightning.clustering import ModesPerValue, TrueModes
from codid_lightning.methods.codid.mode_checks import problems
from codid_lightning.training import resolve
from tests.codid.tiny import fitted, tiny_data


def clusters(modes, a):
    """A clustering whose clusters are these modes."""
    return ModesPerValue(TrueModes(), [4, 4], 4).fit(torch.randn(len(a), 2), a, modes)


def world():
    """Two values with two modes each; the other attribute follows neither value nor mode."""
    a, mode, other = (torch.arange(800) // size % 2 for size in (400, 200, 1))
    return a, mode, other


def test_modes_are_no_problem():
    a, mode, other = world()
    assert not list(problems(clusters(mode, a), other, 0))
    preferred = torch.where(torch.arange(800) % 20 == 0, 1 - mode, mode)  # modes that correlate strongly with it
    assert not list(problems(clusters(mode, a), preferred, 0))


def test_clusters_that_follow_the_other_attribute_are_named():
    a, mode, other = world()
    following = torch.where(a == 1, other, mode)
    (problem,) = problems(clusters(following, a), other, 0)
    assert "2 clusters under value 1 of attribute 1 (200, 200 samples) follow the other attributes" in problem
    four = torch.where(a == 1, 2 * other + mode, mode)  # several clusters under each value of the other attribute
    (problem,) = problems(clusters(four, a), other, 0)
    assert "4 clusters under value 1" in problem


def test_a_value_that_occurs_with_one_other_value_only_is_no_problem():
    a, mode, other = world()
    assert not list(problems(clusters(mode, a), torch.where(a == 1, 1, other), 0))


def test_small_clusters_are_named():
    a, mode, other = world()
    mode[:3], mode[3:4] = 2, 3
    (problem,) = problems(clusters(mode, a), other, 0)
    assert "2 of 4 clusters under value 0 of attribute 1 have only 3, 1 samples" in problem
    assert not list(problems(clusters(mode, a), other, 1))
    assert not list(problems(replace(clusters(mode * 0, a)), other, 1000)), "a single cluster cannot be merged"


def test_training_warns_and_merges_on_demand(caplog):
    data = tiny_data(samples_per_mode=9)
    known = {"clusterer": TrueModes(), "n_clusters": 2, "start": 1, "every": None}
    with pytest.warns(UserWarning, match="too few for a mode"):
        model = fitted(2, data, discovery=known)
    assert model.discovery.history[0]["counts"] != [1, 1]
    with caplog.at_level("INFO"):
        merged = fitted(2, data, discovery={**known, "min_cluster_size": 1000})
    assert merged.discovery.history[0]["counts"] == [1, 1]
    assert "had fewer than 1000 samples and were merged into the nearest" in caplog.text


def test_a_negative_size_is_an_error():
    with pytest.raises(ValueError, match="min_cluster_size is -1"):
        ModeDiscovery(min_cluster_size=-1)


def test_the_paper_keeps_all_clusters_and_the_recommendation_merges_small_ones():
    for name, size in {"codid": 0, "codid_adaptive": 10}.items():
        found = resolve([f"--config=configs/colored_digits/{name}.yaml"])["model"]["init_args"]["discovery"]
        assert found.get("init_args", found)["min_cluster_size"] == size
