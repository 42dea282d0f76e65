"""torch.distributed over Gloo as a contestant of contest.py: the protocol of contestant.cpp.

    torch_gloo.py DIRECTORY SIZE RANK

A step is one of DistributedDataParallel, whose gradients are there without computation."""
import os
import sys
import time

import torch
import torch.distributed as dist


class Given(torch.autograd.Function):
    """A model whose backward returns gradients that are given."""

    @staticmethod
    def forward(ctx, gradients, *parameters):
        ctx.gradients = gradients
        return parameters[0].new_zeros(())

    @staticmethod
    def backward(ctx, _):
        return None, *ctx.gradients


class Model(torch.nn.Module):
    def __init__(self, gradients):
        super().__init__()
        self.gradients = gradients
        self.parameters_ = torch.nn.ParameterList(torch.zeros_like(g) for g in gradients)

    def forward(self):
        return Given.apply(self.gradients, *self.parameters_)


def expect(tensor, value):
    if not bool((tensor == value).all()):
        raise RuntimeError("a wrong element")


def make_step(counts, rank, size, views):
    gradients = [torch.full((count,), float(rank + 1)) for count in counts]
    model = torch.nn.parallel.DistributedDataParallel(Model(gradients), gradient_as_bucket_view=views)

    def call(_):
        model.zero_grad()
        model().backward()

    call(0)
    for parameter in model.parameters():
        expect(parameter.grad, (size + 1) / 2)
    return call


def make(operation, counts, rank, size):
    """The call, after a check of its first result; None if there is no such operation."""
    if operation == "barrier":
        return lambda _: dist.barrier()
    if operation in ("step", "step_views"):
        return make_step(counts, rank, size, operation == "step_views")
    total = size * (size + 1) / 2
    own = torch.full((max(counts) if operation == "all_gather_rows" else counts[0],), float(rank + 1))
    if operation == "all_reduce":
        call, result, value = lambda _: dist.all_reduce(own), own, total
    elif operation == "broadcast":
        call, result, value = lambda number: dist.broadcast(own, number % size), own, 1
    elif operation == "reduce":
        call, result, value = lambda number: dist.reduce(own, number % size), own[:own.numel() if rank == 0 else 0], total
    elif operation in ("all_gather", "all_gather_rows"):  # Of rows only with padding.
        whole = torch.zeros(own.numel() * size)
        call, result, value = lambda _: dist.all_gather_into_tensor(whole, own), whole[own.numel():2 * own.numel()], 2
    else:
        return None
    call(0)
    expect(result, value)
    own.zero_()
    return call


def measure(call, calls, warm):
    for number in range(warm):
        call(number)
    dist.barrier()
    slow = 0
    start = before = time.perf_counter()
    for number in range(calls):
        call(number)
        now = time.perf_counter()
        slow += now - before > 1e-3
        before = now
    return f"{(before - start) / calls:.9g} {slow}"


def main(directory, size, rank):
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    store = dist.FileStore(f"{directory}/torch", size)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
    with open(f"{directory}/{rank}.in", encoding="utf-8") as commands, \
            open(f"{directory}/{rank}.out", "w", encoding="utf-8", buffering=1) as answers:
        print(f"ready {torch.__version__}", file=answers)
        request, call, cores = None, None, sorted(os.sched_getaffinity(0))
        for line in iter(commands.readline, ""):
            operation, counts, calls, warm = line.split()
            os.sched_setaffinity(0, {cores[rank % len(cores)]})
            os.sched_setaffinity(0, cores)
            if request != (operation, counts):
                request = operation, counts
                call = make(operation, [int(count) for count in counts.split(",")], rank, size)
            print(measure(call, int(calls), int(warm)) if call else "none", file=answers)


main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
