"""Records sequences of calls of the ranking losses of imbalanced-losses (0.6.0, with torch), with their queue:
record_queue.py > queue.txt

A line per sequence, `sequence` loss dtype options as key=value, and then one per call: call (or `reset` before it) and
`train` or `eval`; N, C; logits; targets; the loss of each class (empty when there is one number); the loss; the gradient of
the loss or of the sum of `each`; which rows are iid (empty: all); in some sequences also the weights of the rows (empty:
none given).
"""
import random
import warnings

import torch
from imbalanced_losses import PAUCAtBudgetLoss, RecallAtQuantileLoss, SmoothAPLoss
from record_reference import DTYPES, labels, numbers, scores, weights

warnings.simplefilter("ignore")
random.seed(24565)  # make() draws every value of every option, and for each loss both types and all reductions.
torch.manual_seed(21)
INTERPOLATIONS = ("linear", "lower", "higher", "nearest", "midpoint")


def make(loss):
    """A module, and its dtype, classes and options."""
    dtype, classes = random.choice(tuple(DTYPES)), random.choice((1, 3))
    queue, reduction = random.choice((1, 4, 10, 25)), random.choice(("mean", "sum", "none"))
    how = random.choice(INTERPOLATIONS)
    options = {"queue": queue, "reduction": reduction}
    if loss == "smooth_ap":
        temperature = random.choice((0.01, 0.3))
        module = SmoothAPLoss(classes, queue_size=queue, temperature=temperature, reduction=reduction)
        return module, dtype, classes, options | {"temperature": temperature}
    if loss == "recall_at_quantile":
        quantile = random.choice((0.005, 0.1, 0.25, 0.5, 0.9))
        module = RecallAtQuantileLoss(classes, quantile=quantile, queue_size=queue, temperature=0.3, reduction=reduction,
                                      quantile_interpolation=how)
        return module, dtype, classes, options | {"temperature": 0.3, "quantile": quantile, "interpolation": how}
    alpha, beta = random.choice(((0.0, 0.005), (0.1, 0.6), (0.0, 1.0)))
    surrogate = random.choice(("trapezoid", "pairwise"))
    scale = random.choice(("iqr", "band"))
    basis = random.choice(("fpr", "population"))
    positives = random.choice(("pool", "live"))
    module = PAUCAtBudgetLoss(classes, alpha=alpha, beta=beta, surrogate=surrogate, n_knots=3, tau_scale=scale,
                              budget_basis=basis, pos_numerator=positives, queue_size=queue, reduction=reduction,
                              quantile_interpolation=how)
    return module, dtype, classes, options | {
        "temperature": 0.1, "alpha": alpha, "beta": beta, "surrogate": surrogate, "scale": scale, "basis": basis,
        "positives": positives, "knots": 3, "interpolation": how}


def call(module, loss, dtype, classes, weighted):
    rows = random.choice((0, 1, 3, 5, 9, 14))
    words = []
    if random.random() < 0.08:
        module.reset_queue()
        words.append("reset")
    module.train(random.random() < 0.75)
    words.append("train" if module.training else "eval")
    # The package keeps floats and the places of ignored rows: scores are floats, and no row is ignored.
    logits = scores(rows, classes).float().to(DTYPES[dtype]).requires_grad_()
    targets = labels(rows, classes).clamp(min=0)
    iid = torch.rand(rows) < 0.8 if loss == "p_auc_at_budget" and random.random() < 0.5 else None
    empty = rows == 0 and not (module._queue._q_targets != -100).any()
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


if __name__ == "__main__":
    made = [(loss, *make(loss)) for loss in ["smooth_ap"] * 3 + ["recall_at_quantile"] * 5 + ["p_auc_at_budget"] * 6]
    for index, (loss, module, dtype, classes, options) in enumerate(made):
        print("sequence", loss, dtype, *(f"{name}={value}" for name, value in options.items()))
        for _ in range(6):
            call(module, loss, dtype, classes, weighted=index % 3 == 2)
