"""Which code runs the two innermost loops of encoding: the native kernel, or numpy.

The kernel is `niels_gpt/_kernel.c`, compiled when the package is installed where there is a C compiler. Both give the
same results; the kernel is faster. The environment variable `NIELS_GPT_KERNEL` decides: `auto` (default) takes the
kernel if it was built, `off` takes numpy, `require` refuses to run without the kernel.
"""

from __future__ import annotations

import os
from functools import cache
from types import ModuleType

from niels_gpt.errors import UsageError

VARIABLE = "NIELS_GPT_KERNEL"


@cache
def native() -> ModuleType | None:
    """The compiled kernel, or `None` where numpy is to be used. Decided once, when it is first asked for.

    Raises:
        UsageError: `NIELS_GPT_KERNEL` has another value, or is `require` and the kernel was not built.
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
    return kernel


def description() -> str:
    """Which of the two is used, for people: `niels-gpt --version` prints it."""
    wanted = os.environ.get(VARIABLE, "auto")
    if native() is not None:
        return "native kernel"
    return f"numpy ({VARIABLE}=off)" if wanted == "off" else "numpy (the native kernel was not built)"
