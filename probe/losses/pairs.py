"""The pull between samples of one class, the spine of MR²'s representation term and of ELM:

    omega_i = ln(1 + sum_{j != i, y_j = y_i} exp((|h_i - h_j|^2 - alpha_i) / t)).

Classes are laid out as B padded blocks of m rows (B x m x D), so that all distances are one batched Gram
product (B x m x m) and no N x N x D difference exists. Blocks of one class each are best when classes are
about equally large; in skewed batches padding would dominate, and one block that holds every row with a
partner (B = 1), masked to same-class pairs, is the better plan. Rows are centred on their class first:
distances do not change, and the Gram form keeps its digits.

Backward, by hand: with softmax weights w_ij of the sum (the implicit 1 included), incoming gradients g_i and
G_ij = (g_i w_ij + g_j w_ji) / t, the gradient is a graph Laplacian times the rows,
2 (diag(G 1) - G) h: one more batched product on what the forward already gathered.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from probe.stats import Groups

# Moving one element costs about as much as this many multiply-adds of a batched product.
MOVE = 50
# Padded rows may take this many times the memory of the batch itself.
PADDING = 8


@dataclass(frozen=True)
class Blocks:
    """Which batch row sits where: `rows` is B x m (0 where empty), `pairs` marks same-class pairs."""

    rows: Tensor  # B x m
    filled: Tensor  # B x m
    pairs: Tensor  # B x m x m

    @classmethod
    def of(cls, groups: Groups) -> Blocks:
        """The cheaper layout of the rows that have a partner."""
        paired = groups.sizes > 1
        count, height = int(paired.sum()), int(groups.sizes.max()) if len(groups.sizes) else 0
        partnered = int(groups.sizes[paired].sum())
        by_class = count * height * (MOVE + height)
        together = partnered * (MOVE + partnered)
        if by_class <= together and count * height <= PADDING * max(partnered, 1):
            return cls._by_class(groups, paired, count, height)
        return cls._together(groups, paired)

    @classmethod
    def _by_class(cls, groups: Groups, paired: Tensor, count: int, height: int) -> Blocks:
        order = torch.argsort(groups.index, stable=True)
        starts = groups.sizes.cumsum(0) - groups.sizes
        block = torch.cumsum(paired, 0) - 1  # present class -> block
        of_row = groups.index[order]
        place = torch.arange(len(order), device=order.device) - starts[of_row]
        keep = paired[of_row]
        cell = (block[of_row] * height + place)[keep]
        rows = order.new_zeros(count * height).index_copy(0, cell, order[keep]).view(count, height)
        filled = torch.arange(height, device=order.device) < groups.sizes[paired].unsqueeze(1)
        return cls(rows, filled, _off_diagonal(filled.unsqueeze(1) & filled.unsqueeze(2)))

    @classmethod
    def _together(cls, groups: Groups, paired: Tensor) -> Blocks:
        rows = paired[groups.index].nonzero().T
        label = groups.index[rows]
        same = label.unsqueeze(1) == label.unsqueeze(2)
        return cls(rows, torch.ones_like(rows, dtype=torch.bool), _off_diagonal(same))


def _off_diagonal(pairs: Tensor) -> Tensor:
    return pairs & ~torch.eye(pairs.shape[-1], dtype=torch.bool, device=pairs.device)


class _Pull(torch.autograd.Function):
    @staticmethod
    def forward(
        features: Tensor, centred: Tensor, alpha: Tensor, temperature: float, blocks: Blocks
    ) -> tuple[Tensor, Tensor, Tensor]:
        held = centred.index_select(0, blocks.rows.flatten()).view(*blocks.rows.shape, -1)
        norms = held.square().sum(-1)
        distances = torch.baddbmm(norms.unsqueeze(1), held, held.mT, alpha=-2) + norms.unsqueeze(2)
        margin = alpha.expand(len(features))[blocks.rows].unsqueeze(2)
        exponent = ((distances.clamp_(min=0) - margin) / temperature).masked_fill_(~blocks.pairs, -torch.inf)
        top = exponent.amax(-1, keepdim=True).clamp_(min=0)  # the implicit 1 is exp(0)
        terms = exponent.sub_(top).exp_()
        # Sum of all terms minus 1 (the implicit term is exp(-top)), so that log1p keeps small digits.
        rest = terms.sum(-1, keepdim=True) + torch.expm1(-top)
        omega = features.new_zeros(len(features))
        omega.index_copy_(0, blocks.rows[blocks.filled], (top + torch.log1p(rest)).squeeze(-1)[blocks.filled])
        return omega, held, terms.div_(1 + rest)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
        ctx.temperature, ctx.blocks = inputs[3], inputs[4]
        ctx.mark_non_differentiable(output[1], output[2])
        ctx.save_for_backward(output[1], output[2])
        ctx.size = len(inputs[0])

    @staticmethod
    def backward(ctx: Any, grad: Tensor, *_: Tensor) -> tuple[Tensor, None, None, None, None]:
        held, weights = ctx.saved_tensors
        rows, filled = ctx.blocks.rows, ctx.blocks.filled
        pull = grad[rows].unsqueeze(2) * weights
        graph = (pull + pull.mT) * (2 / ctx.temperature)
        moved = torch.baddbmm(graph.sum(-1, keepdim=True) * held, graph, held, alpha=-1)
        out = held.new_zeros(ctx.size, held.shape[-1])
        return out.index_copy_(0, rows[filled], moved[filled]), None, None, None, None


def pull(
    features: Tensor, alpha: Tensor, groups: Groups, centred: Tensor, *, temperature: float = 1.0
) -> Tensor:
    """omega for every row (N); 0 for a row without a partner. alpha: one number, or one a row (constants)."""
    return _Pull.apply(features, centred.detach(), alpha, temperature, Blocks.of(groups))[0]
