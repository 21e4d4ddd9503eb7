"""The conditional autoencoder: its losses against torch's distributions, its shapes for any input."""

from __future__ import annotations

import pytest
import torch
from torch.distributions import Bernoulli, Normal, kl_divergence

from codid_lightning.nn.autoencoder import ConditionalAutoencoder, standard_divergence
from codid_lightning.nn.backbones import Decoder

SHAPES = [(3, 28, 28), (3, 8, 8), (1, 5, 7), (3, 128), (1, 150), (2, 3), (6,), (2, 3, 4, 5)]


def test_divergence_is_that_of_two_gaussians():
    mean, log_variance = torch.randn(5, 3, dtype=torch.double), torch.randn(5, 3, dtype=torch.double)
    expected = kl_divergence(
        Normal(mean, (log_variance / 2).exp()), Normal(torch.zeros(()), torch.ones(())).expand((5, 3))
    )
    torch.testing.assert_close(standard_divergence(mean, log_variance), expected)


def test_images_are_bernoulli():
    torch.manual_seed(0)
    network = ConditionalAutoencoder((3, 8, 8), 2)
    x, condition, noise = torch.rand(4, 3, 8, 8), torch.eye(2)[[0, 1, 0, 1]], torch.randn(4, *network.latent_shape)
    error, divergence = network.losses(x, condition, noise)
    mean, log_variance = network.encode(x)
    logits = network.decode(mean + (log_variance / 2).exp() * noise, condition)
    lightness = Bernoulli(
        logits=logits, validate_args=False
    )  # its log-probability is linear in x, also between 0 and 1
    torch.testing.assert_close(error, -lightness.log_prob(x).sum((1, 2, 3)))
    closed_form = (mean**2 + log_variance.exp() - 1 - log_variance).sum((1, 2, 3)) / 2
    torch.testing.assert_close(divergence, closed_form)
    torch.testing.assert_close(network.render(mean, condition), network.decode(mean, condition).sigmoid())


def test_series_are_gaussian_unless_told_otherwise():
    torch.manual_seed(0)
    network = ConditionalAutoencoder((2, 16), 3)
    x, condition, noise = torch.randn(4, 2, 16), torch.eye(3)[[0, 1, 2, 0]], torch.zeros(4, *network.latent_shape)
    error, _ = network.losses(x, condition, noise)
    torch.testing.assert_close(error, (network(x, condition) - x).square().sum((1, 2)))
    assert ConditionalAutoencoder((3, 8, 8), 2, "gaussian").likelihood == "gaussian"


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_any_shape_comes_back_and_follows_its_condition(shape):
    torch.manual_seed(0)
    network = ConditionalAutoencoder(shape, 4)
    x = torch.rand(3, *shape)
    one, other = (network(x, torch.eye(4)[[v, v, v]]) for v in (0, 3))
    assert one.shape == other.shape == x.shape
    assert not torch.allclose(one, other)
    assert network.encode(x)[0].shape == (3, *network.latent_shape)
    assert Decoder("convolutional", shape, 2, 5)(torch.randn(3, 2, 5)).shape == x.shape
