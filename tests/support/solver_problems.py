"""Small problems with a plain-Python objective, for the tests of the solvers."""

from __future__ import annotations

import math

import torch


def blobs(n=120, dim=6, classes=4, *, seed=0, spread=1.5, counts=None):
    """Overlapping Gaussian classes in float64, off-centre and correlated as real features are."""
    g = torch.Generator().manual_seed(seed)
    if counts is None:
        y = torch.arange(n) % classes
    else:
        y = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    centres = torch.randn(int(y.max()) + 1, dim, generator=g, dtype=torch.float64)
    mix = torch.randn(dim, dim, generator=g, dtype=torch.float64) / math.sqrt(dim)
    noise = torch.randn(len(y), dim, generator=g, dtype=torch.float64)
    return centres[y] + spread * noise @ mix + 3, y


def plain_objective(weight, bias, X, y, l2, *, scale=None, shift=None, weights=None):
    """sum_i v_i CE(a_i z_i + c_i, y_i) + l2/2 |W|², one number at a time."""
    total = 0.0
    for i, (h, t) in enumerate(zip(X.tolist(), y.tolist(), strict=True)):
        z = []
        for k, (w, b) in enumerate(zip(weight.tolist(), bias.tolist(), strict=True)):
            a = 1.0 if scale is None else float(scale[t])
            c = 0.0 if shift is None else float(shift[k] if shift.ndim == 1 else shift[t, k])
            z.append(a * (math.fsum(p * q for p, q in zip(w, h, strict=True)) + b) + c)
        top = max(z)
        loss = top + math.log(math.fsum(math.exp(v - top) for v in z)) - z[t]
        total += loss * (1.0 if weights is None else float(weights[i]))
    return total + l2 / 2 * math.fsum(v * v for w in weight.tolist() for v in w)
