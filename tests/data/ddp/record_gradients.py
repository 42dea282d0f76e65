#!/usr/bin/env python3
"""Records gradients of torch's DistributedDataParallel (2.15, CPU, gloo).

usage: record_gradients.py > gradients.txt
       record_gradients.py --compare gradients.txt     (records again; fails if a number differs by more than 1e-6)

The network is that of tests/conformance/ddp/network.hpp: 6 inputs, 5 units with tanh, 2 outputs, half of the squared
error. A rank's loss is the mean over its rows, in `micro` equal micro-batches of which only the last one synchronizes.
With `unused` the hidden layer gets no gradient from the last rank in step 1, and from no rank in step 2.

A line per case, `case` and its options as key=value; the parameters w1, b1, w2, b2. Then a line per step, `step`; for
each rank its rows, six inputs and two wanted outputs each; the gradients of the parameters.
"""
import contextlib
import multiprocessing
import pathlib
import random
import sys
import tempfile

import torch
import torch.distributed as dist

SHAPES = ((5, 6), (5,), (2, 5), (2,))
STEPS = 4
RATE = 0.3
TOLERANCE = 1e-6
CASES = (
    {"dtype": "f32", "ranks": 2, "micro": 1, "views": 0, "unused": 0},
    {"dtype": "f64", "ranks": 3, "micro": 1, "views": 0, "unused": 0},
    {"dtype": "f32", "ranks": 2, "micro": 1, "views": 1, "unused": 0},
    {"dtype": "f64", "ranks": 2, "micro": 2, "views": 0, "unused": 0},
    {"dtype": "f32", "ranks": 3, "micro": 1, "views": 0, "unused": 1},
    {"dtype": "f32", "ranks": 2, "micro": 3, "views": 1, "unused": 1},
)


def rows_of(step, rank, micro):
    """Rounded, so that the text is exact; the ranks have different numbers of rows."""
    source = random.Random(10 * step + rank)
    return [[round(source.gauss(0, 0.7), 2) for _ in range(8)] for _ in range(micro * (1 + (step + 2 * rank) % 3))]


class Network(torch.nn.Module):
    def __init__(self, dtype):
        super().__init__()
        source = random.Random(1)
        values = [torch.tensor([round(source.gauss(0, 0.4), 2) for _ in range(torch.Size(shape).numel())], dtype=dtype)
                  for shape in SHAPES]
        self.w1, self.b1, self.w2, self.b2 = [torch.nn.Parameter(v.view(s)) for v, s in zip(values, SHAPES)]

    def forward(self, x, with_hidden):
        h = torch.tanh(x @ self.w1.T + self.b1)
        return (h if with_hidden else h.detach()) @ self.w2.T + self.b2


def text(numbers):
    return " ".join(f"{number:.9g}" for number in numbers)


def train(rank, case):
    """Yields the lines of a case."""
    dtype = getattr(torch, "float" + case["dtype"][1:])
    model = Network(dtype)
    ranks, micro, parameters = case["ranks"], case["micro"], list(model.parameters())
    yield (" ".join(["case", *(f"{key}={value}" for key, value in case.items())]) + ";"
           + text(v for p in parameters for v in p.flatten().tolist()))
    ddp = torch.nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=bool(case["views"]),
                                                    find_unused_parameters=bool(case["unused"]))
    for step in range(STEPS):
        rows = [rows_of(step, r, micro) for r in range(ranks)]
        data = torch.tensor(rows[rank], dtype=dtype)
        with_hidden = not case["unused"] or step not in (1, 2) or (step == 1 and rank != ranks - 1)
        model.zero_grad()
        for i, part in enumerate(data.chunk(micro)):
            with ddp.no_sync() if i + 1 < micro else contextlib.nullcontext():
                (0.5 * (ddp(part[:, :6], with_hidden) - part[:, 6:]) ** 2).sum().div(len(data)).backward()
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
        yield ";".join(["step", *(text(v for row in of_rank for v in row) for of_rank in rows),
                        text(v for g in gradients for v in g.flatten().tolist())])
        with torch.no_grad():
            for p, gradient in zip(parameters, gradients):
                p -= RATE * gradient


def run(rank, case, folder):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=case["ranks"])
    lines = list(train(rank, case))
    dist.barrier()
    dist.destroy_process_group()
    pathlib.Path(folder, f"rank{rank}").write_text("\n".join(lines) + "\n")


def record(case):
    with tempfile.TemporaryDirectory() as folder:
        processes = [multiprocessing.Process(target=run, args=(r, case, folder)) for r in range(case["ranks"])]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
        if any(process.exitcode for process in processes):
            sys.exit("a rank failed")
        texts = {pathlib.Path(folder, f"rank{r}").read_text() for r in range(case["ranks"])}
        if len(texts) != 1:
            sys.exit(f"the ranks have different gradients: {case}")
        return texts.pop()


def compare(recorded, now):
    """Ends the program if a number differs."""
    old, new = recorded.replace(";", " ; ").split(), now.replace(";", " ; ").split()
    if len(old) != len(new):
        sys.exit(f"{len(old)} fields were recorded, {len(new)} now")
    numbers, most = 0, 0.0
    for a, b in zip(old, new):
        try:
            most = max(most, abs(float(a) - float(b)))
            numbers += 1
        except ValueError:
            if a != b:
                sys.exit(f"'{a}' was recorded, '{b}' now")
    print(f"torch {torch.__version__}: {numbers} numbers, largest difference {most:.1e}")
    if not most <= TOLERANCE:
        sys.exit(f"that is more than {TOLERANCE}")


if __name__ == "__main__":
    result = "".join(record(case) for case in CASES)
    if sys.argv[1:2] == ["--compare"]:
        compare(pathlib.Path(sys.argv[2]).read_text(), result)
    else:
        print(result, end="")
