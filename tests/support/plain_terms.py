"""`probe.losses.functional` once more, in plain Python on lists of float64: loops, no tensor."""

from __future__ import annotations

import math

from tests.support.plain_losses import cross_entropy, dot, log_softmax, mean, squared, unit


def log_sum_exp(values):
    top = max(values)
    return top + math.log(math.fsum(math.exp(v - top) for v in values))


def log_prior(counts):
    return [math.log(n / sum(counts)) for n in counts]


def bcl_contrast(views, targets, centres, *, temperature):
    u = [unit(row) for row in [*views, *centres]]
    labels = [*targets, *targets, *range(len(centres))]
    losses = []
    for a in range(len(views)):
        s = [dot(u[a], v) / temperature for v in u]
        others = [b for b in range(len(u)) if b != a]
        of_class = [[math.exp(s[b]) for b in others if labels[b] == k] for k in range(len(centres))]
        total = math.log(math.fsum(mean(members) for members in of_class))
        losses += [total - mean([s[b] for b in others if labels[b] == labels[a]])]
    return mean(losses)


def ncl(expert_logits, targets, counts, *, hard, factor):
    chosen = []
    for row, y in zip(expert_logits[0], targets, strict=True):
        order = sorted((k for k in range(len(row)) if k != y), key=lambda k: -row[k])
        chosen.append({y, *order[: hard - 1]})
    balanced = [
        [[v + math.log(n) for v, n in zip(row, counts, strict=True)] for row in logits]
        for logits in expert_logits
    ]
    masked = [
        [
            [v if k in kept else 0.0 for k, v in enumerate(row)]
            for row, kept in zip(logits, chosen, strict=True)
        ]
        for logits in balanced
    ]
    total = 0.0
    for experts in (balanced, masked):
        for logits in experts:
            total += mean([cross_entropy(row, y) for row, y in zip(logits, targets, strict=True)])
        p = [[[math.exp(v) for v in log_softmax(row)] for row in logits] for logits in experts]
        for i in range(len(p)):
            for j in range(len(p)):
                if i != j:
                    kl = [
                        math.fsum(t * (math.log(t) - math.log(q + 1e-9)) for t, q in zip(pj, pi, strict=True))
                        for pj, pi in zip(p[j], p[i], strict=True)
                    ]
                    total += factor * mean(kl) / (len(p) - 1)
    return total


def gml_contrast(queries, targets, keys, key_labels, counts, *, temperature, own=None):
    prior, u = log_prior(counts), [unit(row) for row in keys]
    losses = []
    for i, (query, y) in enumerate(zip(queries, targets, strict=True)):
        s = [dot(unit(query), key) / temperature for key in u]
        logits = {}
        for k in range(len(counts)):
            of_k = [s[j] for j, label in enumerate(key_labels) if label == k and (own is None or j != own[i])]
            if of_k:
                logits[k] = log_sum_exp(of_k) - math.log(len(of_k)) + prior[k]
        losses.append(log_sum_exp(list(logits.values())) - logits[y] if y in logits else 0.0)
    return mean(losses)


def paco(logits, targets, queries, keys, key_labels, counts, *, alpha, beta, gamma, temperature, own=None):
    prior = [0.0] * len(logits[0]) if counts is None else log_prior(counts)
    u = [unit(row) for row in keys]
    losses = []
    for i, y in enumerate(targets):
        z = [v + p for v, p in zip(logits[i], prior, strict=True)]
        s = {
            j: dot(unit(queries[i]), u[j]) / temperature
            for j, label in enumerate(key_labels)
            if label >= 0 and (own is None or j != own[i])
        }
        total = math.log(
            math.fsum(math.exp(v) for v in z) + gamma * math.fsum(math.exp(v) for v in s.values())
        )
        terms = [(beta, z[y])] + [(alpha, s[j]) for j in s if key_labels[j] == y]
        weight = sum(w for w, _ in terms)
        losses.append(-sum(w * (v - total) for w, v in terms) / weight if weight else 0.0)
    return mean(losses)


def dro_lt_released(features, targets, prototypes, margins, *, temperature):
    classes = []
    for k in sorted(set(targets)):
        scores = [
            -(math.sqrt(squared(h, prototypes[k])) + (margins[k] if y == k else 0.0)) / temperature
            for h, y in zip(features, targets, strict=True)
        ]
        log_p = log_softmax(scores)
        classes.append(-mean([log_p[i] for i, y in enumerate(targets) if y == k]))
    return mean(classes)


def lff_step(loss_biased, loss_debiased, targets, ids, state, *, ema):
    """State: {id: (biased average, debiased average, label)}. Ids of a batch differ."""
    state = dict(state or {})
    for b, d, y, i in zip(loss_biased, loss_debiased, targets, ids, strict=True):
        if i in state:
            b, d = ema * state[i][0] + (1 - ema) * b, ema * state[i][1] + (1 - ema) * d
        state[i] = (b, d, y)
    weights = []
    for y, i in zip(targets, ids, strict=True):
        b, d = (
            state[i][part] / max(entry[part] for entry in state.values() if entry[2] == y) for part in (0, 1)
        )
        weights.append(b / (b + d + 1e-8))
    return weights, state


def tau_norm(weight, *, tau):
    return [[v / math.sqrt(dot(row, row)) ** tau for v in row] for row in weight]


def lws(logits, scales):
    return [[v * s for v, s in zip(row, scales, strict=True)] for row in logits]
