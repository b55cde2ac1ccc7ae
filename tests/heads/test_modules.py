"""Classifier heads: what they compute, how they start, what they refuse."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from probe import heads
from probe.errors import UserError

DIM, K = 8, 5


def features(n=12):
    return torch.randn(n, DIM, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("kind", heads.HEADS)
def test_every_head_gives_logits_and_round_trips_its_state(kind):
    head, other = heads.make(kind, DIM, K), heads.make(kind, DIM, K)
    assert head(features()).shape == (12, K)
    other.load_state_dict(head.state_dict())
    torch.testing.assert_close(head(features()), other(features()))
    assert head.embed(features()).shape == (12, DIM)


def test_a_cosine_head_serves_both_kinds_of_loss():
    head = heads.make("cosine", DIM, K, scale=16.0)
    h = features()
    cosines = head.cosines(h)
    torch.testing.assert_close(cosines, F.cosine_similarity(h.unsqueeze(1), head.weight.unsqueeze(0), dim=2))
    torch.testing.assert_close(head(h), 16 * cosines)
    assert not head.log_scale.requires_grad
    assert heads.make("cosine", DIM, K, learn_scale=True).log_scale.requires_grad


@pytest.mark.parametrize("dim", [K - 1, K, 3 * K])
def test_the_simplex_has_equal_angles_and_nothing_to_train(dim):
    head = heads.make("etf", dim, K)
    gram = head.weight @ head.weight.T
    want = torch.full((K, K), -1 / (K - 1)).fill_diagonal_(1)
    torch.testing.assert_close(gram, want, atol=1e-5, rtol=0)
    torch.testing.assert_close(head.weight.sum(0), torch.zeros(dim), atol=1e-5, rtol=0)
    assert not list(head.parameters())
    assert torch.equal(head.weight, heads.make("etf", dim, K).weight)


def test_a_simplex_needs_room_and_cannot_be_started_from_text():
    with pytest.raises(UserError, match="needs at least 4 features, not 3"):
        heads.make("etf", 3, K)
    with pytest.raises(UserError, match="fixed"):
        heads.make("etf", DIM, K).start_from_text(torch.zeros(K, DIM), 30.0)


@pytest.mark.parametrize("dim", [K - 1, 3 * K])
def test_a_simplex_turns_to_the_class_means_and_stays_one(dim):
    head = heads.make("etf", dim, K)
    goal = heads.make("etf", dim, K, seed=5).weight
    before = head.weight.clone()
    head.start_from_means(3 * goal + 7)  # a simplex around another point
    torch.testing.assert_close(head.weight, goal, atol=1e-5, rtol=0)
    for means in (torch.randn(K, dim, generator=torch.Generator().manual_seed(1)), torch.zeros(K, dim)):
        head.start_from_means(means)
        want = torch.full((K, K), -1 / (K - 1)).fill_diagonal_(1)
        torch.testing.assert_close(head.weight @ head.weight.T, want, atol=1e-5, rtol=0)
        assert (head.weight * means).sum() >= (before * means).sum()


def test_an_adapter_starts_as_the_head_behind_it_and_can_move_features():
    head = heads.make("adapter", DIM, K, head="cosine", width=3)
    h = features()
    torch.testing.assert_close(head.embed(h), h)
    torch.testing.assert_close(head(h), head.head(h))
    torch.testing.assert_close(head.cosines(h), head.head.cosines(h))
    head.embed(h).square().sum().backward()
    assert head.up.weight.grad.abs().sum() > 0


def test_a_linear_head_from_class_means_is_the_nearest_mean_classifier():
    means = torch.randn(K, DIM, generator=torch.Generator().manual_seed(1))
    head = heads.make("linear", DIM, K)
    head.start_from_means(means)
    assert torch.equal(head(features()).argmax(1), torch.cdist(features(), means).argmin(1))


@pytest.mark.parametrize("kind", ["linear", "cosine", "adapter"])
def test_text_embeddings_give_the_zero_shot_classifier(kind):
    text = torch.randn(K, DIM, generator=torch.Generator().manual_seed(2))
    head = heads.make(kind, DIM, K)
    head.start_from_text(text, 50.0)
    h = F.normalize(features(), dim=1)
    torch.testing.assert_close(head(h), 50 * h @ F.normalize(text, dim=1).T, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: heads.make("liner", DIM, K), 'did you mean "linear"'),
        (lambda: heads.make("linear", DIM, K, scale=3), "scale"),
        (lambda: heads.make("adapter", DIM, K, head="adapter"), "not of another adapter"),
        (lambda: heads.make("linear", DIM, K).cosines(features()), 'use the head "cosine"'),
        (lambda: heads.make("linear", DIM, K).start_from_means(torch.zeros(2, DIM)), "5 x 8"),
    ],
)
def test_mistakes_get_one_clear_line(call, says):
    with pytest.raises(UserError) as error:
        call()
    assert says in str(error.value)
