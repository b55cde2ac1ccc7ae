"""Every loss once more, in plain Python on lists of float64: loops, no tensor, nothing of the product.

`PLAIN[name](case, **params)` returns f(z, h), the batch's loss as a function of logits (or cosines) and
features, with everything that the method treats as a constant (statistics, weights, masks) fixed at the case.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Case:
    z: list[list[float]]
    y: list[int]
    h: list[list[float]]
    num_classes: int
    counts: list[float]

    @property
    def prior(self):
        return [n / sum(self.counts) for n in self.counts]

    def rows_of(self, k):
        return [i for i, label in enumerate(self.y) if label == k]

    @property
    def present(self):
        return sorted(set(self.y))


def mean(values):
    return math.fsum(values) / len(values)


def log_softmax(row):
    top = max(row)
    total = top + math.log(math.fsum(math.exp(v - top) for v in row))
    return [v - total for v in row]


def cross_entropy(row, label):
    return -log_softmax(row)[label]


def squared(a, b):
    return math.fsum((p - q) ** 2 for p, q in zip(a, b, strict=True))


def dot(a, b):
    return math.fsum(p * q for p, q in zip(a, b, strict=True))


def unit(a):
    length = math.sqrt(dot(a, a))
    return [v / length for v in a]


def mean_vector(rows):
    return [mean(column) for column in zip(*rows, strict=True)]


def norm2(vector, p):
    return math.fsum(abs(v) ** p for v in vector) ** (2 / p)


def effective_weights(case, beta):
    raw = [(1 - beta) / (1 - beta**n) for n in case.counts]
    return [w * len(raw) / sum(raw) for w in raw]


def log1p_sum_exp(exponents):
    top = max([0.0, *exponents])
    return top + math.log(math.exp(-top) + math.fsum(math.exp(e - top) for e in exponents))


# --- rows ---


def weighted_ce(case, adjust, weight=None):
    def f(z, h):
        losses = [cross_entropy(adjust(row, label), label) for row, label in zip(z, case.y, strict=True)]
        if weight is None:
            return mean(losses)
        v = [weight[label] for label in case.y]
        return math.fsum(a * b for a, b in zip(v, losses, strict=True)) / math.fsum(v)

    return f


def erm(case):
    return weighted_ce(case, lambda row, label: row)


def cb(case, beta=0.9999):
    return weighted_ce(case, lambda row, label: row, effective_weights(case, beta))


def la(case, tau=1.0):
    return weighted_ce(
        case, lambda row, label: [v + tau * math.log(p) for v, p in zip(row, case.prior, strict=True)]
    )


def ef(case, frequency, tau=1.0, form="prior", beta=0.9999):
    if form == "weights":
        sizes = [sum(case.counts) * f / sum(frequency) for f in frequency]
        raw = [(1 - beta) / (1 - beta**n) for n in sizes]
        return weighted_ce(case, lambda row, label: row, [w * len(raw) / sum(raw) for w in raw])
    return weighted_ce(
        case, lambda row, label: [v + tau * math.log(p) for v, p in zip(row, frequency, strict=True)]
    )


def ldam_margins(case, max_margin):
    raw = [n**-0.25 for n in case.counts]
    return [max_margin * m / max(raw) for m in raw]


def ldam_linear(case, max_margin=0.5):
    m = ldam_margins(case, max_margin)
    return weighted_ce(case, lambda row, label: [v - m[label] * (k == label) for k, v in enumerate(row)])


# --- modulated ---


def per_sample(case, loss):
    return lambda z, h: mean([loss(log_softmax(row), label) for row, label in zip(z, case.y, strict=True)])


def focal(case, gamma=2.0):
    return per_sample(case, lambda lp, label: -((-math.expm1(lp[label])) ** gamma) * lp[label])


def cb_focal(case, beta=0.9999, gamma=1.0):
    w = effective_weights(case, beta)
    return per_sample(case, lambda lp, label: -w[label] * (-math.expm1(lp[label])) ** gamma * lp[label])


def label_smoothing(case, smoothing=0.1):
    return per_sample(case, lambda lp, label: -(1 - smoothing) * lp[label] - smoothing * mean(lp))


def gce(case, q=0.7):
    return per_sample(case, lambda lp, label: (1 - math.exp(lp[label]) ** q) / q)


def dual_focal(case, gamma=5.0):
    def loss(lp, label):
        p = [math.exp(v) for v in lp]
        below = max([v for v in p if v < p[label]], default=0.0)
        return -((1 - p[label] + below) ** gamma) * lp[label]

    return per_sample(case, loss)


def eql(case, gamma=0.9, threshold=0.005, draws=None):
    def f(z, h):
        losses = []
        for i, (row, label) in enumerate(zip(z, case.y, strict=True)):
            kept = [
                v
                for k, v in enumerate(row)
                if k == label or not (case.prior[k] < threshold and draws[i][k] < gamma)
            ]
            losses.append(_minus_log_share(row[label], kept))
        return mean(losses)

    return f


def _minus_log_share(own, kept):
    top = max(kept)
    return top + math.log(math.fsum(math.exp(v - top) for v in kept)) - own


# --- angular ---


def angular(case, psi, scale, weight=None, shift=None):
    def adjust(row, label):
        new = [scale * (psi(v, label, row) if k == label else v) for k, v in enumerate(row)]
        return new if shift is None else [v + s for v, s in zip(new, shift, strict=True)]

    return weighted_ce(case, adjust, weight)


def ldam(case, max_margin=0.5, scale=30.0):
    m = ldam_margins(case, max_margin)
    return angular(case, lambda c, label, row: c - m[label], scale)


def cosface(case, margin=0.35, scale=30.0):
    return angular(case, lambda c, label, row: c - margin, scale)


def arcface(case, margin=0.5, scale=30.0, guard=False):
    def psi(c, label, row):
        theta = math.acos(c)
        if guard and theta > math.pi - margin:
            return c - margin * math.sin(margin)
        return math.cos(theta + margin)

    return angular(case, psi, scale)


def sphereface(case, margin=4, scale=30.0, blend=0.0):
    def psi(c, label, row):
        theta = math.acos(c)
        k = min(int(margin * theta / math.pi), margin - 1)
        return ((-1) ** k * math.cos(margin * theta) - 2 * k + blend * c) / (1 + blend)

    return angular(case, psi, scale)


def dbm(case, margin=0.1, tau=1.0, scale=32.0, base="ce", positives="hard", beta=0.9999):
    def psi(c, label, row):
        m = margin * (case.counts[label] / min(case.counts)) ** -tau
        hard = max(row) > row[label]
        instance = {"none": False, "all": True, "hard": hard}[positives]
        return math.cos(math.acos(c) + m + instance * m * (1 - c) / 2)

    weight = effective_weights(case, beta) if base == "cb" else None
    shift = [math.log(p) for p in case.prior] if base == "bs" else None
    return angular(case, psi, scale, weight, shift)


# --- pairs within classes ---


def statistics(case, p=2.0):
    """|mu_k|_p^2 and mean |h - mu_k|_p^2 of the classes present."""
    norms, spreads = {}, {}
    for k in case.present:
        rows = [case.h[i] for i in case.rows_of(k)]
        mu = mean_vector(rows)
        norms[k] = norm2(mu, p)
        spreads[k] = mean([norm2([a - b for a, b in zip(row, mu, strict=True)], p) for row in rows])
    return norms, spreads


def omega(case, h, i, alpha, temperature=1.0):
    others = [j for j in case.rows_of(case.y[i]) if j != i]
    return log1p_sum_exp([(squared(h[i], h[j]) - alpha) / temperature for j in others])


def mr2(case, c=1.0, lam=0.5, p=2.0, scale="spread", statistic="spread", power=1 / 3, shrink=0.0):
    norms, spreads = statistics(case, p)
    t = {k: spreads[k] + (norms[k] if statistic == "moment" else 0.0) for k in case.present}
    level = mean(list(t.values()))
    n = case.counts
    t = {k: (n[k] * t[k] + shrink * level) / (n[k] + shrink) for k in t}
    # a class whose statistic is 0 has the mean margin and does not move the others
    root = {k: v**power for k, v in t.items() if v > 0 or power == 0}
    gamma = {k: c * len(root) * root[k] / sum(root.values()) if k in root else c for k in t}
    sbar = mean(list(spreads.values()))

    def rep(h, i):
        others = [j for j in case.rows_of(case.y[i]) if j != i]
        if scale == "none":
            return log1p_sum_exp([squared(h[i], h[j]) - 2 * sbar for j in others])
        unit = sbar if scale == "spread" else mean([squared(row, mean_vector(h)) for row in h])
        if not others:
            return 0.0
        return math.log(1 + mean([math.exp(squared(h[i], h[j]) / (2 * unit) - 1) for j in others]))

    def f(z, h):
        total = []
        for i, label in enumerate(case.y):
            total.append(cross_entropy([v / gamma[label] for v in z[i]], label))
            total[-1] += lam * rep(h, i)
        return mean(total)

    return f


def mr2_paper(case, c=1.0, lam=0.1, p=2.0):
    return mr2(case, c=c, lam=lam, p=p, scale="none", statistic="moment")


def mr2_released(case, lam=0.1, p=5.0, outside=0.1):
    norms, spreads = statistics(case, p)
    root = {k: (norms[k] + spreads[k]) ** (1 / 3) for k in case.present}
    gamma = {k: case.num_classes * root[k] / sum(root.values()) for k in root}
    sbar = sum(spreads.values()) / case.num_classes
    size = len(case.h[0])

    def f(z, h):
        logit = mean(
            [cross_entropy([v / gamma[y] for v in row], y) for row, y in zip(z, case.y, strict=True)]
        )
        rep = 0.0
        for k in case.present:
            rows = case.rows_of(k)
            if len(rows) > 1:
                rep += mean([omega(case, h, i, 2 * sbar, 10 * size) for i in rows])
        return logit + lam * rep * outside * size / case.num_classes

    return f


def mr2_early(case, lam=0.1):
    return mr2_released(case, lam, p=2.0, outside=1.0)


def mean_spread(case):
    return mean(list(statistics(case)[1].values()))


def elm(case, lam=0.01, alpha="count", alpha_scale=1.0, tau=1.0, scale="none"):
    size = {"count": case.counts, "prior": case.prior}[alpha.removeprefix("sqrt-")]
    margin = [alpha_scale * (math.sqrt(s) if alpha.startswith("sqrt") else s) for s in size]
    logit, unit = la(case, tau), 1.0 if scale == "none" else 2 * mean_spread(case)
    return lambda z, h: (
        logit(z, h) + lam * mean([omega(case, h, i, margin[y] * unit, unit) for i, y in enumerate(case.y)])
    )


# --- next to cross-entropy ---


def plus(case, lam, term):
    plain = erm(case)
    return lambda z, h: plain(z, h) + lam * term(h)


def center(case, lam=0.003, alpha=0.5, centres=None, scale="none"):
    if scale == "spread":  # without a pass, a class's centre starts at its first batch's mean
        centres = {k: mean_vector([case.h[i] for i in case.rows_of(k)]) for k in case.present}
    centres = centres or [[0.0] * len(case.h[0])] * case.num_classes
    unit = 1.0 if scale == "none" else mean_spread(case)
    return plus(
        case,
        lam / (2 * unit),
        lambda h: mean([squared(row, centres[y]) for row, y in zip(h, case.y, strict=True)]),
    )


def spread_out(case, lam=1.0):
    def term(h):
        u = [unit(row) for row in h]
        dots = [dot(u[i], u[j]) for i in range(len(u)) for j in range(len(u)) if case.y[i] != case.y[j]]
        if not dots:
            return 0.0
        return mean(dots) ** 2 + max(0.0, mean([d * d for d in dots]) - 1 / len(h[0]))

    return plus(case, lam, term)


def distance_unit(case, scale, h):
    """What squared distances are divided by; only the total variance follows the features h."""
    if scale == "total":
        return 2 * mean([squared(row, mean_vector(h)) for row in h])
    return 1.0 if scale == "none" else 2 * mean_spread(case)


def range_loss(case, lam=1.0, k=2, alpha=0.5, beta=0.5, margin=5.0, scale="none"):
    def term(h):
        unit = distance_unit(case, scale, h)
        h = [[v / math.sqrt(unit) for v in row] for row in h]
        within = 0.0
        for label in case.present:
            rows = case.rows_of(label)
            distances = sorted((squared(h[i], h[j]) for i in rows for j in rows if i < j), reverse=True)[:k]
            if distances:
                within += len(distances) / sum(1 / max(d, 2.220446049250313e-16) for d in distances)
        centres = [mean_vector([h[i] for i in case.rows_of(label)]) for label in case.present]
        gaps = [squared(a, b) for n, a in enumerate(centres) for b in centres[:n]]
        within = within / len(case.present) if scale == "total" else within
        return alpha * within + (beta * max(0.0, margin - min(gaps)) if gaps else 0.0)

    return plus(case, lam, term)


def dro_lt(case, lam=1.0, margin=0.1, scale="none"):
    prototype = {k: mean_vector([case.h[i] for i in case.rows_of(k)]) for k in case.present}

    def term(h):
        losses, unit = [], distance_unit(case, scale, h)
        for i, y in enumerate(case.y):
            epsilon = margin / math.sqrt(case.prior[y])
            own = squared(h[i], prototype[y])
            e = [
                (own - squared(h[j], prototype[y])) / unit + epsilon * (case.y[j] != y) for j in range(len(h))
            ]
            top = max(e)
            losses.append(top + math.log(math.fsum(math.exp(v - top) for v in e)))
        return mean(losses)

    return plus(case, lam, term)


def supcon(case, temperature=0.1, base_temperature=0.07):
    def f(z, h):
        u = [unit(row) for row in h]
        losses = []
        for a in range(len(u)):
            s = {b: dot(u[a], u[b]) / temperature for b in range(len(u)) if b != a}
            top = max(s.values(), default=0.0)
            total = top + math.log(sum(math.exp(v - top) for v in s.values())) if s else 0.0
            positives = [b for b in s if case.y[b] == case.y[a]]
            losses.append(-mean([s[b] - total for b in positives]) if positives else 0.0)
        return temperature / base_temperature * mean(losses)

    return f


def lgm(case, alpha=0.1, lam=0.01, centres=None, log_variance=None):
    size = len(case.h[0])
    centres = centres or [[0.0] * size] * case.num_classes
    log_variance = log_variance or [[0.0] * size] * case.num_classes

    def f(z, h):
        losses = []
        for row, y in zip(h, case.y, strict=True):
            d = [
                0.5 * sum((a - b) ** 2 / math.exp(v) for a, b, v in zip(row, mu, lv, strict=True))
                for mu, lv in zip(centres, log_variance, strict=True)
            ]
            det = [0.5 * sum(lv) for lv in log_variance]
            logits = [-d[k] * (1 + alpha * (k == y)) - det[k] for k in range(case.num_classes)]
            losses.append(cross_entropy(logits, y) + lam * (d[y] + det[y]))
        return mean(losses)

    return f


def cmic(case, lam=0.5, beta=0.1, cap=math.inf):
    base = [[math.exp(v) for v in log_softmax(row)] for row in case.z]
    centroid = {k: mean_vector([base[i] for i in case.rows_of(k)]) for k in case.present}

    def f(z, h):
        lp = [log_softmax(row) for row in z]
        p = [[math.exp(v) for v in row] for row in lp]
        kl = [
            sum(a * (b - math.log(q)) for a, b, q in zip(p[i], lp[i], centroid[y], strict=True) if a > 0)
            for i, y in enumerate(case.y)
        ]
        pairs = [-dot(p[i], lp[j]) for i in range(len(p)) for j in range(len(p)) if case.y[i] != case.y[j]]
        separation = min(cap, mean(pairs)) if pairs else 0.0
        return mean([-row[y] for row, y in zip(lp, case.y, strict=True)]) + lam * mean(kl) - beta * separation

    return f


def csr(case, weight=1.0):
    plain = erm(case)

    def f(z, h):
        p = [[math.exp(v) for v in log_softmax(row)] for row in z]
        columns = []
        for k in case.present:
            column = mean_vector([p[i] for i in case.rows_of(k)])
            columns.append([0.0 if i == k else v for i, v in enumerate(column)])
        # Power iteration on the Gram matrix until nothing moves.
        gram = [[dot(a, b) for b in columns] for a in columns]
        v = [1.0 + 0.01 * i for i in range(len(gram))]
        for _ in range(3000):
            new = [dot(row, v) for row in gram]
            length = math.sqrt(dot(new, new))
            if length == 0:
                return plain(z, h)
            before, v = v, [x / length for x in new]
            if squared(before, v) < 1e-31:
                break
        return plain(z, h) + weight * math.sqrt(dot(v, [dot(row, v) for row in gram]))

    return f


# --- classes as groups ---


def class_losses(case, z):
    return {k: mean([cross_entropy(z[i], k) for i in case.rows_of(k)]) for k in case.present}


def dro(case, eta=0.01, adjustment=0.0):
    k = case.num_classes
    at = class_losses(case, case.z)
    raised = {c: math.exp(eta * (at[c] + adjustment / math.sqrt(case.counts[c]))) / k for c in at}
    share = len(at) / k  # classes the batch lacks keep theirs
    q = {c: share * raised[c] / sum(raised.values()) for c in at}
    return lambda z, h: math.fsum(q[c] * loss for c, loss in class_losses(case, z).items())


def fairdro(case, rho=0.5, project=True):
    k = case.num_classes
    at = class_losses(case, case.z)
    centre = mean(list(at.values()))
    deviation = [at.get(c, centre) - centre for c in range(k)]
    length = math.sqrt(sum(d * d for d in deviation))
    q = [1 / k + (math.sqrt(2 * rho / k) * d / length if length else 0.0) for d in deviation]
    if project:
        # The nearest point of the simplex is max(q - t, 0) with the t that makes it sum to 1: bisection.
        low, high = min(q) - 1, max(q)
        for _ in range(200):
            t = (low + high) / 2
            low, high = (t, high) if sum(max(v - t, 0) for v in q) > 1 else (low, t)
        q = [max(v - low, 0) for v in q]
    return lambda z, h: math.fsum(q[c] * loss for c, loss in class_losses(case, z).items())


# --- what long-tail papers compare ---


def margin_softmax(case, delta="log-ratio", factor=1.0, matrix=None):
    pi, rarest = case.prior, min(case.prior)
    margin = {
        "log-ratio": lambda y, k: math.log(pi[k] / pi[y]),
        "prior": lambda y, k: pi[k],
        "inverse-root": lambda y, k: pi[y] ** -0.25,
        "ldam": lambda y, k: (rarest / pi[y]) ** 0.25,
        "constant": lambda y, k: 1.0,
        "matrix": lambda y, k: matrix[y][k],
    }[delta]

    def f(z, h):
        losses = []
        for row, y in zip(z, case.y, strict=True):
            gaps = [factor * margin(y, k) + v - row[y] for k, v in enumerate(row) if k != y]
            losses.append(log1p_sum_exp(gaps))
        return mean(losses)

    return f


def cb_focal_sigmoid(case, beta=0.9999, gamma=1.0, prior=0.5):
    weights, start = effective_weights(case, beta), math.log(prior / (1 - prior))

    def entry(v):  # focal loss of one sigmoid, v its logit for what is true
        log_p = min(v, 0.0) - math.log1p(math.exp(-abs(v)))
        return -((-math.expm1(log_p)) ** gamma) * log_p

    def f(z, h):
        losses = []
        for row, y in zip(z, case.y, strict=True):
            entries = [entry(v + start if k == y else -(v + start)) for k, v in enumerate(row)]
            losses.append(weights[y] * math.fsum(entries))
        return mean(losses)

    return f


def dot_regression(case, weight=0.5):
    return lambda z, h: weight * mean([(row[y] - 1) ** 2 for row, y in zip(z, case.y, strict=True)])


def pair_term(case, lam, is_unit, value):
    def term(h):
        u = [unit(row) for row in h] if is_unit else h
        losses = []
        for i, y in enumerate(case.y):
            negatives = [dot(u[i], u[n]) for n, label in enumerate(case.y) if label != y]
            positives = [dot(u[i], u[j]) for j, label in enumerate(case.y) if label == y and j != i]
            usable = positives and negatives
            losses.append(mean([value(s, negatives) for s in positives]) if usable else 0.0)
        return mean(losses)

    return plus(case, lam, term)


def triplet(case, lam=1.0, margin=0.2, unit=True):
    return pair_term(
        case, lam, unit, lambda s, negatives: mean([max(0.0, margin + n - s) for n in negatives])
    )


def contrastive(case, lam=0.5, temperature=0.1, unit=True):
    return pair_term(
        case, lam, unit, lambda s, negatives: log1p_sum_exp([(n - s) / temperature for n in negatives])
    )


def dro_lt_released(case, lam=1.0, temperature=1.0, prototype=None):
    prototype = prototype or {k: mean_vector([case.h[i] for i in case.rows_of(k)]) for k in case.present}

    def term(h):
        classes = []
        for k in case.present:
            scores = [
                -(math.sqrt(squared(row, prototype[k])) + (y == k)) / temperature
                for row, y in zip(h, case.y, strict=True)
            ]
            log_p = log_softmax(scores)
            classes.append(-mean([log_p[i] for i in case.rows_of(k)]))
        return mean(classes)

    return plus(case, lam, term)


PLAIN = {
    "erm": erm,
    "label-smoothing": label_smoothing,
    "focal": focal,
    "gce": gce,
    "dual-focal": dual_focal,
    "cb": cb,
    "cb-focal": cb_focal,
    "la": la,
    "bs": la,
    "ef": ef,
    "eql": eql,
    "ldam": ldam,
    "ldam-linear": ldam_linear,
    "cosface": cosface,
    "arcface": arcface,
    "sphereface": sphereface,
    "dbm": dbm,
    "lgm": lgm,
    "cmic": cmic,
    "csr": csr,
    "center": center,
    "supcon": supcon,
    "spread-out": spread_out,
    "range": range_loss,
    "dro-lt": dro_lt,
    "elm": elm,
    "mr2": mr2,
    "mr2-paper": mr2_paper,
    "mr2-early": mr2_early,
    "mr2-released": mr2_released,
    "dro": dro,
    "fairdro": fairdro,
    "margin-softmax": margin_softmax,
    "cb-focal-sigmoid": cb_focal_sigmoid,
    "dot-regression": dot_regression,
    "triplet": triplet,
    "contrastive": contrastive,
    "dro-lt-released": dro_lt_released,
}
