"""Records what the package imbalanced-losses (0.6.0, with torch) computes for one process:
record_reference.py > reference.txt

A line per case: loss, dtype, options as key=value, then N, C, logits, targets, the loss of each class (or row, or element;
empty when there is one number), the loss, the gradient of the loss or of the sum of `each`, which rows are iid (empty: all),
and in the last cases the weights of the rows (sigmoid_focal: of the rows or the elements).
"""
import random
import warnings

import torch
from imbalanced_losses import (PAUCAtBudgetLoss, RecallAtQuantileLoss, SigmoidFocalLoss, SmoothAPLoss,
                               SoftmaxFocalLoss)

random.seed(20)
torch.manual_seed(20)
DTYPES = {"f32": torch.float32, "f64": torch.float64}


def numbers(values, dtype):
    return " ".join(f"{value:.{9 if dtype == 'f32' else 17}g}" for value in values)


def record(loss, dtype, options, logits, targets, module, iid=None, weight=None):
    logits = logits.detach().clone().to(DTYPES[dtype]).requires_grad_()
    more = {} if weight is None else {"sample_weight": weight.to(DTYPES[dtype])}
    value = module(logits, targets, **more) if iid is None else module(logits, targets, iid, **more)
    each = value.detach().flatten().tolist() if value.ndim else []
    total = value[~value.isnan()].sum() if value.ndim else value
    if total.requires_grad:
        total.backward()
    grad = logits.grad if logits.grad is not None else torch.zeros_like(logits)
    words = " ".join(f"{name}={value}" for name, value in options.items())
    print(f"{loss} {dtype} {words};{logits.shape[0]} {logits.shape[1]};{numbers(logits.flatten().tolist(), dtype)};"
          f"{' '.join(f'{t:g}' for t in targets.flatten().tolist())};{numbers(each, dtype)};{numbers([total.item()], dtype)};"
          f"{numbers(grad.flatten().tolist(), dtype)};{'' if iid is None else ' '.join(f'{i:d}' for i in iid.tolist())}"
          f"{'' if weight is None else ';' + numbers(weight.flatten().tolist(), 'f32')}")


def weights(*shape):
    """Floats, some of them 0, seldom all."""
    values = torch.where(torch.rand(shape) < 0.25, torch.tensor(0.0), 3 * torch.rand(shape))
    return values if random.random() < 0.9 else torch.zeros(shape)


def scores(rows, classes):
    """Scores, some of them tied."""
    values = torch.randn(rows, classes, dtype=torch.float64)
    return values if random.random() < 0.5 else (values * 2).round() / 2


def labels(rows, classes):
    if classes == 1:
        targets = torch.randint(0, 2, (rows,))
    else:
        # Sometimes one class does not occur.
        targets = torch.randint(0, classes if random.random() < 0.5 else classes - 1, (rows,))
    return torch.where(torch.rand(rows) < 0.15, torch.tensor(-100), targets)


def ranking():
    for classes in (1, 3):
        for rows in (2, 5, 9):
            for reduction in ("mean", "sum", "none"):
                for temperature in (0.01, 0.3):
                    logits, targets = scores(rows, classes), labels(rows, classes)
                    if (targets == -100).all():
                        continue  # "none" of an empty pool is a defect of the package.
                    options = {"temperature": temperature, "reduction": reduction}
                    record("smooth_ap", "f64", options, logits, targets,
                           SmoothAPLoss(classes, queue_size=0, temperature=temperature, reduction=reduction))
                    how = random.choice(("linear", "lower", "higher", "nearest", "midpoint"))
                    quantile = random.choice((0.005, 0.1, 0.25, 0.5, 0.9))
                    record("recall_at_quantile", "f64", {**options, "quantile": quantile, "interpolation": how},
                           logits, targets,
                           RecallAtQuantileLoss(classes, quantile=quantile, queue_size=0, temperature=temperature,
                                                reduction=reduction, quantile_interpolation=how))


def p_auc():
    for classes in (1, 3):
        for surrogate in ("trapezoid", "pairwise"):
            for scale in ("iqr", "band"):
                for basis in ("fpr", "population"):
                    for alpha, beta in ((0.0, 0.005), (0.1, 0.6), (0.0, 1.0)):
                        logits, targets = scores(12, classes), labels(12, classes)
                        iid = torch.rand(12) < 0.8 if random.random() < 0.5 else None
                        how = random.choice(("linear", "lower", "higher", "nearest", "midpoint"))
                        knots = random.choice((2, 3, 6))
                        reduction = random.choice(("mean", "sum", "none"))
                        options = {"alpha": alpha, "beta": beta, "surrogate": surrogate, "scale": scale, "basis": basis,
                                   "knots": knots, "temperature": 0.1, "interpolation": how, "reduction": reduction}
                        record("p_auc_at_budget", "f64", options, logits, targets,
                               PAUCAtBudgetLoss(classes, alpha=alpha, beta=beta, surrogate=surrogate, n_knots=knots,
                                                tau_scale=scale, budget_basis=basis, queue_size=0, reduction=reduction,
                                                quantile_interpolation=how), iid)


def focal():
    for reduction in ("mean", "sum", "none"):
        for gamma in (0.0, 1.0, 2.0, 3.5):
            for alpha in (0.25, 0.9, -1):
                logits = 3 * scores(4, 2)
                targets = torch.randint(0, 2, (4, 2)).to(torch.float64)
                record("sigmoid_focal", "f64", {"alpha": alpha, "gamma": gamma, "reduction": reduction}, logits,
                       targets, SigmoidFocalLoss(alpha=alpha, gamma=gamma, reduction=reduction))
    for reduction in ("mean", "mean_positive", "sum", "none"):
        for gamma in (0.0, 1.0, 2.0):
            for smoothing in (0.0, 0.2):
                alpha = random.choice((None, [0.5, 1.0, 2.0]))
                background = random.choice((0, 2))
                options = {"gamma": gamma, "smoothing": smoothing, "background": background, "reduction": reduction}
                if alpha:
                    options["alpha"] = ",".join(f"{a:g}" for a in alpha)
                record("softmax_focal", "f64", options, 3 * scores(5, 3), labels(5, 3),
                       SoftmaxFocalLoss(alpha=alpha, gamma=gamma, label_smoothing=smoothing, reduction=reduction,
                                        background_class=background))


def weighted():
    for dtype in DTYPES:
        for classes in (1, 3):
            for rows in (5, 9):
                logits, targets = scores(rows, classes), labels(rows, classes)
                reduction = random.choice(("mean", "sum", "none"))
                options = {"temperature": 0.3, "reduction": reduction}
                record("smooth_ap", dtype, options, logits, targets,
                       SmoothAPLoss(classes, queue_size=0, temperature=0.3, reduction=reduction), weight=weights(rows))
                record("recall_at_quantile", dtype, {**options, "quantile": 0.25, "interpolation": "higher"}, logits, targets,
                       RecallAtQuantileLoss(classes, quantile=0.25, queue_size=0, temperature=0.3, reduction=reduction),
                       weight=weights(rows))
        for surrogate in ("trapezoid", "pairwise"):
            for alpha, beta in ((0.0, 0.9), (0.1, 0.6), (0.0, 1.0), (1 / 3, 0.85)):
                for basis in ("fpr", "population"):
                    classes, knots = random.choice((1, 3)), random.choice((2, 5))
                    reduction = random.choice(("mean", "sum", "none"))
                    how = random.choice(("linear", "lower", "higher", "nearest"))
                    options = {"alpha": alpha, "beta": beta, "surrogate": surrogate, "scale": "iqr", "basis": basis,
                               "knots": knots, "temperature": 0.1, "interpolation": how, "reduction": reduction}
                    record("p_auc_at_budget", dtype, options, scores(12, classes), labels(12, classes),
                           PAUCAtBudgetLoss(classes, alpha=alpha, beta=beta, surrogate=surrogate, n_knots=knots,
                                            budget_basis=basis, queue_size=0, reduction=reduction,
                                            quantile_interpolation=how),
                           torch.rand(12) < 0.8 if random.random() < 0.5 else None, weights(12))
        for reduction in ("mean", "sum", "none"):
            for columns in (1, 2):
                record("sigmoid_focal", dtype, {"alpha": 0.25, "gamma": 1.0, "reduction": reduction}, 3 * scores(4, 2),
                       torch.randint(0, 2, (4, 2)).to(DTYPES[dtype]),
                       SigmoidFocalLoss(alpha=0.25, gamma=1.0, reduction=reduction), weight=weights(4, columns))
        for reduction in ("mean", "mean_positive", "sum", "none"):
            for background in (0, 1):
                record("softmax_focal", dtype, {"gamma": 2.0, "smoothing": 0.2, "background": background,
                                                "reduction": reduction, "alpha": "0.5,1,2"}, 3 * scores(5, 3), labels(5, 3),
                       SoftmaxFocalLoss(alpha=[0.5, 1.0, 2.0], gamma=2.0, label_smoothing=0.2, reduction=reduction,
                                        background_class=background), weight=weights(5))


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    ranking()
    focal()
    p_auc()
    weighted()
