"""A conversation as a renderer sees it: what is trained, what is body, what is scaffold."""

from __future__ import annotations

from niels_gpt.explorer.example import ExampleView, Kind, TokenView
from niels_gpt.messages import Conversation
from niels_gpt.renderers.default import DefaultRenderer
from niels_gpt.renderers.engine import Family
from niels_gpt.renderers.loss import LossOn, loss_weights


def view_rendered(renderer: Family | DefaultRenderer, chat: Conversation, on: LossOn | None = None) -> ExampleView:
    """The tokens of a conversation; by default those are trained that the model itself would emit.

    Raises:
        MessageError: the renderer refuses the conversation.
    """
    made = renderer.render(chat.messages, tools=chat.tools)
    trained = (loss_weights(made, chat.messages, on or LossOn()) > 0).tolist()
    texts = [renderer.encoder.decode([token]) for token in made.token_ids]
    following = [*made.token_ids[1:], 0]
    views = []
    for at, token in enumerate(made.token_ids):
        kind: Kind = "context" if made.is_content[at] else "scaffold"
        if trained[at] or made.sampled_mask[at]:
            kind = "trained" if trained[at] else "sampled"
        last = at + 1 == len(texts)
        message = made.message_indices[at]
        views.append(
            TokenView(
                position=at,
                id=token,
                text=texts[at],
                kind=kind,
                target=following[at],
                target_text="" if last else texts[at + 1],
                target_trained=not last and trained[at + 1],
                segment=message + 1,
                role=made.message_roles[message] if message >= 0 else None,
                sampled=made.sampled_mask[at],
                body=made.is_content[at],
            )
        )
    name = renderer.name if isinstance(renderer, Family) else "template"
    title = (
        f"{chat.where}: {len(texts):,} tokens, {sum(made.sampled_mask):,} sampled, {sum(trained):,} trained, "
        f"renderer {name}, attribution {made.attribution}"
    )
    return ExampleView(title, views, has_text=True)
