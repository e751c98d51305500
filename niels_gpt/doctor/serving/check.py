"""`check_serving`: whether a running server sees what is trained, token by token.

Of a row, what is trained are the tokens before the first one that the model emits in its last answer, generation prompt
included; the server is asked for the prompt of the messages before that answer::

    trained   [user, assistant]    <|im_start|> user \\n Hi <|im_end|> \\n <|im_start|> assistant \\n | Hello <|im_end|>
    served    [user]               <|im_start|> user \\n Hi <|im_end|> \\n <|im_start|> assistant \\n |

Before the rows come probes, whose prompts are compared; the last one has a second turn after an answer that the
server itself samples. The server is also asked whether it ends an answer at each of the renderer's stops.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final, Literal

from niels_gpt.doctor.layouts.probes import PROBES, TOOLS, assistant, user
from niels_gpt.doctor.serving.causes import CAUSES, Difference, first_difference
from niels_gpt.doctor.serving.servers import Refused, Server, connect
from niels_gpt.errors import MessageError, TokenizerError
from niels_gpt.messages import Conversation, Message, read_conversation
from niels_gpt.progress import SILENT, Progress
from niels_gpt.sources.files.inputs import Rejected

_SAMPLED_TOKENS: Final = 8  # of the server's own answers
Status = Literal["equal", "differs", "refused", "not compared"]


@dataclass(frozen=True)
class Case:
    """A conversation up to a prompt.

    Attributes:
        answer: the answer that is trained after it, of a row; `None` for a probe.
    """

    name: str
    messages: Sequence[Message]
    tools: Any = None
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    answer: Message | None = None


@dataclass(frozen=True)
class Result:
    """What became of a case.

    Attributes:
        status: "refused" by the server, "not compared" where nothing is trained of it; `detail` says why.
        trained, served: the number of tokens of the prompt.
        difference: `None` also where the server returns only the number of tokens.
    """

    name: str
    status: Status
    trained: int = 0
    served: int = 0
    difference: Difference | None = None
    detail: str = ""
    own: bool = False


@dataclass(frozen=True)
class ServingReport:
    """What `check_serving` found.

    Attributes:
        by: "token ids", or "number of tokens", which is weaker: two prompts of one length may differ.
        stops: id -> whether the server ends an answer there; `None` where it could not be tried.
    """

    url: str
    server: str
    model: str
    by: str
    results: tuple[Result, ...]
    stops: Mapping[int, bool | None]

    @property
    def passed(self) -> bool:
        """Something was compared, all of it is equal, the server ends at every stop, and it refuses no row."""
        counts = Counter(result.status for result in self.results)
        refused = any(result.own and result.status == "refused" for result in self.results)
        return bool(counts["equal"]) and not counts["differs"] and not refused and False not in self.stops.values()

    @property
    def causes(self) -> dict[str, int]:
        """Cause -> how many cases differ by it first; "unknown" where only numbers of tokens are known."""
        differ = [result.difference for result in self.results if result.status == "differs"]
        return dict(Counter("unknown" if each is None else each.cause for each in differ).most_common())

    def to_json(self) -> dict[str, Any]:
        """As `--json` prints it."""
        meanings = {cause: CAUSES.get(cause, "") for cause in self.causes}
        return {**asdict(self), "stops": dict(self.stops), "passed": self.passed, "causes": meanings}


def check_serving(
    url: str,
    renderer: Any,
    chats: Iterable[Conversation | Rejected] = (),
    *,
    api_key: str | None = None,
    chat_template_kwargs: Mapping[str, Any] | None = None,
    progress: Progress = SILENT,
) -> ServingReport:
    """Compare what is trained with what a server makes of the same conversations.

    Args:
        url: `http://host:8000`; nothing is sent to any other host.
        renderer: as training uses it.
        chats: rows of the user's own, each compared up to its last answer; rows without an answer are left out.
        api_key: sent as bearer token.
        chat_template_kwargs: sent with every request, as clients of the server do; a row's own go over them.

    Raises:
        UsageError, MissingExtra: see `connect`. ServerError: the server does not answer, or not with a prompt.
    """
    server = connect(url, api_key=api_key, kwargs=chat_template_kwargs)
    rows = list(chats)
    cases = [*_probes(), *_cases(row for row in rows if isinstance(row, Conversation))]
    results = [Result(row.where, "not compared", detail=row.why, own=True) for row in rows if isinstance(row, Rejected)]
    progress.begin("comparing", total=len(cases), unit="conversations")
    with closing(server.http):
        for case in cases:
            results.append(_compare(server, renderer, case))
            progress.advance(1)
        results.append(_after_its_own_answer(server, renderer))
        stops = {stop: _tried(server, stop) for stop in renderer.get_stop_token_ids()}
    by = "token ids" if server.returns_ids else "number of tokens"
    return ServingReport(server.root, server.kind, server.model, by, tuple(results), stops)


def _probes() -> Iterator[Case]:
    """The doctor's probes, and tools of which none is called."""
    uncalled = ("tools without a call", [user("Hello"), assistant("Good evening")], TOOLS)
    for name, messages, tools in (*PROBES, uncalled):
        read = read_conversation(messages, tools)
        # A probe that ends with a result is a prompt as it is.
        end = len(read.messages) - (read.messages[-1]["role"] == "assistant")
        yield Case(name, read.messages[:end], read.tools)


def _cases(chats: Iterable[Conversation]) -> Iterator[Case]:
    """The rows up to their last answers; one without an answer, or that begins with it, has no prompt."""
    for chat in chats:
        answers = [place for place, message in enumerate(chat.messages) if message["role"] == "assistant"]
        if answers and answers[-1]:
            last = answers[-1]
            yield Case(chat.where, chat.messages[:last], chat.tools, chat.chat_template_kwargs, chat.messages[last])


def _compare(server: Server, renderer: Any, case: Case) -> Result:
    """The prompt as it is trained beside the server's."""
    own, asked = case.answer is not None, case.messages
    try:
        trained = _trained(renderer.with_kwargs(case.kwargs), case)
        prompt = server.prompt(asked, case.tools, case.kwargs)
    except MessageError as error:
        return Result(case.name, "not compared", detail=str(error), own=own)
    except Refused as refusal:
        return Result(case.name, "refused", len(trained[0]), detail=str(refusal), own=own)
    count = len(trained[0])
    if prompt.ids is None:
        return Result(case.name, "equal" if prompt.count == count else "differs", count, prompt.count, own=own)
    bos = renderer.encoder.special_tokens.get("bos_token", "")
    served, conversation = (prompt.ids, prompt.text), (asked, case.tools)
    found = first_difference(trained, served, conversation, _speller(renderer), bos)
    return Result(case.name, "differs" if found else "equal", count, prompt.count, found, own=own)


def _trained(renderer: Any, case: Case) -> tuple[list[int], list[int], list[int]]:
    """Ids, messages and kinds of the prompt: of a row, those in front of what the model emits in its answer."""
    if case.answer is None:
        rendered = renderer.render(case.messages, tools=case.tools, add_generation_prompt=True)
        end = len(rendered.token_ids)
    else:
        rendered = renderer.render([*case.messages, case.answer], tools=case.tools)
        facts = zip(rendered.message_indices, rendered.sampled_mask, strict=True)
        emitted = (place for place, (message, sampled) in enumerate(facts) if sampled and message == len(case.messages))
        end = next(emitted, len(rendered.token_ids))
    return rendered.token_ids[:end], rendered.message_indices[:end], rendered.kinds[:end]


def _after_its_own_answer(server: Server, renderer: Any) -> Result:
    """A second turn after an answer that the server samples: `detail` says whether it goes on from the same tokens."""
    name, first = "after the server's own answer", [user("Name one colour")]
    question = user("And another?")
    try:
        answer = server.answer(first, None, {}, _SAMPLED_TOKENS)
        read = read_conversation([*first, {"role": "assistant", **answer.message}, question])
        result = _compare(server, renderer, Case(name, read.messages))
        before, after = server.prompt(first, None, {}), server.prompt(read.messages, None, {})
    except Refused as refusal:
        return Result(name, "refused", detail=str(refusal))
    except MessageError as error:
        return Result(name, "not compared", detail=f"the server's answer is no message: {error}")
    if before.ids is None or answer.token_ids is None:
        return result
    bridged = renderer.bridge_to_next_turn(before.ids, answer.token_ids, [question])
    if bridged is None:
        return replace(result, detail="no bridge to the next turn for these ids")
    extends = bridged.token_ids == after.ids
    return replace(result, detail=_BRIDGES if extends else _RENDERS)


_BRIDGES: Final = "the next prompt is the bridge: it begins with the tokens that were prompted and sampled"
_RENDERS: Final = (
    "the next prompt is not the bridge: this template writes an earlier answer otherwise than it was sampled, so that "
    "rollouts of several turns are trained on prompts of their own"
)


def _tried(server: Server, stop: int) -> bool | None:
    try:
        return server.stops_at(stop)
    except Refused:
        return None


def _speller(renderer: Any) -> Callable[[Sequence[int]], str]:
    encoder = renderer.encoder

    def spell(ids: Sequence[int]) -> str:
        try:
            return str(encoder.decode(list(ids)))
        except TokenizerError:  # the server's vocabulary may be larger
            known = [token for token in ids if 0 <= token < encoder.vocab_size]
            return f"{encoder.decode(known)}<{len(ids) - len(known)} ids outside the vocabulary>"

    return spell
