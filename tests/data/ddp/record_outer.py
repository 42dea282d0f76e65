#!/usr/bin/env python3
"""Records torch.optim.SGD as the outer optimizer of DiLoCo (2.15, CPU): record_outer.py > outer.txt

A line per case, `case dtype lr= momentum= nesterov=`; the first parameters. Then a line per round: `round`; how the
steps of the ranks change the parameters on average; the parameters after the outer step.
"""
import random

import torch

ROUNDS = 6
SIZE = 5
CASES = (("f32", 0.7, 0.9, True), ("f64", 0.7, 0.9, True), ("f64", 0.5, 0.6, False), ("f64", 1.0, 0.0, False))


def text(values):
    return " ".join(f"{v:.17g}" for v in values)


for dtype, lr, momentum, nesterov in CASES:
    source = random.Random(5)
    kind = getattr(torch, "float" + dtype[1:])
    start = torch.nn.Parameter(torch.tensor([round(source.gauss(0, 0.3), 3) for _ in range(SIZE)], dtype=kind))
    optimizer = torch.optim.SGD([start], lr=lr, momentum=momentum, nesterov=nesterov)
    print(f"case {dtype} lr={lr} momentum={momentum} nesterov={int(nesterov)};" + text(start.tolist()))
    for _ in range(ROUNDS):
        change = [round(source.gauss(0, 0.05), 3) for _ in range(SIZE)]
        mean = start.detach() + torch.tensor(change, dtype=kind)
        start.grad = start.detach() - mean  # The outer gradient.
        optimizer.step()
        print(";".join(["round", text(change), text(start.tolist())]))
