"""The server: apps that speak to OpenAI, Anthropic or Ollama speak to models on this machine."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from edge_rt.errors import ConfigError, RuntimeUnavailable
from edge_rt.system.option_names import known_options

if TYPE_CHECKING:
    from starlette.applications import Starlette

    from edge_rt.runtime.model import Model


def require_packages() -> None:
    """Refuse to go on without the packages that a server is made of.

    Raises:
        RuntimeUnavailable: one of them is missing.
    """
    try:
        import starlette  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        from edge_rt.system.machine import install_command

        raise RuntimeUnavailable(
            "The server needs starlette and uvicorn.", f"{error}.", f"Install them: {install_command('serve')}"
        ) from error


@known_options()
def asgi_app(
    models: Mapping[str, Model],
    *,
    host: str = "127.0.0.1",
    key: str | None = None,
    allowed_hosts: Collection[str] = (),
    allowed_origins: Collection[str] = (),
) -> Starlette:
    """Return the application that ``edge-rt serve`` runs, for a server of your own or to be mounted in another one.

    It has the same routes and rules, below any path. How long a request may take to arrive, and how many connections
    there may be, is for the server that runs it.

    Args:
        models: by the names that requests give them; the first is the usual one. One loaded with ``slots`` answers
            several requests at once. They are closed when the application's lifespan ends; a mounted application has
            none: close them yourself.
        host: the address that the server listens on: requests are answered whose Host is a loopback name or this one;
            with ``"0.0.0.0"`` also any IP address.
        key: what requests have to bring; None: nothing, so that whoever reaches the application can use it.
        allowed_hosts: further names of the server.
        allowed_origins: origins of pages that may ask, such as ``"http://localhost:3000"``.

    Raises:
        ConfigError: there is no model.
        RuntimeUnavailable: starlette or uvicorn is missing.
    """
    if not models:
        raise ConfigError("An application needs a model.", "Got none.", "Load one: edge_rt.load(name, slots=4).")
    require_packages()
    from edge_rt.runtime.load.options import LoadOptions
    from edge_rt.server.app import make_app
    from edge_rt.server.models import LoadedModel, Models
    from edge_rt.server.shared import Server

    packages = {name: model.package.path for name, model in models.items()}
    loaded = {name: LoadedModel(name, model) for name, model in models.items()}
    server = Server(Models(lambda: packages, next(iter(models)), LoadOptions(), loaded=loaded))
    return make_app(server, host=host, key=key, allowed_hosts=allowed_hosts, allowed_origins=allowed_origins)
