"""Which code runs the inner loops of reading and encoding conversations: the native kernel, or Python and numpy.

The kernel is `niels_gpt/_kernel*.c`, compiled when the package is installed where there is a C compiler. Both give the
same results; the kernel is faster. The environment variable `NIELS_GPT_KERNEL` decides: `auto` (default) takes the
kernel if it was built, `off` takes numpy, `require` refuses to run without the kernel.
"""

from __future__ import annotations

import os
from functools import cache
from types import ModuleType

from niels_gpt.errors import UsageError

VARIABLE = "NIELS_GPT_KERNEL"
VERSION = 2  # that `_kernel.c` has, too; both count up when a function of the kernel changes


@cache
def native() -> ModuleType | None:
    """The compiled kernel, or `None` where numpy is to be used. Decided once, when it is first asked for.

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
        import niels_gpt._kernel as kernel
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
    """Which of the two is used, for people: `niels-gpt --version` prints it."""
    wanted = os.environ.get(VARIABLE, "auto")
    if native() is not None:
        return "native kernel"
    return f"numpy ({VARIABLE}=off)" if wanted == "off" else "numpy (the native kernel was not built)"
