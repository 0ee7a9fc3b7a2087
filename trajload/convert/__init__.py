"""Datasets of other layouts, rewritten in trajload's own format."""

from trajload.convert.native import ConvertReport, convert

__all__ = ["ConvertReport", "convert"]
