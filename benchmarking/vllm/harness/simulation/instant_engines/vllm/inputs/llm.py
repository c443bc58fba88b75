"""Prompts are plain mappings."""

from typing import Any

TextPrompt = TokensPrompt = dict
MultiModalDataDict = dict[str, Any]
