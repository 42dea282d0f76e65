"""Compares this library with others on this machine, interleaved in one run.

    contest.py BUILD --out FILE [--ranks 2,4] [--rounds 5] [--operations all_reduce,...] [--sizes 8,...]
               [--mpi NAME=PREFIX]... [--torch PYTHON] [--also NAME=COMMAND]... [--only NAME,...]

All programs are alive and sleep; they are called up in random order, and each rank times its calls. Writes JSON lines:
facts about the machine, then for each operation and size the times of each program (least, median, most of the rounds)
and the noise, and an end. MPIs in PATH (Debian's mpicxx.openmpi, mpicxx.mpich) take part; --mpi adds one by its prefix,
such as a virtual environment with a wheel. A program that does not start is skipped by name. In a COMMAND, {directory},
{size} and {bin} are replaced; with {rank} it is started once for each rank, otherwise it starts all ranks."""
import argparse
import contextlib
import datetime
import json
import os
import pathlib
import platform
import random
import re
import select
import shlex
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
BACKENDS = {
    "local": "{bin}/peer_tutti local {directory} {size}",
    "shm": "{bin}/peer_tutti shm {directory} {size} {rank}",
    "shm memory": "{bin}/peer_tutti shm {directory} {size} {rank} --memory",
    "gloo": "{bin}/peer_tutti gloo:=lo {directory} {size} {rank}",
    "hier": "env TUTTI_HOSTS=a,a,b,b {bin}/peer_tutti hier:shm+gloo:=lo {directory} {size} {rank}",
    "auto": "{bin}/peer_tutti auto {directory} {size} {rank}",
    "gloo fixed": "{bin}/peer_tutti gloo:=lo {directory} {size} {rank} --order-fixed",
    "hier fixed": "env TUTTI_HOSTS=a,a,b,b {bin}/peer_tutti hier:shm+gloo:=lo {directory} {size} {rank} --order-fixed",
}
PEERS = {
    "bare Gloo": "{bin}/peer_gloo {directory} {size} {rank}",
    "bare Gloo ring": "{bin}/peer_gloo {directory} {size} {rank} ring",
    "bare Gloo bcube": "{bin}/peer_gloo {directory} {size} {rank} bcube",
    "bare UCX": "{bin}/peer_ucx {directory} {size} {rank}",
    "bare UCX tcp": "env UCX_TLS=tcp,self {bin}/peer_ucx {directory} {size} {rank}",
}
LIMITS = "{bin}/peer_limits {directory} {size}"
# Above these shares of the processors' time a cell is measured again.
MOST_STOLEN, MOST_OTHERS = 0.02, 0.02
TOO_SLOW = 0.5  # Seconds of a call; the program is then left out of the cell.
SIZES = [8, 64, 1 << 10, 8 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20]


def resnet50():
    """The parameters of ResNet-50, 25.6 million in all."""
    sizes, channels = [9408, 64, 64], 64
    for blocks, width in ((3, 64), (4, 128), (6, 256), (3, 512)):
        for block in range(blocks):
            wide = 4 * width
            sizes += [channels * width, width, width, 9 * width * width, width, width, width * wide, wide, wide]
            sizes += [channels * wide, wide, wide] if block == 0 else []
            channels = wide
    return [*sizes, 2048 * 1000, 1000]


def shares(weights):
    return lambda count, ranks: [max(1, count * weights(r) // sum(map(weights, range(ranks)))) if weights(r) else 0
                                 for r in range(ranks)]


# For each operation of the command line: the contestants' operation, and its counts (contestant.hpp) for arrays of
# `count` elements in all.
OPERATIONS = {
    "barrier": ("barrier", lambda count, ranks: [0]),
    "all_reduce": ("all_reduce", lambda count, ranks: [count]),
    "broadcast": ("broadcast", lambda count, ranks: [count]),
    "reduce": ("reduce", lambda count, ranks: [count]),
    "all_gather": ("all_gather", lambda count, ranks: [max(1, count // ranks)]),
    "all_gather_rows": ("all_gather_rows", shares(lambda rank: rank + 1)),
    "rows_equal": ("all_gather_rows", shares(lambda rank: 1)),
    "rows_one": ("all_gather_rows", shares(lambda rank: int(rank == 0))),
    "step": ("step", lambda count, ranks: resnet50()),
    "step_views": ("step_views", lambda count, ranks: resnet50()),
}
# The sizes of operations that are not measured at all sizes.
SIZES_OF = {"barrier": lambda sizes: [0], "step": lambda sizes: [0], "step_views": lambda sizes: [0],
            "rows_equal": lambda sizes: [max(sizes)], "rows_one": lambda sizes: [max(sizes)]}


class Lost(Exception):
    pass


class Contestant:
    """A library's ranks, with a pair of pipes for each."""

    def __init__(self, name, command, size, binaries):
        self.name, self.size, self.calls = name, size, 0
        self.directory = pathlib.Path(tempfile.mkdtemp(prefix="contest."))
        self.pipes = []
        for rank in range(size):
            pair = [str(self.directory / f"{rank}.{end}") for end in ("in", "out")]
            for pipe in pair:
                os.mkfifo(pipe)
            self.pipes.append([os.open(pipe, os.O_RDWR) for pipe in pair])
        self.log = self.directory / "log"
        self.processes = []
        with self.log.open("w") as log:
            for rank in range(size if "{rank}" in command else 1):
                words = [word.format(directory=self.directory, size=size, rank=rank, bin=binaries)
                         for word in shlex.split(command)]
                with contextlib.suppress(FileNotFoundError):
                    self.processes.append(subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                                           start_new_session=True))

    def answers(self, seconds):
        """One line of each rank."""
        lines = []
        until = time.monotonic() + seconds
        for _, pipe in self.pipes:
            line = b""
            while not line.endswith(b"\n"):
                if select.select([pipe], [], [], 0.5)[0]:
                    line += os.read(pipe, 1 << 16)
                elif time.monotonic() > until or any(process.poll() is not None for process in self.processes):
                    raise Lost("no answer")
            lines.append(line.decode().strip())
        for line in lines:
            if line.startswith("error"):
                raise Lost(line)
        return lines

    def start(self):
        if not self.processes:
            raise Lost("no such program")
        return self.answers(60)[0].removeprefix("ready").strip()

    def ask(self, operation, counts, calls, warm):
        """(seconds per call on the slowest rank, its calls above 1 ms); None if the library has no such call."""
        command = f"{operation} {','.join(map(str, counts))} {calls} {warm}\n".encode()
        for pipe, _ in self.pipes:
            os.write(pipe, command)
        lines = self.answers(120)
        if "none" in lines:
            return None
        pairs = [line.split() for line in lines]
        return max(float(mean) for mean, _ in pairs), max(int(slow) for _, slow in pairs)

    def calibrate(self, operation, counts, target):
        """Sets the number of calls that take about `target` seconds; 0 if the library has no such call, or is too slow."""
        self.calls = 1
        for _ in range(6):
            answer = self.ask(operation, counts, self.calls, self.calls)
            if answer is None or answer[0] > TOO_SLOW:
                self.calls = 0
                return
            took = answer[0] * self.calls
            self.calls = max(3, min(20000, round(target / answer[0]), self.calls * 8))
            if took > target / 4:
                return

    def end(self):
        for pair in self.pipes:
            for pipe in pair:
                os.close(pipe)
        for process in self.processes:
            try:
                process.wait(2)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        shutil.rmtree(self.directory)


def ticks_of_descendants():
    """Processor time of this process and those that it started, in clock ticks."""
    parents, ticks = {}, {}
    for path in pathlib.Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = path.read_text().rpartition(")")[2].split()
            parents[int(path.parent.name)] = int(fields[1])
            ticks[int(path.parent.name)] = sum(map(int, fields[11:15]))
    total = 0
    for process, used in ticks.items():
        ancestor = process
        while ancestor not in (0, 1, os.getpid()):
            ancestor = parents.get(ancestor, 0)
        total += used if ancestor == os.getpid() else 0
    return total


class Noise:
    """Shares of the processors' time since it was made: stolen by the hypervisor, used by other programs."""

    def __init__(self):
        self.before = self.read()

    @staticmethod
    def read():
        user, nice, system, idle, wait, irq, soft, stolen = map(
            int, pathlib.Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9])
        return stolen, user + nice + system - ticks_of_descendants(), \
            user + nice + system + idle + wait + irq + soft + stolen

    def shares(self):
        stolen, others, total = (after - before for before, after in zip(self.before, self.read()))
        return {"stolen": round(stolen / max(total, 1), 4), "others": round(max(others, 0) / max(total, 1), 4)}


def is_noisy(noise):
    return noise["stolen"] > MOST_STOLEN or noise["others"] > MOST_OTHERS


def programs(options, folder):
    """Name and command of all contestants."""
    found = {f"tutti {name}": command for name, command in BACKENDS.items()} | PEERS
    prefixes = {}
    for suffix, name in (("openmpi", "Open MPI"), ("mpich", "MPICH")):
        if shutil.which(f"mpicxx.{suffix}"):
            version = subprocess.run([f"mpirun.{suffix}", "--version"], capture_output=True, text=True, check=True).stdout
            name += " " + re.search(r"\d+\.\d+", version)[0]
            prefixes[name] = (f"mpicxx.{suffix}", f"mpirun.{suffix}", None)
    for text in options.mpi:
        name, _, prefix = text.partition("=")
        compiler = pathlib.Path(prefix) / "bin/mpicxx"
        prefixes[name] = (str(compiler) if compiler.exists() else None, f"{prefix}/bin/mpiexec", f"{prefix}/lib")
    program = None
    for name, (compiler, launcher, libraries) in prefixes.items():
        # A runtime without a compiler has MPICH's binary interface: it runs the program of the MPI before it.
        if compiler:
            program = folder / f"peer_mpi_{len(list(folder.iterdir()))}"
            subprocess.run([compiler, "-std=c++20", "-O2", "-DOMPI_SKIP_MPICXX", "-DMPICH_SKIP_MPICXX",
                            HERE / "mpi.cpp", HERE / "contestant.cpp", "-o", program], check=True)
        variables = [f"LD_LIBRARY_PATH={libraries}"] if libraries else []
        # Open MPI refuses to run as root, and more ranks than cores, unless told.
        variables += ["OMPI_ALLOW_RUN_AS_ROOT=1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1",
                      "OMPI_MCA_rmaps_base_oversubscribe=1", "PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe"]
        found[name] = shlex.join(["env", *variables, launcher, "-n", "{size}", str(program), "{directory}"])
    if options.torch:
        found["torch Gloo"] = shlex.join([options.torch, "-B", str(HERE / "torch_gloo.py"), "{directory}", "{size}", "{rank}"])
    found |= dict(text.split("=", 1) for text in options.also)
    return {name: command for name, command in found.items() if not options.only or name in options.only}


def machine():
    model = next((line.split(":")[1].strip() for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines()
                  if line.startswith("model name")), platform.machine())
    return {"kind": "run", "date": datetime.date.today().isoformat(), "processor": model,
            "cores": len(os.sched_getaffinity(0)), "system": f"{platform.system()} {platform.release()}"}


class Contest:
    def __init__(self, options, ranks, out, folder):
        self.options, self.ranks, self.out, self.random = options, ranks, out, random.Random(options.seed)
        binaries = pathlib.Path(options.build).resolve() / "tests/benchmarks/peers"
        self.alive, self.lost, versions = [], 0, {}
        for name, command in {"limit": LIMITS, **programs(options, folder)}.items():
            contestant = Contestant(name, command, ranks, binaries)
            try:
                versions[name] = contestant.start()
                self.alive.append(contestant)
            except Lost as reason:
                lines = contestant.log.read_text().strip().splitlines()
                print(f"skipped: {name}: {lines[-1] if lines else reason}", flush=True)
                contestant.end()
        started = {contestant.name for contestant in self.alive}
        if "limit" not in started or not any(name.startswith("tutti") for name in started):
            sys.exit("this library's programs do not start")
        self.limit = self.alive[0]
        self.write(machine() | {"ranks": ranks, "rounds": options.rounds, "versions": versions})

    def write(self, record):
        self.out.write(json.dumps(record) + "\n")
        self.out.flush()

    def call_up(self, contestant, function, *arguments):
        """The function's answer, or None if the contestant dies, which ends its part."""
        try:
            return function(*arguments)
        except Lost as reason:
            print(f"lost: {contestant.name}: {reason}", flush=True)
            self.lost += 1
            self.alive.remove(contestant)
            contestant.end()
            return None

    def exchange(self):
        """Nanoseconds of an exchange of cache lines."""
        return round(1e9 * self.limit.ask("exchange", [0], 5000, 500)[0], 1)

    def cell(self, operation, size):
        name, counts_of = OPERATIONS[operation]
        counts = counts_of(max(size // 4, 1), self.ranks)
        size = size or 4 * sum(counts)  # Of a step.
        limit = ("exchange", [0]) if operation == "barrier" else ("copy", [max(size // 4, 1)])
        calls = {self.limit: limit} | {c: (name, counts) for c in self.alive if c is not self.limit}
        for contestant, call in calls.items():
            self.call_up(contestant, contestant.calibrate, *call, self.options.target)
        times, slow, exchanges = {}, {}, []
        for _ in range(self.options.rounds):
            exchanges.append(self.exchange())
            order = [c for c in self.alive if c.calls]
            self.random.shuffle(order)
            for contestant in order:
                answer = self.call_up(contestant, contestant.ask, *calls[contestant], contestant.calls,
                                      contestant.calls // 5 + 1)
                if answer:
                    times.setdefault(contestant.name, []).append(float(f"{1e6 * answer[0]:.4g}"))
                    slow[contestant.name] = slow.get(contestant.name, 0) + answer[1] / contestant.calls / self.options.rounds
        exchanges.append(self.exchange())
        return {"kind": "cell", "operation": operation, "bytes": size, "ranks": self.ranks,
                "exchange_ns": [min(exchanges), statistics.median(exchanges), max(exchanges)],
                "times_us": {name: [min(us), statistics.median(us), max(us)] for name, us in times.items()},
                "slow": {name: round(share, 4) for name, share in slow.items() if share}}

    def run(self):
        whole = Noise()
        for operation in self.options.operations:
            for size in SIZES_OF.get(operation, list)(self.options.sizes):
                # The quietest of up to three attempts.
                cells = []
                while not cells or (len(cells) < self.options.attempts and is_noisy(cells[-1]["noise"])):
                    noise = Noise()
                    record = self.cell(operation, size)
                    cells.append(record | {"noise": noise.shares()})
                best = min(cells, key=lambda cell: sum(cell["noise"].values()))
                self.write(best | {"noisy": is_noisy(best["noise"])})
                print(f"{self.ranks} ranks, {operation} {size}{' (noisy)' if is_noisy(best['noise']) else ''}: "
                      + ", ".join(f"{name} {median:g}" for name, (_, median, _) in best["times_us"].items()), flush=True)
        self.write({"kind": "end"} | whole.shares())

    def end(self):
        for contestant in self.alive:
            contestant.end()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("build", help="build folder of this library")
    parser.add_argument("--out", required=True, help="file of JSON lines, appended to")
    parser.add_argument("--ranks", type=lambda text: [int(ranks) for ranks in text.split(",")], default=[2, 4])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--target", type=float, default=0.01, help="seconds of one contestant in a round, about")
    parser.add_argument("--attempts", type=int, default=3, help="at a cell while the machine is noisy")
    parser.add_argument("--operations", type=lambda text: text.split(","),
                        default="barrier all_reduce broadcast all_gather all_gather_rows rows_equal rows_one step step_views".split())
    parser.add_argument("--sizes", type=lambda text: [int(size) for size in text.split(",")], default=SIZES)
    parser.add_argument("--mpi", action="append", default=[], metavar="NAME=PREFIX")
    parser.add_argument("--torch", metavar="PYTHON", help="an interpreter with torch")
    parser.add_argument("--also", action="append", default=[], metavar="NAME=COMMAND")
    parser.add_argument("--only", type=lambda text: text.split(","), help="these contestants")
    parser.add_argument("--load", type=int, default=0, help="processes that compute meanwhile")
    parser.add_argument("--seed", type=int, default=7)
    options = parser.parse_args()
    load = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(options.load)]
    try:
        with open(options.out, "a", encoding="utf-8") as out, tempfile.TemporaryDirectory() as folder:
            for ranks in options.ranks:
                contest = Contest(options, ranks, out, pathlib.Path(folder))
                try:
                    contest.run()
                finally:
                    contest.end()
                if contest.lost:
                    sys.exit(f"{contest.lost} programs failed")
    finally:
        for process in load:
            process.kill()


if __name__ == "__main__":
    main()
