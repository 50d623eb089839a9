"""Which parts of a command line are secrets, and how it is shown and kept without them.

A secret is known by the name of its option, key, header or variable, by the prefix that its issuer
gives to tokens, or by its place in an address. Nothing is judged by how random it looks: hashes,
paths and ids of the hub stay.
"""

import re
from collections.abc import Iterator, Mapping, Sequence

from zerowiz.core import shell

HIDDEN = "***"

# Patterns are compiled where they are first used: most plans look for no secret.

# The last word of a variable's name.
_VARIABLE = r"(?i)(^|_)(TOKEN|KEY|SECRET|PASSWORD|PASSWD|CREDENTIALS?)$"
# Whose tokens and keys are secrets, beside those that say so themselves (`access_token`).
_ISSUER = (
    r"(?:aws|azure|google|git(?:hub|lab)?|gh|hf|hub|(?:hf[-_])?(?:read|write)|hugging_?face(?:[-_]?hub)?"
    r"|model_?scope|wandb|swanlab|comet|neptune|kaggle|civitai|slack|discord|telegram(?:[-_]bot)?"
    r"|openai|anthropic|gemini|mistral|openrouter|deepseek|dashscope|together|groq|cohere|replicate)"
)
# `--hub_token` of TrainingArguments, `--api-key`, hydra's `api_key=`. Words of a vocabulary
# (`--eos_token`, `--user_token`) and counts (`--max_tokens`) are not.
_NAME = (
    r"(?:(?:[-\w.]*[-_.])?"
    rf"(?:(?:{_ISSUER}|auth|access|api|bearer|refresh|session|security|sas|oauth|personal"
    r"|licen[cs]e|subscription)[-_.]?token"
    rf"|(?:{_ISSUER}|api|access|secret|private|auth|account|encryption|master|signing|storage"
    r"|organization|licen[cs]e|subscription)[-_.]?key|secret|pass(?:w(?:or)?d|phrase|code)|credentials?"
    r"|connection[-_]?string|authorization|cookies?|pwd(?!\W{1,5}[~./]))"
    r"|[-\w.]*(?:api[-_]?key|access[-_]?token|password)"
    r"|(?:db|mail|smtp|user|proxy|mysql|redis)[-_]pass|(?:[-\w.]*\.)?token"
    r"|bearer|oauth2[-_]bearer|pass|pat|dsn|sas)"
)
# An option that has a secret at times: a password, a way to log in, a user with a password.
_LOOSE = r"(?:[-\w.]*[-_.])?pwd|pass|(?:(?:gradio|basic|proxy|http|db)[-_])?auth|(?:proxy[-_])?user"
# What stands openly behind the name of a secret: where it lies, a variable, a switch.
_OPEN = (
    r"(?:~|\.{0,2}/|[\w-]+/)\S*\.\w{1,6}|[-\w.]+\.(?:json|txt|pem|key|ya?ml|toml)"
    r"|\$\{?\w+\}?|<\S*>|true|false|none|null|yes|no|on|off"
)
_OPEN_BEHIND = (
    r"\S*(?:pwd|pass) (?:[\d.~]+|[.~]{0,2}/\S*|first|second|last|both|all)"
    r"|\S*auth (?:\d|/\S*|anonymous|basic|digest|bearer|kerberos|ntlm|oauth2?|oidc|ldap|iam|ssl|sso"
    r"|token|key)"
    r"|\S*user (?:[^:]*|\d+:\d+)"
    # The column of a license, or its name: `mit`, `apache-2.0`.
    r"|\S*licen[cs]e[-_.]?key (?=.{,20}$)(?-i:[a-z]+(?:[-_][a-z]+)*(?:-\d(?:\.\d)?)?(?:-[a-z]+)?)"
)
_VALUE = (
    # RFC 3986, 3.2.1: user and password. Who is named alone in an address of the web is a token,
    # as git hosts take it.
    r"(?i)(?<=://)[^\s/@:]*:[^\s/@]+(?=@)|(?<=https://)[^\s/@:]+(?=@)"
    # The query of a signed address.
    rf"|(?<=[?&])(?P<query>(?:{_NAME}|auth|sig|signature|x-(?:amz|goog)-(?:signature|credential|security-token)"
    r"|(?:key|code)(?==(?=[\w-]*\d)[\w-]{16}))=)(?!\d{1,4}(?:[&#]|$))[^&\s\"'#]+"
    r"|(?P<header>\b(?:(?:proxy-)?authorization|(?:set-)?cookie|x-[-\w]*(?:key|token))\s*:\s*)[^\n\"']+"
    r"|(?P<scheme>\bbearer\s+)(?=\S*\d)[-\w.~+/]{8,}=*"
    r"|(?P<hook>https://(?:hooks\.slack\.com/services|discord\.com/api/webhooks)/)[^\s\"']+"
    # A key of JSON, or of a dict; no secret is as short as a column's name.
    rf"|(?P<key>[\"']{_NAME}[\"']\s*:\s*)(?![\"'](?:{_OPEN})[\"'])(?:\"[^\"]{{6,}}\"|'[^']{{6,}}')"
    # A part of a connection string, or of a dict of YAML in one line.
    rf"|(?P<part>(?:[\s;,(]{_NAME}=[\"']?|[{{,]\s*{_NAME}:\s+)(?![$~./]))[^\s;,\]}}\"']{{6,}}"
    # What issuers begin their tokens with.
    r"|(?-i:\b(?:hf_[A-Za-z0-9]{20,}|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w{20,}|glpat-[-\w]{16,}"
    r"|sk-(?:ant|proj|or|svcacct)-[-\w]{16,}|sk-[A-Za-z0-9]{32,}|xox[abeprs]-[-\w]{10,}"
    r"|npm_[A-Za-z0-9]{30,}|r8_[A-Za-z0-9]{30,}|pypi-[-\w]{40,}|AIza[-\w]{30,}|(?:AKIA|ASIA)[A-Z0-9]{16}"
    r"|eyJ[-\w]{8,}\.eyJ[-\w]{8,}\.[-\w]{8,})"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----[\s\S]*)"
)


def is_secret(name: str) -> bool:
    """Whether the last word of a variable's name is that of a secret, such as TOKEN."""
    return re.search(_VARIABLE, name) is not None


def _hide_in(text: str) -> str:
    named = ("query", "header", "scheme", "hook", "key", "part")
    return re.sub(_VALUE, lambda m: "".join(m[n] or "" for n in named) + HIDDEN, text)


def hide_secrets(words: Sequence[str]) -> tuple[str, ...]:
    """A script's arguments with secrets replaced: other people may read a plan file.

    Example:
        >>> hide_secrets(("--hub_token", "mine", "--data", "https://me:mine@host/x"))
        ('--hub_token', '***', '--data', 'https://***@host/x')
    """
    return tuple(shown for _, _, shown in _show(words))


def without_secrets(words: Sequence[str]) -> tuple[str, ...]:
    """A script's arguments without secrets, and without the options whose values they are.

    Example:
        >>> without_secrets(("--lr", "1e-4", "--hub_token", "mine", "--api-key=mine"))
        ('--lr', '1e-4')
    """
    kept: list[str] = []
    for option, word, shown in _show(words):
        if word == shown:
            kept.append(word)
        # `api_key=x` of hydra is no value of the option before it.
        elif option and not _is_hidden(*word.partition("=")[::2]):
            kept.pop()
    return tuple(kept)


def quote_words(words: Sequence[str]) -> list[str]:
    """A command for a shell, each word quoted; a secret is a variable that you set before.

    Example:
        >>> quote_words(("a.py", "--hub_token", "mine", "--url=https://me:mine@host/x y"))
        ['a.py', '--hub_token', '"$HUB_TOKEN"', '--url="$URL"']
    """
    return [_quote(*each) for each in _show(words)]


def _quote(option: str, word: str, shown: str) -> str:
    # What is shown has the `=` of a name; a token of base64 ends with others.
    name, equals, _ = shown.partition("=")
    if word == shown:
        return shell.quote(word)
    if equals and re.fullmatch(r"[-+\w.]+", name):
        return f'{name}="${_variable(name)}"'
    return f'"${_variable(option) or "SECRET"}"'


def join_words(words: Sequence[str]) -> str:
    """The same in one line, to paste."""
    return " ".join(quote_words(words))


def hide_secret_values(values: Mapping[str, object]) -> dict[str, object]:
    """The values of a settings file with secrets replaced."""
    return {name: _hide_value(name, value) for name, value in values.items()}


def _variable(option: str) -> str:
    return re.sub(r"\W", "_", option.lstrip("-+")).upper()


def _hide_value(name: str, value: object) -> object:
    if _is_hidden(name, str(value or "")):
        return HIDDEN
    return _hide_in(value) if isinstance(value, str) else value


def _show(words: Sequence[str]) -> Iterator[tuple[str, str, str]]:
    """Each word behind the option whose value it may be, and as it is shown."""
    option = ""
    for word in words:
        name, equals, value = word.partition("=")
        if not word.startswith("-") and _is_hidden(option, word):
            shown = HIDDEN
        else:
            shown = _hide_in(f"{name}={HIDDEN}" if _is_hidden(name, value) else word)
        yield ("" if word.startswith("-") else option), word, shown
        option = shown if shown.startswith("-") and not equals else ""


def _is_hidden(name: str, value: str) -> bool:
    """Whether a name, such as `--token` or hydra's `+token`, is a secret's, and a value one."""
    named = value and re.fullmatch(rf"[-+]*(?:{_NAME}|{_LOOSE})", name, re.IGNORECASE)
    is_open = rf".+ (?:{_OPEN})|{_OPEN_BEHIND}"
    return bool(named) and not re.fullmatch(is_open, f"{name} {value}", re.IGNORECASE)
