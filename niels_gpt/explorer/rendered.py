"""A conversation as a renderer sees it: what is sampled, what is body, what is scaffold."""

from __future__ import annotations

from niels_gpt.explorer.tokens import ExampleView, Kind, TokenView
from niels_gpt.messages import Conversation
from niels_gpt.renderers.template import TemplateRenderer


def view_rendered(renderer: TemplateRenderer, chat: Conversation) -> ExampleView:
    """The tokens of a conversation; `trained` are those that the model itself would emit.

    Raises:
        MessageError: the template refuses the conversation.
    """
    made = renderer.render(chat.messages, tools=chat.tools)
    texts = [renderer.encoder.decode([token]) for token in made.token_ids]
    following = [*made.token_ids[1:], 0]
    views = []
    for at, token in enumerate(made.token_ids):
        kind: Kind = "trained" if made.sampled_mask[at] else "context" if made.is_content[at] else "scaffold"
        last = at + 1 == len(texts)
        views.append(
            TokenView(
                position=at,
                id=token,
                text=texts[at],
                kind=kind,
                target=following[at],
                target_text="" if last else texts[at + 1],
                target_trained=not last and made.sampled_mask[at + 1],
                segment=made.message_indices[at] + 1,
            )
        )
    trained = sum(made.sampled_mask)
    title = f"{chat.where}: {len(texts):,} tokens, {trained:,} sampled, attribution {made.attribution}"
    return ExampleView(title, views, has_text=True)
