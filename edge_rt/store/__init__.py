"""The store of models: its layout, recipes, sources, fetching, and how a model argument is resolved."""

from __future__ import annotations

from edge_rt.store.config import Config, load_config, store_root
from edge_rt.store.fetch import FetchedSource, fetch_source
from edge_rt.store.layout import RemovedReport, Store, StoreEntry, open_store
from edge_rt.store.pull import Exporter, PullReport, ensure_package, export_with_edge_rt, find_made, pull
from edge_rt.store.recipes import DEFAULT_MODEL, Recipe, load_recipes
from edge_rt.store.resolve import FetchOptions, Resolved, resolve
from edge_rt.store.sources_hub import HubOptions
from edge_rt.store.sources_pip import PipOptions

__all__ = [
    "DEFAULT_MODEL",
    "Config",
    "Exporter",
    "FetchOptions",
    "FetchedSource",
    "HubOptions",
    "PipOptions",
    "PullReport",
    "Recipe",
    "RemovedReport",
    "Resolved",
    "Store",
    "StoreEntry",
    "ensure_package",
    "export_with_edge_rt",
    "fetch_source",
    "find_made",
    "load_config",
    "load_recipes",
    "open_store",
    "pull",
    "resolve",
    "store_root",
]
