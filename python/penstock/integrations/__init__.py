"""penstock inside libraries that train or serve: `transformers`, `lightning`, `vllm` and `sglang` of this package.

Each is imported by its name, and needs the library that it is for. Servers find theirs by themselves.
"""
