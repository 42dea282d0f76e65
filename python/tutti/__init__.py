"""tutti under PyTorch: `torch.distributed.init_process_group("tutti")` after `import tutti`.

tutti.c10d registers the backend; tutti.distributed has gathers with gradients and reductions of metrics."""
import ctypes
import os

from tutti import _build

# By itself, before the extension: then its Gloo does not bind to the symbols of the Gloo in torch's library.
ctypes.CDLL(os.path.join(os.path.dirname(os.path.abspath(__file__)), _build.library))

import torch  # noqa: E402


def _minor(version):
    return version.split("+")[0].split(".")[:2]


if _minor(torch.__version__) != _minor(_build.torch_version):
    raise ImportError(f"tutti {_build.version} was built for torch {_build.torch_version}, and this is torch "
                      f"{torch.__version__}: the classes of c10d differ between minor versions. Build tutti for this "
                      f"torch; torch{_build.torch_range} is served.")

__version__ = _build.version

if torch.distributed.is_available():
    from tutti import c10d, distributed  # noqa: E402,F401
