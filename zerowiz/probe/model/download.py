"""Fetch a model's config.json from the Hugging Face Hub.

Import it only where the network is needed: urllib takes longer to load than a plan takes.
"""

from collections.abc import Callable
from concurrent.futures import Future
from http.client import HTTPException, HTTPMessage
from threading import Thread
from typing import IO, NamedTuple
from urllib.error import HTTPError, URLError
from urllib.request import HTTPRedirectHandler, Request, build_opener

from zerowiz import __version__
from zerowiz.errors import UsageError, ZerowizError

# Far longer than a small file takes. Whoever plans waits for it, and a size is known without.
_DEADLINE_S = 6
# The largest config.json on the Hub are some 100 kB (long `id2label` tables).
_LARGEST_CONFIG_BYTES = 1 << 22

ELSEWHERE = "use a folder with config.json, or a size such as `$model 7b`"


class _Refusal(NamedTuple):
    """The error for an answer of the Hub other than the file."""

    error: type[ZerowizError]
    message: str
    hints: tuple[str, ...]


_GATED = _Refusal(
    ZerowizError,
    "`{model_id}` is gated or private, and {endpoint} denied access",
    ("accept its terms at {endpoint}/{model_id}, then set `HF_TOKEN` to your token", ELSEWHERE),
)
_ABSENT = _Refusal(
    UsageError,
    "`{model_id}` is not a folder here, and not a model on {endpoint}",
    ("check the spelling; if it is private, set `HF_TOKEN` to your token", ELSEWHERE),
)
_NO_CONFIG = _Refusal(
    UsageError,
    "`{model_id}` on {endpoint} has no config.json",
    ("an adapter or GGUF repository has none: use its base model", ELSEWHERE),
)
# The `X-Error-Code` header where the Hub sends one (huggingface_hub, utils/_http.py,
# hf_raise_for_status), else the status.
_REFUSALS = {
    "GatedRepo": _GATED,
    "RepoNotFound": _ABSENT,
    "EntryNotFound": _NO_CONFIG,
    "401": _GATED,
    "403": _GATED,
    "404": _ABSENT,
}


class _RedirectWithoutToken(HTTPRedirectHandler):
    """Follows a redirect, but sends the token to no other host than the one it is for."""

    def redirect_request(
        self, req: Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage, newurl: str
    ) -> Request | None:
        """The next request, without the token where it goes to another host."""
        following = super().redirect_request(req, fp, code, msg, headers, newurl)
        if following and (following.type, following.host) != (req.type, req.host):
            following.remove_header("Authorization")
        return following


def _refuse(error: HTTPError, model_id: str, endpoint: str) -> ZerowizError:
    """The error that the Hub's answer means."""
    code, status = error.headers.get("X-Error-Code", ""), str(error.code)
    refusal = _REFUSALS.get(code) or _REFUSALS.get(status)
    if refusal is None:
        return ZerowizError(
            f"{endpoint} answered {status} when asked for the config.json of `{model_id}`",
            ELSEWHERE,
        )
    facts = {"model_id": model_id, "endpoint": endpoint}
    hints = (hint.format_map(facts) for hint in refusal.hints)
    return refusal.error(refusal.message.format_map(facts), *hints)


def _ask(request: Request) -> bytes:
    with build_opener(_RedirectWithoutToken()).open(request, timeout=_DEADLINE_S) as answer:
        content: bytes = answer.read(_LARGEST_CONFIG_BYTES)
        return content


def _within_deadline(ask: Callable[[], bytes]) -> bytes:
    """The answer; a socket's timeout alone ends neither a name's look-up nor a slow trickle."""
    answered: Future[bytes] = Future()

    def answer() -> None:
        try:
            answered.set_result(ask())
        except Exception as error:  # noqa: BLE001 - raised again where it is waited for
            answered.set_exception(error)

    Thread(target=answer, daemon=True).start()
    try:
        return answered.result(_DEADLINE_S)
    except TimeoutError:
        raise URLError(f"no answer within {_DEADLINE_S} s") from None


def fetch_config(model_id: str, *, endpoint: str, token: str | None) -> bytes:
    """The content of the main revision's config.json.

    Args:
        model_id: Such as `Qwen/Qwen3-8B`.
        endpoint: The Hub's address, without a last slash.
        token: The user's access token, if there is one.

    Raises:
        ZerowizError: The Hub cannot be reached, or refuses.
    """
    if not endpoint.lower().startswith(("http://", "https://")):
        raise UsageError(
            f"`HF_ENDPOINT` is not a http address: `{endpoint}`",
            "`unset HF_ENDPOINT`",
        )
    headers = {"User-Agent": f"zerowiz/{__version__}"}
    if token:
        headers["Authorization"] = f"Bearer {token}"
    address = f"{endpoint}/{model_id}/resolve/main/config.json"
    try:
        request = Request(address, headers=headers)  # noqa: S310 - the scheme is checked above
        content = _within_deadline(lambda: _ask(request))
    except HTTPError as error:
        with error:
            raise _refuse(error, model_id, endpoint) from error
    except (URLError, HTTPException, OSError) as error:
        reason = getattr(error, "reason", None) or error
        raise ZerowizError(
            f"cannot reach {endpoint} for the config.json of `{model_id}`: {reason}",
            ELSEWHERE,
        ) from error
    except ValueError as error:
        # The error's text would show the token.
        raise UsageError(
            f"`HF_ENDPOINT` or `HF_TOKEN` cannot be sent to {endpoint}",
            "see that neither has a line break or a letter that is not ASCII",
        ) from error
    return content
