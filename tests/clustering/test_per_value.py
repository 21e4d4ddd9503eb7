import io

import pytest
import torch
from torch import Tensor

from codid_lightning.clustering import DPGMM, Clustering, KMeans, ModesPerValue, TrueModes


def rows(counts: list[int], seed: int = 0, spread: float = 0.1) -> tuple[Tensor, Tensor, Tensor]:
    """Blobs on a line, ``counts[v]`` of them under value v: representations, values, modes."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
    mode = torch.randint(len(values), (200 * len(values),), generator=generator)
    z = torch.randn(len(mode), 3, generator=generator) * spread
    z[:, 0] += 4 * mode
    z[:, 1] += (mode % 2) * 4
    return z, values[mode], mode


def check_consistent(found: Clustering, a: Tensor, max_clusters: int) -> None:
    assert torch.equal(found.labels // max_clusters, a)
    assert torch.equal(found.probs.argmax(1), found.labels % max_clusters)
    torch.testing.assert_close(found.probs.sum(1), torch.ones(len(a)))
    torch.testing.assert_close(found.sub_probs.sum(1), torch.ones(len(a)))
    assert not found.probs[~found.active[a]].any()
    torch.testing.assert_close(found.inherit.sum(2), found.active.float())


@pytest.mark.parametrize("clusterer", [DPGMM(), KMeans(), TrueModes()], ids=lambda c: type(c).__name__)
def test_modes_under_each_value_are_found(clusterer):
    z, a, mode = rows([2, 3])
    modes = ModesPerValue(clusterer, n_clusters=[2, 3], max_clusters=5)
    found = modes.fit(z, a, mode)
    check_consistent(found, a, 5)
    assert found.active.sum(1).tolist() == [2, 3]
    assert len(torch.unique(torch.stack([found.labels, mode]), dim=1).T) == 5
    assert torch.equal(found.inherit, torch.diag_embed(found.active.float()))
    assert found.share.eq(1).all()
    for slot_id in found.labels.unique():
        value, slot = divmod(int(slot_id), 5)
        here = found.labels == slot_id
        torch.testing.assert_close(found.means[value, slot], z[here].mean(0), atol=1e-2, rtol=0)
        weights = found.sub_probs[here]
        halves = (weights.T @ z[here]) / weights.sum(0)[:, None]
        torch.testing.assert_close(found.sub_means[value, slot], halves, atol=1e-2, rtol=1e-3)


def test_halves_are_those_of_the_slot_that_a_cluster_has():
    """After splits and merges, clusters are in any of the slots."""
    z, a, mode = rows([2, 2])
    modes = ModesPerValue(DPGMM(), n_clusters=[1, 1], max_clusters=5)
    modes.fit(z, a)
    modes.slots = [[3], [1]]
    given = torch.full((len(z), 5, 2), 0.5)
    given[torch.arange(len(z)), torch.where(a == 0, 3, 1)] = torch.stack([mode % 2 == 0, mode % 2 == 1], 1).float()
    found = modes.refine(z, a, "split", given)
    assert found.active.tolist() == [[True, False, False, True, False], [True, True, False, False, False]]
    pairs = torch.stack([found.labels, mode], 1).unique(dim=0)
    assert len(pairs) == 4  # every cluster is a mode


@pytest.mark.parametrize("every_slot", [True, False])
def test_split_keeps_the_parents_slot_and_opens_the_lowest_free_one(every_slot):
    z, a, mode = rows([2, 3])
    modes = ModesPerValue(DPGMM(), n_clusters=[1, 1], max_clusters=5)
    before = modes.fit(z, a)
    assert before.active.sum(1).tolist() == [1, 1]
    sides = torch.stack([(mode == 0) | (mode == 2), (mode == 1) | (mode > 2)], 1).float()
    if every_slot:
        sides = torch.cat([sides[:, None], torch.full((len(z), 4, 2), 0.5)], dim=1)  # four slots are not in use
    found = modes.refine(z, a, "split", sides)
    check_consistent(found, a, 5)
    assert found.active.tolist() == [[True, True, False, False, False]] * 2
    assert found.inherit[:, :2, 0].tolist() == [[1, 1], [1, 1]]
    assert found.share[:, :2].tolist() == [[0.5, 0.5], [0.5, 0.5]]
    assert torch.equal(found.labels[mode == 0], torch.zeros_like(mode[mode == 0]))
    assert [(m.value, m.kind, m.slots, m.accepted) for m in found.moves] == [
        (0, "split", (0,), True),
        (1, "split", (0,), True),
    ]


def test_merge_keeps_the_larger_slot_and_weighs_by_size():
    generator = torch.Generator().manual_seed(0)
    z = torch.randn(900, 2, generator=generator)
    far = torch.arange(900) < 300
    z[far] += 50
    a = torch.zeros(900, dtype=torch.long)
    start = torch.where(far, 0, torch.where(z[:, 0] > -0.5, 2, 1))
    modes = ModesPerValue(DPGMM(max_iter=1, deterministic=True), n_clusters=[1], max_clusters=4)
    modes.fit(z, a)
    modes.clusterers[0].fit(z, initial_labels=start)
    modes.slots[0] = [0, 1, 3]
    found = modes.refine(z, a, "merge")
    check_consistent(found, a, 4)
    assert found.active.tolist() == [[True, False, False, True]]
    assert found.inherit[0, 0].tolist() == [1, 0, 0, 0]
    assert 0.05 < found.inherit[0, 3, 1] < 0.5 < found.inherit[0, 3, 3]
    assert found.share[0].tolist() == [1, 1, 1, 1]


def test_a_split_without_a_free_slot_is_rejected_with_a_reason():
    z, a, _ = rows([2])
    modes = ModesPerValue(DPGMM(), n_clusters=[1], max_clusters=1)
    modes.fit(z, a)
    found = modes.refine(z, a, "split")
    assert found.active.sum() == 1
    assert [(m.accepted, m.reason) for m in found.moves] == [(False, "no free cluster")]
    assert found.moves[0].log_hastings > 0


def test_resumed_refinements_continue_bit_for_bit():
    z, a, _ = rows([2, 3], spread=1.5)
    original = ModesPerValue(DPGMM(random_state=3), n_clusters=[4, 4], max_clusters=8)
    original.fit(z, a)
    buffer = io.BytesIO()
    torch.save(original.state_dict(), buffer)
    buffer.seek(0)
    resumed = ModesPerValue(DPGMM(random_state=3), n_clusters=[4, 4], max_clusters=8)
    resumed.load_state_dict(torch.load(buffer, weights_only=True))
    for step, move in enumerate(["merge", "split", "merge", "split"]):
        moved = z + 0.1 * step
        one, two = original.refine(moved, a, move), resumed.refine(moved, a, move)
        for name in ("labels", "probs", "active", "inherit", "share", "means", "sub_means", "sub_probs", "moves"):
            first, second = getattr(one, name), getattr(two, name)
            assert torch.equal(first, second) if isinstance(first, Tensor) else first == second


def test_a_value_without_samples_is_an_error():
    with pytest.raises(ValueError, match="value 1"):
        ModesPerValue(DPGMM(), [1, 1], 4).fit(torch.randn(10, 2), torch.zeros(10, dtype=torch.long))


@pytest.mark.parametrize("clusterer", [DPGMM(), KMeans()], ids=lambda c: type(c).__name__)
def test_survivors_never_change_their_slot(clusterer):
    """Over many rounds with comings and goings, a slot belongs to its own former cluster or was free before."""
    z, a, _ = rows([3, 4], spread=1.6)
    modes = ModesPerValue(clusterer, n_clusters=[6, 2], max_clusters=12)
    former = modes.fit(z, a)
    generator = torch.Generator().manual_seed(1)
    changes = 0
    for move in ("merge", "split") * 4:
        z = z + 0.2 * torch.randn(z.shape, generator=generator)
        found = modes.refine(z, a, move)
        check_consistent(found, a, 12)
        for value, slot in found.active.nonzero().tolist():
            heir = int(found.inherit[value, slot].argmax()) == slot
            assert heir if former.active[value, slot] else not heir
        changes += int((former.active != found.active).sum())
        former = found
    assert changes > 0 or isinstance(clusterer, KMeans)


def with_outliers(seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Two blobs under one value; two samples near the first and one near the second are clusters of their own."""
    z, a, mode = rows([2], seed=seed)
    extra = torch.tensor([[1.5, 0.0, 0.0], [1.6, 0.0, 0.0], [6.0, 4.0, 0.0]])
    return torch.cat([z, extra]), torch.cat([a, a[:3]]), torch.cat([mode, torch.tensor([2, 2, 3])])


@pytest.mark.parametrize("clusterer", [DPGMM(), KMeans(n_init=20), TrueModes()], ids=lambda c: type(c).__name__)
def test_small_clusters_are_merged_into_the_nearest(clusterer):
    z, a, mode = with_outliers()
    modes = ModesPerValue(clusterer, [4], 5, min_size=10)
    found = modes.fit(z, a, mode)
    check_consistent(found, a, 5)
    expected = torch.where(mode == 2, 0, torch.where(mode == 3, 1, mode))
    assert len(torch.unique(torch.stack([found.labels, expected]), dim=1).T) == 2
    assert found.labels.bincount()[found.labels].min() >= 10
    assert torch.equal(found.inherit, torch.diag_embed(found.active.float()))
    again = modes.refine(z, a, "merge")
    check_consistent(again, a, 5)
    assert len(again.labels.unique()) == 2


def test_nothing_is_merged_unless_asked_for():
    z, a, mode = with_outliers()
    modes = ModesPerValue(TrueModes(), [4], 5)
    assert modes.fit(z, a, mode).active.sum() == 4
    assert modes.absorbed == [0]
    asked = ModesPerValue(TrueModes(), [4], 5, min_size=10)
    asked.fit(z, a, mode)
    assert asked.absorbed == [2]
    assert ModesPerValue(TrueModes(), [4], 5, min_size=1000).fit(z, a, mode).active.sum() == 1


def test_a_small_child_of_a_split_returns_to_its_parent():
    z, a, mode = with_outliers()
    modes = ModesPerValue(DPGMM(deterministic=True), [2], 5, min_size=10)
    before = modes.fit(z, a)
    halves = torch.stack([mode != 2, mode == 2], 1).float()
    found = modes.refine(z, a, "split", halves)
    check_consistent(found, a, 5)
    assert torch.equal(found.active, before.active)
    assert torch.equal(found.labels, before.labels)
    assert found.share.eq(1).all()
    assert torch.equal(found.inherit, torch.diag_embed(found.active.float()))
