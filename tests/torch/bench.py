"""all_reduce and a DDP step from Python over tutti, beside torch's Gloo in the same processes, in turn.

usage: bench.py [--ranks 2] [--rounds 7] [--step]."""
import argparse
import resource
import statistics
import tempfile
import time

import torch
import torch.distributed as dist

import tutti

SIZES = [8, 1 << 10, 64 << 10, 1 << 20, 25 << 20]


def cpu():
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def measure(call, seconds=0.2):
    """(time per call, processor time per call) in µs. The ranks agree on the number of calls beforehand."""
    call()
    start = time.perf_counter()
    call()
    once = torch.tensor([time.perf_counter() - start])
    dist.all_reduce(once, op=dist.ReduceOp.MAX)
    count = max(3, min(2000, int(seconds / once.item())))
    dist.barrier()
    start, used = time.perf_counter(), cpu()
    for _ in range(count):
        call()
    return (time.perf_counter() - start) / count * 1e6, (cpu() - used) / count * 1e6


def layers():
    """Shapes with the 25.6 million parameters of ResNet-50, in 161 arrays."""
    counts = [25_557_032 // 161] * 160
    return [*counts, 25_557_032 - sum(counts)]


class OfOnes(torch.autograd.Function):
    """Gives each parameter a gradient of ones, which takes no time to compute."""

    @staticmethod
    def forward(ctx, x, *parameters):
        ctx.shapes = [p.shape for p in parameters]
        return x.sum()

    @staticmethod
    def backward(ctx, gradient):
        return None, *(gradient.expand(shape) for shape in ctx.shapes)


class Parameters(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.all = torch.nn.ParameterList(torch.zeros(n) for n in layers())

    def forward(self, x):
        return OfOnes.apply(x, *self.all)


def run(rank, options, directory):
    dist.init_process_group("tutti", init_method=f"file://{directory}/store", rank=rank, world_size=options.ranks)
    groups = {"tutti": dist.group.WORLD, "gloo": dist.new_group(backend="gloo")}
    if rank == 0:
        print(f"{tutti.c10d.describe()}, torch {torch.__version__}, {options.ranks} ranks; median of {options.rounds} "
              "rounds; µs per call, processor time in brackets")
    jobs = {}
    if options.step:
        for views in (False, True):
            for name, group in groups.items():
                model = torch.nn.parallel.DistributedDataParallel(Parameters(), process_group=group,
                                                                  gradient_as_bucket_view=views)

                def step(model=model):
                    model.zero_grad(set_to_none=False)
                    model(torch.ones(1)).backward()

                def step_alone(model=model):
                    with model.no_sync():
                        step(model)

                what = f"DDP step{', views' if views else ''}"
                jobs[what, name] = step
            jobs[what, "alone"] = step_alone
    else:
        for size in SIZES:
            data = torch.zeros(size // 4)
            for name, group in groups.items():
                jobs[f"{size} B", name] = lambda data=data, group=group: dist.all_reduce(data, group=group)
    times = {job: [] for job in jobs}
    for _ in range(options.rounds):
        for job, call in jobs.items():
            times[job].append(measure(call))
    if rank == 0:
        for what in dict.fromkeys(job[0] for job in jobs):
            names = [job[1] for job in jobs if job[0] == what]
            wall, used = ({n: statistics.median(t[i] for t in times[what, n]) for n in names} for i in (0, 1))
            # What a step takes whose gradients no rank sends is taken off both.
            more = {n: wall[n] - wall.get("alone", 0) for n in groups}
            print(f"{what:16} " + "  ".join(f"{n} {wall[n]:10.1f} ({used[n]:.1f})" for n in names) +
                  f"  ratio {more['gloo'] / more['tutti']:.1f} ({used['gloo'] / used['tutti']:.1f})", flush=True)
    dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--step", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as directory:
        context = torch.multiprocessing.get_context("fork")
        ranks = [context.Process(target=run, args=(r, options, directory)) for r in range(options.ranks)]
        for process in ranks:
            process.start()
        for process in ranks:
            process.join()
        return max(abs(process.exitcode) for process in ranks)


if __name__ == "__main__":
    raise SystemExit(main())
