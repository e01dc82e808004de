"""Callbacks for libraries that train: `penstock.integrations.transformers`, `penstock.integrations.lightning`.

Each is imported by its name, and needs the library that it is for.
"""
