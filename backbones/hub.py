"""The Hugging Face hub, for weights and for data: whether it can be reached, and its errors in plain words.

Left alone, the hub's client retries for up to a minute and a half on a machine without network, so the
endpoint is tried once, briefly, before the client is used.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from backbones.errors import UserError

PROBE_SECONDS = 3.0  # how long a server may take to answer at all before we call ourselves offline
HTTP_LIBRARIES = ("httpx", "requests")  # the client's, by version: their timeouts are not OSErrors
PAGES = {"model": "", "data set": "datasets/"}  # where the hub shows a repository's terms


def endpoint() -> str:
    """The hub's address, or that of a mirror ($HF_ENDPOINT)."""
    from huggingface_hub import constants

    address = os.environ.get("HF_ENDPOINT", constants.ENDPOINT).rstrip("/")
    check_secure(address)
    return address


def check_secure(url: str) -> None:
    """Raise unless `url` is https: nothing is fetched that others could change on the way.

    An address on this machine is as good.
    """
    from urllib.parse import urlsplit

    parts = urlsplit(url)
    here = parts.scheme == "http" and parts.hostname in ("127.0.0.1", "::1", "localhost")
    if parts.scheme != "https" and not here:
        raise UserError(f"{url} is not https, and nothing is fetched in any other way; use https://")


def offline() -> bool:
    """Has the user asked for no network? The client reads the variable once, when it is imported."""
    from huggingface_hub import constants

    asked = os.environ.get("HF_HUB_OFFLINE", "").upper() in {"1", "ON", "YES", "TRUE"}
    return asked or bool(constants.HF_HUB_OFFLINE)


def out_of_reach() -> str:
    """Why the hub cannot be asked; empty when it can."""
    if offline():
        return "HF_HUB_OFFLINE is set"
    return "" if reachable(endpoint()) else f"cannot reach {endpoint()}"


def reachable(url: str, seconds: float = PROBE_SECONDS) -> bool:
    """Does anything answer at `url`? Any answer counts, even a refusal; the question takes `seconds` at most.

    A thread, because looking up a host name has no time limit of its own.
    """
    import http.client
    import ssl
    import threading
    import urllib.error
    import urllib.request

    answered = threading.Event()

    def ask() -> None:
        try:
            urllib.request.urlopen(urllib.request.Request(url, method="HEAD"), timeout=seconds).close()
            answered.set()
        except urllib.error.HTTPError:
            answered.set()
        except urllib.error.URLError as error:
            if isinstance(error.reason, ssl.SSLError):  # the real client may know the certificate
                answered.set()
        except (OSError, ValueError, http.client.HTTPException):  # no network, no such host, no HTTP
            pass

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(seconds)
    return answered.is_set()


@contextmanager
def plain_errors(
    repository: str,
    *,
    kind: str,
    local_copy: str,
    wanted: str = "",
    revision: str | None = None,
    tried: str = "",
) -> Iterator[None]:
    """The client's failures in one line each, ending in `local_copy`, the way round them.

    `kind` is "model" or "data set", `wanted` what is being fetched, `tried` what else the name could have
    been and is not ("there is no folder x here, and "). A file that the repository lacks
    (`EntryNotFoundError`) is the caller's to judge, and a mistake of ours stays a traceback.
    """
    from huggingface_hub import errors

    at, repo = endpoint(), f"{kind} {repository}"
    try:
        yield
    except errors.GatedRepoError as error:
        raise UserError(
            f"the {repo} is gated: accept its terms at {at}/{PAGES[kind]}{repository}"
            f" and run `hf auth login`, or {local_copy}"
        ) from error
    except errors.RevisionNotFoundError as error:
        raise UserError(f"the {repo} has no revision {revision or 'main'}; {local_copy}") from error
    except (errors.RepositoryNotFoundError, errors.HFValidationError) as error:
        raise UserError(
            f"{tried}{at} has no public {repo} (a private one needs `hf auth login`);"
            f" check the name, or {local_copy}"
        ) from error
    except Exception as error:
        if not _of_the_network(error):
            raise
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise UserError(f"cannot download {wanted or repo} from {at}: {reason}; {local_copy}") from error


def _of_the_network(error: Exception) -> bool:
    from huggingface_hub import errors

    if isinstance(error, errors.EntryNotFoundError):  # of the local cache: the network went away meanwhile
        return isinstance(error, errors.LocalEntryNotFoundError)
    libraries = {parent.__module__ for parent in type(error).__mro__}
    return isinstance(error, OSError) or any(name.startswith(HTTP_LIBRARIES) for name in libraries)
