"""Modes as a prior, against what a discrete world with infinite data must give."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from codid_lightning import CoDID
from codid_lightning.analysis.evaluation import encode
from codid_lightning.errors import RunError
from codid_lightning.methods.codid.discovery import ModeDiscovery
from codid_lightning.methods.codid.parts.prior import MAX_JOINT, PriorInLogits, joint_others
from datamodules.toy import ToyFourAttributes
from tests.codid.tiny import fitted, random_clusters, tiny_data

CONTENTS, VALUES, SLOTS, OTHERS = 7, 2, 3, 2


def model(moded=None, sizes=(VALUES, OTHERS), slots=SLOTS, contents=CONTENTS, **changes):
    """A model whose z_1 is the content, one-hot, so that its logits can be any function of content and cluster."""
    torch.manual_seed(0)
    parts = {"mode_loss": PriorInLogits(1e-9), "alignment": None, "splits": None, "reconstruction": 0.0}
    discovery = ModeDiscovery(n_clusters=1)
    found = CoDID(
        (contents,),
        sizes,
        latent_dim=contents,
        max_clusters=slots,
        moded=moded,
        discovery=discovery,
        **parts,
        **changes,
    )
    return found.double()


def world(seed=0, independent=False):
    """p(s, c, e) with content and e independent given the cluster, (S, C, E)."""
    generator = torch.Generator().manual_seed(seed)
    content = torch.rand(CONTENTS, VALUES * SLOTS, generator=generator, dtype=torch.float64) ** 3
    content /= content.sum(0)  # p(s | c)
    joint = torch.rand(VALUES * SLOTS, OTHERS, generator=generator, dtype=torch.float64) ** 2
    joint /= joint.sum()  # p(c, e)
    if independent:
        joint = joint.sum(1, keepdim=True) * joint.sum(0)
    return content[:, :, None] * joint


def set_prior(target, p):
    """The tables of training's frequencies, from p(c, e)."""
    marginal = p.sum(1)
    target.mode_predictor.log_marginal.copy_(marginal.log())
    target.mode_predictor.log_ratio.copy_((p / p.sum(0)).log().T - marginal.log())
    target.active.fill_(True)
    target.labels = torch.zeros(1, dtype=torch.int32)  # so that there are clusters


def every_sample(p):
    """All (s, c, e) with their probability: one-hot contents, attributes and clusters."""
    s, c, e = (index.flatten() for index in torch.meshgrid(*(torch.arange(n) for n in p.shape), indexing="ij"))
    return F.one_hot(s, CONTENTS).double(), torch.stack([c // SLOTS, e], dim=1), c, p.flatten()


def log_probs(module, target, z, a):
    """Logarithms of p(c | x, others) in training, (B, C)."""
    return module.mode_loss._training_logits(module, target, z, a)[0].log_softmax(1)


def minimise(module, target, p):
    """Train the mode predictor on the whole world."""
    z, a, c, weight = every_sample(p)
    predictor = target.mode_predictor
    solver = torch.optim.LBFGS(
        predictor.parameters(),
        max_iter=2000,
        tolerance_grad=1e-12,
        tolerance_change=1e-16,
        line_search_fn="strong_wolfe",
    )

    def closure():
        solver.zero_grad()
        loss = -(weight * log_probs(module, target, z, a).gather(1, c[:, None])[:, 0]).sum()
        loss.backward()
        return loss

    solver.step(closure)


def test_the_minimiser_is_the_probability_of_the_cluster_given_content_alone():
    p, module = world(), model()
    target = module.target_list[0]
    set_prior(target, p.sum(0))
    minimise(module, target, p)
    found = target.mode_predictor(torch.eye(CONTENTS).double(), target.active.flatten()).exp()
    exact = p.sum(2) / p.sum((1, 2))[:, None]
    assert torch.allclose(found, exact, atol=1e-5)
    # a_1 is predicted by adding up, under no correlation as under training's.
    z, a, _, _ = every_sample(p)
    plain = module.mode_loss.evaluation_logits(module, target, z, a).exp()
    assert torch.allclose(plain, (z @ exact).view(-1, VALUES, SLOTS).sum(2), atol=1e-5)
    module.dial = 1.0
    trained = module.mode_loss.evaluation_logits(module, target, z, a).exp()
    given = (p / p.sum(1, keepdim=True)).view(CONTENTS, VALUES, SLOTS, OTHERS).sum(2)  # p(a_1 | s, e)
    assert torch.allclose(trained, given[z.argmax(1), :, a[:, 1]], atol=1e-5)


def test_without_the_prior_the_minimiser_would_be_another():
    """The check above can fail: plain cross-entropy on inputs that show e learns p(c | s, e)."""
    p = world()
    given = p / p.sum(1, keepdim=True)
    assert (given[:, :, 0] - given[:, :, 1]).abs().max() > 0.1


def test_with_an_independent_attribute_it_is_cross_entropy():
    p, module = world(independent=True), model()
    target = module.target_list[0]
    set_prior(target, p.sum(0))
    z, a, c, _ = every_sample(p)
    logits = target.mode_predictor.logits(z, target.active.flatten()).logsumexp(2)
    assert torch.allclose(F.nll_loss(log_probs(module, target, z, a), c), F.cross_entropy(logits, c))


def test_with_one_mode_per_value_it_is_logit_adjustment():
    """Menon et al., ICLR 2021: cross-entropy of logits plus the log of the label's frequency, here given a_2."""
    module = model(moded=[])
    target = module.target_list[0]
    a = torch.tensor([[0, 0]] * 30 + [[1, 0]] * 10 + [[0, 1]] * 5 + [[1, 1]] * 55)
    module.training_attributes = lambda: a  # type: ignore[method-assign]
    module.mode_loss.clusters_known(module, adopted=True)
    z = torch.randn(len(a), CONTENTS).double()
    losses = module.attribute_losses(torch.stack([z, z], dim=1), a)[:, 0]
    logits = target.mode_predictor.logits(z, target.active.flatten()).logsumexp(2)
    frequency = torch.tensor([[30 / 40, 10 / 40], [5 / 60, 55 / 60]], dtype=torch.float64)
    marginal = torch.tensor([35 / 100, 65 / 100], dtype=torch.float64)
    adjusted = logits + frequency[a[:, 1]].log() - marginal.log()
    assert torch.allclose(losses, F.cross_entropy(adjusted, a[:, 0], reduction="none"))


@pytest.mark.parametrize("decoded", [False, True], ids=["real", "decoded"])
def test_attribute_and_additional_loss_add_up_to_the_cross_entropy_of_clusters(decoded):
    """On decoded samples to that of pairs of cluster and a_2, without the prior."""
    data = tiny_data()
    module = fitted(max_epochs=2, data=data, mode_loss=PriorInLogits(), alignment=None, splits=None)
    target, batch = module.target_list[0], data.datasets["train"][torch.arange(40)]
    module.sees_content = lambda target: decoded
    z, a = module(batch["x"]), batch["a"]
    losses = module.attribute_losses(z, a)[:, 0].mean() + module.mode_loss.additional_loss(module, z, batch)
    active = target.active.flatten()
    pairs = torch.einsum("bd,ced->bce", z[:, 0], target.mode_predictor.weight) + target.mode_predictor.bias
    by_hand = torch.zeros(())
    for i in range(40):
        e, own = int(a[i, 1]), pairs[i, active]
        if decoded:
            log_probs = own.flatten().log_softmax(0).view(own.shape)[:, e]
        else:
            log_probs = (own.logsumexp(1) + target.mode_predictor.log_ratio[e, active]).log_softmax(0)
        position = active.cumsum(0) - 1
        slots, probs = target._cluster_probs(torch.tensor([i]))
        by_hand -= sum(float(p) * log_probs[position[s]] for s, p in zip(slots[0], probs[0], strict=True) if p > 0)
    assert torch.allclose(losses, by_hand / 40, atol=1e-5)


def test_the_tables_count_the_training_set():
    data = tiny_data()
    module = fitted(max_epochs=2, data=data, mode_loss=PriorInLogits(pseudo_count=2.0), alignment=None, splits=None)
    target, train = module.target_list[0], data.datasets["train"]
    predictor = target.mode_predictor
    for slot in target.active.flatten().nonzero()[:, 0].tolist():
        marginal = float((target.labels == slot).double().mean())
        assert float(predictor.log_marginal[slot].exp()) == pytest.approx(marginal, rel=1e-5)
        for e in range(2):
            here = train.a[:, 1] == e
            share = (float((target.labels[here] == slot).sum()) + 2 * marginal) / (int(here.sum()) + 2)
            assert float(predictor.log_ratio[e, slot].exp()) * marginal == pytest.approx(share, rel=1e-4)


def test_several_other_attributes_count_as_one_with_their_combinations():
    module = model(sizes=(2, 3, 4))
    a = torch.tensor([[0, 2, 3], [1, 0, 1]])
    assert joint_others(module.target_list[0], a).tolist() == [11, 1]
    assert module.target_list[0].mode_predictor.log_ratio.shape[0] == 12


def test_too_many_combinations_add_the_log_ratios_of_the_attributes():
    module = model(sizes=(2, 9, 8), moded=[])
    assert MAX_JOINT < 9 * 8
    target = module.target_list[0]
    generator = torch.Generator().manual_seed(0)
    a = torch.stack([torch.randint(n, (500,), generator=generator) for n in (2, 9, 8)], dim=1)
    module.training_attributes = lambda: a  # type: ignore[method-assign]
    module.mode_loss.clusters_known(module, adopted=True)
    z = torch.zeros(500, CONTENTS).double()
    target.mode_predictor.bias.data.zero_()
    marginal = (a[:, 0].bincount() / 500).double()
    odds = torch.zeros(500, 2).double()
    for q in (1, 2):
        table = torch.stack(
            [(a[a[:, q] == e, 0].bincount(minlength=2) / (a[:, q] == e).sum()) for e in range((9, 8)[q - 1])]
        )
        odds += table.double()[a[:, q]].log() - marginal.log()
    losses = module.attribute_losses(torch.stack([z, z, z], dim=1), a)[:, 0]
    assert torch.allclose(losses, F.cross_entropy(odds, a[:, 0], reduction="none"))
    with pytest.raises(RunError, match="72 combinations"):
        joint_others(target, a)


@pytest.mark.parametrize("targets", [[0], [0, 1, 2, 3]])
def test_it_trains_on_four_attributes(targets):
    data = ToyFourAttributes(samples=400, batch_size=64)
    none = {"alignment": None, "splits": None, "discovery": {"n_clusters": 2}}
    module = fitted(max_epochs=2, data=data, mode_loss=PriorInLogits(), targets=targets, moded=targets[:2], **none)
    batch = data.datasets["test1"][torch.arange(50)]
    logits = module.eval().attribute_logits(module(batch["x"]), batch["a"])
    assert [own.shape[1] for own in logits] == list(data.attribute_sizes)


def test_a_prediction_never_reads_its_own_label():
    data = tiny_data()
    module = fitted(max_epochs=2, data=data, mode_loss=PriorInLogits(), alignment=None, splits=None, pi="train").eval()
    batch = data.datasets["test3"][torch.arange(60)]
    z, a = module(batch["x"]), batch["a"]
    other = torch.stack([1 - a[:, 0], a[:, 1]], dim=1)
    assert torch.equal(module.attribute_logits(z, a)[0], module.attribute_logits(z, other)[0])


def test_evaluation_of_a_run_uses_the_belief():
    """Not only `codid test`: `codid evaluate`, reports and audits encode whole splits."""
    data = tiny_data()
    module = fitted(data=data, mode_loss=PriorInLogits(), alignment=None, splits=None, pi=-1.0).eval()
    test = data.datasets["test1"]
    batch = test[torch.arange(len(test))]
    with torch.no_grad():
        expected = module.attribute_logits(module(batch["x"]), batch["a"])[0].argmax(1)
    assert torch.equal(encode(module, test).predicted[:, 0], expected)
    assert not torch.equal(expected, module.predictors[0](module(batch["x"])[:, 0]).argmax(1))


def test_adaptation_predicts_other_attributes_that_are_not_given():
    data = tiny_data()
    module = fitted(max_epochs=3, data=data, mode_loss=PriorInLogits(), alignment=None, splits=None)
    batch = data.datasets["test1"][torch.arange(60)]
    given, predicted = module.adapt(batch["x"], batch["a"][:, 1:]), module.adapt(batch["x"])
    assert given.others_given
    assert not predicted.others_given
    unknown = torch.full_like(batch["a"], -1)
    assert module.attribute_logits(module(batch["x"]), unknown)[0].isfinite().all()


@pytest.mark.parametrize(
    ("others", "message"), [([[2]] * 30, "Row 0 has value 2 of attribute 2"), ([[0, 1]] * 30, "1 columns")]
)
def test_values_never_seen_are_an_error(others, message):
    data = tiny_data()
    module = fitted(max_epochs=2, data=data, mode_loss=PriorInLogits(), alignment=None, splits=None)
    with pytest.raises(RunError, match=message):
        module.adapt(data.datasets["test1"].inputs(torch.arange(30)), torch.tensor(others))


def test_adaptation_counts_the_samples_that_batches_bring():
    data = tiny_data()
    module = fitted(max_epochs=2, data=data, mode_loss=PriorInLogits(), alignment=None, splits=None)
    batches = data.datasets["test1"].inputs(torch.arange(30)).split(10)
    others = torch.zeros(40, 1, dtype=torch.long)
    with pytest.raises(RunError, match=r"other attributes have shape"):
        module.adapt(iter(batches), others)


def test_adaptation_needs_the_prior():
    module = fitted(max_epochs=2)
    with pytest.raises(RunError, match="PriorInLogits"):
        module.adapt(torch.zeros(30, 2))


@pytest.mark.parametrize("split", [True, False], ids=["split", "merge"])
def test_clusters_that_split_or_merge_keep_their_probability(split):
    data = tiny_data()
    module = fitted(max_epochs=2, data=data, mode_loss=PriorInLogits(), alignment=None, splits=None)
    target, a = module.target_list[0], data.datasets["train"].a
    target.adopt(random_clusters(target, a), torch.randn(len(a), 4), [])
    z = torch.randn(200, 4, generator=torch.Generator().manual_seed(0))

    def probability():
        return target.mode_predictor(z, target.active.flatten()).exp()

    before, first, free = probability(), 0, target.slots - 1
    found = random_clusters(target, a)
    inherit = torch.diag_embed(target.active).float()
    if split:
        inherit[0, free, first] = 1.0
        found.active[0, free] = True
        found.share[0, [first, free]] = 0.5
    else:
        inherit[0, first, :2] = torch.tensor([0.25, 0.75])
        inherit[0, 1] = 0.0
        found.active[0, 1] = False
    with torch.no_grad():
        target.adopt(replace(found, inherit=inherit), z, [])
    after = probability()
    if split:
        assert torch.allclose(after[:, first] + after[:, free], before[:, first], atol=1e-6)
    else:  # in the mean: one logit cannot be the logarithm of a sum everywhere
        assert float(after[:, first].mean()) == pytest.approx(float(before[:, :2].sum(1).mean()), abs=1e-4)
