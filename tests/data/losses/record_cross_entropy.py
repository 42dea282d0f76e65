"""Records torch.nn.functional.cross_entropy and binary_cross_entropy_with_logits (torch 2.15) of
one process:

record_cross_entropy.py > cross_entropy.txt

A line per case: dtype, options as key=value, then N, C, logits, targets, the loss of each row
(empty if there is one number), the loss, the gradient of the loss or of the sum of `each`. The
binary function ignores no rows: its cases leave them out."""
import random

import torch
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

random.seed(21)
torch.manual_seed(21)
DTYPES = {"f32": torch.float32, "f64": torch.float64}
IGNORED = -100


def numbers(values, dtype):
    return " ".join(f"{value:.{9 if dtype == 'f32' else 17}g}" for value in values)


def record(dtype, options, logits, targets, loss):
    logits = logits.to(DTYPES[dtype]).requires_grad_()
    value = loss(logits)
    value.sum().backward()
    each = value.detach().tolist() if value.ndim else []
    words = " ".join(f"{name}={value}" for name, value in options.items())
    print(f"{dtype} {words};{logits.shape[0]} {logits.shape[1]};{numbers(logits.flatten().tolist(), dtype)};"
          f"{' '.join(map(str, targets.tolist()))};{numbers(each, dtype)};{numbers([value.sum().item()], dtype)};"
          f"{numbers(logits.grad.flatten().tolist(), dtype)}")


def several(dtype, reduction, smoothing, weighted):
    classes = random.choice((2, 3, 5))
    weight = [round(random.uniform(0, 3), 2) for _ in range(classes)] if weighted else None
    logits = random.choice((1, 3, 30)) * torch.randn(6, classes, dtype=torch.float64)
    targets = torch.randint(0, classes, (6,))
    targets[1:][torch.rand(5) < 0.2] = IGNORED
    options = {"reduction": reduction, "label_smoothing": smoothing, "ignore_index": IGNORED}
    if weighted:
        options["weight"] = ",".join(map(str, weight))
    record(dtype, options, logits, targets,
           lambda z: cross_entropy(z, targets, weight=torch.tensor(weight, dtype=z.dtype) if weighted else None,
                                   ignore_index=IGNORED, reduction=reduction, label_smoothing=smoothing))


def yes_or_no(dtype, reduction, smoothing, pos_weight):
    logits = random.choice((1, 3, 30)) * torch.randn(6, 1, dtype=torch.float64)
    targets = torch.randint(0, 2, (6,))
    ignored = torch.rand(6) < 0.2
    ignored[0] = False
    targets[ignored] = IGNORED

    def loss(z):
        # Ignored rows have loss 0 in the list, so that indices match.
        y = targets.to(z.dtype) * (1 - smoothing) + smoothing / 2
        rows = binary_cross_entropy_with_logits(z[:, 0], y, pos_weight=torch.tensor(pos_weight, dtype=z.dtype), reduction="none")
        if reduction == "none":
            return torch.where(ignored, torch.zeros_like(rows), rows)
        return binary_cross_entropy_with_logits(z[~ignored, 0], y[~ignored],
                                                pos_weight=torch.tensor(pos_weight, dtype=z.dtype), reduction=reduction)

    record(dtype, {"reduction": reduction, "label_smoothing": smoothing, "ignore_index": IGNORED, "pos_weight": pos_weight},
           logits, targets, loss)


if __name__ == "__main__":
    for dtype in DTYPES:
        for reduction in ("mean", "sum", "none"):
            for smoothing in (0.0, 0.1, 1.0):
                for weighted in (False, True):
                    for _ in range(1 if dtype == "f32" else 2):
                        several(dtype, reduction, smoothing, weighted)
                for pos_weight in (1.0, 0.3, 25.0):
                    yes_or_no(dtype, reduction, smoothing, pos_weight)
