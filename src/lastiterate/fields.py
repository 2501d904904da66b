"""Objects of JSON, as stores and commands read and write them."""

from __future__ import annotations

from typing import Any, TypeAlias

Fields: TypeAlias = dict[str, Any]  # what a value is, whoever reads it knows by its name
