"""The pull between samples of one class, the spine of MR²'s representation term and of ELM:

    omega_i = ln(1 + sum_{j != i, y_j = y_i} exp(|h_i - h_j|^2 / t - alpha_i)),

or with the mean over the m_i partners in place of the sum, which is alpha_i + ln m_i in place of alpha_i.

Every row lists the rows of its class (itself included), as one ragged array of T = sum_k n_k^2 entries, so
sums over partners are segment sums and nothing is N x N x D. Distances come from differences of row pairs in
small chunks while pairs are few, and from one Gram product of centred rows once they are many (few classes,
or one that dominates): centring changes no distance within a class and keeps the Gram form's digits.

Backward, by hand: with softmax weights w_ij of the sum (the implicit 1 included), incoming gradients g_i and
G_ij = (g_i w_ij + g_j w_ji) / t, the gradient is a graph Laplacian times the features,
2 (diag(G 1) - G) h: a weighted sum of rows by the same lists, which needs no memory but its result. That of
the temperature t, which may depend on the features too, is -sum_ij g_i w_ij |h_i - h_j|^2 / t^2.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from probe.core.class_stats import Groups

CHUNK = 2**15  # elements of a block of differences: stays in the cache of one core, its memory reused
GRAM = 10  # a pair by difference costs about as much as this many entries of a Gram product


@dataclass(frozen=True)
class Partners:
    """For every row of a batch, the rows of its class: T entries, sorted by row."""

    groups: Groups
    row: Tensor  # T
    partner: Tensor  # T
    mirror: Tensor  # T: where the entry (j, i) of an entry (i, j) is
    starts: Tensor  # N: first entry of a row

    @classmethod
    def of(cls, groups: Groups) -> Partners:
        """The partners in a batch of these groups."""
        index, device = groups.index, groups.index.device
        order = torch.argsort(index, stable=True)  # rows, class by class
        first = (groups.sizes.cumsum(0) - groups.sizes)[index]  # N: where a row's class begins in `order`
        count = groups.sizes[index]
        starts = count.cumsum(0) - count
        place = torch.empty_like(order)  # a row's place within its class
        place[order] = torch.arange(len(order), device=device) - first[order]
        row = torch.repeat_interleave(torch.arange(len(order), device=device), count)
        partner = order[first[row] + torch.arange(len(row), device=device) - starts[row]]
        return cls(groups, row, partner, starts[partner] + place[row], starts)

    def squared_distances(self, features: Tensor) -> Tensor:
        """|h_i - h_j|^2 for every entry (constants)."""
        features = features.detach()
        upper = (self.row < self.partner).nonzero().squeeze(1)
        i, j = self.row[upper], self.partner[upper]
        if GRAM * len(upper) > len(features) ** 2:
            half = _by_gram(self.groups.centred(features, self.groups.means(features)), i, j)
        else:
            half = _by_difference(features, i, j)
        full = features.new_zeros(len(self.row))
        full[upper] = half
        full[self.mirror[upper]] = half
        return full

    def sums(self, entries: Tensor) -> Tensor:
        """Sum of a row's entries: N."""
        return entries.new_zeros(len(self.starts)).index_add(0, self.row, entries)


def _by_difference(x: Tensor, i: Tensor, j: Tensor) -> Tensor:
    size = max(1, CHUNK // max(1, x.shape[1]))
    pieces = [
        torch.linalg.vector_norm(x.index_select(0, a) - x.index_select(0, b), dim=1)
        for a, b in zip(i.split(size), j.split(size), strict=True)
    ]
    return torch.cat(pieces).square()


def _by_gram(x: Tensor, i: Tensor, j: Tensor) -> Tensor:
    gram = x @ x.T
    norms = gram.diagonal()
    return (norms[i] + norms[j] - 2 * gram[i, j]).clamp_(min=0)


class _Pull(torch.autograd.Function):
    @staticmethod
    def forward(
        features: Tensor, distances: Tensor, alpha: Tensor, temperature: Tensor, partners: Partners
    ) -> tuple[Tensor, Tensor]:
        row = partners.row
        exponent = distances / temperature - alpha.expand(len(features))[row]
        exponent = exponent.masked_fill(row == partners.partner, -torch.inf)
        # The implicit 1 is exp(0), so no row's maximum is below 0.
        top = features.new_zeros(len(features)).scatter_reduce(0, row, exponent, "amax")
        terms = (exponent - top[row]).exp()
        # the sum of all terms minus 1: log1p keeps its digits
        rest = partners.sums(terms) + torch.expm1(-top)
        return top + torch.log1p(rest), terms / (1 + rest)[row]

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        features, distances, _, temperature, ctx.partners = inputs
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(features, distances, temperature, output[1])

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor, None, None, Tensor | None, None]:
        features, distances, temperature, weights = ctx.saved_tensors
        partners: Partners = ctx.partners
        pulled = grad[partners.row] * weights / temperature
        graph = 2 * (pulled + pulled[partners.mirror])
        own = partners.row == partners.partner  # holds 0 so far: the diagonal's place
        laplacian = torch.where(own, partners.sums(graph)[partners.row], -graph)
        moved = F.embedding_bag(
            partners.partner, features, partners.starts, mode="sum", per_sample_weights=laplacian
        )
        warmed = -(pulled * distances / temperature).sum() if ctx.needs_input_grad[3] else None
        return moved, None, None, warmed, None


def pull(
    features: Tensor,
    distances: Tensor,
    partners: Partners,
    alpha: Tensor | float,
    *,
    temperature: Tensor | float = 1.0,
    mean: bool = False,
) -> Tensor:
    """omega for every row of N x D features; 0 for a row without a partner.

    `distances` are T squared distances, one per entry of `partners`, and alpha is one number or one per row;
    both are constants. A gradient goes through the temperature, one number. `mean`: over the partners, in
    place of their sum, so that their number does not matter.
    """
    alpha, temperature = (torch.as_tensor(x).to(features) for x in (alpha, temperature))
    if mean:
        others = (partners.groups.sizes - 1).clamp(min=1)[partners.groups.index]
        alpha = alpha + others.to(features).log()
    omega: Tensor
    omega, _ = _Pull.apply(features, distances, alpha, temperature, partners)  # type: ignore[no-untyped-call]
    return omega


def total_variance(features: Tensor) -> Tensor:
    """mean |h_i - mean h|^2 of N x D features, with gradient."""
    return (features - features.mean(0)).square().sum(1).mean()


def above_rounding(unit: Tensor, features: Tensor) -> Tensor:
    """A squared length that distances are divided by; not below what rounding makes of equal features."""
    with torch.no_grad():
        info = torch.finfo(features.dtype)
        smallest = (info.eps * features.square().sum(1).mean()).clamp(min=info.tiny)
    return torch.maximum(unit.to(features), smallest)
