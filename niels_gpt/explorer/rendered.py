"""A conversation as a renderer sees it: what is trained, what is body, what is scaffold."""

from __future__ import annotations

import numpy as np

from niels_gpt.errors import MessageError
from niels_gpt.explorer.example import CONTEXT, SAMPLED, SCAFFOLD, TRAINED, ExampleView, TokenColumns
from niels_gpt.messages import Conversation
from niels_gpt.renderers.default import DefaultRenderer
from niels_gpt.renderers.engine import Family
from niels_gpt.renderers.loss import LossOn, batch_weights, loss_weights


def view_rendered(renderer: Family | DefaultRenderer, chat: Conversation, on: LossOn | None = None) -> ExampleView:
    """The tokens of a conversation; by default those are trained that the model itself would emit.

    Raises:
        MessageError: the renderer refuses the conversation.
    """
    try:
        made = renderer.render_many([chat.messages], tools=[chat.tools])  # arrays, where `render` gives lists
        trained = np.asarray(batch_weights(made, on or LossOn()) > 0, np.bool_)
    except MessageError:
        loss_weights(renderer.render(chat.messages, tools=chat.tools), chat.messages, on or LossOn())  # says it plainly
        raise
    ids, sampled, body = made.ids, made.sampled, made.is_content
    tokens = TokenColumns(
        ids=ids,
        targets=np.append(ids[1:], 0),
        kinds=np.select([trained, sampled, body], [TRAINED, SAMPLED, CONTEXT], SCAFFOLD).astype(np.uint8),
        target_trained=np.append(trained[1:], False),
        spelling=lambda token: renderer.encoder.decode([token]),
        no_target=True,
        segments=made.message_indices + 1,
        roles=[message["role"] for message in chat.messages],
        sampled=sampled,
        body=body,
    )
    name = renderer.name if isinstance(renderer, Family) else "template"
    title = (
        f"{chat.where}: {len(ids):,} tokens, {int(sampled.sum()):,} sampled, {int(trained.sum()):,} trained, "
        f"renderer {name}, attribution {made.attribution[0]}"
    )
    return ExampleView(title, tokens, has_text=True)
