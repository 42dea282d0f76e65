"""Checks which folders include which, the sizes of folders and files, and that no two files include
each other. This is the one list of the order of folders; docs/architecture.md draws it, and `ls`
shows it."""
import re

import tree

# The folders of lib/ with their libraries, one level per line, from the bottom up. A folder includes itself and
# the folders of lower levels.
LIB = [
    ("core", "values"),
    ("core", "kernels store"),
    ("core", "backend collectives"),
    ("core", "group"),
    ("core", "rows launch"),
    ("core", "autograd"),
    ("training", "losses metrics ddp"),
    ("bindings", "c torch"),
]
# The seam between the libraries: training/ and bindings/ use the public headers of core/ and these private ones. Their
# functions that are not inline have default visibility; tests/programs/install/exports.py lists them.
SEAM = """group/call group/prepare kernels/copy kernels/gradients kernels/kernel_target kernels/radix_sort kernels/reduce
    rows/gather_arrays rows/metadata_exchange values/bytes values/current_error values/described values/fail values/hash
    values/philox values/saved_state""".split()
# Backends use the folders of lib/ up to this one.
BACKENDS_USE = "backend collectives"
# Folders of backends/ that are shared parts, not backends.
SHARED_BY_BACKENDS = ("cuda", "memory", "mesh")

# The folders of tools/, likewise.
TOOLS = [
    "common",
    "report",
    "run",
    "links",
    "bench",
    "step",
    "inspect",
]

# A public header belongs to the folder with a source of its name. This table has headers without a source, or
# with another name:
HEADER_ONLY = {
    "values": "backend/op call_options deadline format grad_scale half operation registration rows version",
    "backend": "backend/work_state group_options",
    "group": "pending",
    "launch": "cluster",
    "ddp": "ddp/device_arithmetic",
    "losses": "losses/loss",
}
TOP = {"tutti": "includes the public headers of core/ but backend/", "training": "includes those of training/, and tutti"}

# Signs to look at, not walls: warnings.
MANY_SOURCES = 15   # of a folder of lib/, backends/ or tools/
MANY_LINES = 400    # of a file of include/, lib/, backends/ or tools/

INCLUDE = re.compile(r'\s*#\s*include\s*([<"])([^>"]+)[>"]')
BACKEND_LIBRARY = re.compile(r"(gloo|nccl|rccl|cuda|mpi|ucc|ucp)(_|/|\.h|$)")
BELOW_THE_LOSSES = ("tutti/backend/", "tutti/store/store.hpp", "tutti/work.hpp")
PUBLIC_API_ONLY = ("tools/", "docs/", "tests/conformance/", "tests/support/", "tests/programs/", "tests/adapters/")
# Tests of the store's bytes include the store's private headers; tests of an operation without a verb include
# the front.
PUBLIC_API_EXCEPT = ("tests/programs/fuzz/", "tests/support/gather_bounded.hpp")


def levels(lines):
    return {name: level for level, names in enumerate(lines) for name in names.split()}


LIB_LEVEL = levels(names for _, names in LIB)
LIBRARY = {name: library for library, names in LIB for name in names.split()}
TOOLS_LEVEL = levels(TOOLS)


class Tree:
    """The files of the project, and the files that each includes."""

    def __init__(self, root):
        self.root = root
        self.sources = {str(p.relative_to(root)): p for p in tree.files(root, *tree.CXX, ".cu")}
        self.backends = {name.split("/")[1] for name in self.sources if re.match("backends/[^/]+/", name)}
        self.home = {}   # public header -> folder of lib/
        for folder, names in HEADER_ONLY.items():
            self.home.update((name, folder) for name in names.split())
        for name in self.sources:
            if match := re.fullmatch(r"lib/\w+/(\w+)/(?:\w+/)?(\w+)\.cpp", name):
                folder, stem = match.groups()
                self.home.update((header, folder) for header in (stem, f"{folder}/{stem}")
                                 if f"include/tutti/{header}.hpp" in self.sources)

    def resolve(self, name, quote, target):
        """The file of the project that `name` includes as `target`, or None."""
        folder = name.rsplit("/", 1)[0]
        places = ["include"] if quote == "<" else [folder, "lib/core", "lib/training", "lib/bindings", "backends", "tools", "tests", "include"]
        for place in places:
            parts = []
            for part in f"{place}/{target}".split("/"):
                parts = parts[:-1] if part == ".." else parts + [part]
            for path in ("/".join(parts), "/".join(parts) + ".in"):
                if path in self.sources:
                    return path
        return None

    def includes(self, name):
        """(line number, line, quote, target, file or None) of each include of a file."""
        for number, line in tree.lines(self.sources[name]):
            if include := INCLUDE.match(line):
                yield number, line.strip(), *include.groups(), self.resolve(name, *include.groups())


def header_of(path):
    return path.removeprefix("include/tutti/").removesuffix(".in").removesuffix(".hpp")


def folder_of(t, path):
    """The folder of lib/ to which a private file or a public header belongs, or None."""
    if match := re.match(r"lib/\w+/(\w+)/", path):
        return match[1]
    return t.home.get(header_of(path)) if path.startswith("include/tutti/") else None


def upward(level, mine, theirs, what):
    if mine == theirs or level.get(theirs, 99) < level.get(mine, -1):
        return None
    return f"{mine}/ includes {what}, which {'stands beside it' if level.get(theirs) == level.get(mine) else 'is above it'}"


def problem_of_lib(t, name, file):
    """The problems of a file of lib/, or of a public header, that includes `file`."""
    mine, theirs = folder_of(t, name), folder_of(t, file)
    if mine is None or theirs is None or mine not in LIB_LEVEL:
        return None   # Reported once, for the file itself.
    if file.startswith("lib/") and LIBRARY.get(theirs) != LIBRARY[mine] and component(file).split("/", 2)[2] not in SEAM:
        return f"{LIBRARY[mine]}/ includes a private header of {LIBRARY.get(theirs)}/ that is not in SEAM of tests/lint/layers.py"
    return upward(LIB_LEVEL, mine, theirs, f"{theirs}/")


def problem(t, name, quote, target, file):
    """The problem of `name` including `target`, which is `file` of the project or None; None if it is
    allowed."""
    if name.startswith("include/"):
        if quote == '"':
            return "a public header is included as <tutti/...>"
        if target.startswith("tutti/adapters/") and not name.startswith("include/tutti/adapters/"):
            return "nothing includes an adapter"
        if target.startswith("tutti/backend/") and not name.startswith("include/tutti/backend/"):
            return "users see no SPI: it declares class Backend and includes nothing of tutti/backend/"
        if name.startswith("include/tutti/adapters/"):
            return None
        if not target.startswith("tutti/"):
            return "a public header includes only the standard library and <tutti/...>" if re.search(r"[/.]", target) else None
        return None if header_of(name) in TOP or file is None else problem_of_lib(t, name, file)
    private = file is not None and file.startswith(("lib/", "backends/"))
    if name.startswith(PUBLIC_API_ONLY) and not name.startswith(PUBLIC_API_EXCEPT) and private:
        return "it uses the public API only"
    if "/losses/" in name and not name.startswith("tests/") and target.startswith(BELOW_THE_LOSSES):
        return "the loss layer sees a group, not its parts"
    if name.startswith("lib/"):
        if (file or "").startswith("backends/") or BACKEND_LIBRARY.match(target) or ("/" in target and target.split("/")[0] in t.backends):
            return "lib/ names no backend"
        return file and problem_of_lib(t, name, file)
    if name.startswith("backends/"):
        own = name.split("/")[1]
        if quote == '"' and (target.startswith("../") or target.split("/")[0] in t.backends - {own, *SHARED_BY_BACKENDS}):
            return "a backend includes no other backend, only the folders they share: " + ", ".join(SHARED_BY_BACKENDS)
        folder = file and folder_of(t, file)
        if folder and LIB_LEVEL.get(folder, 99) > LIB_LEVEL[BACKENDS_USE.split()[0]]:
            return f"a backend uses lib/ up to {BACKENDS_USE}"
    if name.startswith("tools/") and (file or "").startswith("tools/") and name.count("/") == 2:
        theirs = file.split("/")[1]
        return upward(TOOLS_LEVEL, name.split("/")[1], theirs, f"{theirs}/")
    return None


def component(path):
    """A private header and its source are one component. A public header is a component of its own,
    because it only declares."""
    return re.sub(r"\.\w+(\.in)?$", "", path)


def cycles(graph):
    """Returns lists of nodes that reach one another (Tarjan's algorithm, with an explicit stack)."""
    index, low, stack, on_stack, found = {}, {}, [], set(), []
    for start in sorted(graph):
        work = [] if start in index else [(start, iter(sorted(graph[start])))]
        if work:
            index[start] = low[start] = len(index)
            stack.append(start)
            on_stack.add(start)
        while work:
            node, targets = work[-1]
            for target in targets:
                if target not in index:
                    index[target] = low[target] = len(index)
                    stack.append(target)
                    on_stack.add(target)
                    work.append((target, iter(sorted(graph.get(target, ())))))
                    break
                if target in on_stack:
                    low[node] = min(low[node], index[target])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == index[node]:
                    members = []
                    while not members or members[-1] != node:
                        members.append(stack.pop())
                        on_stack.discard(members[-1])
                    if len(members) > 1:
                        found.append(sorted(members))
    return found


def check_includes(t):
    found, graph = [], {}
    for name in t.sources:
        mine = component(name)
        graph.setdefault(mine, set())
        for number, line, quote, target, file in t.includes(name):
            if why := problem(t, name, quote, target, file):
                found.append(f"{name}:{number}: {line}: {why}")
            elif file and component(file) != mine:
                graph[mine].add(component(file))
    for members in cycles(graph):
        found.append(f"{members[0]}: a cycle of includes: {', '.join(members)}")
    return found


def check_places(t):
    """Checks that every folder and public header is in a table, and the sizes of folders and files."""
    found, sources = [], {}
    for name, path in t.sources.items():
        if name.startswith(("include/tutti/adapters/", "docs/", "tests/")):
            continue
        if name.startswith("include/") and header_of(name) not in t.home and header_of(name) not in TOP:
            found.append(f"{name}: no folder of lib/ has a source of this name: add it to HEADER_ONLY in tests/lint/layers.py")
        if (match := re.match(r"lib/(\w+)/(\w+)/", name)) and LIBRARY.get(match[2]) != match[1]:
            found.append(f"{name}: lib/{match[1]}/{match[2]}/ has no place in the order of folders in tests/lint/layers.py")
        if (match := re.match(r"tools/(\w+)/", name)) and match[1] not in TOOLS_LEVEL:
            found.append(f"{name}: tools/{match[1]}/ has no place in the order of folders in tests/lint/layers.py")
        if re.match(r"lib/(\w+/)?\w+\.", name):
            found.append(f"{name}: a source of lib/ lies in one of its folders")
        if not name.startswith("include/") and name.endswith((".cpp", ".cu")):
            sources.setdefault(name.rsplit("/", 1)[0], []).append(name)
        if (length := sum(1 for _ in tree.lines(path))) > MANY_LINES:
            found.append(f"{tree.WARNING}{name}: {length} lines; a file has about {MANY_LINES}")
    for folder, names in sources.items():
        if len(names) > MANY_SOURCES:
            found.append(f"{tree.WARNING}{folder}/: {len(names)} sources; a folder has about {MANY_SOURCES}")
        about = t.root / folder / "meson.build"
        if "/" in folder and about.exists() and not about.read_text().startswith("# "):
            found.append(f"{folder}/meson.build: does not open with a comment that says what lives here")
    return found


def check(root):
    t = Tree(root)
    return check_includes(t) + check_places(t)


if __name__ == "__main__":
    tree.run(check)
