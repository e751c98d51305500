"""Patterns of keys and tokens: finding one in a text, and taking them out of a text that is shown."""

from __future__ import annotations

import re
from typing import Final

# What is written where a password or key would be, and strings whose letters are in order: they are no secrets.
_NO_SECRET: Final = (
    r"(?![^\s\"']*(?i:example|your|insert|change|replace|placeholder|redacted|dummy|sample|fake|test|demo|secret|passw"
    r"|token|todo|1234|abcd|qwert|xxx|\.\.\.|\*\*))"
)
# Small and capital letters and digits: no word, name, number or hash of documentation has all three.
_MIXED: Final = r"(?=[^\s\"']*[0-9])(?=[^\s\"']*[A-Z])(?=[^\s\"']*[a-z])"
_HEX: Final = r"(?=[a-f]*[0-9])(?=[0-9]*[a-f])[0-9a-f]{32,64}(?![\w-])"

# Placeholders of documentation: `gsk_xxxxxxxxxxxx`, `shpat_000000000000`.
_FILLED: Final = re.compile(r"([0-9A-Za-z*])\1{7}")

# Before the key itself may come lines such as `Proc-Type: 4,ENCRYPTED`. In JSON (service accounts) a line end is `\\n`.
_PRIVATE_KEY: Final = (
    r"-----BEGIN (?:[A-Z]+ )?PRIVATE KEY(?: BLOCK)?-----(?:\s|\\[nr]|[A-Za-z-]+: [^\n]{0,80}\n){0,12}[A-Za-z0-9+/=]{16}"
)

# Kind -> what its pattern needs, which is faster to look for than the pattern itself; and the pattern.
SECRETS: Final[dict[str, tuple[tuple[str, ...], re.Pattern[str]]]] = {
    kind: (hints, re.compile(pattern))
    for kind, hints, pattern in (
        ("a private key", ("PRIVATE KEY",), _PRIVATE_KEY),
        ("an AWS access key", ("AKIA", "ASIA"), r"\b(?:AKIA|ASIA)(?!\w*EXAMPLE)[0-9A-Z]{16}\b"),
        (
            "an AWS secret key",
            ("ecret",),
            r"(?i:aws_?secret_?(?:access_?)?key)[\"']?\s*[=:]\s*[\"']?(?![A-Za-z0-9/+]*EXAMPLE)"
            r"(?=[a-zA-Z/+]*\d)[A-Za-z0-9/+]{40}(?![A-Za-z0-9/+])",
        ),
        ("an Azure storage key", ("AccountKey=",), r"\bAccountKey=[A-Za-z0-9+/]{86}=="),
        (
            "a GitHub token",
            ("ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_"),
            r"\b(?:gh[pousr]_[A-Za-z0-9]{36}|github_pat_[A-Za-z0-9_]{60,})\b",
        ),
        ("a GitLab token", ("glpat-",), r"\bglpat-[A-Za-z0-9_-]{20}\b"),
        ("an Anthropic key", ("sk-ant-",), r"\bsk-ant-[A-Za-z0-9_-]{24,}"),
        (
            "an OpenAI key",
            ("sk-",),
            r"\bsk-(?:proj-|svcacct-)?(?=[A-Za-z_-]*\d)(?=[a-z0-9_-]*[A-Z])[A-Za-z0-9_-]{32,}",
        ),
        ("an OpenRouter key", ("sk-or-",), rf"\bsk-or-(?:v1-)?{_NO_SECRET}[0-9a-f]{{64}}\b"),
        ("a DeepSeek key", ("sk-",), rf"\bsk-{_NO_SECRET}(?=[a-f]*\d)(?=\d*[a-f])[0-9a-f]{{32}}\b"),
        ("a Databricks token", ("dapi",), rf"\bdapi{_NO_SECRET}(?=[a-f]*\d)[0-9a-f]{{32}}\b"),
        ("a DigitalOcean token", ("_v1_",), r"\bdo[opr]_v1_[0-9a-f]{64}\b"),
        ("a Linear key", ("lin_api_",), r"\blin_api_[A-Za-z0-9]{40}\b"),
        (
            # Only where it is used or assigned: names of files and caches are written as `key-` and a hash, too.
            "a Mailgun key",
            ("key-",),
            rf"(?:\bapi:|(?i:mailgun)\w*[\"']?\s*[:=]\s*[\"']?)key-{_NO_SECRET}(?=[a-f]*\d)(?=\d*[a-f])[0-9a-f]{{32}}\b",
        ),
        ("a Notion token", ("ntn_",), r"\bntn_[A-Za-z0-9]{43,50}\b"),
        ("an NVIDIA key", ("nvapi-",), r"\bnvapi-[A-Za-z0-9_-]{60,}"),
        ("a Perplexity key", ("pplx-",), r"\bpplx-[A-Za-z0-9]{48}\b"),
        ("a Replicate token", ("r8_",), r"\br8_(?=[A-Za-z]*\d)[A-Za-z0-9]{37}\b"),
        ("a Shopify token", ("shp",), r"\bshp(?:at|ca|pa|ss)_[0-9a-fA-F]{32}\b"),
        ("a Tavily key", ("tvly-",), r"\btvly-(?:dev-|prod-)?(?=[A-Za-z]*\d)[A-Za-z0-9]{32}\b"),
        ("a Vault token", ("hvs.",), rf"\bhvs\.{_NO_SECRET}(?=[A-Za-z_-]*\d)[A-Za-z0-9_-]{{24,}}"),
        ("a Hugging Face token", ("hf_",), r"\bhf_(?=[a-z0-9]*[A-Z])[A-Za-z0-9]{34}\b"),
        ("a Google key", ("AIza",), r"\bAIza[0-9A-Za-z_-]{35}(?![0-9A-Za-z_-])"),
        ("a Groq key", ("gsk_",), r"\bgsk_[A-Za-z0-9]{52}\b"),
        ("an npm token", ("npm_",), r"\bnpm_(?=[A-Za-z]*\d)[A-Za-z0-9]{36}\b"),
        ("a PyPI token", ("pypi-",), r"\bpypi-AgE[A-Za-z0-9_-]{50,}"),
        ("a SendGrid key", ("SG.",), r"\bSG\.[A-Za-z0-9_-]{22}\.[A-Za-z0-9_-]{43}(?![A-Za-z0-9_-])"),
        ("a Slack token", ("xox",), r"\bxox[abeoprs]-[0-9A-Za-z-]{20,}"),
        ("a Stripe key", ("k_live_",), r"\b[rs]k_live_[0-9A-Za-z]{20,}"),
        ("a JSON web token", ("eyJ",), r"\beyJ[A-Za-z0-9_-]{15,}\.eyJ[A-Za-z0-9_-]{15,}\.[A-Za-z0-9_-]{20,}"),
        (
            # Words of documentation (user:password@host) are none: letters and digits, and eight or more.
            "a password in an address",
            ("://",),
            r"\b[a-z][a-z0-9+.-]{2,20}://[^\s:/@\"'<>{}$]{1,60}:"
            r"(?![^\s@]*(?i:pass|secret|your|example|xxx|1234|changeme))"
            r"(?=[^\s:/@]*\d)(?=[^\s:/@]*[A-Za-z])[^\s:/@\"'<>{}$]{8,100}@[A-Za-z0-9]",
        ),
        ("a Google client secret", ("GOCSPX-",), r"\bGOCSPX-[A-Za-z0-9_-]{28}(?![A-Za-z0-9_-])"),
        ("a Slack webhook", ("hooks.slack.com",), r"\bhooks\.slack\.com/services/T\w{8,}/B\w{8,}/\w{24}\b"),
        ("a Telegram bot token", (":AA",), r"\b[0-9]{8,10}:AA[A-Za-z0-9_-]{33}(?![A-Za-z0-9_-])"),
        ("an xAI key", ("xai-",), r"\bxai-[A-Za-z0-9]{80}\b"),
        (
            "a bearer token",
            ("earer ",),
            rf"\b[Bb]earer {_NO_SECRET}(?:{_MIXED}[A-Za-z0-9._~+/-]{{24,}}=*|{_HEX})",
        ),
        (
            "a password",
            ("assw", "ASSW", "wd", "WD"),
            r"(?i:(?<![A-Za-z])(?:[a-z0-9]+[_-])*(?:password|passwd|pwd|passwort))[\"']?(?: ?[:=] ?| is )[\"']?"
            rf"(?![A-Za-z_.]+\(){_NO_SECRET}{_MIXED}[A-Za-z0-9!@#$%^&*+/_-]{{8,64}}(?![\w.()\[{{:/-])",
        ),
        (
            "a key or token",
            ("ey", "EY", "oken", "OKEN", "ecret", "ECRET"),
            r"(?i:(?<![A-Za-z])(?:[a-z0-9]+[_-])*(?:api[_-]?key|access[_-]?token|auth[_-]?token|client[_-]?secret"
            r"|secret[_-]?key|refresh[_-]?token))[\"']?(?: ?[:=] ?)[\"']?"
            rf"(?![A-Za-z_.]+\(){_NO_SECRET}(?:{_MIXED}[A-Za-z0-9+/_-]{{24,}}(?![\w.()\[:])|{_HEX})",
        ),
    )
}
SHOWN: Final = 4  # characters of a secret that a report may show
# What may be a part of a key in a note that was cut: capital and small letters in one run with digits at several places
# (`getUserV2ById` has them at one), or many digits of base 16.
_KEY_LIKE: Final = re.compile(
    r"(?<![\w-])[\w-]*?(?:(?=[A-Za-z0-9]*\d[A-Za-z]+\d)(?=[A-Za-z0-9]*[A-Z])(?=[A-Za-z0-9]*[a-z])[A-Za-z0-9]{12,}"
    r"|(?=[a-f]*\d)[0-9a-f]{20,})[\w-]*"
)


def may_hold_secret(text: str) -> bool:
    """Whether a text holds the beginning of a secret; quick, and True for many texts that hold none."""
    return any(hint in text for hints, _ in SECRETS.values() for hint in hints)


def secret_in(text: str) -> str | None:
    """The kind of the first secret in a text, with no more than four characters of it; `None` without one."""
    for kind, (hints, pattern) in SECRETS.items():
        for found in pattern.finditer(text) if any(hint in text for hint in hints) else ():
            if _FILLED.search(found.group()):
                continue
            size = found.end() - found.start()
            return f"{kind}: {found.group()[:SHOWN]}… ({size} characters, from character {found.start()} on)"
    return None


def redacted(text: str) -> str:
    """The text with four characters and `…` in the place of each secret; the body of a private key is left out, too."""
    for hints, pattern in SECRETS.values():
        if any(hint in text for hint in hints):
            text = pattern.sub(lambda found: f"{found.group()[:SHOWN]}…", text)
    return text


def without_keys(note: str) -> str:
    """A note of a report without what may be a key: a part of one is a key to whoever guesses the rest."""
    return _KEY_LIKE.sub(lambda found: f"{found.group()[:SHOWN]}…", redacted(note))
