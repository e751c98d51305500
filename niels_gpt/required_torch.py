"""`torch`, for modules that cannot be imported without it: `from niels_gpt.required_torch import torch`.

A plain `import torch` raises `ModuleNotFoundError`, which does not say that an extra of this package installs it.
"""

from __future__ import annotations

from niels_gpt.extras import check_library

check_library("torch")  # before the import, for an error that names the missing extra
import torch  # noqa: E402
import torch.distributed  # noqa: E402
import torch.utils.data  # noqa: E402

__all__ = ["torch"]
