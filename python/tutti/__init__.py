"""Collective operations with gradients: the C ABI for ctypes and, where torch is installed, a backend of
torch.distributed: `torch.distributed.init_process_group("tutti")` after `import tutti`.

tutti.c10d registers the backend; tutti.distributed has gathers with gradients and reductions of metrics, tutti.losses
ranking and focal losses."""
import ctypes
import importlib
import importlib.util
import warnings

from tutti import _build

__version__ = _build.version


def c_library():
    """The C ABI, whose functions <tutti/c/tutti.h> declares, as a ctypes.CDLL."""
    return ctypes.CDLL(_build.library("tutti_c"))


def get_include():
    """The folder of the headers, for a compiler's -I."""
    return str(_build.package / _build.headers)


def __getattr__(name):
    if name in ("c10d", "distributed", "losses"):
        return importlib.import_module("tutti." + name)
    raise AttributeError(f"module 'tutti' has no attribute '{name}'")


if _build.torch_range:   # A package without torch has none.
    try:
        if importlib.util.find_spec("torch") is not None:
            from tutti import c10d, distributed  # noqa: F401
    except Exception as error:   # The C ABI serves beside any torch, also beside one that is broken.
        warnings.warn(f"the backend of torch.distributed is not registered: {error}", stacklevel=2)
