"""Records sequences of calls of the ranking losses of imbalanced-losses (0.6.0, with torch), with their queue:
record_queue.py > queue.txt

A line per sequence, `sequence` loss dtype options as key=value, and then one per call: call (or `reset` before it) and
`train` or `eval`; N, C; logits; targets; the loss of each class (empty when there is one number); the loss; the gradient of
the loss or of the sum of `each`; which rows are iid (empty: all); in the last sequences also the weights of the rows (empty:
none given).
"""
import contextlib
import io
import random
import warnings

import torch
from imbalanced_losses import PAUCAtBudgetLoss, RecallAtQuantileLoss, SmoothAPLoss
from record_reference import DTYPES, labels, numbers, scores, weights

warnings.simplefilter("ignore")
random.seed(21)
torch.manual_seed(21)
INTERPOLATIONS = ("linear", "lower", "higher", "nearest", "midpoint")


def make(loss, classes, queue, reduction):
    """A module and its options."""
    how = random.choice(INTERPOLATIONS)
    if loss == "smooth_ap":
        temperature = random.choice((0.01, 0.3))
        return SmoothAPLoss(classes, queue_size=queue, temperature=temperature, reduction=reduction), {
            "temperature": temperature}
    if loss == "recall_at_quantile":
        quantile = random.choice((0.005, 0.1, 0.25, 0.5, 0.9))
        return RecallAtQuantileLoss(classes, quantile=quantile, queue_size=queue, temperature=0.3, reduction=reduction,
                                    quantile_interpolation=how), {
            "temperature": 0.3, "quantile": quantile, "interpolation": how}
    alpha, beta = random.choice(((0.0, 0.005), (0.1, 0.6), (0.0, 1.0)))
    surrogate = random.choice(("trapezoid", "pairwise"))
    scale = random.choice(("iqr", "band"))
    basis = random.choice(("fpr", "population"))
    positives = random.choice(("pool", "live"))
    return PAUCAtBudgetLoss(classes, alpha=alpha, beta=beta, surrogate=surrogate, n_knots=3, tau_scale=scale,
                            budget_basis=basis, pos_numerator=positives, queue_size=queue, reduction=reduction,
                            quantile_interpolation=how), {
        "temperature": 0.1, "alpha": alpha, "beta": beta, "surrogate": surrogate, "scale": scale, "basis": basis,
        "positives": positives, "knots": 3, "interpolation": how}


def targets_of(loss, rows, classes, plain):
    """plain: no row is ignored."""
    targets = labels(rows, classes)
    if plain:
        return torch.where(targets == -100, torch.tensor(0), targets)
    if random.random() < 0.15:
        return torch.full((rows,), -100)
    if loss != "recall_at_quantile" and classes > 1 and random.random() < 0.3:  # A negative of all.
        return torch.where(torch.rand(rows) < 0.2, torch.tensor(7), targets)
    return targets


def call(module, loss, dtype, classes, plain, weighted):
    rows = random.choice((0, 1, 3, 5, 9, 14))
    words = []
    if random.random() < 0.08:
        module.reset_queue()
        words.append("reset")
    module.train(random.random() < 0.75)
    words.append("train" if module.training else "eval")
    # Without padding, everything is compared with a queue of doubles too, so scores must be floats.
    logits = scores(rows, classes)
    logits = (logits.float() if plain else logits).to(DTYPES[dtype]).requires_grad_()
    targets = targets_of(loss, rows, classes, plain)
    iid = torch.rand(rows) < 0.8 if loss == "p_auc_at_budget" and random.random() < 0.5 else None
    empty = bool((targets == -100).all()) and not (module._queue._q_targets != -100).any()
    weight = weights(rows) if weighted and random.random() < 0.6 else None
    value = module(logits, targets, iid, sample_weight=weight)
    each = value.detach().flatten().tolist() if value.ndim and not empty else []
    total = value[~value.isnan()].sum() if value.ndim else value
    if total.requires_grad:
        total.backward()
    grad = logits.grad if logits.grad is not None else torch.zeros_like(logits)
    print(f"{' '.join(words)};{rows} {classes};{numbers(logits.flatten().tolist(), dtype)};"
          f"{' '.join(str(t) for t in targets.tolist())};{numbers(each, dtype)};{numbers([total.item()], dtype)};"
          f"{numbers(grad.flatten().tolist(), dtype)};{'' if iid is None else ' '.join(f'{i:d}' for i in iid.tolist())}"
          f"{'' if weight is None else ';' + numbers(weight.tolist(), 'f32')}")


def main(weighted):
    for loss, repeats in (("smooth_ap", 3), ("recall_at_quantile", 3), ("p_auc_at_budget", 6)):
        repeats = 1 if weighted else repeats
        for dtype in DTYPES:
            for classes in (1, 3):
                for plain in (True, False):
                    for _ in range(repeats):
                        queue = random.choice((1, 4, 10, 25))
                        reduction = random.choice(("mean", "sum", "none"))
                        module, options = make(loss, classes, queue, reduction)
                        options |= {"queue": queue, "reduction": reduction, "plain": int(plain)}
                        # The others, whose ignored rows take places in the queue, only draw random numbers.
                        with contextlib.nullcontext() if plain else contextlib.redirect_stdout(io.StringIO()):
                            print("sequence", loss, dtype, *(f"{name}={value}" for name, value in options.items()))
                            for _ in range(5 if weighted else 7):
                                call(module, loss, dtype, classes, plain, weighted)


if __name__ == "__main__":
    main(weighted=False)
    main(weighted=True)
