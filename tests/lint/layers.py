"""Who may include whom: docs/design/0002-core.md, "The layers"."""
import re

import tree

# The public headers from the bottom up; one includes its own layer and those below it.
LAYERS = [
    "call_options cluster deadline device dtype error half log memory operation reduce_op registration rows shape store store_server "
    "tensor value version work",
    "backend",
    "group_options process_group trace",
    "coalesce init row_layout",
    "gather",
    "autograd autograd_messages autograd_reduce autograd_root sync",
    "losses/cross_entropy losses/focal losses/loss losses/p_auc_at_budget losses/ranking_loss losses/recall_at_quantile "
    "losses/smooth_ap losses/warm_up",
    "tutti",
]
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names.split()}

INCLUDE = re.compile(r'\s*#\s*include\s*([<"])([^>"]+)[>"]')
BACKEND_LIBRARY = re.compile(r"(gloo|nccl|rccl|cuda|mpi|ucc|ucp)(_|/|\.h|$)")
BELOW_THE_LOSSES = ("tutti/backend.hpp", "tutti/store.hpp", "tutti/work.hpp")
PUBLIC_API_ONLY = ("tools/", "docs/", "tests/conformance/", "tests/support/", "tests/programs/tool/",
                   "tests/programs/install/", "tests/programs/compile_fail/", "backends/hier/")


def header_problem(name, target):
    """A public header: the standard library and headers of its own layer or below."""
    if target.startswith("tutti/"):
        other = target.removeprefix("tutti/").removesuffix(".hpp")
        if other.startswith("adapters/"):
            return "nothing includes an adapter"
        if other not in LEVEL:
            return f"'{other}' has no layer: add it to LAYERS in tests/lint/layers.py"
        return None if LEVEL[other] <= LEVEL[name] else f"'{other}' is a layer above '{name}'"
    if "/" in target or "." in target:
        return "a public header includes only the standard library and <tutti/...>"
    return None


def problem(path, quote, target, backends):
    """What is wrong with `path` including `target`, or None."""
    stem = re.sub(r"^(include/tutti|lib)/|\.[^/]*$", "", path)
    if "losses/" in path and not path.startswith("tests/") and target in BELOW_THE_LOSSES:
        return "the loss layer sees a group, not what is below it"
    if path.startswith("include/tutti/adapters/"):
        return "adapters do not see internals" if target.startswith("internal/") else None
    if path.startswith("include/tutti/"):
        if stem not in LEVEL:
            return f"'{stem}' has no layer: add it to LAYERS in tests/lint/layers.py"
        if quote == '"':
            return "a public header is included as <tutti/...>"
        return header_problem(stem, target)
    if path.startswith(PUBLIC_API_ONLY) and target.startswith("internal/"):
        return "it uses the public API only"
    if path.startswith("lib/"):
        if BACKEND_LIBRARY.match(target) or target.split("/")[0] in backends:
            return "lib/ names no backend"
        if path == f"lib/{stem}.cpp" and stem in LEVEL and target.startswith("tutti/"):
            return header_problem(stem, target)
    if path.startswith("backends/"):
        own = path.split("/")[1]
        if quote == '"' and (target.startswith("../") or target.split("/")[0] in backends - {own, "cuda"}):
            return "a backend includes no other backend, only the room they share: cuda/"
    return None


def check(root):
    sources = [(p, str(p.relative_to(root))) for p in tree.files(root, *tree.CXX)]
    backends = {name.split("/")[1] for _, name in sources if re.match("backends/[^/]+/", name)}
    found = []
    for path, name in sources:
        for number, line in tree.lines(path):
            include = INCLUDE.match(line)
            if include and (why := problem(name, *include.groups(), backends)):
                found.append(f"{name}:{number}: {line.strip()}: {why}")
    return found


if __name__ == "__main__":
    tree.run(check)
