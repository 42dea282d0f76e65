#!/usr/bin/env python3
"""Records what torch's communication hooks do on 2 ranks with gloo (2.15, CPU): record_hooks.py > hooks.txt

A line per case, `case` form dtype options as key=value; the shapes of the parameters, dimensions with x between. Then a
line per step: `step`; the gradients of rank 0; of rank 1; what the hook gave; every Q that it drew, each
[columns, rank]. Gradients of a bucket are behind each other.
"""
import os
import random
import sys
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

SHAPES = ((10, 6), (7,), (5, 2, 4), (3, 2))
STEPS = 5
FORMS = {"power_sgd": powerSGD_hook.powerSGD_hook, "batched_power_sgd": powerSGD_hook.batched_powerSGD_hook,
         "fp16": default_hooks.fp16_compress_hook,
         "fp16_power_sgd": default_hooks.fp16_compress_wrapper(powerSGD_hook.powerSGD_hook)}
CASES = (
    ("power_sgd", "f32", {"rank": 1, "start": 2}),
    ("power_sgd", "f32", {"rank": 2, "start": 2, "rate": 1.1}),
    ("power_sgd", "f64", {"rank": 3, "start": 3, "rate": 0.5}),
    ("power_sgd", "f32", {"rank": 1, "start": 2, "epsilon": 0.25}),
    ("power_sgd", "f32", {"rank": 1, "start": 0, "feedback": 0, "warm": 0}),
    ("power_sgd", "f32", {"rank": 2, "start": 2, "rate": 1.1, "feedback": 0}),
    ("power_sgd", "f64", {"rank": 1, "start": 2, "warm": 0}),
    ("batched_power_sgd", "f32", {"rank": 2, "start": 2}),
    ("batched_power_sgd", "f32", {"rank": 1, "start": 2, "warm": 0}),
    ("batched_power_sgd", "f64", {"rank": 4, "start": 2}),
    ("fp16", "f32", {"start": 0}),
    ("fp16", "f64", {"start": 0}),
    ("fp16_power_sgd", "f32", {"rank": 2, "start": 2, "rate": 1.1, "feedback": 0, "warm": 0}),
    ("fp16_power_sgd", "f32", {"rank": 1, "start": 2, "warm": 0}),
)


class Bucket:
    """What a hook sees of torch's GradBucket: one bucket with all gradients."""

    def __init__(self, buffer):
        self.data = buffer

    def buffer(self):
        return self.data

    def set_buffer(self, buffer):
        self.data = buffer

    def gradients(self):
        parts, at = [], 0
        for shape in SHAPES:
            count = torch.Size(shape).numel()
            parts.append(self.data[at:at + count].view(shape))
            at += count
        return parts

    def index(self):
        return 0

    def is_last(self):
        return True


def gradients(step, rank):
    """Mostly of rank 1, as gradients are, with a part that is not."""
    source = random.Random(100 * step + rank)
    values = []
    for shape in SHAPES:
        columns = torch.Size(shape[1:]).numel()
        left = [source.gauss(0, 1) for _ in range(shape[0])]
        right = [source.gauss(0, 1) for _ in range(columns)]
        values += [round(a * b + source.gauss(0, 0.3), 2) for a in left for b in right]
    return values


def text(values):
    return " ".join(f"{v:.9g}" for v in values)


def orthogonalize(matrices, epsilon=0, original=powerSGD_hook._orthogonalize):
    """In place. The batched hook of torch 2.15 passes a matrix where this wants several, and fails."""
    original(matrices if matrices.dim() == 3 else matrices.unsqueeze(0), epsilon)


def record(rank, address, lines):
    dist.init_process_group("gloo", init_method=address, rank=rank, world_size=2)
    drawn = []
    randn = torch.randn

    def record_randn(*shape, **options):
        drawn.append(randn(*shape, **options))
        return drawn[-1].clone()

    torch.randn = record_randn
    powerSGD_hook._orthogonalize = orthogonalize
    for form, dtype, options in CASES:
        state = None
        if form != "fp16":
            state = powerSGD_hook.PowerSGDState(
                None, options["rank"], options["start"], options.get("rate", 2), bool(options.get("feedback", 1)),
                bool(options.get("warm", 1)), options.get("epsilon", 0), random_seed=7)
        lines.append(" ".join(["case", form, dtype, *(f"{k}={v}" for k, v in options.items())]) + ";"
                     + " ".join("x".join(map(str, shape)) for shape in SHAPES))
        for step in range(STEPS):
            drawn.clear()
            mine = torch.tensor(gradients(step, rank), dtype=getattr(torch, "float" + dtype[1:]))
            result = FORMS[form](state, Bucket(mine)).wait()
            if isinstance(result, (list, tuple)):
                result = result[0]
            both = [text(gradients(step, r)) for r in (0, 1)]
            lines.append(";".join(["step", *both, text(result.tolist()),
                                   text(v for q in drawn for v in q.flatten().tolist())]))
    dist.barrier()
    dist.destroy_process_group()


def run(rank, address):
    lines = []
    record(rank, address, lines)
    if rank == 0:
        print("\n".join(lines))
        sys.stdout.flush()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(run, ("file://" + os.path.join(folder, "meeting"),), nprocs=2)
