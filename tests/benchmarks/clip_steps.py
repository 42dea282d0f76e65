"""Value and gradients of CLIP's loss over all ranks' rows: losses::Clip over shm beside the formula of open_clip's
ClipLoss(local_loss=True, gather_with_grad=True) in torch over torch's Gloo.

    clip_steps.py CLIP_STEP [--rows 8192] [--dims 256] [--ranks 2] [--rounds 5] [--torch PYTHON]

CLIP_STEP is the program clip_step. Both have the same f32 features, one thread for each rank, and take turns; the time
of a step is that of the slower rank. Processor time is little disturbed by other programs. The script fails if the losses or gradients differ by more than 1e-5 of the
largest. It exits with 77 without torch."""
import argparse
import array
import math
import os
import pathlib
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time


def torch_rank(directory, size, rank, rows, dims):
    """The twin of clip_step.cpp."""
    import torch
    import torch.distributed as dist
    import torch.distributed.nn
    import torch.nn.functional as F

    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    store = dist.FileStore(f"{directory}/torch", size)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
    features = torch.from_file(f"{directory}/{rank}.features", size=2 * rows * dims).view(2, rows, dims).clone()
    image, text = (side.requires_grad_() for side in features.unbind())
    scale = torch.tensor(14.3, requires_grad=True)

    def step():
        all_image = torch.cat(torch.distributed.nn.all_gather(image), dim=0)
        all_text = torch.cat(torch.distributed.nn.all_gather(text), dim=0)
        per_image = scale * image @ all_text.T
        per_text = scale * text @ all_image.T
        labels = torch.arange(rows) + rows * rank
        loss = (F.cross_entropy(per_image, labels) + F.cross_entropy(per_text, labels)) / 2
        return loss.detach(), torch.autograd.grad(loss, (image, text, scale))

    gradients = ()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in iter(sys.stdin.readline, ""):
        dist.barrier()
        start = time.perf_counter(), time.process_time()
        loss, gradients = step()
        seconds = [time.perf_counter() - start[0], time.process_time() - start[1]]
        means = torch.stack((loss, gradients[2])) / size
        dist.all_reduce(means)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        print(*(f"{value:.9g}" for value in (*seconds, peak, *means.tolist())), flush=True)
    if gradients:
        torch.cat(gradients[:2]).numpy().tofile(f"{directory}/torch.{rank}.gradients")
    dist.destroy_process_group()


class Side:
    def __init__(self, name, commands):
        self.name, self.wall, self.processor, self.peak, self.values = name, [], [], 0, []
        self.ranks = [subprocess.Popen(c, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for c in commands]

    def step(self):
        for rank in self.ranks:
            rank.stdin.write("step\n")
            rank.stdin.flush()
        answers = [rank.stdout.readline().split() for rank in self.ranks]
        if not all(answers):
            sys.exit(f"{self.name}: a rank ended")
        self.wall.append(max(float(wall) for wall, *_ in answers))
        self.processor.append(max(float(seconds) for _, seconds, *_ in answers))
        self.peak = max(float(peak) for _, _, peak, *_ in answers)
        self.values = [float(value) for value in answers[0][3:]]

    def end(self, directory, floats):
        """The gradients of all ranks."""
        all_ranks = array.array("f")
        for rank in self.ranks:
            rank.stdin.close()
        for number, rank in enumerate(self.ranks):
            if rank.wait(timeout=60) != 0:
                sys.exit(f"{self.name}: status {rank.returncode}")
            with open(f"{directory}/{self.name}.{number}.gradients", "rb") as file:
                all_ranks.fromfile(file, floats)
        return all_ranks


def difference(name, ours, theirs):
    largest = max(map(abs, theirs))
    most = max(abs(a - b) for a, b in zip(ours, theirs)) / largest
    print(f"{name}: largest difference {most:.1e} of the largest")
    return most < 1e-5


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("clip_step")
    parser.add_argument("--rows", type=int, default=8192)
    parser.add_argument("--dims", type=int, default=256)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--torch", default=sys.executable, help="a Python that has torch")
    options = parser.parse_args()
    if subprocess.run([options.torch, "-c", "import torch.distributed.nn"], capture_output=True, check=False).returncode:
        print(f"skipped: {options.torch} has no torch")
        sys.exit(77)
    ranks, dims = options.ranks, options.dims
    rows = options.rows // ranks
    draw = random.Random(1)
    os.environ.update(OMP_NUM_THREADS="1", PYTHONWARNINGS="ignore")
    with tempfile.TemporaryDirectory(prefix="clip_steps.") as directory:
        for rank in range(ranks):
            with open(f"{directory}/{rank}.features", "wb") as file:
                for _ in range(2 * rows):
                    row = [draw.gauss(0, 1) for _ in range(dims)]
                    length = math.sqrt(sum(x * x for x in row))
                    array.array("f", (x / length for x in row)).tofile(file)
        shape = [str(rows), str(dims)]
        sides = [Side("tutti", [[options.clip_step, directory, str(ranks), str(r), *shape] for r in range(ranks)]),
                 Side("torch", [[options.torch, "-B", str(pathlib.Path(__file__).resolve()), "--rank", directory, str(ranks),
                                 str(r), *shape] for r in range(ranks)])]
        for side in sides:  # Warms up.
            side.step()
            side.wall.clear()
            side.processor.clear()
        for _ in range(options.rounds):
            for side in sides:
                side.step()
        ours, theirs = sides
        print(f"{ranks} ranks, {rows * ranks} rows, D {dims}, f32, {options.rounds} rounds, load {os.getloadavg()[0]:.1f}")
        for what, of in (("wall", [side.wall for side in sides]), ("processor", [side.processor for side in sides])):
            for side, times in zip(sides, of):
                print(f"{what} time, {side.name}: median {1e3 * statistics.median(times):.0f} ms, "
                      f"least {1e3 * min(times):.0f}, most {1e3 * max(times):.0f}")
            ratios = [b / a for a, b in zip(*of)]
            print(f"{what} time, torch / tutti: median {statistics.median(ratios):.2f}, least {min(ratios):.2f}, "
                  f"most {max(ratios):.2f}")
        print("memory of the steps on a rank: " + ", ".join(f"{s.name} {s.peak / 1024:.0f} MiB" for s in sides))
        one = 2 * rows * dims * 4 * (ranks - 1)  # Both features, to each peer; then four doubles a row.
        print(f"sent by a rank: tutti {one + 32 * rows * (ranks - 1)} bytes, torch {2 * one}")
        right = difference("loss", ours.values[:1], theirs.values[:1])
        right &= difference("gradient by the scale", ours.values[1:], theirs.values[1:])
        floats = 2 * rows * dims
        right &= difference("gradients of features", ours.end(directory, floats), theirs.end(directory, floats))
        sys.exit(0 if right else 1)


if sys.argv[1:2] == ["--rank"]:
    torch_rank(sys.argv[2], *map(int, sys.argv[3:]))
else:
    main()
