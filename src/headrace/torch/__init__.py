"""`DataLoader` with the signature and the results of torch's, made by Headrace's workers.

`from headrace.torch import DataLoader` in place of `from torch.utils.data import DataLoader` is all that a script needs
to change. It decides nothing about batches, which are torch's; `loader.py` has the class, `work.py` what a worker does,
`state.py` what a saved position is. Importing this package imports torch.
"""

from headrace.errors import ConfigError

try:
    import torch as _torch  # noqa: F401
except ImportError as error:
    raise ConfigError("headrace.torch needs PyTorch", fix="pip install 'headrace[torch]'") from error

from .loader import DataLoader

__all__ = ["DataLoader"]
