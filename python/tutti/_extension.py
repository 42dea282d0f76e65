"""The extension _c10d for this torch and this Python."""
import ctypes
import importlib.machinery

import tutti
from tutti import _build

# Before torch: then a Gloo in this library does not bind to the symbols of the Gloo in torch's library.
ctypes.CDLL(_build.library("tutti"))

try:
    import torch
except ModuleNotFoundError as error:
    raise ImportError(f"tutti.c10d and tutti.losses need torch: pip install 'torch{_build.torch_range}'") from error


def _minor(version):
    return version.split("+")[0].split(".")[:2]


def _folder():
    """Of the extension. c10d's classes differ between minor versions of torch."""
    if _minor(torch.__version__) == _minor(_build.torch_version):
        return _build.package
    folder = _build.package / "_".join(["torch", *_minor(torch.__version__)])
    if folder.is_dir():
        return folder
    built_for = _build.torch_version or ", ".join(
        ".".join(path.name.split("_")[1:]) for path in sorted(
            _build.package.glob("torch_*"), key=lambda path: int(path.name.split("_")[2])))
    raise ImportError(f"tutti {_build.version} was built for torch {built_for}, and this is torch {torch.__version__}: "
                      f"the classes of c10d differ between minor versions. torch{_build.torch_range} is served.")


def _check(folder):
    """Refuses a Python for which there is no extension."""
    found = sorted(path.name for path in folder.glob("_c10d.*"))
    if not any("_c10d" + suffix in found for suffix in importlib.machinery.EXTENSION_SUFFIXES):
        raise ImportError(f"tutti {_build.version} serves torch {torch.__version__} by {', '.join(found)}, and this "
                          f"Python needs _c10d{importlib.machinery.EXTENSION_SUFFIXES[0]}")
    if not torch.distributed.is_available():
        raise ImportError("this torch was built without torch.distributed")


_check(_folder())
if str(_folder()) not in tutti.__path__:
    tutti.__path__.append(str(_folder()))

from tutti import _c10d  # noqa: E402,F401
