"""The choice between the native kernel and Python with numpy for the inner loops of encoding conversations.

The kernel is `niels_gpt/_kernel*.c`, which the installation compiles if there is a C compiler. Both have the same
results; the kernel is faster. The environment variable `NIELS_GPT_KERNEL` decides: `auto` (default) uses the kernel if
it was built, `off` uses numpy, `require` refuses to run without the kernel.
"""

from __future__ import annotations

import os
from functools import cache
from importlib import import_module
from types import ModuleType

from niels_gpt.errors import UsageError

VARIABLE = "NIELS_GPT_KERNEL"
VERSION = 6  # the same as in `_kernel.c`; both are increased when the interface of a kernel function changes


@cache
def native() -> ModuleType | None:
    """The compiled kernel, or `None` if numpy is used. Decided once per process, at the first call.

    Raises:
        UsageError: `NIELS_GPT_KERNEL` has another value, or is `require` and the kernel was not built; or the kernel
            was built from another version of the package.
    """
    wanted = os.environ.get(VARIABLE, "auto")
    if wanted not in ("auto", "off", "require"):
        raise UsageError(f"{VARIABLE} is {wanted!r}; expected auto, off or require")
    if wanted == "off":
        return None
    try:
        kernel = import_module("niels_gpt._kernel")  # by name, because the compiled file may be missing
    except ImportError as error:
        if wanted == "require":
            raise UsageError(
                f"{VARIABLE} is 'require' and the kernel cannot be imported ({error}); install a C compiler and the "
                "package again, or unset the variable to use numpy"
            ) from error
        return None
    if getattr(kernel, "VERSION", None) != VERSION:
        raise UsageError(
            f"{kernel.__file__} was built from another version of niels_gpt; install the package again (in a checkout: "
            f"make .venv/installed), or set {VARIABLE}=off to use numpy"
        )
    return kernel


def description() -> str:
    """Which of the two is used, as `niels-gpt --version` prints it."""
    wanted = os.environ.get(VARIABLE, "auto")
    if native() is not None:
        return "native kernel"
    return f"numpy ({VARIABLE}=off)" if wanted == "off" else "numpy (the native kernel was not built)"
