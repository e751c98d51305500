"""niels_gpt: from conversations to exact token ids, exact loss masks, memory-mapped caches and fixed-shape batches.

::

    import niels_gpt as ng

    r = ng.renderer("Qwen/Qwen3-8B")              # or a local directory
    x = r.render(messages)                        # print(x), x.show(); coloured tokens in a notebook
    ids, labels = x.token_ids, x.labels()         # -100 where a token is not trained

    ng.build("chats.jsonl", "episodes/chats", "Qwen/Qwen3-8B")
    for batch in ng.loader("episodes/chats", batch_size=8, sequence_length=2048, packing=True):
        ...
    ng.diagnose("episodes/chats")                 # what no loss curve shows

`docs/architecture.md` draws the rooms of the package. A name is imported when it is first used, so that importing
the package costs nothing.
"""

from typing import TYPE_CHECKING

from niels_gpt.lazy import lazy_names
from niels_gpt.version import __version__ as __version__

if TYPE_CHECKING:
    from niels_gpt.api import build, check_serving, convert, diagnose, explore, loader, open, render, renderer, tokenize
    from niels_gpt.renderers.loss import LossOn

__all__ = [
    "LossOn",
    "build",
    "check_serving",
    "convert",
    "diagnose",
    "explore",
    "loader",
    "open",
    "render",
    "renderer",
    "tokenize",
]

__getattr__ = lazy_names(
    __name__,
    dict.fromkeys(__all__, "api") | {"LossOn": "renderers.loss"},
    subpackages=("doctor",),  # ng.doctor.watch(trainer)
)


def __dir__() -> list[str]:
    """The public names, for completion."""
    return sorted({*globals(), *__all__})
